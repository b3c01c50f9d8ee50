"""lockstep.report, and `lockstep report`."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.commands.options import (
    AS_TRAINED,
    EVERYWHERE,
    Quiet,
    TrustCode,
    options_from,
    placement_of,
    require_new_file,
    streams,
)
from lockstep.commands.specs import of_run
from lockstep.errors import DATA, LockstepError
from lockstep.files import deliver
from lockstep.jobs.context import Output
from lockstep.jobs.specs import ReportSpec
from lockstep.launch.submit import require_alone, submit
from lockstep.messages import muted
from lockstep.runs.folder import Run


@dataclass(frozen=True)
class Report:
    """A page about one or several runs. A notebook shows it.

    Attributes:
        html: the page, which needs no other file.
        lacking: what it lacks and why, or None.
    """

    html: str
    lacking: str | None = None

    def save(self, path: str | Path) -> None:
        """Write the page to the file `path`. Raises: LockstepError if it cannot be written."""
        deliver(Path(path), self.html.encode())

    def _repr_html_(self) -> str:
        """Return the page in a frame, so that its style does not reach the notebook."""
        style = "width: 100%; height: 48rem; border: 1px solid #8886"
        return f'<iframe srcdoc="{escape(self.html)}" style="{style}" title="Report by Lockstep"></iframe>'


def report(
    run: str | Path | Run,
    *others: str | Path | Run,
    data: str | Path | None = None,
    processes: int | None = None,
    device: str = "auto",
    trust_code: bool = False,
    quiet: bool = False,
) -> Report:
    """Return a page about a run, or about several to compare. `lockstep report` does the same.

        lockstep.report("runs/first")                            # in a notebook
        lockstep.report("runs/first").save("first.html")
        lockstep.report("runs/first", "runs/second").save("compared.html")

    Of one run, all test images are classified again by the newest checkpoint, or the best one of a run with patience.
    If this is not possible, as without the run's data, the page has what the run's folder states, and `lacking` says
    so. Of several runs, it has only that.

    Args:
        run: a run, or its folder.
        *others: further ones, to compare.
        data: folder of the dataset; None for that of training.
        processes: number of processes; None: one for each GPU, or on CPU min(towers, cores / threads).
        device: "auto", "cpu", "cuda", or GPUs as in "cuda:0,2".
        trust_code: True to execute the run's own model and dataset.
        quiet: True to print no messages.

    Raises:
        LockstepError: a run that does not exist or has no checkpoint yet, code that was not allowed.
        KeyboardInterrupt: Ctrl-C.
    """
    from lockstep.pages.runs import page

    require_alone("report")
    runs = [one if isinstance(one, Run) else Run.existing(Path(one).expanduser()) for one in (run, *others)]
    placement = placement_of({"device": device, "processes": processes, "data": data})
    with muted(quiet), streams(quiet) as out:
        if empty := [one for one in runs if not one.steps]:
            raise empty[0].no_checkpoint()
        if len(runs) > 1:
            return Report(page(runs))
        try:
            fields = of_run(runs[0], placement, trust_code)
            spec = ReportSpec(**fields, split=fields["recipe"].evaluated_split)
            outcome = submit(spec, Output(quiet, lines_to_stderr=True), stdout=out)
        except LockstepError as error:
            if error.code != DATA:
                raise
            lacking = f"The images were not classified again, so there are no pictures and no confusion matrix: {error}"
            return Report(page(runs, lacking=lacking), lacking)
    if outcome.record is None:
        raise KeyboardInterrupt
    return Report(page(runs, outcome.record))


@options_from(placement=EVERYWHERE, defaults=AS_TRAINED)
def report_shell(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="A run's folder, or several to compare.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.html", help="The page, a new file.")],
    trust_code: TrustCode = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Write a page about a run, or one that compares runs.

    It has accuracy, curves, confusion, calibration, mistakes as pictures, speed and recipe. The page is one file that
    makes no request. The test images are classified again by the newest checkpoint, or the best one of a run with
    patience. If the data are gone, the page has no pictures, and says so.

    Several runs are compared by what their folders state: what differs, and their curves over each other.

    \b
    Examples:
      lockstep report runs/digits-1 -o report.html
      lockstep report runs/first runs/second -o compared.html
    """
    require_new_file("--output", output)
    given = {name: value for name, value in options.items() if value is not None}
    made = report(*runs, trust_code=trust_code, quiet=quiet, **given)
    made.save(output)
    if not quiet:
        print(f"{made.lacking or ''}\n{output}".strip())
