"""Checkpoints: atomic, checksummed, without pickle. Each is a folder that exists completely or not at all.

    step-000001000/state.safetensors   the tensors of State.tensors()
    step-000001000/manifest.json       size and SHA-256 of that file; digests of recipe, data and model source; and its
                                       own SHA-256

Nothing in them depends on the number of processes: the files of a one-process run equal those of a four-process run.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from lockstep.core.state import BEST
from lockstep.errors import DATA, LockstepError
from lockstep.files import flush, remove_abandoned, sha256
from lockstep.messages import logger
from lockstep.runs.folder import Run
from lockstep.runs.manifest import (
    MANIFEST,
    STATE,
    checkpoints_in,
    encoded,
    folder_name,
    step_of,
    verified_manifest,
)
from lockstep.runs.tensors import read_safetensors, write_safetensors


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    path: Path
    manifest: dict[str, Any]
    tensors: dict[str, Tensor]

    def best(self) -> "Checkpoint":
        """Return the state whose weights are the best that this one knows, which may be those of an earlier step."""
        best = {name.removeprefix(BEST): tensor for name, tensor in self.tensors.items() if name.startswith(BEST)}
        others = {name: tensor for name, tensor in self.tensors.items() if not name.startswith(BEST)}
        tensors = others | best
        return Checkpoint(self.path, {**self.manifest, "step": int(tensors["step"])}, tensors)


def save(
    folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any], fence: Callable[[], None] = lambda: None
) -> Path:
    """Write a checkpoint of `tensors` (with a scalar `step`) into `folder`, and `facts` into its manifest.

    The checkpoint is written under another name, flushed to the disk and renamed. An existing checkpoint of the step
    stays if it is valid, as its bits are the same. `fence` is called before the checkpoint gets its name, and raises an
    error if this program may no longer write the run.
    Raises: OSError, or the error of `fence`; nothing is left behind then.
    """
    step = int(tensors["step"])
    final = folder / folder_name(step)
    if os.path.lexists(final) and _verify(final, set()):
        return final
    temporary = folder / f".writing-{step:09d}-{os.getpid()}"
    try:
        temporary.mkdir(parents=True)
        write_safetensors(temporary / STATE, tensors)
        files = {STATE: {"bytes": (temporary / STATE).stat().st_size, "sha256": sha256(temporary / STATE)}}
        (temporary / MANIFEST).write_bytes(encoded({"step": step, **facts, "files": files}))
        for path in (temporary / MANIFEST, temporary):
            flush(path)
        fence()
        temporary.rename(final)
        flush(folder)
    except (OSError, LockstepError):
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def latest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that verifies, or None if there is none at all.

    Damaged checkpoints are skipped, with a message. A checkpoint that training deletes during the read is not damaged:
    a newer one exists, so the search starts again.
    Raises: LockstepError if there are checkpoints, and all are damaged.
    """
    damaged: set[Path] = set()
    paths = list(checkpoints_in(folder).values())
    while paths:
        try:
            return read(paths[-1])
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


def read_step(folder: Path, step: int) -> Checkpoint:
    """Return the checkpoint after `step` updates. Raises: as `read`."""
    return read(folder / folder_name(step))


def read(path: Path) -> Checkpoint:
    """Return the checkpoint at `path`. Raises: LockstepError if it is damaged, FileNotFoundError if it was deleted."""
    try:
        manifest = verified_manifest(path)
        tensors = read_safetensors(path / STATE)
        if "step" not in tensors or tensors["step"].tolist() != manifest["step"]:
            raise ValueError(f"{STATE} is of another step")
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None
    return Checkpoint(path, manifest, tensors)


def _damaged(path: Path, error: Exception) -> Exception:
    if not os.path.lexists(path):
        return FileNotFoundError(f"{path} was deleted while it was read")
    return LockstepError(f"checkpoint {path} is damaged ({error})", DATA)


def read_result(run: Run) -> Checkpoint:
    """Return the newest valid checkpoint; of a complete run with `patience` the best state, which is the result.

    Raises: LockstepError if there is none, or the result is damaged.
    """
    best = (run.result() or {}).get("best_step")
    found = latest(run.checkpoints)
    if found is None:
        raise none_yet(run)
    if best in (None, found.manifest["step"]):
        return found
    found = found.best()
    if best != found.manifest["step"]:
        raise LockstepError(
            f"the valid checkpoints of {run.path} do not hold the weights after {best} steps, which are its result: "
            f"use {run.model}, or compute them again: move result.json away, and resume the run",
            DATA,
        )
    return found


def read_chosen(run: Run, which: int | Literal["best"]) -> Checkpoint:
    """Return the checkpoint after `which` updates, or the best. Raises: LockstepError if there is none, or damaged."""
    while True:
        there = sorted(checkpoints_in(run.checkpoints))
        if not there:
            raise none_yet(run)
        available = f"its checkpoints are those after {', '.join(map(str, there))} steps"
        try:
            step = run.best_step(there) if which == "best" else which
            if step is None:
                raise LockstepError(
                    f"--checkpoint best: no checkpoint of {run.path} was evaluated in training: {available}. "
                    f"Train with --eval-every N to know the best"
                )
            if step not in there:
                raise LockstepError(f"--checkpoint {step}: {run.path} has no such checkpoint: {available}")
            return read_step(run.checkpoints, step)
        except FileNotFoundError:
            continue  # Training deleted a checkpoint during the read.


def none_yet(run: Run) -> LockstepError:
    """Return the error for a run without a checkpoint."""
    return LockstepError(f"{run.path} has no checkpoint yet", DATA)


def clear_ahead(folder: Path, step: int) -> None:
    """Rename checkpoints after `step` to `damaged-...`; delete unfinished ones. A resumed run redoes those steps."""
    for later, path in checkpoints_in(folder).items():
        if later > step:
            _set_aside(path)
    for path in [*folder.glob(".writing-*"), *folder.glob(".deleting-*")]:
        shutil.rmtree(path, ignore_errors=True)
    remove_abandoned(folder.glob(f"*/.{MANIFEST}-*"))


def prune(folder: Path, keep: int, best: int | None = None, verified: set[Path] | None = None) -> None:
    """Delete all checkpoints but the `keep` newest valid ones and the one after `best` updates.

    `verified` holds the checkpoints known to be valid; the others are verified here first, added to it, and renamed
    if they are damaged. A checkpoint is renamed before it is deleted, so a reader finds it complete or not at all.
    """
    verified = set() if verified is None else verified
    paths = list(reversed(checkpoints_in(folder).values()))
    if len(paths) > keep:
        paths = [path for path in paths if path in verified or _verify(path, verified)]
    for path in paths[keep:]:
        if step_of(path) != best:
            with contextlib.suppress(OSError):  # A folder that cannot be deleted costs disk space, not the run.
                shutil.rmtree(path.rename(folder / f".deleting-{path.name}"), ignore_errors=True)


def _verify(path: Path, verified: set[Path]) -> bool:
    """Add the checkpoint at `path` to `verified` and return True, or set it aside and return False."""
    try:
        verified_manifest(path)
    except (OSError, ValueError) as error:
        if isinstance(_damaged(path, error), LockstepError):
            _set_aside(path)
        return False
    verified.add(path)
    return True


def _set_aside(path: Path) -> None:
    """Rename the checkpoint at `path` to `damaged-...`."""
    target = path.with_name(f"damaged-{path.name}")
    shutil.rmtree(target, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.rename(target)
