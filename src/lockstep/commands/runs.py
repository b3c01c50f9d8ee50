"""`lockstep runs`."""

import dataclasses
import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.commands.options import Json
from lockstep.errors import printable
from lockstep.messages import command
from lockstep.words import duration, plural, size

if TYPE_CHECKING:
    from lockstep.runs.listing import RunFacts

_HEAD = ("name", "recipe", "accuracy", "started", "time", "state", "size")


def runs(
    folder: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder that contains the runs.")] = Path(
        "runs"
    ),
    json_output: Json = False,
) -> None:
    """List the runs, the newest last: name, recipe, accuracy, start, time, state and size.

    The state is complete, training, stopped (continue it with --resume) or damaged. The time is that of the session
    that completed the run.

    \b
    Examples:
      lockstep runs
      lockstep runs --runs experiments --json
    """
    from lockstep.runs.listing import runs_in

    listed = runs_in(folder)
    if json_output:
        print(json.dumps({"runs": [dataclasses.asdict(run) for run in listed]}))
        return
    if not listed:
        print(printable(f"no runs in {folder}: `{command('train')}` starts one"))
        return
    rows = [_HEAD, *map(_row, listed)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row, run in zip(rows, [None, *listed], strict=True):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if run is not None and run.problem is not None:
            print(printable(f"  {run.problem}"))


def _row(run: "RunFacts") -> tuple[str, ...]:
    steps = f", {plural(run.steps, 'step')}" if run.steps is not None and run.state != "complete" else ""
    return (
        printable(run.name),
        printable(run.recipe or "?"),
        "" if run.accuracy is None else f"{run.accuracy:.2%}",
        datetime.fromtimestamp(run.started).strftime("%Y-%m-%d %H:%M"),
        "" if run.total_s is None else duration(run.total_s),
        f"{run.state}{steps}",
        size(run.size_bytes),
    )
