"""The verify job: replay steps of a run, and compare them with what its folder states. Nothing is written there."""

import json
import math
from collections import Counter
from dataclasses import asdict
from typing import Any

from lockstep.core.events import Listener, StepEvent, Tensors
from lockstep.core.log import Log
from lockstep.core.loop import train
from lockstep.core.state import BEST, State
from lockstep.core.tower import NonFiniteError, Tower
from lockstep.errors import DATA, LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.due import Due
from lockstep.jobs.session import Session
from lockstep.jobs.specs import VerifySpec
from lockstep.messages import collected, logger
from lockstep.report import console
from lockstep.runs.compare import differences
from lockstep.runs.provenance import compare, texts
from lockstep.runs.recorded import Recorded
from lockstep.runs.statefile import StateFile


def verify(spec: VerifySpec, ctx: Context) -> dict[str, Any] | None:
    """Replay the steps that `spec` names, and compare them. Return the record in process 0, None in the others.

    Raises: LockstepError if nothing can be compared.
    """
    with collected() as notes:
        comparison = Comparison(spec) if ctx.first else None
        session = Session(spec.recipe, spec.placement, ctx)
        state, train_set = session.state, session.split("train")
        course, probe = spec.recipe.bind(len(train_set)), session.probe(train_set)
        chooses = spec.recipe.patience is not None
        evaluated = session.split(spec.recipe.evaluated_split) if chooses else train_set
        due = Due(spec.placement.replace(eval_every=None), course)
        points = json.loads(ctx.group.broadcast(json.dumps(comparison.points).encode() if comparison else None))
        session.restore(comparison.begin(session, probe) if comparison else None)
        if comparison:
            comparison.compare(state)
        # A display that redraws its line; other streams get notes and the result alone.
        listeners = [_Losses(comparison), *_live(ctx)] if comparison else []
        log = Log(course, listeners, ctx.monitor, ctx.group.processes, session.device)
        log.start([("replays", f"{spec.path}, steps {state.step} to {points[-1]}")])
        tower = Tower(course, session.network)
        every = spec.placement.digest_every
        updates = train(course, train_set, tower, session.reduction, state, log, digest_every=every)
        try:
            for _ in updates:
                if chooses and due.evaluates(state.step):
                    correct = session.evaluate(evaluated, "raw" if state.ema is None else "ema").correct
                    if comparison:
                        comparison.compare_evaluation(state.step, correct)
                if state.step in points:
                    ended = comparison is not None and (comparison.compare(state) or state.step == points[-1])
                    if ctx.group.broadcast(b"ended" if ended else b""):
                        break
        except NonFiniteError as error:
            if comparison:
                comparison.failed(state.step, error)
        finally:
            for listener in listeners:
                listener.close()
        if comparison and chooses:
            comparison.compare_choice(due)
        return comparison.record(notes) if comparison else None


def _live(ctx: Context) -> list[Listener]:
    stream = ctx.display.progress
    return [console.for_stream(stream, 1)] if stream is not None and stream.isatty() else []


