"""`lockstep report`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.cli.options import EVERYWHERE, Code, Quiet, options_from, require_new_file


@options_from(placement=EVERYWHERE, defaults={"data": "that of training", "processes": "as in training"})
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="A run's folder, or several to compare.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.html", help="The page, a new file.")],
    model: Code = None,
    dataset: Code = None,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Write a page about a run: accuracy, curves, confusion, calibration, mistakes as pictures, speed, recipe.

    The page is one file that makes no request. The test images are classified again by the newest checkpoint, or the
    best one of a run with patience. If the data are gone, the page has no pictures, and says so.

    Several runs are compared by what their folders state: what differs, and their curves over each other.

    \b
    Examples:
      lockstep report runs/digits-1 -o report.html
      lockstep report runs/first runs/second -o compared.html
    """
    import lockstep

    require_new_file("--output", output)
    given = {name: value for name, value in options.items() if value is not None}
    made = lockstep.report(*runs, model=model, dataset=dataset, quiet=quiet, **given)
    made.save(output)
    if not quiet:
        print(f"{made.lacking or ''}\n{output}".strip())
