"""The evaluate job: checkpoints of a run, one, or each new one while another program trains the run.

Nothing here takes the run's lock, which is for programs that write recipe, metrics and checkpoints.
"""

import math
import time
from typing import IO, Any

from torch import Tensor

from lockstep.core.evaluate import Chunk, Evaluation
from lockstep.core.events import EvaluatingEvent
from lockstep.core.unlike import divided
from lockstep.data import IMAGE_FOLDER
from lockstep.data.folder.scan import is_divided
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.session import Session
from lockstep.jobs.specs import EvaluateSpec
from lockstep.messages import logger
from lockstep.report.console import progress_on
from lockstep.report.evaluation_log import EvaluationLog
from lockstep.runs import statefile
from lockstep.runs.folder import Run
from lockstep.runs.provenance import compare, describe_custom_code
from lockstep.runs.statefile import StateFile
from lockstep.words import wilson_interval

_MEET_S = 30.0  # Waiting processes exchange a message this often, as a connection without messages times out.
_EVALUATE, _MORE, _WAIT, _END = b"evaluate", b"more", b"wait", b"end"


def evaluate(spec: EvaluateSpec, ctx: Context) -> dict[str, Any] | None:
    """Evaluate the checkpoints that `spec` names. Return the record of the only or the last one, in process 0.

    With `spec.watch`, the record of each evaluation goes to `ctx.emit`, and None is returned. Raises: LockstepError.
    """
    session = Session(spec.recipe, spec.placement, ctx)
    if ctx.first:
        _note_division(spec, session)
    evaluator = Evaluator(spec, session, ctx.display.progress if ctx.first else None)
    if spec.watch:
        watch(evaluator, spec, ctx)
        return None
    record = evaluator(evaluator.run.load(spec.checkpoint) if ctx.first else None)
    if not ctx.first:
        return None
    if spec.save_model is not None:
        try:
            tensors, facts = session.model_contents(record["weights"])
            statefile.write(spec.save_model, {**tensors, **_unlike(evaluator.run)}, facts)
        except OSError as error:
            raise LockstepError(f"--save-model {spec.save_model}: cannot be written: {error}", ENVIRONMENT) from None
        logger.warning(
            f"the model after {record['step']} steps, {record['weights']} weights, is saved in {spec.save_model}"
        )
    return record


def _unlike(run: Run) -> dict[str, Tensor]:
    """Return the facts that tell unlike images. They are in the model file of a complete run; {} without them."""
    try:
        return divided(statefile.read(run.model).tensors)[1]
    except (OSError, LockstepError):
        return {}


class Evaluator:
    """Evaluates checkpoints of one run on one split with one kind of weights. All processes hold the same.

    If `stream` is a terminal, it shows the progress of each evaluation. Raises: LockstepError if the run has no such
    split or weights.

    Attributes:
        usual: True if the evaluation is the one that training makes: whole split, the classifier's weights.
    """

    def __init__(self, spec: EvaluateSpec, session: Session, stream: IO[str] | None = None) -> None:
        self.session, self.run = session, Run(spec.path)
        self._line = progress_on(stream) if stream else None
        self._strict, self._last_note, self._data_noted = spec.strict, "", False
        self.dataset = session.split(spec.split, spec.examples)
        own = "ema" if session.state.ema is not None else "raw"
        if spec.weights == "ema" and own == "raw":
            raise LockstepError(f"{spec.path} keeps no average of its weights: use --weights raw")
        self.split, self.weights = spec.split, spec.weights or own
        whole = len(self.dataset) == len(session.splits[spec.split])
        self.usual = whole and (spec.split, self.weights) == (session.recipe.evaluated_split, own)

    def __call__(self, found: StateFile | None, each: Chunk | None = None) -> dict[str, Any]:
        """Evaluate the checkpoint that process 0 read; the other processes pass None. Return the record.

        `each` receives the examples and logits of each chunk of this process.
        """
        if found is not None:
            self._compare_source(found)
            self._compare_data(found)
        self.session.restore(found)
        step = self.session.state.step

        def progress(share: float) -> None:
            if self._line:
                self._line.evaluating(EvaluatingEvent(step, self.split, share))

        result = self.session.evaluate(self.dataset, self.weights, progress, each)
        if self._line:
            self._line.remove()
        subject = {"run": str(self.run.path), "step": step, "split": self.split, "weights": self.weights}
        return subject | record_of(result, self.dataset.classes)

    def _compare_source(self, found: StateFile) -> None:
        if changed := compare(found.facts, {"model_source": self.session.model_source}):
            code = describe_custom_code(self.session.recipe)
            text = f"the source of {code} is not the one it was trained with ({'; '.join(map(str, changed))})"
            if self._strict:
                raise LockstepError(f"--strict: {text}", DATA)
            if text != self._last_note:
                logger.warning(text)
            self._last_note = text

    def _compare_data(self, found: StateFile) -> None:
        """Raise a LockstepError if the dataset has other classes than the run's. Note a split that has changed."""
        trained, own = found.facts["classes"], list(self.dataset.classes)
        if trained != own:
            only = [*(f"-{name}" for name in trained if name not in own), *(f"+{n}" for n in own if n not in trained)]
            raise LockstepError(
                f"the dataset's classes are not those of {self.run.path} ({', '.join(only) or 'another order'}): give "
                f"images of the same {len(trained)} classes as --data",
                DATA,
            )
        whole = self.session.splits[self.split].sha256
        if found.facts["data_sha256"].get(self.split, whole) != whole and not self._data_noted:
            logger.warning(f"the {self.split} data is not what it was in training (its sha256 differs)")
            self._data_noted = True


