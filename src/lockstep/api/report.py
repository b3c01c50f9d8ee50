"""lockstep.report."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.api.specs import evaluate_spec
from lockstep.config.placement import Placement
from lockstep.errors import DATA, LockstepError
from lockstep.files import replace
from lockstep.jobs.specs import ReportSpec
from lockstep.launch.submit import submit_from_program
from lockstep.launch.workers import Output
from lockstep.runs.folder import Run


def write_report(
    paths: Sequence[Path], output: Path, placement: Placement, code: Mapping[str, str | None]
) -> str | None:
    """Write the report of the runs in `paths` to the file `output`. Return what it lacks, or None.

    `code` allows the run's own model and dataset, as for `evaluate`. Raises: LockstepError.
    """
    from lockstep.report.page import page

    runs, record, note = [Run.existing(path) for path in paths], None, None
    if len(runs) == 1:
        try:
            record = _record(runs[0], placement, code)
        except LockstepError as error:
            if error.code != DATA:
                raise
            note = f"Without pictures, classes and calibration, because the images are not here: {error}"
    replace(output, page([run.path for run in runs], record, note).encode())
    return note


def _record(run: Run, placement: Placement, code: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the record of the report job. Raises: LockstepError, KeyboardInterrupt."""
    spec = evaluate_spec(run, placement, code=code, split=None, checkpoint=None, kind=ReportSpec)
    outcome = submit_from_program(spec, Output(lines_to_stderr=True), (sys.stdout, sys.stderr))
    if outcome.record is None:
        raise KeyboardInterrupt
    return outcome.record
