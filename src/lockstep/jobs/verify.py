"""The verify job: compute steps of a run again, and compare them with what its folder states, which
is only read.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from lockstep.core.log import Log
from lockstep.core.state import NamedTensors
from lockstep.core.task import Score
from lockstep.errors import DATA, LockstepError, option
from lockstep.files import Record, finite
from lockstep.jobs.agreement import require_agreement, require_same_data, restore
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.result import STATED, result_of
from lockstep.jobs.specs import VerifySpec
from lockstep.messages import logger
from lockstep.runs import statefile
from lockstep.runs.chain import Link
from lockstep.runs.provenance import compare, texts
from lockstep.runs.run import Run
from lockstep.runs.statefile import FROZEN, SHA256, StateFile, contents_sha256, file_name


def verify(spec: VerifySpec, ctx: Context) -> Record | None:
    """Replay the parts of a run that `spec` names, by default the one of `replayed`, and compare.
    Return the record in process 0, else None.

    Raises: LockstepError if a part cannot be compared.
    """
    run, parts = Run(spec.path), [*spec.parts]
    if ctx.first and not parts:
        parts = [replayed(run, spec.start)]
    replica = Replica(spec.recipe, spec.placement, ctx)
    identity = require_agreement(replica)
    if ctx.first:
        statefile.warn_of_others(run.checkpoints, run.last_step)
        for entry in (run.metadata(), *run.sessions()):
            require_same_data(replica, run.path, entry)
        _require_result(run, replica.bound.steps)
    parts = json.loads(ctx.group.broadcast(json.dumps(parts).encode()))
    compared = list[Record]()
    for begin, end in parts:
        compared += [row for row in _replay(run, replica, ctx, begin, end) if row not in compared]
    if not ctx.first:
        return None
    differences = [row for row in compared if row["recorded"] != row["replayed"]]
    return {
        "run": str(run.path),
        "recipe_digest": spec.recipe.digest(),
        "same": not differences,
        "parts": [part for part in parts if part[0] < part[1]],
        "steps": replica.bound.steps,
        "complete": run.complete,
        # A chain has been found to fit.
        "stated": {
            row["what"]: [name for name in row["stated"] if not spec.parts or name != "previous"]
            for row in compared
        },
        "initial_weights": "known" if _knows_initial(replica) else "not compared",
        "data_sha256": replica.data_sha256,
        "compared": dict(Counter(row["what"] for row in compared)),
        "differences": differences,
        "processes": ctx.group.processes,
        "replayed_on": {name: identity[name] for name in ("device", "cpu", "versions")},
        "machine": _machine(run, identity, differences[0]["step"] if differences else end),
    }


def _require_result(run: Run, steps: int) -> None:
    """Raise a LockstepError if the result, or a checkpoint, is not of the recipe's `steps`, if only
    a part of the result is there, or if its weights are damaged.
    """
    result = run.result()
    if (result is None) == os.path.lexists(run.model):
        raise LockstepError(
            f"{run.path} has only one of result.json and {run.model.name}, so neither can be "
            f"compared: copy both, or continue the run with {option('resume', True)}",
            DATA,
        )
    if result:
        statefile.read(run.model)
    if (result or {"steps": steps})["steps"] != steps or max(run.steps, default=0) > steps:
        raise LockstepError(
            f"{run.path} is of another number of steps than its recipe, which has {steps}: restore "
            f"its own recipe.json",
            DATA,
        )


def replayed(run: Run, start: int | None) -> tuple[int, int]:
    """Return the numbers of updates before and after the replay.

    The replay begins with the newest valid checkpoint up to `start`, by default the second newest
    of all, or with the initial state, and ends at the next one, or at the result. Raises:
    LockstepError if nothing is recorded in between.
    """
    states = sorted({*run.steps, (run.result() or {}).get("steps", 0), 0}, reverse=True)
    start = (*states, 0)[1] if start is None else start
    paths = (path for step, path in reversed(run.files.items()) if step <= start)
    state = next(filter(None, map(_read, paths)), None)
    begin = state.step if state else 0
    end = min((step for step in states if step > start), default=states[0])
    if begin != start:
        logger.warning(
            f"there is no valid checkpoint after {start} steps: the replay starts from step {begin}"
        )
    if end <= begin:
        raise LockstepError(
            f"{run.path} has recorded no state after step {begin}, so there is nothing to compare: "
            f"choose an earlier step as --from, or train with {option('save_every')}",
            DATA,
        )
    return begin, end


def _knows_initial(replica: Replica) -> bool:
    return replica.recipe.init_sha256 is None or replica.initial_weights is not None


def _frozen(tensors: NamedTensors) -> NamedTensors:
    """Return the tensors of the layers before a head."""
    return {name: tensor for name, tensor in tensors.items() if name.startswith(FROZEN)}


def _replay(run: Run, replica: Replica, ctx: Context, begin: int, end: int) -> list[Record]:
    """Compute the steps from the state after `begin` updates up to `end`. Return, in process 0,
    what is recorded of each state beside the same of the replayed one. All processes call this
    together.

    It starts from the checkpoint after `begin` updates, or from the initial state. That follows
    from the recipe, unless it comes from a file of weights that is not here.
    """
    state, rows, checkpoint = replica.state, list[Record](), None
    known = _knows_initial(replica)
    if ctx.first and (begin or (not known and 0 in run.steps)):
        checkpoint = run.read_checkpoint(begin)
    if checkpoint and not begin:
        logger.warning(
            f"the run starts from weights (init_sha256 {replica.recipe.init_sha256}), whose file "
            f"is not here: the initial state is not compared. Give the file as {option('init')}"
        )
    if checkpoint and known and different(*map(_frozen, (checkpoint.tensors, state.state_dict()))):
        raise LockstepError(
            f"{checkpoint.path} has other layers before its head than the weights that the run "
            f"starts from: restore its own frozen.safetensors",
            DATA,
        )
    # A slot that the checkpoint lacks is empty, as in the run.
    state.optimizer.state.clear()
    restore(replica, checkpoint)
    loaded = begin if checkpoint else None
    updates = replica.updates(Log(replica.bound, monitor=ctx.monitor))
    with ctx.progress("replaying steps", end - state.step + 1) as advance:
        for _ in chain([None], updates):
            advance(1)
            if ctx.first:
                rows += _of_checkpoint(run, replica, loaded)
            if state.step == end:
                break
    updates.close()
    complete = ctx.first and (run.result() or {}).get("steps") == end
    if ctx.group.broadcast(b"complete" if complete else b""):
        evaluations = replica.evaluate_all()
        if ctx.first:
            rows += _of_result(run, replica, evaluations)
    if ctx.first and end not in (loaded, *(row["step"] for row in rows)):
        raise LockstepError(
            f"the recorded state after {end} steps cannot be read, so it was not compared", DATA
        )
    return rows


def _read(path: Path) -> StateFile | None:
    """Return a state file of the run. Return None, with a message, if it is damaged or was
    deleted.
    """
    try:
        return statefile.read(path)
    except (FileNotFoundError, LockstepError) as error:
        logger.warning(f"{path.name} is not compared: {error}")
    return None


def _machine(run: Run, identity: Record, end: int) -> Record | None:
    """Return how this machine differs from the one that computed the state after `end` steps, None
    if that is not recorded.
    """
    if not (computed := [entry for entry in run.sessions() if entry["step"] < max(end, 1)]):
        return None
    changes = compare(computed[-1], identity)
    return {
        "probe_equal": None if "probe" not in computed[-1] else not texts(changes, "probe"),
        "changes": [str(change) for change in changes if change.kind != "probe"],
    }


def _of_checkpoint(run: Run, replica: Replica, loaded: int | None) -> Iterator[Record]:
    """Yield what the checkpoint of this step has, if there is one, beside the same of the replayed
    state. The `loaded` one is no result of the replay, so it counts only if its metadata differ.
    """
    state = replica.state
    path = run.checkpoints / file_name(state.step)
    if os.path.lexists(path) and (saved := _read(path)):
        metadata = {"step": state.step, **replica.metadata()}
        found = _compared(saved, state.state_dict(), metadata, "previous", "evaluations")
        if state.step != loaded or found["metadata"]:
            yield {"step": state.step, "what": "checkpoints", **found}


def _of_result(run: Run, replica: Replica, evaluations: dict[str, Score]) -> Iterator[Record]:
    """Yield what result.json and model.safetensors state, beside the same of the replayed state and
    its `evaluations`.
    """
    result, step = run.result() or {}, replica.state.step
    made = result_of(replica, evaluations)
    found = finite(made.decided())
    found["loss"]["train"] = result.get("loss", {}).get("train")
    stated = ["loss.train", *(name for name in STATED.split() if name in result)]
    if last := statefile.metadata_if_valid(run.checkpoints / file_name(step)):
        found["link"] = Link.of(last).sha256
    else:
        stated.append("link")
    names = [name for name in different(result, found) if name not in stated]
    recorded, replayed = (
        {name: row[name] for name in names or ["weights_sha256"] if name in row}
        for row in (result, found)
    )
    yield {
        "step": step,
        "what": "result.json",
        "recorded": recorded,
        "replayed": replayed,
        "stated": stated,
    }
    saved = _compared(statefile.read(run.model), made.tensors, made.metadata)
    yield {"step": step, "what": "model.safetensors", **saved}


def _compared(saved: StateFile, tensors: NamedTensors, metadata: Record, *stated: str) -> Record:
    """Return the SHA-256 of the file `saved`, and what it is with what the replay has.

    The `stated` metadata are those of the file.
    """
    if metadata["model_source"]:  # It may have changed since: `compare` says that.
        stated = (*stated, "model_source")
    replayed = metadata | {name: saved.metadata.get(name) for name in (SHA256, *stated)}
    if _frozen(tensors):
        replayed["frozen"] = True
    return {
        "recorded": saved.metadata[SHA256],
        "replayed": contents_sha256(replayed, tensors),
        "metadata": different(saved.metadata, replayed),
        "tensors": different(saved.tensors, tensors),
        "stated": [*stated],
    }


def different(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> list[str]:
    """Return the names of the tensors that do not have the same type, shape and bits, and of the
    other values that do not have the same JSON.
    """
    first, second = (
        {
            name: contents_sha256({}, {name: value})
            if isinstance(value, Tensor)
            else json.dumps(value, sort_keys=True)
            for name, value in values.items()
        }
        for values in (recorded, replayed)
    )
    return sorted({name for name, _ in first.items() ^ second.items()})
