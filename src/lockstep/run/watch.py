"""Watch: evaluates the newest checkpoint of a run, or each new one while the run is trained by another program.

Nothing here takes the run's lock: that is for who writes recipe, metrics and checkpoints.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from lockstep.errors import DATA, LockstepError
from lockstep.report.evaluation import CheckpointEvaluation
from lockstep.report.evaluation_log import EvaluationLog
from lockstep.run import checkpoint
from lockstep.run.checkpoint import Checkpoint
from lockstep.run.folder import Run
from lockstep.run.session import Session
from lockstep.run.source import source_changes
from lockstep.training.events import EvaluatingEvent

_MEET_S = 30.0  # how often waiting processes meet: one that hears nothing for minutes takes the others for lost
_EVALUATE, _MORE, _WAIT, _END = b"evaluate", b"more", b"wait", b"end"

Note = Callable[[str], None]


class Evaluator:
    """One question about a run's checkpoints: how good some of its weights are on a split. The same in all processes.

    `weights` is "ema", "raw" or None for the ones that make the classifier; `examples` None for the whole split.
    `strict`: an error, not a note, if the source of the model is not the one the checkpoint was trained with.
    `progress` is told in process 0 how far each evaluation is. Raises: LockstepError if the run cannot be asked that.
    """

    def __init__(
        self,
        session: Session,
        path: Path,
        *,
        split: str,
        weights: str | None = None,
        examples: int | None = None,
        strict: bool = False,
        note: Note = lambda text: None,
        progress: Callable[[EvaluatingEvent], None] = lambda event: None,
    ) -> None:
        self.session, self.run, self._progress = session, Run(path), progress
        self._strict, self._note, self._noted = strict, note, ""
        self.dataset = session.split(split, examples)
        own = "ema" if session.state.ema is not None else "raw"
        if weights == "ema" and own == "raw":
            raise LockstepError(f"{path} keeps no average of its weights: use --weights raw")
        self.split, self.weights = split, weights or own
        whole = len(self.dataset) == len(session.splits[split])
        self.usual = whole and (split, self.weights) == (session.recipe.tested_on, own)
        self.is_first = session.reduction.process == 0

    def __call__(self, found: Checkpoint | None) -> CheckpointEvaluation:
        """Evaluate the checkpoint that process 0 found."""
        self._compare_source(found)
        self.session.restore(found)
        step, classes = self.session.state.step, self.dataset.classes

        def progress(share: float) -> None:
            self._progress(EvaluatingEvent(step, self.split, share))

        result = self.session.evaluate(self.dataset, self.weights, progress)
        return CheckpointEvaluation(self.run.path, time.time(), step, self.split, self.weights, classes, result)

    def _compare_source(self, found: Checkpoint | None) -> None:
        if found is None or "model_source" not in found.manifest:
            return
        if changed := source_changes(found.manifest["model_source"], self.session.model_source):
            text = f"the source of model {self.session.recipe.model} is not the one it was trained with"
            text = f"{text} ({'; '.join(changed)})"
            if self._strict:
                raise LockstepError(f"--strict: {text}", DATA)
            if text != self._noted:
                self._note(text)
            self._noted = text


def evaluate_newest(evaluator: Evaluator, note: Note) -> CheckpointEvaluation:
    """Evaluate the newest whole checkpoint. Raises: LockstepError if there is none."""
    found = checkpoint.latest(evaluator.run.checkpoints, note) if evaluator.is_first else None
    if evaluator.is_first and found is None:
        raise _none_yet(evaluator.run)
    return evaluator(found)


def evaluate_chosen(evaluator: Evaluator, which: int | Literal["best"]) -> CheckpointEvaluation:
    """Evaluate the checkpoint after `which` updates, or the best: that of the highest accuracy measured in training.

    Raises: LockstepError if there is none such, or it is damaged.
    """
    return evaluator(_chosen(evaluator.run, which) if evaluator.is_first else None)


def watch(
    evaluator: Evaluator, *, interval: float, once: bool, tell: Callable[[CheckpointEvaluation], None], note: Note
) -> None:
    """Evaluate each new checkpoint once, until the run has ended and its last one is evaluated.

    Every `interval` seconds process 0 looks, and all processes do what it decides: the oldest first that is still
    there. With `once` it looks only once, at the newest. It calls `tell` with each evaluation. Raises: LockstepError.
    """
    reduction = evaluator.session.reduction
    watcher = _Watcher(evaluator, once, note) if evaluator.is_first else None
    while True:
        word = reduction.broadcast(watcher.decide() if watcher else None)
        if word == _EVALUATE:
            evaluated = evaluator(watcher.found if watcher else None)
            if watcher:
                watcher.ledger.add(evaluated)
                tell(evaluated)
            word = reduction.broadcast(watcher.after() if watcher else None)
        if word == _END:
            break
        if word == _MORE:
            continue
        meetings = math.ceil(interval / _MEET_S)
        for _ in range(meetings):
            time.sleep(interval / meetings)
            reduction.broadcast(b"" if watcher else None)
    if watcher:
        watcher.ledger.close()


class _Watcher:
    """Process 0's part: it looks, and decides for all. `found` is what there is to evaluate."""

    def __init__(self, evaluator: Evaluator, once: bool, note: Note) -> None:
        self._run, self._once, self._note = evaluator.run, once, note
        self._noted: set[str] = set()
        self._passed: set[int] = set()  # damaged
        self._ended = False
        self.found: Checkpoint | None = None
        self.ledger = EvaluationLog(
            evaluator.run.path / "eval", note, split=evaluator.split, weights=evaluator.weights,
            examples=len(evaluator.dataset), usual=evaluator.usual,
        )  # fmt: skip

    def decide(self) -> bytes:
        """Look for a checkpoint that is new. Raises: LockstepError if there will be none."""
        run = Run.open(self._run.path)  # it may have been deleted since
        self._ended = run.result() is not None  # before we look: what we find then is the last
        steps = checkpoint.steps(self._run.checkpoints)
        if not steps:
            if self._once or self._ended:
                raise _none_yet(self._run)
            self._note_once(f"{self._run.path} has no checkpoint yet: waiting")
            return _WAIT
        if self._next(steps):
            return _EVALUATE
        if self._once:
            self._note(f"the newest checkpoint of {self._run.path} is evaluated already, see {self.ledger.path}")
        elif self._ended:
            self._note(f"{self._run.path} has ended, and its last checkpoint is evaluated, see {self.ledger.path}")
        elif not self._run.is_held():
            self._note_once(f"nobody is training {self._run.path} now: waiting; --once does not")
        return self.after()

    def _next(self, steps: list[int]) -> bool:
        """Whether there is one to evaluate among `steps`, the newest first: then it is in `found`."""
        for step in steps if self._once else reversed(steps):
            if step in self.ledger.done and self._once:
                return False
            if step not in self.ledger.done | self._passed and self._read(step):
                return True
        return False

    def _read(self, step: int) -> bool:
        try:
            self.found = checkpoint.read_step(self._run.checkpoints, step)
        except FileNotFoundError:
            return False  # training keeps the latest only
        except LockstepError as error:
            self._passed.add(step)
            self._note(f"{error}: passed over")
            return False
        return True

    def after(self) -> bytes:
        """Whether that was the last one."""
        self.found = None  # its tensors are not needed while we wait
        waiting = set(checkpoint.steps(self._run.checkpoints)) - self.ledger.done - self._passed
        return _END if self._once or (self._ended and not waiting) else _MORE if waiting else _WAIT

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)


def _chosen(run: Run, which: int | Literal["best"]) -> Checkpoint:
    while True:
        there = checkpoint.steps(run.checkpoints)
        if not there:
            raise _none_yet(run)
        have = f"there are those after {', '.join(map(str, sorted(there)))} steps"
        try:
            step = checkpoint.best_step(run.checkpoints) if which == "best" else which
            if step is None:
                raise LockstepError(
                    f"--checkpoint best: no checkpoint of {run.path} was evaluated in training: {have}; "
                    f"train with --eval-every N to know the best"
                )
            if step not in there:
                raise LockstepError(f"--checkpoint {step}: {run.path} has no such checkpoint: {have}")
            return checkpoint.read_step(run.checkpoints, step)
        except FileNotFoundError:
            continue  # training deleted one while we read: look again


def _none_yet(run: Run) -> LockstepError:
    return LockstepError(f"{run.path} has no checkpoint yet", DATA)
