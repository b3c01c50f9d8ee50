"""lockstep.report, and `lockstep report`.

Examples:
  lockstep report runs/digits-1                       writes runs/digits-1/report.html
  lockstep report runs/first -o first.html
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from lockstep.commands.plan import evaluated, existing, fields_of_run
from lockstep.commands.shell import record_of, require_writable
from lockstep.errors import DATA, LockstepError, printable
from lockstep.files import deliver, given
from lockstep.jobs.specs import ReportSpec
from lockstep.launch.submit import require_alone
from lockstep.messages import muted
from lockstep.runs.run import Run, no_checkpoint


@dataclass(frozen=True)
class Report:
    """A page about a run. A notebook shows it.

    Attributes:
        html: The page, which needs no other file.
        path: The file that holds the page.
        lacking: What the page lacks and why, or None.
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
    run: Path | str | Run,
    output: Path | str | None = None,
    data: Path | str | None = None,
    processes: int | None = None,
    device: str = "auto",
    trust_code: bool = False,
    force: bool = False,
    quiet: bool = False,
) -> Report:
    """Write a page about a run.

    The page shows accuracy, training curves, confusion matrix, calibration, the mistakes as
    pictures, and the recipe. It is one HTML file that loads nothing from the network. For the page,
    the newest checkpoint classifies the test images again. If the data are missing, the page has no
    pictures, and says why.

    Args:
        run: Folder of a run.
        output: The file to write. Default: report.html in the folder of the run. A page about
            images other than those of training does not replace an existing report.
        data: Folder of the dataset. Default: that of training.
        processes: Number of processes. Default: as in training.
        device: cpu, cuda, GPUs by number as in cuda:0,2, or auto: GPUs if there are any.
        trust_code: Execute code that a recipe file or a run names: a model or a dataset that is not
            built in.
        force: Overwrite a file that exists.
        quiet: Print only errors.

    Returns:
        The page, which a notebook shows.

    Raises:
        LockstepError: A run that does not exist or has no checkpoint yet, or code that was not
            trusted.
        KeyboardInterrupt: Ctrl-C.

    Examples:
        >>> print(lockstep.report("runs/digits-1").path)
    """
    from lockstep.pages.runs import page

    require_alone("report")
    opened = existing(run)
    path = opened.path / "report.html" if output is None else given(output)
    if output is not None:
        require_writable(path, force)
    if not opened.steps:
        raise no_checkpoint(opened)
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
