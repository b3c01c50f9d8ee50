"""Files of tensors. They may come from somebody else: no code in them is executed, and changed bits are found."""

import hashlib
import io
import json
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from lockstep.files import flush, share

SHA256 = "contents_sha256"  # of the facts in a model file: that of its tensors and its other facts
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")  # in messages of the safetensors library
_NEEDED_CLASS = re.compile(r"GLOBAL (\S+) (?:was not an allowed global|whose module)")  # in torch's messages
_RESERVES_MEMORY = re.compile(rb"c(builtins|__builtin__)\nbytearray\n")  # A pickle of ten bytes can ask for a terabyte.


class CodeNeededError(ValueError):
    """A pickle that can only be loaded by executing code. The message names what it needs."""


def contents_sha256(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256, in hex, of all `tensors` by name and of all `facts` but SHA256."""
    stated = {name: value for name, value in facts.items() if name != SHA256}
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_safetensors(file: Path | bytes) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of its content, by name. Raises: ValueError if it is damaged."""
    try:
        return load(file) if isinstance(file, bytes) else load_file(file)
    except Exception as error:  # The library raises many kinds, for types that torch does not have among others.
        raise ValueError(str(error) or type(error).__name__) from None


def write_safetensors(path: Path, tensors: dict[str, Tensor], facts: Mapping[str, Any] | None = None) -> None:
    """Write `tensors` (on the CPU) to `path`, and flush them; the metadata key `lockstep` is JSON of the `facts`.

    Raises: OSError.
    """
    try:
        # One key only: safetensors writes several metadata keys in no fixed order.
        save_file(tensors, path, None if facts is None else {"lockstep": json.dumps(facts)})
    except SafetensorError as error:
        number = _SYSTEM_ERROR.search(str(error))
        raise (OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))) from error
    share(path)
    flush(path)


def save_model(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write model.safetensors: a classifier's weights, float32 `tensors` by name, and all that is needed to use them.

    An existing file at `path` is replaced. Raises: OSError; the file at `path` is then unchanged.
    """
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    plain = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    try:
        write_safetensors(temporary, plain, {**facts, SHA256: contents_sha256(facts, tensors)})
        temporary.replace(path)
        flush(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def require_unchanged(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if a model file has other contents than were written."""
    if facts.get(SHA256) != contents_sha256(facts, tensors):
        raise ValueError("it is not the file that was written (the sha256 of its contents differs)")


def unpickled(content: bytes) -> object:
    """Return what torch.save wrote, without executing any of its code.

    Raises: ValueError if the file is damaged, CodeNeededError if it needs code.
    """
    _refuse_bombs(content)
    try:
        with warnings.catch_warnings(action="ignore"):  # about pickles of other programs
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch and pickle raise many kinds for damaged files
        text = str(error)
        if needed := _NEEDED_CLASS.search(text):
            raise CodeNeededError(needed[1]) from None
        if isinstance(error, pickle.UnpicklingError):
            raise ValueError("torch.save did not write it") from None
        raise ValueError(text.split("\n")[0] or "it ends too early") from None


def _refuse_bombs(content: bytes) -> None:
    """Raise a ValueError if loading the file could take much more memory than the file has bytes."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                members = archive.infolist()
                compressed = [one.filename for one in members if one.compress_type != zipfile.ZIP_STORED]
                unpacked = sum(one.file_size for one in members)
        except Exception as error:  # zipfile raises many kinds for damaged archives
            raise ValueError(f"it is not a complete archive: {error}") from None
        if compressed:
            raise ValueError(f"its member {compressed[0]} is compressed, and torch.save compresses nothing")
        if unpacked > len(content):
            raise ValueError("its members are larger than the file")
    if _RESERVES_MEMORY.search(content):
        raise ValueError("it holds a bytearray, which is not a tensor")
