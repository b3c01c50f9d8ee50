"""Checkpoints: atomic, checksummed, no pickle; each a folder that exists whole or not at all.

    step-000001000/state.safetensors   what State.tensors() returned
    step-000001000/manifest.json       size and sha256 of that file; sha256 of recipe, data and the model's source

Nothing in them depends on the number of processes: a one-process run's files equal a four-process run's.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lockstep.errors import DATA, LockstepError
from lockstep.files import flush, replace, share

_STATE = "state.safetensors"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    path: Path
    manifest: dict[str, Any]
    tensors: dict[str, Tensor]


def save(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Path:
    """Write a checkpoint of `tensors` (with a scalar `step`) into `folder`; `facts` go into its manifest.

    It is written under another name, flushed to the disk and renamed. One that is there already is left alone: it
    was verified when the run was resumed, and its bits are the same.
    Raises: OSError, with nothing left behind.
    """
    step = int(tensors["step"])
    final = folder / _name(step)
    if final.exists():
        return final
    temporary = folder / f".writing-{step:09d}-{os.getpid()}"
    try:
        temporary.mkdir(parents=True)
        save_file(tensors, temporary / _STATE)
        share(temporary / _STATE)
        files = {_STATE: {"bytes": (temporary / _STATE).stat().st_size, "sha256": _sha256(temporary / _STATE)}}
        manifest = {"step": step, **facts, "files": files}
        (temporary / _MANIFEST).write_bytes(_json(manifest))
        for path in (temporary / _STATE, temporary / _MANIFEST, temporary):
            flush(path)
        temporary.rename(final)
        flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise error if isinstance(error, OSError) else OSError(str(error)) from error
    return final


def add_facts(folder: Path, step: int, facts: dict[str, Any]) -> None:
    """Add `facts` to the manifest of the checkpoint after `step` updates, if there is one. Raises: OSError."""
    path = folder / _name(step) / _MANIFEST
    if path.exists():
        replace(path, _json(json.loads(path.read_text()) | facts))


def latest(folder: Path, note: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that verifies, or None if there is none at all.

    Damaged ones are skipped, and `note` is told. One that a training program deletes while it is read is not damaged:
    there is a newer one then, so we look again. Raises: LockstepError if there are some and all are damaged.
    """
    damaged: set[Path] = set()
    paths = _newest_first(folder)
    while (path := next(paths, None)) is not None:
        try:
            return read(path)
        except FileNotFoundError:
            paths = _newest_first(folder)
        except LockstepError as error:
            if path not in damaged:
                note(f"{error}: trying the one before it")
            damaged.add(path)
    if damaged:
        raise LockstepError(f"every checkpoint in {folder} is damaged; the run cannot be continued from them", DATA)
    return None


def steps(folder: Path) -> list[int]:
    """The steps of the checkpoints there are, whole or damaged, the newest first; nothing is read."""
    return [_step(path) for path in _newest_first(folder)]


def best_step(folder: Path) -> int | None:
    """The step of the checkpoint with the best accuracy in its manifest, the earliest of equals; None if none has one.

    Raises: LockstepError if a manifest is damaged, FileNotFoundError if one was deleted while it was read.
    """
    found = {}
    for path in reversed(list(_newest_first(folder))):
        try:
            accuracy = json.loads((path / _MANIFEST).read_text()).get("accuracy")
            if accuracy is not None:
                found[_step(path)] = float(accuracy)
        except (OSError, ValueError, AttributeError, TypeError) as error:
            if not os.path.lexists(path):
                raise FileNotFoundError(f"{path} was deleted while it was read") from None
            raise LockstepError(f"checkpoint {path} is damaged ({error})", DATA) from None
    return max(found, key=lambda step: found[step], default=None)


def read_step(folder: Path, step: int) -> Checkpoint:
    """The checkpoint after `step` updates. Raises: as `read`."""
    return read(folder / _name(step))


def read(path: Path) -> Checkpoint:
    """The checkpoint at `path`. Raises: LockstepError if it is damaged, FileNotFoundError if it is no longer there."""
    manifest = _checked(path)
    try:
        return Checkpoint(path, manifest, load_file(path / _STATE))
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from None


def _checked(path: Path) -> dict[str, Any]:
    """The manifest of the checkpoint at `path`, whose file is what it says. Raises: as `read`."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        expected = manifest["files"][_STATE]
        if (size := (path / _STATE).stat().st_size) != expected["bytes"]:
            raise ValueError(f"{_STATE} has {size} bytes, not {expected['bytes']}")
        if _sha256(path / _STATE) != expected["sha256"]:
            raise ValueError(f"{_STATE} is not the file that was written (its sha256 differs)")
        return dict(manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> Exception:
    if not os.path.lexists(path):
        return FileNotFoundError(f"{path} was deleted while it was read")
    return LockstepError(f"checkpoint {path} is damaged ({error})", DATA)


def clear_ahead(folder: Path, step: int) -> None:
    """Set aside, as `damaged-...`, whatever stands after `step`, and remove what was never finished.

    A resumed run writes those steps again.
    """
    for path in _newest_first(folder):
        if _step(path) > step:
            _set_aside(path)
    for path in [*folder.glob(".writing-*"), *folder.glob(".deleting-*")]:
        shutil.rmtree(path, ignore_errors=True)


def prune(folder: Path, keep: int, whole: set[Path] | None = None) -> None:
    """Delete all but the `keep` newest whole checkpoints and the one with the best accuracy (the earliest of equals).

    `whole` are the ones known to be so, and grows. Before one is deleted, those that are kept in its place are read
    once. Damaged ones are set aside. One that goes is renamed first: whoever reads it finds it whole or not at all.
    """
    whole = set() if whole is None else whole
    paths = list(_newest_first(folder))
    if len(paths) > keep:
        paths = [path for path in paths if path in whole or _verified(path, whole)]
    accuracies = {path: _accuracy(path) for path in reversed(paths)}
    best = max(accuracies, key=lambda path: accuracies[path], default=None)
    for path in paths[keep:]:
        if path != best or accuracies[path] < 0:
            with contextlib.suppress(OSError):  # as with what cannot be deleted: it costs room, not the run
                shutil.rmtree(path.rename(folder / f".deleting-{path.name}"), ignore_errors=True)


def _verified(path: Path, whole: set[Path]) -> bool:
    """Whether the checkpoint at `path` is whole: then it is added to `whole`, else set aside."""
    try:
        _checked(path)
    except FileNotFoundError:
        return False
    except LockstepError:
        _set_aside(path)
        return False
    whole.add(path)
    return True


def _set_aside(path: Path) -> None:
    """Rename the checkpoint at `path`, to `damaged-...`."""
    target = path.with_name(f"damaged-{path.name}")
    shutil.rmtree(target, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.rename(target)


def _accuracy(path: Path) -> float:
    try:
        return float(json.loads((path / _MANIFEST).read_text()).get("accuracy", -1.0))
    except (OSError, ValueError):
        return -1.0


def _newest_first(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.glob("step-*"), key=_step, reverse=True))


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _step(path: Path) -> int:
    digits = path.name.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json(manifest: dict[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
