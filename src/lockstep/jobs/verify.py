"""The verify job: compute steps of a run again, and compare them with what its folder states, which is only read."""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from lockstep.core.state import State
from lockstep.data.progress import progress
from lockstep.errors import DATA, LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.due import Due
from lockstep.jobs.session import Session
from lockstep.jobs.specs import VerifySpec
from lockstep.listeners.log import Log
from lockstep.messages import collected, logger
from lockstep.runs import statefile
from lockstep.runs.folder import Run
from lockstep.runs.provenance import compare, texts
from lockstep.runs.statefile import SHA256, StateFile, contents_sha256, file_name


def verify(spec: VerifySpec, ctx: Context) -> dict[str, Any] | None:
    """Compute the steps from a checkpoint to the next one, and compare. Return the record in process 0, else None.

    Raises: LockstepError if nothing can be compared.
    """
    with collected() as notes:
        run = Run(spec.path)
        checkpoint, end = replayed(run, spec.start) if ctx.first else (None, 0)
        session = Session(spec.recipe, spec.placement, ctx)
        facts, recipe, state = session.require_agreement(), spec.recipe, session.state
        begin = checkpoint.step if checkpoint else 0
        # The initial state follows from the recipe, unless it comes from a file of weights that is not here.
        if begin == 0 and (session.initial_weights or recipe.init_sha256 is None):
            checkpoint = None
        machine = _machine(run, session, facts, end) if ctx.first else None
        due = Due(spec.placement.replace(eval_every=None), session.course)
        due.load(session.restore(checkpoint))
        comparison = Comparison(run, loaded=checkpoint.step if checkpoint else None) if ctx.first else None
        checkpoint = None  # frees the memory
        end = int(ctx.group.broadcast(str(end).encode()))
        evaluated = session.train_set if recipe.patience is None else session.split(recipe.evaluated_split)
        updates = session.train(
            Log(session.course, (), ctx.monitor, session.device), digest_every=spec.placement.digest_every
        )
        shown = comparison and (stream := ctx.output.progress) and stream.isatty()
        with progress("replaying steps", end - state.step) if shown else nullcontext() as advance:
            while True:
                if comparison:
                    comparison.compare(state)
                if recipe.patience is not None and due.evaluates(state.step):
                    due.record(state.step, session.evaluate(evaluated, recipe.own_weights).correct)
                    if due.best_step == state.step:
                        state.keep_best()  # part of the state that is compared
                if state.step >= end:
                    break
                next(updates)
                if advance:
                    advance(1)
        updates.close()
        if comparison is None:
            return None
        comparison.compare_choice(state.step, due.best_step)
        record = comparison.record(begin, state.step)
        return {"run": str(run.path), **record, "processes": ctx.group.processes, "machine": machine, "notes": notes}


def replayed(run: Run, start: int | None) -> tuple[StateFile | None, int]:
    """Return the state before the replay, None for the initial one, and the number of updates after it.

    By default these are the newest two valid checkpoints. With `start`, the replay begins with the newest valid one up
    to there, and ends at the next one. Raises: LockstepError if nothing is recorded in between.
    """
    steps, result = run.steps, run.result() or {}
    last = max(*steps, *run.digests(), result.get("best_step") or result.get("steps", 0), 0)
    valid = (found for step in steps if (start is None or step <= start) and (found := _read(run, step)))
    state, end = next(valid, None), min((step for step in steps if start is not None and step > start), default=last)
    if start is None and state is not None:
        end, state = state.step, next(valid, None)
    begin = state.step if state else 0
    if begin != (start or begin):
        logger.warning(f"there is no valid checkpoint after {start} steps: the replay starts from step {begin}")
    if end <= begin:
        raise LockstepError(
            f"{run.path} has recorded no state after step {begin}, so there is nothing to compare: choose an earlier "
            f"step as --from, or train with --digest-every or --save-every",
            DATA,
        )
    return state, end


def _read(run: Run, step: int) -> StateFile | None:
    """Return the checkpoint after `step` updates. Return None, with a message, if it is damaged or was deleted."""
    try:
        return statefile.read(run.checkpoints / file_name(step))
    except (FileNotFoundError, LockstepError) as error:
        logger.warning(f"the checkpoint after {step} steps is not compared: {error}")
    return None


