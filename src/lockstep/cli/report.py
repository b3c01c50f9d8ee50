"""lockstep report."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.cli.options import EVERYWHERE, Code, options_from, placement_of, require_new_file


@options_from(placement=EVERYWHERE, defaults={"data": "that of training", "processes": "as in training"})
def report(
    run: Annotated[list[Path], typer.Argument(metavar="RUN...", help="A run's folder, or several to compare.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write, a new file.")],
    model: Code = None,
    dataset: Code = None,
    **options: Any,
) -> None:
    """Write a page about a run: accuracy, curves, confusion, calibration, mistakes as pictures, speed, provenance.

    The page is one file, which needs no network. Images are classified again by the newest checkpoint. Without the
    run's data the page has no pictures, and says so. Several runs are compared by what their folders state.

    \b
    Examples:
      lockstep report runs/digits-1 -o report.html
      lockstep report runs/first runs/second -o compared.html
    """
    from lockstep.api.report import write_report

    require_new_file("--output", output)
    note = write_report(run, output, placement_of(options), {"model": model, "dataset": dataset})
    print(f"{note + chr(10) if note else ''}the report is in {output}")
