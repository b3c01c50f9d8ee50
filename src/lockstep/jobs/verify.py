"""The verify job: compute steps of a run again, and compare them with what its folder states, which is only read."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.core.state import State
from lockstep.core.tower import NonFiniteError
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
        comparison = Comparison(spec.path, *replayed(Run(spec.path), spec.start)) if ctx.first else None
        session = Session(spec.recipe, spec.placement, ctx)
        state, recipe, course = session.state, spec.recipe, session.course
        facts = session.require_agreement()
        evaluated = session.train_set if recipe.patience is None else session.split(recipe.evaluated_split)
        due = Due(spec.placement.replace(eval_every=None), course)
        due.load(session.restore(comparison.begin(session, facts) if comparison else None))
        end = int(ctx.group.broadcast(str(comparison.end).encode() if comparison else None))
        stream = ctx.output.progress
        listeners = [console.for_stream(stream, 1)] if comparison and stream and stream.isatty() else []
        log = Log(course, listeners, ctx.monitor, session.device)
        log.start([("replays", f"{spec.path}, steps {state.step} to {end}")])
        try:
            for _ in _steps(session.train(log, digest_every=spec.placement.digest_every)):
                if comparison:
                    comparison.compare(state)
                if recipe.patience is not None and due.evaluates(state.step):
                    correct = session.evaluate(evaluated, "raw" if state.ema is None else "ema").correct
                    due.record(state.step, correct)
                    if due.best_step == state.step:
                        state.keep_best()
                    if comparison:
                        comparison.compare_evaluation(state.step, correct)
                if state.step >= end:
                    break
        except NonFiniteError as error:
            if comparison:
                comparison.check("checkpoints", state.step, "finite", str(error))
        finally:
            for listener in listeners:
                listener.close()
        if comparison is None:
            return None
        if recipe.patience is not None:
            comparison.compare_choice(Due(spec.placement.replace(eval_every=None), course))
        return comparison.record(ctx.group.processes, notes)


def _steps(updates: Iterator[Any]) -> Iterator[Any]:
    """Yield before the first update too: the state that the replay starts from is compared, and may be evaluated."""
    yield None
    yield from updates


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
    """Process 0's comparison of the steps from `state` to `end` with the folder of the run in `path`."""

    path: Path
    state: StateFile | None
    end: int
    differences: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run, self.start = Run(self.path), self.state.step if self.state else 0
        self._digests, self._steps, self._result = self.run.digests(), self.run.steps, self.run.result() or {}
        self._correct = {step: row.get("correct") for step, row in self.run.judged().items()}
        self._reached = self.start
        self._last_equal: int | None = None
        self._loaded: int | None = None  # the step of the checkpoint that the replay starts from
        self._compared: Counter[str] = Counter()
        self._bits_compared = False  # of a state that was computed, not loaded
        self._tensors: dict[str, Any] | None = None
        self._machine: dict[str, Any] | None = None

    def begin(self, session: Session, facts: Mapping[str, Any]) -> StateFile | None:
        """Return the checkpoint that the replay starts from, after comparing data and machine with the run's."""
        sessions = self.run.sessions()
        for entry in (self.run.facts(), *sessions):
            own = session.data_sha256["train"]
            if (entry.get("data_sha256") or {}).get("train", own) != own:
                raise LockstepError(
                    f"the training data is not what {self.path} was trained on (its sha256 differs): images were "
                    f"added, removed or changed since. Give the same files as --data to verify it",
                    DATA,
                )
        if computed := [entry for entry in sessions if entry["step"] < self.end]:
            found = compare(computed[-1], facts)
            equal = None if "probe" not in computed[-1] else not texts(found, "probe")
            self._machine = {"probe_equal": equal, "changes": [str(one) for one in found if one.kind != "probe"]}
            if equal is False:
                logger.warning("the arithmetic probe differs from the run's: expect other bits")
        # The initial state follows from the recipe, unless it comes from a file of weights that is not here.
        computable = self.start == 0 and (session.initial_weights or session.recipe.init_sha256 is None)
        start, self.state = None if computable else self.state, None  # frees the memory of the other
        self._loaded = start.step if start else None
        return start

    def compare(self, state: State) -> None:
        """Compare digest, tensors and SHA-256 of `state` as far as they are recorded."""
        step, before = state.step, self._compared.total()
        self._reached = step
        if step in self._digests:
            self.check("digests", step, self._digests[step], state.digest())
        if step in self._steps and step != self._loaded and (saved := _read(self.run, step)) is not None:
            own, recorded = state.named(), saved.facts[SHA256]
            if not self.check("checkpoints", step, recorded, contents_sha256(saved.facts, own)) and not self._tensors:
                self._tensors = {"step": step, "count": len(saved.tensors), "differing": different(saved.tensors, own)}
        if self._result and step == (self._result.get("best_step") or self._result["steps"]):
            self.check("weights_sha256", step, self._result["weights_sha256"], state.weights_sha256())
        if self._compared.total() > before:
            self._bits_compared |= step > self.start
            self._last_equal = self._last_equal if self.differences else step

    def compare_evaluation(self, step: int, correct: int) -> None:
        """Compare the number of correct images after `step` updates, which must be recorded if the run is complete."""
        if self._correct.get(step) is not None or self._result:
            self.check("evaluations", step, self._correct.get(step), correct)

    def compare_choice(self, due: Due) -> None:
        """Compare the best step of a complete run with the one that the recorded evaluations give."""
        for step in sorted(self._correct):
            if due.evaluates(step) and (correct := self._correct[step]) is not None:
                due.record(step, correct)
        if self._result:
            self.check("best_step", self._result["steps"], self._result.get("best_step"), due.best_step)

    def check(self, what: str, step: int, recorded: object, replayed: object) -> bool:
        """Compare one fact of the state after `step` updates. Return whether it is equal."""
        self._compared[what] += 1
        if recorded != replayed:
            self.differences.append({"step": step, "what": what, "recorded": recorded, "replayed": replayed})
        return recorded == replayed

    def record(self, processes: int, notes: list[str]) -> dict[str, Any]:
        """Return what was compared and what differs. Raises: LockstepError if nothing was compared."""
        if not self._bits_compared and not self.differences:
            raise LockstepError(
                f"{self.path}: steps {self.start} to {self._reached} were replayed, but no recorded state of them "
                f"could be read, so nothing was compared",
                DATA,
            )
        return {
            "run": str(self.path),
            "same": not self.differences,
            "from_step": self.start,
            "to_step": self._reached,
            "processes": processes,
            "compared": dict(self._compared),
            "last_equal_step": self._last_equal,
            "differences": self.differences,
            "tensors": self._tensors,
            "machine": self._machine,
            "notes": notes,
        }


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
