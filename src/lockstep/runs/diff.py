"""The differences between two runs, from their folders alone. No network is built, no data and no code are loaded."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.runs.compare import differences
from lockstep.runs.folder import Run
from lockstep.runs.provenance import compare, texts
from lockstep.runs.recorded import Recorded

_SIDE_BY_SIDE = ("steps", "accuracy", "loss", "train_s", "processes", "device", "mixed_arithmetic", "weights_sha256")


def difference(first: Path, second: Path) -> dict[str, Any]:
    """Return how two runs differ, as a record for JSON. A checkpoint that is damaged is not compared, with a message.

    Raises: LockstepError if a folder is not a run, or its files cannot be read.
    """
    runs = Run.existing(first), Run.existing(second)
    recipes = runs[0].recipe(), runs[1].recipe()
    recorded = Recorded(first), Recorded(second)
    states = _digests(*recorded)
    tensors = _tensors(*recorded)
    results = [_result(one.result) for one in recorded]
    shas = [one.weights_sha256 for one in recorded]
    equal = [
        *([states["first_different_step"] is None] if states["common"] else []),
        *([not tensors["differing"]] if tensors else []),
        *([shas[0] == shas[1]] if None not in shas else []),
    ]
    return {
        "runs": [str(first), str(second)],
        "same": all(equal) if equal else None,
        "recipe": {
            "digests": [recipe.digest() for recipe in recipes],
            "differences": recipes[0].differences(recipes[1]),
            "portable": all(recipe.arithmetic == "portable" for recipe in recipes),
        },
        "data": _data(*recorded),
        **_environment(*recorded, one_recipe=recipes[0].digest() == recipes[1].digest()),
        "digests": states,
        "tensors": tensors,
        "results": results,
    }


def _result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of result.json that are shown."""
    known = {weights: value for weights, value in result.get("accuracy", {}).items() if value is not None}
    shown = {**result, "accuracy": known or None}
    return {name: shown[name] for name in _SIDE_BY_SIDE if shown.get(name) is not None}


def _data(first: Recorded, second: Recorded) -> dict[str, Any]:
    """Return the SHA-256 of each split that training used, in both runs, and whether they are equal (None: unknown)."""
    stated = [one.facts.get("data_sha256") or {} for one in (first, second)]
    common = stated[0].keys() & stated[1].keys()
    return {"sha256": stated, "same": all(stated[0][name] == stated[1][name] for name in common) if common else None}


def _environment(first: Recorded, second: Recorded, one_recipe: bool) -> dict[str, Any]:
    """Return how the last sessions differ in the user's code and their environment; None if a run has no session."""
    if not first.sessions or not second.sessions:
        return {"code": None, "environment": None}
    differing = compare(first.sessions[-1], second.sessions[-1])
    probe = ["probe"] if one_recipe else []  # The probe is of the recipe's network.
    return {"code": texts(differing, "source"), "environment": texts(differing, *probe, "decoder", "environment")}


def _digests(first: Recorded, second: Recorded) -> dict[str, Any]:
    """Return the first step at which the digests differ, and the last one before it at which they are equal."""
    common = sorted(first.digests.keys() & second.digests.keys())
    differing = next((step for step in common if first.digests[step] != second.digests[step]), None)
    equal = [step for step in common if differing is None or step < differing]
    return {
        "common": len(common),
        "last_equal_step": max(equal, default=None),
        "first_different_step": differing,
        "digests": None if differing is None else [first.digests[differing], second.digests[differing]],
    }


def _tensors(first: Recorded, second: Recorded) -> dict[str, Any] | None:
    """Return how the tensors differ at the first common checkpoint that differs, or at the newest; None without one."""
    common = [step for step in first.steps if step in second.steps]
    compared: dict[str, Any] | None = None
    for step in common:
        # Equal files are read only if no later checkpoint differs.
        if step != common[-1] and first.state_sha256(step) == second.state_sha256(step) is not None:
            continue
        states = first.read(step), second.read(step)
        if states[0] is None or states[1] is None:
            continue
        found = [asdict(one) for one in differences(states[0].tensors, states[1].tensors)]
        compared = {"step": step, "count": len(states[0].tensors), "differing": found}
        if found:
            break
    return compared
