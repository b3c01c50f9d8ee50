"""Evaluation of a run's checkpoints: the newest, a chosen one, or each new one while another program trains the run.

No function here takes the run's lock, which is for programs that write recipe, metrics and checkpoints.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from lockstep.core.events import EvaluatingEvent
from lockstep.errors import DATA, LockstepError
from lockstep.jobs.session import Session
from lockstep.report.evaluation import CheckpointEvaluation
from lockstep.report.evaluation_log import EvaluationLog
from lockstep.runs import checkpoint
from lockstep.runs.checkpoint import Checkpoint, none_yet, read_chosen, read_result
from lockstep.runs.folder import Run
from lockstep.runs.provenance import compare, describe_custom_code

_MEET_S = 30.0  # Waiting processes exchange a message this often, as a connection without messages times out.
_EVALUATE, _MORE, _WAIT, _END = b"evaluate", b"more", b"wait", b"end"

Note = Callable[[str], None]


class Evaluator:
    """Evaluates checkpoints of one run on one split with one kind of weights. All processes hold the same.

    `weights` is "ema", "raw", or None for those of the classifier; `examples` None means the whole split. If `strict`,
    a changed model source is an error in place of a note. In process 0, `progress` receives the progress of each
    evaluation. Raises: LockstepError if the run has no such split or weights.

    Attributes:
        is_first: True in process 0.
        usual: True if the evaluation is the one that training makes: whole split, the classifier's weights.
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
        self._strict, self._note, self._last_note = strict, note, ""
        self._data_noted = False
        self.dataset = session.split(split, examples)
        own = "ema" if session.state.ema is not None else "raw"
        if weights == "ema" and own == "raw":
            raise LockstepError(f"{path} keeps no average of its weights: use --weights raw")
        self.split, self.weights = split, weights or own
        whole = len(self.dataset) == len(session.splits[split])
        self.usual = whole and (split, self.weights) == (session.recipe.evaluated_split, own)
        self.is_first = session.reduction.process == 0

    def __call__(self, found: Checkpoint | None) -> CheckpointEvaluation:
        """Evaluate the checkpoint that process 0 read; the other processes pass None."""
        self._compare_source(found)
        self._compare_data(found)
        self.session.restore(found)
        step, classes = self.session.state.step, self.dataset.classes

        def progress(share: float) -> None:
            self._progress(EvaluatingEvent(step, self.split, share))

        result = self.session.evaluate(self.dataset, self.weights, progress)
        return CheckpointEvaluation(self.run.path, time.time(), step, self.split, self.weights, classes, result)

    def _compare_source(self, found: Checkpoint | None) -> None:
        changed = [] if found is None else compare(found.manifest, {"model_source": self.session.model_source})
        if changed:
            text = f"the source of {describe_custom_code(self.session.recipe)} is not the one it was trained with"
            text = f"{text} ({'; '.join(map(str, changed))})"
            if self._strict:
                raise LockstepError(f"--strict: {text}", DATA)
            if text != self._last_note:
                self._note(text)
            self._last_note = text

    def _compare_data(self, found: Checkpoint | None) -> None:
        """Raise a LockstepError if the dataset has other classes than the run's. Note a split that has changed."""
        if found is None:
            return
        trained, own = found.manifest.get("classes"), list(self.dataset.classes)
        if trained is not None and trained != own:
            only = [*(f"-{name}" for name in trained if name not in own), *(f"+{n}" for n in own if n not in trained)]
            raise LockstepError(
                f"the dataset's classes are not those of {self.run.path} ({', '.join(only) or 'another order'}): give "
                f"images of the same {len(trained)} classes as --data",
                DATA,
            )
        before = found.manifest.get("data_sha256")
        whole = self.session.splits[self.split].sha256
        if isinstance(before, dict) and before.get(self.split, whole) != whole and not self._data_noted:
            self._note(f"the {self.split} data is not what it was in training (its sha256 differs)")
            self._data_noted = True


def evaluate_newest(evaluator: Evaluator) -> CheckpointEvaluation:
    """Evaluate the checkpoint that `read_result` returns. Raises: LockstepError if there is none."""
    return evaluator(read_result(evaluator.run) if evaluator.is_first else None)


