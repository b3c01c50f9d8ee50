"""What folders of runs tell: a list of the runs in a folder, and the first difference between two runs."""

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


def difference(first: Path, second: Path) -> dict[str, Any]:
    """Return from which step on two runs differ, as a record for JSON. No network is built, and no code is executed.

    Raises: LockstepError if a folder is not a run, or its files cannot be read.
    """
    from lockstep.runs.provenance import compare  # imports torch

    runs = Run.existing(first), Run.existing(second)
    recipes = runs[0].recipe(), runs[1].recipe()
    digests = runs[0].digests(), runs[1].digests()
    common = sorted(digests[0].keys() & digests[1].keys())
    differing = next((step for step in common if digests[0][step] != digests[1][step]), None)
    equal = [step for step in common if differing is None or step < differing]
    weights = [(run.result() or {}).get("weights_sha256") for run in runs]
    checks = [differing is None] * bool(common) + [weights[0] == weights[1]] * (None not in weights)
    sessions = [run.sessions()[-1:] for run in runs]
    changed = compare(sessions[0][0], sessions[1][0]) if all(sessions) else []
    if recipes[0].digest() != recipes[1].digest():  # The probe is of the recipe's network.
        changed = [one for one in changed if one.kind != "probe"]
    return {
        "runs": [str(first), str(second)],
        "same": all(checks) if checks else None,
        "last_equal_step": max(equal, default=None),
        "first_different_step": differing,
        "weights_sha256": weights,
        "recipe": recipes[0].differences(recipes[1]),
        "environment": [str(one) for one in changed],
    }
