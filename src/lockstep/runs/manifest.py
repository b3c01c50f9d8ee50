"""The manifest of a checkpoint: what its folder holds, and what the run knew when it was saved. Needs no torch.

A manifest states the SHA-256 of the state and of itself, so that no changed bit is taken for a fact.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lockstep.files import read_json, sha256

MANIFEST = "manifest.json"
STATE = "state.safetensors"
EVALUATIONS = "evaluations"  # name of the facts about the evaluations so far, from which a run continues
_FOLDER = re.compile(r"step-(\d{9,})", re.ASCII)


class Entries(BaseModel):
    """The types of those entries of a JSON file that Lockstep reads. The file may have others."""

    model_config = ConfigDict(strict=True)

    @classmethod
    def check(cls, value: object) -> None:
        """Raise a ValueError that names the first entry of `value` with another type."""
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        try:
            cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))) from None


class _File(Entries):
    bytes: int
    sha256: str


class _Evaluations(Entries):
    recorded: int
    best_step: int | None
    best_correct: int
    waited: int


class _Manifest(Entries):
    step: int = Field(ge=0)
    files: dict[str, dict[str, Any]]
    recipe_digest: str | None = None
    data_sha256: dict[str, str] | None = None
    model_source: dict[str, str] = {}
    classes: list[str] | None = None
    image_shape: list[int] | None = None
    evaluations: _Evaluations | None = None


def step_of(path: Path) -> int | None:
    """Return the step in the name of a checkpoint's folder, or None if it is the name of another file."""
    match = _FOLDER.fullmatch(path.name)
    return int(match[1]) if match else None


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in `folder` by step, valid or damaged, the oldest first. Other files do not count."""
    try:
        paths = {step_of(path): path for path in folder.iterdir()}
    except OSError:
        return {}
    return {step: paths[step] for step in sorted(step for step in paths if step is not None)}


def folder_name(step: int) -> str:
    """Return the name of the folder of the checkpoint after `step` updates."""
    return f"step-{step:09d}"


def encoded(facts: Mapping[str, Any]) -> bytes:
    """Return the file with `facts`, among them `files`, and with the SHA-256 of these facts."""
    return _json(_sealed(facts))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of the checkpoint in `folder`. The state is not read.

    Raises: OSError; ValueError if the manifest is not what was written, or is that of another step.
    """
    manifest: dict[str, Any] = read_json(folder / MANIFEST)
    _Manifest.check(manifest)
    files = manifest["files"]
    if files.keys() != {STATE, MANIFEST}:
        raise ValueError(f"{MANIFEST} lists other files than {STATE} and itself")
    _File.check(files[STATE])
    if _sealed(manifest) != manifest:
        raise ValueError(f"{MANIFEST} is not the file that was written (its sha256 differs)")
    if step_of(folder) not in (None, manifest["step"]):
        raise ValueError(f"it is the checkpoint of step {manifest['step']}")
    return manifest


def verified_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of the checkpoint in `folder`, and verify the state. Raises: as `read_manifest`."""
    manifest = read_manifest(folder)
    expected = manifest["files"][STATE]
    if (size := (folder / STATE).stat().st_size) != expected["bytes"]:
        raise ValueError(f"{STATE} has {size} bytes, not {expected['bytes']}")
    if sha256(folder / STATE) != expected["sha256"]:
        raise ValueError(f"{STATE} is not the file that was written (its sha256 differs)")
    return manifest


def manifest_if_valid(folder: Path) -> dict[str, Any]:
    """Return the manifest of the checkpoint in `folder`; {} if it is damaged or deleted."""
    try:
        return read_manifest(folder)
    except (OSError, ValueError):
        return {}


def _sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return `facts` with their SHA-256 among their files."""
    files = {name: file for name, file in facts["files"].items() if name != MANIFEST}
    own = hashlib.sha256(_json({**facts, "files": files})).hexdigest()
    return {**facts, "files": {**files, MANIFEST: {"sha256": own}}}


def _json(facts: Mapping[str, Any]) -> bytes:
    return (json.dumps(facts, indent=1, sort_keys=True) + "\n").encode()
