"""State files: the checkpoints of a run, and its model. One format, and nothing in it can execute
code.

    checkpoints/step-000001000.safetensors   State.state_dict() after 1000 updates
    checkpoints/frozen.safetensors           its tensors before a head, once for all steps
    model.safetensors                        a classifier's weights

A state file is a safetensors file. Its metadata is JSON: what the run knew when it wrote the file,
and the SHA-256 of the tensors and of the metadata itself, so that a changed bit is noticed. Nothing
in it depends on the number of processes. Reading the metadata alone needs no torch.
"""

import contextlib
import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from lockstep.errors import DATA, LockstepError, option
from lockstep.files import (
    Fence,
    Record,
    make_folder,
    open_to_read,
    parse_json,
    replace,
    require_permission,
)
from lockstep.messages import logger
from lockstep.runs.entries import Metadata
from lockstep.text import few

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]

SUFFIX = ".safetensors"
SHA256 = "contents_sha256"  # in the metadata: that of the tensors and of the other metadata
FROZEN = "frozen/"  # begins the names of the tensors that are in the file beside the checkpoints
FROZEN_FILE = f"frozen{SUFFIX}"
DAMAGED = "damaged-"  # begins the new names of checkpoints that a resumed run does not use
_NAME = re.compile(rf"step-(\d+)\{SUFFIX}", re.ASCII)
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")  # in messages of the library safetensors
_MAX_HEADER_BYTES = 16 << 20  # A JSON text takes up to 30 times its size in memory.