class Comparison:
    """Process 0's comparison of a replay with the folder of the run.

    Attributes:
        points: the numbers of updates of the states to compare, in ascending order.
    """

    def __init__(self, spec: VerifySpec) -> None:
        """Read the folder. Raises: LockstepError if there is nothing to compare."""
        self._spec = spec
        self._recorded = Recorded(spec.path)
        self._start, self.points = self._recorded.range(spec.start, spec.steps)
        self._reached = self._start
        self._loaded: int | None = None  # the step of the checkpoint that the replay starts from
        self._processes = 1
        self._compared = Counter(digests=0, checkpoints=0, weights_sha256=0, losses=0, evaluations=0, best_step=0)
        self._bits_compared = False  # of a state that was computed, not loaded
        self._last_equal: int | None = None
        self._differences: list[dict[str, Any]] = []
        self._tensors: dict[str, Any] | None = None
        self._machine: list[dict[str, Any]] = []

    def begin(self, session: Session, probe: str) -> StateFile | None:
        """Return the checkpoint that the replay starts from, after comparing machine and data with the run's."""
        recorded, end = self._recorded, self.points[-1]
        self._processes = session.group.processes
        self._require_same_data(session)  # first, because probes of other images say nothing about the machine
        now = {"probe": probe, "data_sha256": session.data_sha256, "model_source": session.model_source}
        now |= session.fingerprint
        for entry in recorded.sessions_of(self._start, end):
            differing = compare(entry, now)
            named = [f"{one.kind} of {one}" if one.kind in ("source", "data") else str(one) for one in differing]
            found = [text for text, one in zip(named, differing, strict=True) if one.kind != "probe"]
            equal = not texts(differing, "probe") if {"probe", "data_sha256"} <= entry.keys() else None
            self._machine.append({"from_step": entry["step"], "probe_equal": equal, "changes": found,
                                  "portable": session.recipe.arithmetic == "portable"})  # fmt: skip
            if equal is False:
                logger.warning(
                    f"the arithmetic probe differs from that of the session which computed the steps from "
                    f"{entry['step']} on: expect other bits"
                )
        # The initial state follows from the recipe, unless it comes from a file of weights that is not here.
        computable = self._start == 0 and (session.initial_weights or session.recipe.init_sha256 is None)
        start = recorded.read(self._start) if not computable and self._start in recorded.steps else None
        self._loaded = None if start is None else self._start
        return start

    def _require_same_data(self, session: Session) -> None:
        own = session.data_sha256["train"]
        for entry in (self._recorded.facts, *self._recorded.sessions):
            if (entry.get("data_sha256") or {}).get("train", own) != own:
                raise LockstepError(
                    f"the training data is not what {self._spec.path} was trained on (its sha256 differs): images were "
                    f"added, removed or changed since. Give the same files as --data to verify it",
                    DATA,
                )

    def compare(self, state: State) -> bool:
        """Compare digest, tensors and SHA-256 of `state` as far as they are recorded."""
        step, recorded = state.step, self._recorded
        self._reached = step
        before = sum(self._compared.values())
        if (digest := recorded.digests.get(step)) is not None:
            self._check("digests", step, digest, state.digest())
        if step in recorded.steps and step != self._loaded and (saved := recorded.read(step)) is not None:
            # The best weights so far follow from the states and evaluations, which are compared themselves.
            tensors, own = (
                {name: tensor for name, tensor in one.items() if not name.startswith(BEST)}
                for one in (saved.tensors, state.named())
            )
            found = differences(tensors, own)
            self._check("checkpoints", step, 0, len(found))
            if found and self._tensors is None:
                listed = [asdict(difference) for difference in found]
                self._tensors = {"step": step, "count": len(tensors), "differing": listed}
        if step == recorded.result_step:
            self._check("weights_sha256", step, recorded.weights_sha256, state.weights_sha256())
        if sum(self._compared.values()) > before:
            self._bits_compared |= step > self._start
            self._last_equal = self._last_equal if self._differences else step
        later = any(step < other <= self.points[-1] for other in recorded.steps)
        return bool(self._differences) and not (later and self._tensors is None)

    def compare_loss(self, step: int, loss: float) -> None:
        """Compare the loss of `step`, if it is recorded."""
        if step in self._recorded.losses:
            self._check("losses", step, self._recorded.losses[step], loss if math.isfinite(loss) else None)

    def compare_evaluation(self, step: int, correct: int) -> None:
        """Compare the number of correct images after `step` updates, which must be recorded if the run is complete."""
        recorded = self._recorded.correct.get(step)
        if recorded is not None or self._recorded.result:
            self._check("evaluations", step, recorded, correct)

    def compare_choice(self, due: Due) -> None:
        """Compare the best step of a complete run with the one that the recorded evaluations give."""
        result, correct = self._recorded.result, self._recorded.correct
        for step in range(1, result.get("steps", 0) + 1):
            if due.evaluates(step) and step in correct:
                due.record(step, correct[step])
        if result:
            self._check("best_step", result["steps"], result.get("best_step"), due.best_step)

    def failed(self, step: int, error: NonFiniteError) -> None:
        """Record that the replay cannot compute `step`, which the run has computed."""
        self._differences.append({"step": step, "what": "losses", "recorded": "finite", "replayed": str(error)})

    def _check(self, what: str, step: int, recorded: object, replayed: object) -> None:
        self._compared[what] += 1
        if recorded != replayed:
            self._differences.append({"step": step, "what": what, "recorded": recorded, "replayed": replayed})

    def record(self, notes: list[str]) -> dict[str, Any]:
        """Return what was compared and what differs. Raises: LockstepError if nothing was compared."""
        if not self._bits_compared and not self._differences:
            raise LockstepError(
                f"{self._spec.path}: steps {self._start} to {self._reached} were replayed, but no recorded state of "
                f"them could be read, so nothing was compared",
                DATA,
            )
        return {
            "run": str(self._spec.path),
            "same": not self._differences,
            "from_step": self._start,
            "to_step": self._reached,
            "processes": self._processes,
            "compared": dict(self._compared),
            "last_equal_step": self._last_equal,
            "differences": self._differences,
            "tensors": self._tensors,
            "machine": self._machine,
            "notes": notes,
        }


class _Losses(Listener):
    """Gives the loss of each step to a comparison."""

    every = 1

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def step(self, event: StepEvent, tensors: Tensors) -> None:
        """Compare the loss."""
        self._comparison.compare_loss(event.step, event.loss)