def evaluate_chosen(evaluator: Evaluator, which: int | Literal["best"]) -> CheckpointEvaluation:
    """Evaluate the checkpoint after `which` updates, or the best: the one with the highest accuracy in training.

    Raises: LockstepError if it does not exist or is damaged.
    """
    return evaluator(read_chosen(evaluator.run, which) if evaluator.is_first else None)


def watch(
    evaluator: Evaluator, *, interval: float, once: bool, tell: Callable[[CheckpointEvaluation], None], note: Note
) -> None:
    """Evaluate each new checkpoint once, until the run has ended and its last checkpoint is evaluated.

    Every `interval` seconds process 0 looks for checkpoints and decides what all processes do. The oldest new
    checkpoint comes first. If `once`, it looks once, and only at the newest. `tell` receives each evaluation.
    Raises: LockstepError.
    """
    reduction = evaluator.session.reduction
    watcher = _Watcher(evaluator, once, note) if evaluator.is_first else None
    while True:
        decision = reduction.broadcast(watcher.decide() if watcher else None)
        if decision == _EVALUATE:
            evaluation = evaluator(watcher.found if watcher else None)
            if watcher:
                watcher.log.add(evaluation)
                tell(evaluation)
            decision = reduction.broadcast(watcher.after() if watcher else None)
        if decision == _END:
            break
        if decision == _MORE:
            continue
        meetings = math.ceil(interval / _MEET_S)
        for _ in range(meetings):
            time.sleep(interval / meetings)
            reduction.broadcast(b"" if watcher else None)
    if watcher:
        watcher.log.close()


class _Watcher:
    """Process 0's part: it looks for checkpoints, and decides for all processes.

    Attributes:
        found: the checkpoint to evaluate.
        log: the evaluations so far.
    """

    def __init__(self, evaluator: Evaluator, once: bool, note: Note) -> None:
        self._run, self._once, self._note = evaluator.run, once, note
        self._notes: set[str] = set()
        self._damaged: set[int] = set()
        self._ended = False
        self.found: Checkpoint | None = None
        self.log = EvaluationLog(
            evaluator.run.path / "eval", note, split=evaluator.split, weights=evaluator.weights,
            examples=len(evaluator.dataset), usual=evaluator.usual,
        )  # fmt: skip

    def decide(self) -> bytes:
        """Look for a new checkpoint. Raises: LockstepError if none can come."""
        run = Run.open(self._run.path)  # raises if the run was deleted
        # The result is read before the folder: if it exists, the checkpoints found afterwards are the last ones.
        self._ended = run.result() is not None
        steps = checkpoint.steps(self._run.checkpoints)
        if not steps:
            if self._once or self._ended:
                raise none_yet(self._run)
            self._note_once(f"{self._run.path} has no checkpoint yet: waiting")
            return _WAIT
        if self._find(steps):
            return _EVALUATE
        if self._once:
            self._note(f"the newest checkpoint of {self._run.path} is evaluated already, see {self.log.path}")
        elif self._ended:
            self._note(f"{self._run.path} has ended, and its last checkpoint is evaluated, see {self.log.path}")
        elif not self._run.is_held():
            self._note_once(f"no program is training {self._run.path} now: waiting. Use --once to stop here")
        return self.after()

    def _find(self, steps: list[int]) -> bool:
        """Read the next checkpoint to evaluate into `found`, from `steps`, newest first. Return False if none is."""
        for step in steps if self._once else reversed(steps):
            if step in self.log.done and self._once:
                return False
            if step not in self.log.done | self._damaged and self._read(step):
                return True
        return False

    def _read(self, step: int) -> bool:
        try:
            self.found = checkpoint.read_step(self._run.checkpoints, step)
        except FileNotFoundError:
            return False  # Training has deleted it.
        except LockstepError as error:
            self._damaged.add(step)
            self._note(f"{error}: skipped")
            return False
        return True

    def after(self) -> bytes:
        """Decide what follows an evaluation: another one, waiting, or the end."""
        self.found = None  # frees its tensors
        waiting = set(checkpoint.steps(self._run.checkpoints)) - self.log.done - self._damaged
        return _END if self._once or (self._ended and not waiting) else _MORE if waiting else _WAIT

    def _note_once(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            self._note(text)