class DamagedFileError(LockstepError):
    """The state file at `path` cannot be read: it is damaged, or another program's."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message, DATA)
        self.path = path


@dataclass(frozen=True)
class StateFile:
    """A state file that was read and verified."""

    path: Path
    metadata: Record
    tensors: "dict[str, Tensor]"

    @property
    def step(self) -> int:
        """Return the number of updates of a checkpoint."""
        return int(self.metadata["step"])


def step_of(path: Path) -> int | None:
    """Return the step in the name of a checkpoint, or None if Lockstep gives no checkpoint this
    name.
    """
    match = _NAME.fullmatch(path.name)
    step = int(match[1]) if match else -1
    return step if path.name == file_name(step) else None


def file_name(step: int) -> str:
    """Return the name of the checkpoint after `step` updates."""
    return f"step-{step:09d}{SUFFIX}"


def step_or_best(checkpoint: str | int | None) -> int | Literal["best"] | None:
    """Return the step that `checkpoint` names, "best", or None for the newest one."""
    if checkpoint is None or checkpoint == "best":
        return checkpoint  # type: ignore[return-value]  # mypy does not narrow a str by ==
    text = str(checkpoint)
    if not text.isdecimal():
        raise LockstepError(
            f"{option('checkpoint')} {text!r}: give best, or the number of steps of a checkpoint, "
            f"as in 1000"
        )
    return int(text)


def checkpoints_in(folder: Path, last: int | None = None) -> dict[int, Path]:
    """Return the checkpoints in `folder` by step, valid or damaged, the oldest first. Other files
    do not count, nor do checkpoints after `last` updates, the last ones of the run.

    Raises: LockstepError if this user may not read the folder.
    """
    try:
        paths = {step_of(path): path for path in folder.iterdir()}
    except OSError as error:
        require_permission(folder, error)
        return {}
    steps = sorted(step for step in paths if step is not None)
    return {step: paths[step] for step in steps if last is None or step <= last}


def warn_of_others(folder: Path, last: int | None) -> None:
    """Name the files in `folder` that do not count as checkpoints of a run of `last` updates."""
    known = {*checkpoints_in(folder, last).values(), folder / FROZEN_FILE}
    names = sorted(path.name for path in {*folder.glob("[!.]*")} - known)
    if others := [name for name in names if not name.startswith(DAMAGED)]:
        logger.warning(
            f"{folder}: ignored {few(others)}: checkpoints of this run have names like "
            f"{file_name(last or 0)}, up to its last step"
        )


def metadata_of(path: Path) -> Record:
    """Return the metadata of a state file. Only `read` verifies it.

    Raises: as `read`.
    """
    try:
        with open_to_read(path) as file:
            return _checked(path, _stated(file))
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def metadata_if_valid(path: Path) -> Record:
    """Return the metadata of a state file; {} if it is damaged or does not exist."""
    try:
        return metadata_of(path)
    except (DamagedFileError, FileNotFoundError):
        return {}


def read(path: Path, content: bytes | None = None, foreign: bool = False) -> StateFile:
    """Return what is in a state file, verified, with the frozen tensors of a checkpoint.

    `content` is that of the file, if the caller has read it.
    With `foreign`, a safetensors file of another program is read too; it has no metadata.
    Raises: DamagedFileError if it is damaged or not a state file, FileNotFoundError if it does not
    exist, LockstepError if this user may not read it.
    """
    try:
        with open_to_read(path) if content is None else io.BytesIO(content) as file:
            metadata = _stated(file)
        tensors = read_tensors(path if content is None else content)
        if metadata is None and foreign:
            return StateFile(path, {}, tensors)
        metadata = _checked(path, metadata)
        if metadata.get("frozen") and path.name != FROZEN_FILE:
            frozen = read(frozen_beside(path)).tensors
            tensors |= {f"{FROZEN}{name}": tensor for name, tensor in frozen.items()}
        if contents_sha256(metadata, tensors) != metadata[SHA256]:
            raise ValueError(
                "it is not the file that was written: the sha256 of its contents differs"
            )
        step = metadata.get("step")
        if step is not None and ("step" not in tensors or tensors["step"].tolist() != step):
            raise ValueError("its tensors are of another step")
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None
    return StateFile(path, metadata, tensors)


def frozen_beside(path: Path) -> Path:
    """Return the file of the frozen tensors of the checkpoint `path`. Raises: DamagedFileError if
    it does not exist.
    """
    frozen = path.with_name(FROZEN_FILE)
    if not os.path.lexists(frozen):
        raise DamagedFileError(
            f"{frozen} does not exist, so {path.name} has no layers before its head: copy both",
            frozen,
        )
    return frozen


def keep_frozen(folder: Path, tensors: Tensors, fence: Fence) -> None:
    """Make the `folder` of checkpoints, and write the frozen `tensors` of all, if there are any.
    Raises: as `write`.

    A valid file stays if there are checkpoints, which need its bits.
    """
    make_folder(folder)
    path = folder / FROZEN_FILE
    with contextlib.suppress(DamagedFileError, FileNotFoundError):
        if not tensors or (checkpoints_in(folder) and read(path)):
            return
    write(path, copied(tensors), {}, fence)


def newest_verified(folder: Path, last: int | None = None) -> StateFile | None:
    """Return the newest checkpoint in `folder` that verifies, or None if there is none at all. The
    run has `last` updates.

    Files that are no checkpoints of the run are named. Damaged checkpoints are skipped, with a
    message. A checkpoint that training deletes during the read is not damaged: a newer one exists,
    so the search starts again.
    Raises: LockstepError if there are checkpoints, and all are damaged, or this user may not read
    the newest.
    """
    damaged = set[Path]()
    warn_of_others(folder, last)
    while paths := [path for path in checkpoints_in(folder, last).values() if path not in damaged]:
        try:
            return read(paths[-1])
        except FileNotFoundError:
            continue
        except DamagedFileError as error:
            logger.warning(f"{error}: trying the one before it")
            damaged.add(paths[-1])
    if damaged:
        raise LockstepError(
            f"every checkpoint in {folder} is damaged, so the run cannot be continued: start a "
            f"new one",
            DATA,
        )
    return None


def _stated(file: IO[bytes]) -> Record | None:
    """Return the metadata of a safetensors file, not verified; None if it is another program's.

    The file begins with the length of its header, 8 bytes little-endian, and the header as JSON.
    Raises: OSError; ValueError if it is not a safetensors file, or damaged.
    """
    length = int.from_bytes(file.read(8), "little")
    header = parse_json(file.read(length)) if length <= _MAX_HEADER_BYTES else None
    if not isinstance(header, dict):
        raise ValueError("it is not a safetensors file")
    texts = header.get("__metadata__")
    text = texts.get("lockstep") if isinstance(texts, dict) else None
    metadata = parse_json(text) if isinstance(text, str) else None
    return metadata if isinstance(metadata, dict) else None


def _checked(path: Path, metadata: Record | None) -> Record:
    """Return `metadata`. Raises: ValueError if it has other types, or not the step in the name."""
    if metadata is None:
        raise ValueError("it has no metadata of Lockstep")
    Metadata.check(metadata)
    if step_of(path) not in (None, metadata.get("step")):
        raise ValueError(f"it is the state after {metadata.get('step')} steps")
    return metadata


def _damaged(path: Path, error: Exception) -> Exception:
    if not os.path.lexists(path):
        return FileNotFoundError(f"{path} does not exist")
    require_permission(path, error)
    return DamagedFileError(f"{path} is damaged, or not a file that Lockstep wrote ({error})", path)


def read_tensors(file: Path | bytes) -> "dict[str, Tensor]":
    """Return the tensors of any safetensors file, or of its content, by name. Raises: ValueError if
    it is damaged.
    """
    from safetensors.torch import load, load_file

    try:
        return load(file) if isinstance(file, bytes) else load_file(file)
    except Exception as error:  # many kinds, for types that torch does not have among others
        raise ValueError(str(error) or type(error).__name__) from None


# Writing. A program or a host may fail at any moment, so a file gets its name when it is whole and
# on the disk: the rename is atomic. A program that was cut off from a network disk may still run
# when another one has taken over, so the fence looks for its own token just before the rename.
def write(path: Path, tensors: Tensors, metadata: Record, fence: Fence = lambda: None) -> None:
    """Write `tensors`, as `copied` returns them, and `metadata`: whole, on the disk, or not at all.

    The frozen tensors of a checkpoint are left out, as `keep_frozen` has written them. Its SHA-256
    is of all. Raises: OSError, or the error of `fence`.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    stored = {name: tensor for name, tensor in tensors.items() if not name.startswith(FROZEN)}
    if len(stored) < len(tensors):
        metadata = {**metadata, "frozen": True}
    # One key only: safetensors writes several metadata keys in no fixed order.
    header = {"lockstep": json.dumps({**metadata, SHA256: contents_sha256(metadata, tensors)})}

    def save(name: Path) -> None:
        try:
            # Not save(), which holds Python's lock: the training loop would wait.
            save_file(stored, name, header)
        except SafetensorError as error:
            if number := _SYSTEM_ERROR.search(str(error)):
                raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
            raise

    replace(path, save, fence)


def copied(tensors: Tensors) -> "dict[str, Tensor]":
    """Return copies on the CPU, without gaps, each in memory of its own: safetensors writes no
    other tensors.
    """
    from torch import contiguous_format

    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=contiguous_format)
        for name, tensor in tensors.items()
    }


def contents_sha256(metadata: Record, tensors: Tensors) -> str:
    """Return the SHA-256, in hex, of all `tensors` by name and of all `metadata` but SHA256."""
    from lockstep.core.digest import add_to

    others = {name: value for name, value in metadata.items() if name != SHA256}
    return add_to(hashlib.sha256(json.dumps(others, sort_keys=True).encode()), tensors)
