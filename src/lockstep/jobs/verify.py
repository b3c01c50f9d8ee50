"""The verify job: compute steps of a run again, and compare them with what its folder states, which is only read."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lockstep.core.state import State
from lockstep.errors import DATA, LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.due import Due
from lockstep.jobs.session import Session
from lockstep.jobs.specs import VerifySpec
from lockstep.listeners import console
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
        run, comparison, start = Run(spec.path), None, None
        begin, end = replayed(run, spec.start) if ctx.first else (None, 0)
        session = Session(spec.recipe, spec.placement, ctx)
        state, recipe = session.state, spec.recipe
        facts = session.require_agreement()
        if ctx.first:
            _require_same_data(run, session)
            # The initial state follows from the recipe, unless it comes from a file of weights that is not here.
            computable = session.initial_weights is not None or recipe.init_sha256 is None
            start = None if begin is None or (begin.step == 0 and computable) else begin
            machine = _compare_machine(run, end, facts)
            comparison = Comparison(run, begin.step if begin else 0, end, start is not None, machine)
        end = int(ctx.group.broadcast(str(end).encode() if ctx.first else None))
        # With patience, the best weights so far are part of the state, so evaluations are made again.
        evaluated = session.train_set if recipe.patience is None else session.split(recipe.evaluated_split)
        due = Due(spec.placement.replace(eval_every=None), session.course)
        due.load(session.restore(start))
        for _ in _updates(session, spec, ctx, end):
            if comparison:
                comparison.compare(state)
            if recipe.patience is not None and due.evaluates(state.step):
                due.record(state.step, session.evaluate(evaluated, recipe.own_weights).correct)
                if due.best_step == state.step:
                    state.keep_best()
        if comparison is None:
            return None
    return comparison.record(state.step, ctx.group.processes, notes)


def _updates(session: Session, spec: VerifySpec, ctx: Context, end: int) -> Iterator[None]:
    """Train to step `end`. Yield before the first update, to compare and evaluate the state there, and after each."""
    stream = ctx.output.progress
    listeners = [console.for_stream(stream, 1)] if ctx.first and stream and stream.isatty() else []
    log = Log(session.course, listeners, ctx.monitor, session.device)
    log.start([("replays", f"{spec.path}, steps {session.state.step} to {end}")])
    try:
        yield
        for _ in session.train(log, digest_every=spec.placement.digest_every):
            yield
            if session.state.step >= end:
                return
    finally:
        for listener in listeners:
            listener.close()


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
    except FileNotFoundError:
        logger.warning(f"the checkpoint after {step} steps was deleted meanwhile: it is not compared")
    except LockstepError as error:
        logger.warning(f"{error}: it is not compared")
    return None


@dataclass
class Comparison:
    """Process 0's comparison of the replayed states with what the `run` has recorded of steps `start` to `end`."""

    run: Run
    start: int
    end: int
    loaded: bool  # whether the replay starts from a checkpoint, which is then not compared
    machine: dict[str, Any] | None
    compared: Counter[str] = field(default_factory=Counter)
    differences: list[dict[str, Any]] = field(default_factory=list)
    last_equal: int | None = None
    tensors: dict[str, Any] | None = None
    computed: bool = False  # whether a state that was computed, not loaded, has been compared

    def __post_init__(self) -> None:
        self._digests, self._steps, self._result = self.run.digests(), self.run.steps, self.run.result() or {}

    def compare(self, state: State) -> None:
        """Compare digest, tensors and SHA-256 of `state` as far as they are recorded."""
        step, before = state.step, self.compared.total()
        if step in self._digests:
            self.check("digests", step, self._digests[step], state.digest())
        loaded = self.loaded and step == self.start
        if step in self._steps and not loaded and (saved := _read(self.run, step)) is not None:
            own, recorded = state.named(), saved.facts[SHA256]
            if not self.check("checkpoints", step, recorded, contents_sha256(saved.facts, own)) and not self.tensors:
                self.tensors = {"step": step, "count": len(saved.tensors), "differing": different(saved.tensors, own)}
        if self._result and step == (self._result.get("best_step") or self._result["steps"]):
            self.check("weights_sha256", step, self._result["weights_sha256"], state.weights_sha256())
        if self.compared.total() > before:
            self.computed |= step > self.start
            self.last_equal = self.last_equal if self.differences else step

    def check(self, what: str, step: int, recorded: object, replayed: object) -> bool:
        """Compare one fact of the state after `step` updates. Return whether it is equal."""
        self.compared[what] += 1
        if recorded != replayed:
            self.differences.append({"step": step, "what": what, "recorded": recorded, "replayed": replayed})
        return recorded == replayed

    def record(self, reached: int, processes: int, notes: list[str]) -> dict[str, Any]:
        """Return what was compared and what differs. Raises: LockstepError if nothing was compared."""
        if not self.computed and not self.differences:
            raise LockstepError(
                f"{self.run.path}: steps {self.start} to {reached} were replayed, but no recorded state of them "
                f"could be read, so nothing was compared",
                DATA,
            )
        return {
            "run": str(self.run.path),
            "same": not self.differences,
            "from_step": self.start,
            "to_step": reached,
            "processes": processes,
            "compared": dict(self.compared),
            "last_equal_step": self.last_equal,
            "differences": self.differences,
            "tensors": self.tensors,
            "machine": self.machine,
            "notes": notes,
        }


def _require_same_data(run: Run, session: Session) -> None:
    own = session.data_sha256["train"]
    if any((entry.get("data_sha256") or {}).get("train", own) != own for entry in (run.facts(), *run.sessions())):
        raise LockstepError(
            f"the training data is not what {run.path} was trained on (its sha256 differs): images were added, removed "
            f"or changed since. Give the same files as --data to verify it",
            DATA,
        )


def _compare_machine(run: Run, end: int, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how this machine differs from that of the session that computed step `end`, if one is recorded."""
    sessions = [entry for entry in run.sessions() if entry["step"] < end]
    if not sessions:
        return None
    found = compare(sessions[-1], facts)
    equal = None if "probe" not in sessions[-1] else not texts(found, "probe")
    if equal is False:
        logger.warning("the arithmetic probe differs from the run's: expect other bits")
    return {"probe_equal": equal, "changes": [str(one) for one in found if one.kind != "probe"]}


def different(recorded: Mapping[str, Tensor], replayed: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return the tensors that do not have the same bits: name, elements, how many differ, and the largest distance.

    The distance is None if it is not finite, or if the tensors have other shapes or types, so all elements differ.
    """
    found = []
    for name in sorted({*recorded, *replayed}):
        first, second = (tensors.get(name, torch.zeros(0)).detach().cpu() for tensors in (recorded, replayed))
        size, distance = max(first.numel(), second.numel()), None
        count = size
        if (first.dtype, first.shape) == (second.dtype, second.shape):
            bits = [tensor.contiguous().reshape(-1, 1).view(torch.uint8) for tensor in (first, second)]
            count = int((bits[0] != bits[1]).any(1).sum())
            distance = float((first.double() - second.double()).abs().max()) if count else None
        if count:
            known = distance if distance is not None and distance < float("inf") else None
            found.append({"name": name, "elements": size, "differing": count, "max_abs": known})
    return found
