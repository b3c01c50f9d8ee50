"""`lockstep runs`."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.commands.options import Json
from lockstep.errors import printable
from lockstep.messages import command
from lockstep.words import duration, plural

_HEAD = ("name", "recipe", "accuracy", "started", "time", "state")


def runs(
    folder: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder that contains the runs.")] = Path(
        "runs"
    ),
    json_output: Json = False,
) -> None:
    """List the runs with accuracy, time and state, the newest last.

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
        print(json.dumps({"runs": listed}))
        return
    if not listed:
        print(printable(f"no runs in {folder}: `{command('train')}` starts one"))
        return
    rows = [_HEAD, *map(_row, listed)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row, problem in zip(rows, [None, *(run["problem"] for run in listed)], strict=True):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if problem is not None:
            print(printable(f"  {problem}"))


def _row(run: Mapping[str, Any]) -> tuple[str, ...]:
    steps = f", {plural(run['steps'], 'step')}" if run["steps"] is not None and run["state"] != "complete" else ""
    return (
        printable(run["name"]),
        printable(run["recipe"] or "?"),
        "" if run["accuracy"] is None else f"{run['accuracy']:.2%}",
        datetime.fromtimestamp(run["started"]).strftime("%Y-%m-%d %H:%M"),
        "" if run["total_s"] is None else duration(run["total_s"]),
        f"{run['state']}{steps}",
    )