def _machine(run: Run, session: Session, facts: Mapping[str, Any], end: int) -> dict[str, Any] | None:
    """Return how this machine differs from the one that computed the steps before `end`, None if that is not recorded.

    Raises: LockstepError if the data is not the run's.
    """
    sessions = run.sessions()
    for entry in (run.facts(), *sessions):
        session.require_same_data(run.path, entry)
    if not (computed := [entry for entry in sessions if entry["step"] < end]):
        return None
    found = compare(computed[-1], facts)
    equal = None if "probe" not in computed[-1] else not texts(found, "probe")
    return {"probe_equal": equal, "changes": [str(one) for one in found if one.kind != "probe"]}


class Comparison:
    """Process 0's comparison of states with what the `run` has recorded of them."""

    def __init__(self, run: Run, loaded: int | None) -> None:
        """Read what is recorded. `loaded` is the step of the checkpoint that the replay starts from, if any."""
        self._run, self._loaded, self._digests, self._steps = run, loaded, run.digests(), run.steps
        self._result = run.result() or {}
        self._result_step = self._result.get("best_step") or self._result.get("steps")
        self._compared: Counter[str] = Counter()
        self._differences: list[dict[str, Any]] = []
        self._equal: list[int] = []  # steps whose recorded states are equal, before the first difference
        self._tensors: dict[str, Any] | None = None

    def compare(self, state: State) -> None:
        """Compare digest, tensors and SHA-256 of `state` as far as they are recorded."""
        step, before = state.step, self._compared.total()
        if step in self._digests:
            self.check("digests", step, self._digests[step], state.digest())
        if step in self._steps and step != self._loaded and (saved := _read(self._run, step)) is not None:
            own, recorded = state.named(), saved.facts[SHA256]
            if not self.check("checkpoints", step, recorded, contents_sha256(saved.facts, own)) and not self._tensors:
                self._tensors = {"step": step, "count": len(saved.tensors), "differing": different(saved.tensors, own)}
        if step == self._result_step:
            self.check("weights_sha256", step, self._result["weights_sha256"], state.weights_sha256())
        if self._compared.total() > before and not self._differences:
            self._equal.append(step)

    def compare_choice(self, step: int, best_step: int | None) -> None:
        """Compare the best step that the evaluations up to `step` give, if the run with `patience` ended there."""
        if step == self._result.get("steps") and "best_step" in self._result:
            self.check("best_step", step, self._result["best_step"], best_step)

    def check(self, what: str, step: int, recorded: object, replayed: object) -> bool:
        """Compare one fact of the state after `step` updates. Return whether it is equal."""
        self._compared[what] += 1
        if recorded != replayed:
            self._differences.append({"step": step, "what": what, "recorded": recorded, "replayed": replayed})
        return recorded == replayed

    def record(self, begin: int, end: int) -> dict[str, Any]:
        """Return what was compared and what differs. Raises: LockstepError if no state after `begin` was compared."""
        if not self._differences and max(self._equal, default=begin) == begin:
            raise LockstepError(
                f"{self._run.path}: steps {begin} to {end} were replayed, but no recorded state of them could be read, "
                f"so nothing was compared",
                DATA,
            )
        return {
            "same": not self._differences,
            "from_step": begin,
            "to_step": end,
            "compared": dict(self._compared),
            "last_equal_step": max(self._equal, default=None),
            "differences": self._differences,
            "tensors": self._tensors,
        }


def different(recorded: Mapping[str, Tensor], replayed: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return the tensors that do not have the same bits: name, elements, how many differ, and the largest distance.

    The distance is None if it is not finite, or if the tensors have other shapes or types, so all elements differ.
    """
    found = []
    for name in sorted({*recorded, *replayed}):
        first, second = (tensors.get(name, torch.zeros(0)).detach().cpu() for tensors in (recorded, replayed))
        size, distance = max(first.numel(), second.numel()), float("inf")
        count = size
        if (first.dtype, first.shape) == (second.dtype, second.shape):
            bits = [tensor.contiguous().reshape(-1, 1).view(torch.uint8) for tensor in (first, second)]
            count = int((bits[0] != bits[1]).any(1).sum())
            distance = float((first.double() - second.double()).abs().max()) if count else 0.0
        if count:
            known = distance if distance < float("inf") else None
            found.append({"name": name, "elements": size, "differing": count, "max_abs": known})
    return found
