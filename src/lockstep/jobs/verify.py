"""The verify job: compute steps of a run again, and compare them with what its folder states, which
is only read.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from lockstep.core.loop import Observer
from lockstep.core.state import NamedTensors
from lockstep.errors import DATA, LockstepError, option
from lockstep.files import Record
from lockstep.jobs.agreement import require_agreement, restore
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.specs import VerifySpec
from lockstep.messages import logger
from lockstep.runs import statefile
from lockstep.runs.provenance import compare, texts
from lockstep.runs.run import Run
from lockstep.runs.statefile import SHA256, StateFile, contents_sha256, file_name


def verify(spec: VerifySpec, ctx: Context) -> Record | None:
    """Compute the steps from a checkpoint to the next one, and compare. Return the record in
    process 0, else None.

    Raises: LockstepError if nothing can be compared.
    """
    run = Run(spec.path)
    checkpoint, end = replayed(run, spec.start) if ctx.first else (None, 0)
    replica = Replica(spec.recipe, spec.placement, ctx)
    identity, recipe, state = require_agreement(replica), spec.recipe, replica.state
    # The initial state follows from the recipe, unless it comes from a file of weights that is not
    # here.
    if (
        checkpoint
        and checkpoint.step == 0
        and (replica.initial_weights or recipe.init_sha256 is None)
    ):
        checkpoint = None
    machine = _machine(run, replica, identity, end) if ctx.first else None
    loaded = checkpoint.step if checkpoint else None
    restore(replica, checkpoint)
    checkpoint = None  # frees the memory
    end, begin = int(ctx.group.broadcast(str(end).encode())), state.step
    updates = replica.updates(Observer(ctx.monitor))
    compared: list[Record] = []
    with ctx.progress("replaying steps", end - begin + 1) as advance:
        for _ in chain([None], updates):
            advance(1)
            if ctx.first:
                compared += _comparisons(run, replica, loaded)
            if state.step == end:
                break
    updates.close()
    if not ctx.first:
        return None
    differences = [row for row in compared if row["recorded"] != row["replayed"]]
    if not differences and max((row["step"] for row in compared), default=begin) == begin:
        raise LockstepError(
            f"no recorded state of steps {begin} to {end} can be read: nothing was compared", DATA
        )
    return {
        "run": str(run.path),
        "same": not differences,
        "from_step": begin,
        "to_step": end,
        "compared": dict(Counter(row["what"] for row in compared)),
        "differences": differences,
        "processes": ctx.group.processes,
        "machine": machine,
    }


def replayed(run: Run, start: int | None) -> tuple[StateFile | None, int]:
    """Return the state before the replay, None for the initial one, and the number of updates after
    it.

    The replay begins with the newest valid checkpoint up to `start`, by default the second newest
    of all, and ends at the next one. Raises: LockstepError if nothing is recorded in between.
    """
    steps, result = run.steps, run.result() or {}
    start = (*steps, 0, 0)[1] if start is None else start
    last = max(*steps, result.get("steps", 0), 0)
    paths = (run.checkpoints / file_name(step) for step in steps if step <= start)
    state = next(filter(None, map(_read, paths)), None)
    begin = state.step if state else 0
    end = min((step for step in steps if step > start), default=last)
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
    return state, end


def _read(path: Path) -> StateFile | None:
    """Return a state file of the run. Return None, with a message, if it is damaged or was
    deleted.
    """
    try:
        return statefile.read(path)
    except (FileNotFoundError, LockstepError) as error:
        logger.warning(f"{path.name} is not compared: {error}")
    return None


def _machine(run: Run, replica: Replica, identity: Record, end: int) -> Record | None:
    """Return how this machine differs from the one that computed the steps before `end`, None if
    that is not recorded.

    Raises: LockstepError if the data is not the run's.
    """
    sessions = run.sessions()
    for entry in (run.metadata(), *sessions):
        replica.require_same_data(run.path, entry)
    if not (computed := [entry for entry in sessions if entry["step"] < end]):
        return None
    changes = compare(computed[-1], identity)
    return {
        "probe_equal": None if "probe" not in computed[-1] else not texts(changes, "probe"),
        "changes": [str(change) for change in changes if change.kind != "probe"],
    }


def _comparisons(run: Run, replica: Replica, loaded: int | None) -> Iterator[Record]:
    """Yield what is recorded of the state after this step, beside the same of the replayed state of
    the `replica`.

    `loaded` is the step of the checkpoint that the replay starts from, if any.
    """
    state, result = replica.state, run.result() or {}
    step = state.step
    if step in run.steps and step != loaded and (saved := _read(run.checkpoints / file_name(step))):
        yield {
            "step": step,
            "what": "checkpoints",
            **_compared(saved, state.state_dict(), replica.metadata()),
        }
    if step == result.get("steps"):
        yield {
            "step": step,
            "what": "weights_sha256",
            "recorded": result["weights_sha256"],
            "replayed": state.weights_sha256(),
        }
        if saved := _read(run.model):
            yield {
                "step": step,
                "what": "model.safetensors",
                **_compared(saved, *replica.model_file()),
            }


def _compared(saved: StateFile, tensors: NamedTensors, metadata: Record) -> Record:
    """Return the SHA-256 of the file `saved`, and what it is with what the replay has."""
    # The source of the user's model may have changed since: `compare` says that.
    replayed = {**saved.metadata, **metadata, "model_source": saved.metadata.get("model_source")}
    return {
        "recorded": saved.metadata[SHA256],
        "replayed": contents_sha256(replayed, tensors),
        "tensors": different(saved.tensors, tensors),
    }


def different(recorded: NamedTensors, replayed: NamedTensors) -> list[str]:
    """Return the names of the tensors that do not have the same type, shape and bits."""
    first, second = (
        {name: contents_sha256({}, {name: tensor}) for name, tensor in tensors.items()}
        for tensors in (recorded, replayed)
    )
    return sorted({name for name, _ in first.items() ^ second.items()})
