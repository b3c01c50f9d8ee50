"""Formats of datasets that are not read as they lie: what a file is, and what to do with it."""

import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from lockstep.messages import command

_FILES = 10_000  # that are searched in a folder
_HEAD = 4_096  # bytes of a file that tell its format
# What a sentence has in place of a command -> its words.
_COMMANDS = {
    "mnist": ("train", "mnist", "--data", "DIR"),
    "cifar10": ("train", "cifar10", "--data", "DIR"),
    "fetch": ("data", "fetch", "cifar10"),
}


@cache
def _known() -> dict[str, Any]:
    """Return what foreign.toml has, which describes itself."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def named_format(path: Path, images: bool = False) -> str:
    """Return the sentence that says in which format a dataset lies at `path`, a file or a folder,
    and what to do; "" if none is known.

    A folder with `images` has annotations at most, and its archives and arrays are something else.
    """
    files = [path] if path.is_file() else [*islice(_files_in(path), _FILES)]
    known = _known()
    for kind in known["annotations"] if images else known["containers"] + known["annotations"]:
        named, begun = kind["names"], kind.get("begins", "")
        for file in files:
            if re.fullmatch(named, file.name, re.I) and re.match(begun, head(file), re.M):
                texts = known["texts"] | {name: command(*it) for name, it in _COMMANDS.items()}
                what: str = kind["is"]
                while found := re.search(r"\{(\w+)\}", what):
                    what = what.replace(found[0], texts[found[1]])
                return f"{file} is {what}"
    return ""


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without hidden ones, in a fixed order."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for name in sorted(names):
            if name[0] != ".":
                yield Path(parent, name)


def head(file: Path) -> str:
    """Return how a file begins, a character for each byte; "" if it cannot be read or is none, as a
    pipe.
    """
    with suppress(OSError):
        if file.is_file():
            with open(file, "rb") as stream:
                return stream.read(_HEAD).decode("latin-1")
    return ""
