"""Manifest: the list of the files that a download wrote into a folder.

It marks the folder as made by a download, which a later download may replace, and it allows checking the files.
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from lockstep.files import read_json, sha256

NAME = "lockstep-manifest.json"
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError)  # the errors of reading a damaged manifest


def write(folder: Path, dataset: str) -> None:
    """Write the manifest of `folder`: every file under it, with size and SHA-256."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / NAME).write_text(json.dumps({"dataset": dataset, "files": files}, indent=1) + "\n")


def made_by_download(folder: Path, dataset: str) -> bool:
    """Return whether a download of `dataset` made `folder`, so that another download may replace it."""
    try:
        with (folder / NAME).open("rb") as file:
            start = file.read(200)
    except OSError:
        return False
    return f'"dataset": "{dataset}"'.encode() in start  # no JSON parsing, so that a damaged manifest still counts


def download_folder(paths: Sequence[Path], dataset: str) -> Path | None:
    """Return the folder, made by a download, that holds the dataset's files; None if they were placed by hand."""
    parents = paths[0].parent, paths[0].parent.parent
    return next((folder for folder in parents if made_by_download(folder, dataset)), None)


def files(folder: Path) -> dict[str, dict[str, str | int]]:
    """Return file -> {"bytes", "sha256"}. Raises: one of _DAMAGED if the manifest is damaged."""
    listed = read_json(folder / NAME)["files"].items()
    return {name: {"bytes": facts["bytes"], "sha256": facts["sha256"]} for name, facts in listed}


def problem(folder: Path) -> str | None:
    """Describe the first file of `folder` that differs from the manifest; return None if all files are as listed."""
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
            return f"{path} is damaged: its SHA-256 is not the one in the manifest"
    return None


def foreign_files(folder: Path, dataset: str) -> list[str]:
    """Return the files under `folder` that no download of `dataset` put there."""
    if not folder.is_dir():
        return [folder.name]
    listed = set()
    if made_by_download(folder, dataset):
        listed.add(NAME)
        with contextlib.suppress(*_DAMAGED):
            listed |= set(files(folder))
    names = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir())
    return [name for name in names if name not in listed]
