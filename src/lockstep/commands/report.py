"""lockstep.report, and `lockstep report`."""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from lockstep.commands.of_run import evaluated, existing, fields_of_run
from lockstep.commands.shell import AnyRun, Quiet, record_of, require_writable
from lockstep.errors import DATA, LockstepError, printable
from lockstep.files import deliver, given
from lockstep.jobs.specs import ReportSpec
from lockstep.launch.submit import require_alone
from lockstep.messages import muted


@dataclass(frozen=True)
class Report:
    """A page about a run. A notebook shows it.

    Attributes:
        html: the page, which needs no other file.
        path: the file that it is in.
        lacking: what it lacks and why, or None.
    """

    html: str = field(repr=False)
    path: Path
    lacking: str | None = None

    def __str__(self) -> str:
        return "\n".join(
            printable(str(part)) for part in (self.lacking, self.path) if part is not None
        )

    def save(self, path: str | Path) -> None:
        """Write the page to the file `path`. Raises: LockstepError if it cannot be written."""
        deliver(given(path), self.html.encode())

    def _repr_html_(self) -> str:
        """Return the page in a frame, so that its style does not reach the notebook."""
        style = "width: 100%; height: 48rem; border: 1px solid #8886"
        return (
            f'<iframe srcdoc="{escape(self.html)}" style="{style}" title="Report by '
            f'Lockstep"></iframe>'
        )


def report(
    run: AnyRun,
    output: Annotated[
        Path | str | None, typer.Option("--output", "-o", metavar="FILE.html")
    ] = None,
    data: Path | str | None = None,
    processes: int | None = None,
    device: str = "auto",
    trust_code: bool = False,
    force: bool = False,
    quiet: Quiet = False,
) -> Report:
    """Write a page about a run.

    It has accuracy, curves, confusion, calibration, mistakes as pictures, and recipe. The page is
    one file that makes no request. The test images are classified again by the newest checkpoint.
    If the data are gone, the page has no pictures, and says so.

    Examples:
      lockstep report runs/digits-1                       writes runs/digits-1/report.html
      lockstep report runs/first -o first.html

    Args:
        run: A run's folder.
        output: The page. Default: report.html in the run's folder. A page on other images does not
            take the place of one that is there.
        data: Folder of the dataset. Default: that of training.
        processes: Number of processes. Default: as in training.
        device: cpu, cuda, certain GPUs as in cuda:0,2, or auto: GPUs if there are any.
        trust_code: Execute the model and dataset of your own that a file or a run names.
        force: Overwrite a file that is there.
        quiet: Print only errors.

    A notebook shows the report that Python gets. It has the `path` of the page, and `lacking` says
    what that lacks.

        print(lockstep.report("runs/first").path)

    Raises:
        LockstepError: a run that does not exist or has no checkpoint yet, code that was not
            allowed.
        KeyboardInterrupt: Ctrl-C.
    """
    from lockstep.pages.runs import page

    require_alone("report")
    opened = existing(run)
    path = opened.path / "report.html" if output is None else given(output)
    if output is not None:
        require_writable(path, force)
    if not opened.steps:
        raise opened.no_checkpoint()
    record, lacking = None, None
    try:
        with muted(quiet):
            fields = fields_of_run(
                opened, trust_code, data=data, processes=processes, device=device
            )
            chosen = evaluated(**fields)
            if chosen["split"] != opened.recipe().evaluated_split:  # The run's own page stays.
                require_writable(path, force)
            record = record_of(ReportSpec(**fields, **chosen), quiet)
    except LockstepError as error:
        if error.code != DATA or data is not None:
            raise
        lacking = (
            f"The images were not classified again, so there are no pictures and no "
            f"confusion matrix: {error}"
        )
    made = Report(page(opened, record, lacking), path, lacking)
    made.save(path)
    return made
