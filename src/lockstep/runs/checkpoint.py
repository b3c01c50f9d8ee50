"""The checkpoints in the folder of a run: saving, choosing, pruning. Each is one state file."""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lockstep.errors import DATA, LockstepError
from lockstep.files import remove_abandoned
from lockstep.messages import logger
from lockstep.runs import statefile
from lockstep.runs.folder import Run
from lockstep.runs.statefile import StateFile, checkpoints_in, file_name, step_of

if TYPE_CHECKING:
    from torch import Tensor


def save(
    folder: Path, tensors: "Mapping[str, Tensor]", facts: Mapping[str, Any], fence: Callable[[], None] = lambda: None
) -> Path:
    """Write a checkpoint of `tensors` (with a scalar `step`) and `facts` into `folder`, and return its path.

    An existing checkpoint of the step stays if it is valid, as its bits are the same.
    Raises: as `statefile.write`; nothing is left behind then.
    """
    step = int(tensors["step"])
    path = folder / file_name(step)
    if not os.path.lexists(path) or not _verify(path, set()):
        folder.mkdir(parents=True, exist_ok=True)
        statefile.write(path, tensors, {"step": step, **facts}, fence)
    return path


def latest(folder: Path) -> StateFile | None:
    """Return the newest checkpoint that verifies, or None if there is none at all.

    Damaged checkpoints are skipped, with a message. A checkpoint that training deletes during the read is not damaged:
    a newer one exists, so the search starts again.
    Raises: LockstepError if there are checkpoints, and all are damaged.
    """
    damaged: set[Path] = set()
    paths = list(checkpoints_in(folder).values())
    while paths:
        try:
            return statefile.read(paths[-1])
        except FileNotFoundError:
            paths = list(checkpoints_in(folder).values())
        except LockstepError as error:
            path = paths.pop()
            if path not in damaged:
                logger.warning(f"{error}: trying the one before it")
            damaged.add(path)
    if damaged:
        raise LockstepError(f"every checkpoint in {folder} is damaged; the run cannot be continued from them", DATA)
    return None


def steps(folder: Path) -> list[int]:
    """Return the steps of all checkpoints, valid or damaged, the newest first. Reads no file."""
    return list(reversed(checkpoints_in(folder)))


def read_step(folder: Path, step: int) -> StateFile:
    """Return the checkpoint after `step` updates. Raises: as `statefile.read`."""
    return statefile.read(folder / file_name(step))


def read_result(run: Run) -> StateFile:
    """Return the newest valid checkpoint; of a complete run with `patience` the best state, which is the result.

    Raises: LockstepError if there is none, or the result is damaged.
    """
    best = (run.result() or {}).get("best_step")
    found = latest(run.checkpoints)
    if found is None:
        raise none_yet(run)
    if best in (None, found.step):
        return found
    from lockstep.core.state import best_of  # imports torch

    tensors = best_of(found.tensors)
    found = replace(found, facts={**found.facts, "step": int(tensors["step"])}, tensors=tensors)
    if best != found.step:
        raise LockstepError(
            f"the valid checkpoints of {run.path} do not hold the weights after {best} steps, which are its result: "
            f"use {run.model}, or compute them again: move result.json away, and resume the run",
            DATA,
        )
    return found


def read_chosen(run: Run, which: int | Literal["best"]) -> StateFile:
    """Return the checkpoint after `which` updates, or the best. Raises: LockstepError if there is none, or damaged."""
    while True:
        there = sorted(checkpoints_in(run.checkpoints))
        if not there:
            raise none_yet(run)
        available = f"its checkpoints are those after {', '.join(map(str, there))} steps"
        step = run.best_step(there) if which == "best" else which
        if step is None:
            raise LockstepError(
                f"--checkpoint best: no checkpoint of {run.path} was evaluated in training: {available}. "
                f"Train with --eval-every N to know the best"
            )
        if step not in there:
            raise LockstepError(f"--checkpoint {step}: {run.path} has no such checkpoint: {available}")
        with contextlib.suppress(FileNotFoundError):  # Training deleted it during the read.
            return read_step(run.checkpoints, step)


def none_yet(run: Run) -> LockstepError:
    """Return the error for a run without a checkpoint."""
    return LockstepError(f"{run.path} has no checkpoint yet", DATA)


def clear_ahead(folder: Path, step: int) -> None:
    """Rename checkpoints after `step` to `damaged-...`; delete unfinished ones. A resumed run redoes those steps."""
    for later, path in checkpoints_in(folder).items():
        if later > step:
            _set_aside(path)
    remove_abandoned(folder.glob(".step-*"))


def prune(folder: Path, keep: int, best: int | None = None, verified: set[Path] | None = None) -> None:
    """Delete all checkpoints but the `keep` newest valid ones and the one after `best` updates.

    `verified` holds the checkpoints known to be valid; the others are verified here first, added to it, and renamed
    if they are damaged.
    """
    verified = set() if verified is None else verified
    paths = list(reversed(checkpoints_in(folder).values()))
    if len(paths) > keep:
        paths = [path for path in paths if path in verified or _verify(path, verified)]
    for path in paths[keep:]:
        if step_of(path) != best:
            with contextlib.suppress(OSError):  # A file that cannot be deleted costs disk space, not the run.
                path.unlink()


def _verify(path: Path, verified: set[Path]) -> bool:
    """Add the checkpoint at `path` to `verified` and return True, or set it aside and return False."""
    try:
        statefile.read(path)
    except FileNotFoundError:
        return False
    except LockstepError:
        _set_aside(path)
        return False
    verified.add(path)
    return True


def _set_aside(path: Path) -> None:
    """Rename the checkpoint at `path` to `damaged-...`."""
    with contextlib.suppress(OSError):
        path.rename(path.with_name(f"damaged-{path.name}"))
