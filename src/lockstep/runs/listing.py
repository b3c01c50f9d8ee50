"""What folders of runs tell: a list of the runs in a folder, and the first difference between two runs."""

import os
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError
from lockstep.runs.folder import Run

_SIGNS = ("recipe.json", ".lock", "checkpoints", "metrics.jsonl", "result.json")  # a folder with one of them is a run


def runs_in(folder: Path) -> list[dict[str, Any]]:
    """Return the facts of each run in `folder`, sorted by start; [] if the folder does not exist.

    No run is too damaged to be listed: what cannot be read is None, and "problem" says why. Raises: LockstepError.
    """
    if not folder.exists():
        return []
    try:
        members = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        runs = [path for path in members if any(os.path.lexists(path / name) for name in _SIGNS)]
    except OSError as error:
        raise LockstepError(f"{folder} cannot be read: {error.strerror or error}") from None
    return sorted(map(_facts, runs), key=lambda run: (run["started"], run["name"]))


def _facts(path: Path) -> dict[str, Any]:
    run = Run(path)
    started = path / "recipe.json" if os.path.lexists(path / "recipe.json") else path
    facts: dict[str, Any] = {
        "name": path.name,
        "recipe": None,
        "accuracy": None,
        "started": os.lstat(started).st_mtime,  # in seconds since the epoch of the system's clock
        "total_s": None,  # of the session that completed the run
        "steps": max(run.steps, default=None),
        "state": "damaged",
        "problem": None,
    }
    try:
        facts["recipe"] = Run.existing(path).recipe().name
        result = run.result() or {}
        known = {name: result[name] for name in ("steps", "total_s") if name in result}
        return facts | known | {"accuracy": run.accuracy, "state": run.state}
    except (LockstepError, OSError) as error:
        return facts | {"problem": str(error)}


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
