"""Manifest: which files a download left in a folder. It marks the folder as ours, and lets it be checked."""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

NAME = "lockstep-manifest.json"
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError)  # what a file that is not a manifest can lead to


def write(folder: Path, dataset: str) -> None:
    """List every file under `folder` with its size and sha256."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / NAME).write_text(json.dumps({"dataset": dataset, "files": files}, indent=1) + "\n")


def is_ours(folder: Path, dataset: str) -> bool:
    """Whether a download of `dataset` made this folder, so that another may replace it."""
    try:
        text = (folder / NAME).read_text()
    except (OSError, UnicodeDecodeError):
        return False
    return f'"dataset": "{dataset}"' in text[:200]  # also where the rest of the manifest is damaged


def root(paths: Sequence[Path], dataset: str) -> Path | None:
    """The folder of ours that the data set's files lie in; None if they were placed by hand."""
    return next((place for place in (paths[0].parent, paths[0].parent.parent) if is_ours(place, dataset)), None)


def files(folder: Path) -> dict[str, dict[str, str | int]]:
    """File -> {"bytes", "sha256"}. Raises: one of _DAMAGED if the manifest itself is."""
    found: dict[str, dict[str, str | int]] = json.loads((folder / NAME).read_text())["files"]
    return {name: {"bytes": facts["bytes"], "sha256": facts["sha256"]} for name, facts in found.items()}


def problem(folder: Path) -> str | None:
    """What is wrong with the first file of `folder` that is not as it was made; None if all are."""
    try:
        listed = files(folder)
    except _DAMAGED:
        return f"{folder / NAME} is damaged"
    for name, facts in listed.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        if (size := path.stat().st_size) != facts["bytes"]:
            return f"{path} is damaged: {size} bytes, expected {facts['bytes']}"
        if sha256(path) != facts["sha256"]:
            return f"{path} is damaged: its sha256 is not the one it was made with"
    return None


def strangers(folder: Path, *, known: bool) -> list[str]:
    """The files under `folder` that no download put there: those not listed, or all if the folder is not `known`."""
    if not folder.is_dir():
        return [folder.name]
    listed = {NAME} if known else set()
    with contextlib.suppress(*_DAMAGED):
        listed |= set(files(folder)) if known else set()
    found = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir())
    return [name for name in found if name not in listed]


def sha256(path: Path) -> str:
    """Of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
