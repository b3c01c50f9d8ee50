"""`lockstep runs rm`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from lockstep.errors import LockstepError
from lockstep.runs.folder import removable, remove
from lockstep.words import plural, size


def rm(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...")],
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
) -> Iterator[str]:
    """Delete runs, after a question.

    Nothing is deleted unless each folder is a run, holds nothing else and is no link, and no program trains in it.

    Examples:
      lockstep runs rm runs/first runs/second
      lockstep runs rm runs/first --yes

    Args:
        runs: The folders of runs.
        yes: Ask no question.
    """
    found = [removable(path) for path in dict.fromkeys(runs)]
    for run in found:
        total = sum(path.lstat().st_size for path in run.path.rglob("*"))
        yield f"{run.path}  {run.state}, {size(total)}"
    if not yes:
        if not sys.stdin.isatty():
            raise LockstepError("nothing was deleted, as there is no terminal to ask in: add --yes")
        if not typer.confirm(f"Delete {plural(len(found), 'run')}?"):
            yield "nothing was deleted"
            return
    for run in found:
        remove(run)
    yield f"deleted {plural(len(found), 'run')}"
