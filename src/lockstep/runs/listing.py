"""The runs in a folder, each in a few facts. Reading them needs no torch, and no run is too damaged to be listed."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError
from lockstep.runs.folder import Run
from lockstep.runs.statefile import checkpoints_in

_SIGNS = ("recipe.json", ".lock", "checkpoints", "metrics.jsonl", "result.json")  # a folder with one of them is a run


@dataclass(frozen=True)
class RunFacts:
    """What the folder of a run tells."""

    name: str  # name of the folder
    recipe: str | None  # name of the recipe, or None if it cannot be read
    accuracy: float | None  # accuracy of the classifier's weights, in [0, 1], or None if the run is not complete
    started: float  # when the run was started, in seconds since the epoch of the system's clock
    total_s: float | None  # seconds of the session that completed the run, or None
    steps: int | None  # number of updates: of a complete run, else of its newest checkpoint; None if there is none
    state: str  # "complete", "training", "stopped" or "damaged"
    size_bytes: int  # size of all files
    problem: str | None = None  # why the run is damaged, or None


def runs_in(folder: Path) -> list[RunFacts]:
    """Return the runs in `folder`, sorted by start; [] if the folder does not exist. Raises: LockstepError."""
    if not folder.exists():
        return []
    try:
        members = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except OSError as error:
        raise LockstepError(f"{folder} cannot be read: {error.strerror or error}") from None
    return sorted((_facts(path) for path in members if _is_run(path)), key=lambda run: (run.started, run.name))


def _is_run(path: Path) -> bool:
    try:
        return any(os.path.lexists(path / name) for name in _SIGNS) or not os.access(path, os.R_OK | os.X_OK)
    except OSError:
        return True  # It cannot be looked into, so it is listed with that problem.


def _facts(path: Path) -> RunFacts:
    """Return the facts of one run. What cannot be read is None, and the first problem is stated."""
    run = Run(path)
    problems: list[str] = []

    def tried(read: Callable[[], Any], otherwise: Any = None) -> Any:
        try:
            return read()
        except (LockstepError, OSError) as error:
            problems.append(str(error))
            return otherwise

    recipe = tried(lambda: Run.existing(path).recipe().name)
    result = tried(run.result) or {}
    steps = result.get("steps", max(checkpoints_in(run.checkpoints), default=None))
    accuracy, state = tried(lambda: run.accuracy), tried(lambda: run.state)
    return RunFacts(
        path.name, recipe, accuracy, _started(path), result.get("total_s"), steps, "damaged" if problems else state,
        _size(path), next(iter(problems), None),
    )  # fmt: skip


def _started(path: Path) -> float:
    """Return when the run's recipe was written, or else its folder."""
    for candidate in (path / "recipe.json", path):
        with contextlib.suppress(OSError):
            return candidate.stat().st_mtime
    return 0.0


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # Training has deleted it.
                total += os.lstat(os.path.join(folder, name)).st_size
    return total
