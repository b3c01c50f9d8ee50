"""Files of tensors that may come from somebody else: no code in them is executed, and changed bits are found."""

import hashlib
import io
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load, load_file
from torch import Tensor

from lockstep.files import parse_json

SHA256 = "contents_sha256"  # of the facts in a model file: that of its tensors and its other facts
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


def read_facts(path: Path) -> dict[str, Any] | None:
    """Return the facts in a model file of Lockstep, or None if another program wrote the safetensors file.

    Raises: ValueError if the file is damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            facts = parse_json((file.metadata() or {}).get("lockstep", "null"))
    except Exception as error:  # as in `read_safetensors`
        raise ValueError(str(error) or type(error).__name__) from None
    return facts if isinstance(facts, dict) else None


def require_unchanged(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if a model file has other contents than were written. Older releases did not state them."""
    if SHA256 in facts and facts[SHA256] != contents_sha256(facts, tensors):
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