def record_of(result: Evaluation, classes: tuple[str, ...]) -> dict[str, Any]:
    """Return the complete result, with classes and confusion matrix, for programs to read."""
    counts = zip(classes, result.class_examples, result.class_correct, strict=True)
    by_class = [{"name": name, "examples": n, "correct": k, "accuracy": k / n if n else None} for name, n, k in counts]
    interval = wilson_interval(result.correct, result.examples)
    return {**result.summary(), "accuracy_interval": interval, "classes": by_class, "confusion": result.confusion}


def watch(evaluator: Evaluator, spec: EvaluateSpec, ctx: Context) -> None:
    """Evaluate each new checkpoint once, until the run has ended and its last checkpoint is evaluated.

    Every `spec.interval` seconds process 0 looks for checkpoints and decides what all processes do. The oldest new
    checkpoint comes first. With `spec.once`, it looks once, and only at the newest. Raises: LockstepError.
    """
    group = ctx.group
    watcher = Watcher(evaluator, spec.once) if ctx.first else None
    while True:
        decision = group.broadcast(watcher.decide() if watcher else None)
        if decision == _EVALUATE:
            record = evaluator(watcher.found if watcher else None)
            if watcher:
                watcher.log.add(record, time.time())
                ctx.emit(record)
            decision = group.broadcast(watcher.after() if watcher else None)
        if decision == _END:
            break
        if decision == _MORE:
            continue
        meetings = math.ceil(spec.interval / _MEET_S)
        for _ in range(meetings):
            time.sleep(spec.interval / meetings)
            group.broadcast(b"" if watcher else None)
    if watcher:
        watcher.log.close()


class Watcher:
    """Process 0's part of `watch`: it looks for checkpoints, and decides for all processes.

    Attributes:
        found: the checkpoint to evaluate.
        log: the evaluations so far.
    """

    def __init__(self, evaluator: Evaluator, once: bool) -> None:
        self._run, self._once = evaluator.run, once
        self._notes: set[str] = set()
        self._damaged: set[int] = set()
        self._ended = False
        self.found: StateFile | None = None
        self.log = EvaluationLog(
            evaluator.run.path / "eval", split=evaluator.split, weights=evaluator.weights,
            examples=len(evaluator.dataset), usual=evaluator.usual,
        )  # fmt: skip

    def decide(self) -> bytes:
        """Look for a new checkpoint. Raises: LockstepError if none can come."""
        run = Run.existing(self._run.path)  # raises if the run was deleted
        # The result is read before the folder: if it exists, the checkpoints found afterwards are the last ones.
        self._ended = run.result() is not None
        steps = self._run.steps
        if not steps:
            if self._once or self._ended:
                raise self._run.no_checkpoint()
            self._note_once(f"{self._run.path} has no checkpoint yet: waiting")
            return _WAIT
        if self._find(steps):
            return _EVALUATE
        if self._once:
            logger.warning(f"the newest checkpoint of {self._run.path} is evaluated already, see {self.log.path}")
        elif self._ended:
            logger.warning(f"{self._run.path} has ended, and its last checkpoint is evaluated, see {self.log.path}")
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
            self.found = statefile.read(self._run.checkpoints / statefile.file_name(step))
        except FileNotFoundError:
            return False  # Training has deleted it.
        except LockstepError as error:
            self._damaged.add(step)
            logger.warning(f"{error}: skipped")
            return False
        return True

    def after(self) -> bytes:
        """Decide what follows an evaluation: another one, waiting, or the end."""
        self.found = None  # frees its tensors
        waiting = set(self._run.steps) - self.log.done - self._damaged
        return _END if self._once or (self._ended and not waiting) else _MORE if waiting else _WAIT

    def _note_once(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            logger.warning(text)


def _note_division(spec: EvaluateSpec, session: Session) -> None:
    """Note that only a part of the images is evaluated, if `test_share` divides another data folder.

    A user who gives new photos expects that all of them are evaluated.
    """
    folder, trained = spec.placement.data, Run(spec.path).data()
    if spec.recipe.dataset != IMAGE_FOLDER or folder is None or spec.split not in session.splits:
        return
    if (trained is not None and folder.resolve() == trained.resolve()) or not is_divided(folder):
        return
    evaluated, every = len(session.splits[spec.split]), sum(map(len, session.splits.values()))
    logger.warning(
        f"{spec.split} is {evaluated} of the {every} images in {folder}: the folder has no test folder, so "
        f"test_share={spec.recipe.test_share:g} divides its images. --split selects {' or '.join(session.splits)}"
    )
