"""lockstep.evaluate, and `lockstep eval`.

With --watch, every new checkpoint is evaluated and gets a line in the format of TensorFlow's
CIFAR-10 evaluator, the oldest first. The run may be training in another program at the same time.
The evaluations are recorded in RUN/eval, as TensorBoard events and in metrics.jsonl, and are not
repeated.

Examples:
  lockstep eval runs/digits-1
  lockstep eval runs/digits-1 --weights raw --split train --json
  lockstep eval runs/digits-1 --examples 100
  lockstep eval runs/digits-1 --predictions test.csv
  lockstep eval runs/big --checkpoint best
  lockstep eval runs/big --watch --interval 60          beside lockstep train --name big
  lockstep eval runs/big --watch --once; tensorboard --logdir runs/big/eval
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypedDict

from lockstep.commands.plan import evaluated, fields_of_run
from lockstep.commands.shell import record_of, require_writable
from lockstep.errors import LockstepError, printable
from lockstep.files import given, near
from lockstep.jobs.specs import EvaluateSpec
from lockstep.launch.submit import require_alone
from lockstep.listeners.metrics import EvaluationLog
from lockstep.messages import logger, muted
from lockstep.runs.run import Run, is_held, no_checkpoint
from lockstep.runs.statefile import DamagedFileError, step_or_best
from lockstep.text import counted, label_rows, loss_text, scores_text, words_of

_MAX_COLUMNS = 20  # classes up to which the confusion matrix fits a screen


class ClassRecord(TypedDict, total=False):
    """The result of one class in an evaluation. A share of no examples is None.

    Attributes:
        name: The name of the class.
        examples: The number of examples that have the class.
        correct: How many of them are classified correctly. The keys after `accuracy` are those of
            multi-label data.
        accuracy: The share of these.
        found: How many examples are predicted to have the class.
        right: How many of these have it.
        precision: The share right / found.
        recall: The share right / examples.
        f1: The harmonic mean of precision and recall.
        f1_interval: The 95% interval of F1.
        average_precision: The area under the curve of precision over recall.
        threshold: The smallest probability with which a label counts as found.
    """

    name: str
    examples: int
    correct: int
    accuracy: float | None
    found: int
    right: int
    precision: float | None
    recall: float | None
    f1: float | None
    f1_interval: list[float] | None
    average_precision: float | None
    threshold: float


@dataclass(frozen=True)
class EvaluationRecord:
    """The result of an evaluation. `lockstep eval --json` prints the same.

    Attributes:
        run: The folder of the run.
        step: The number of steps after which the checkpoint was saved.
        split: The split that was evaluated.
        weights: The weights that were evaluated, "ema" or "raw".
        examples: The number of examples.
        correct: How many of them are classified correctly.
        accuracy: The share of these, correct / examples.
        accuracy_interval: The 95% interval of the accuracy, [low, high], by Wilson's score.
        loss: The mean cross-entropy; None if it is not finite.
        classes: The result of each class, in order of label.
        confusion: The confusion matrix, a list of rows; the row is the label, the column the
            prediction.
        accuracy_without_augmentation: Accuracy on the image alone, if the recipe's
            `test_time_augmentation` makes several views; else None.
        notes: What differs from training, one sentence each.
        mean_average_precision: With multi-label data, the "macro" mean over the classes that have
            examples, and the "micro" value of all labels together; else None.
        f1: The same for F1.

    With multi-label data, an example is correct if exactly its labels are found, and `confusion`
    is empty.
    """

    run: str
    step: int
    split: str
    weights: str
    examples: int
    correct: int
    accuracy: float
    accuracy_interval: list[float]
    loss: float | None
    classes: list[ClassRecord] = field(repr=False)
    confusion: list[list[int]] = field(repr=False)
    accuracy_without_augmentation: float | None = None
    mean_average_precision: dict[str, float | None] | None = None
    f1: dict[str, float | None] | None = None
    notes: list[str] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        """Return a line with the checkpoint, the weights, the accuracy and the loss, and a table of
        the classes.
        """
        averaged = ", averaged weights" if self.weights == "ema" else ""
        subject = f"{self.run} after {self.step} steps{averaged}"
        what = f"{self.split} images{words_of(self.f1 is not None).exactly}"
        if self.f1:
            of_labels = [[printable(name), *cells] for name, *cells in label_rows(self.classes)]
            rows = [scores_text(vars(self)), "", *_aligned(of_labels)]
        else:
            rows = ["", *table_lines(self.classes, self.confusion)]
        correct = counted(self.correct, self.examples, what)
        result = f"accuracy {self.accuracy:.2%} ({correct}), loss {loss_text(self.loss)}"
        return "\n".join([printable(f"{subject}: {result}"), *rows])


class WatchedRecord(EvaluationRecord):
    """A record of `lockstep eval --watch`, whose text is the line of TensorFlow's CIFAR-10
    evaluator.
    """

    def __str__(self) -> str:
        subject = f"step {self.step}, {self.weights}, {self.examples} {self.split} images"
        name = words_of(self.f1 is not None).tutorial
        return f"{datetime.now()}: {name} = {self.accuracy:.3f}  ({subject})"


def evaluate(
    run: Path | str | Run,
    split: str | None = None,
    checkpoint: str | int | None = None,
    weights: Literal["ema", "raw"] | None = None,
    *,
    examples: int | None = None,
    predictions: Path | str | None = None,
    data: Path | str | None = None,
    processes: int | None = None,
    device: str = "auto",
    trust_code: bool = False,
    quiet: bool = False,
) -> EvaluationRecord:
    """Evaluate a checkpoint of a run.

    Every example of the split counts exactly once. The only augmentation is the test-time
    augmentation of the recipe. The result has the accuracy, and for each class its examples, its
    accuracy and its row of the confusion matrix. With multi-label data, the accuracy counts images
    whose labels are all found and no others, and each class has its precision, recall, F1 with an
    interval, and average precision.

    Args:
        run: Folder of a run.
        split: train, test, another split of the data, or all for a folder of images. Default: test,
            or held-out if the recipe holds out training images; all for a folder of images other
            than those of training.
        checkpoint: The checkpoint after this many steps, or best: the one with the best accuracy of
            those that training evaluated. Default: the newest.
        weights: Weights to evaluate. Default: ema if the run keeps an average of them, else raw.
        examples: Evaluate only this many examples of the split, evenly spaced. Default: all.
        predictions: Write a table to a new file: a row for each example, a column for each class.
        data: Folder of the dataset. Default: that of training.
        processes: Number of processes. Default: as in training.
        device: cpu, cuda, GPUs by number as in cuda:0,2, or auto: GPUs if there are any.
        trust_code: Execute code that a recipe file or a run names: a model or a dataset that is not
            built in.
        quiet: Print only errors.

    Returns:
        The record of the evaluation.

    Raises:
        LockstepError: A run, checkpoint or split that does not exist, data that are damaged or
            missing, or a device that is not here.
        KeyboardInterrupt: Ctrl-C.

    Examples:
        >>> record = lockstep.evaluate("runs/first", checkpoint="best")
        >>> print(record.accuracy, record.correct, record.confusion[3])
    """
    table = None if predictions is None else given(predictions).absolute()
    if table is not None:
        require_writable(table, force=False, name="predictions")
    with muted(quiet):
        spec = spec_of(
            run,
            split,
            trust_code,
            data,
            device,
            processes,
            weights=weights,
            examples=examples,
            checkpoint=step_or_best(checkpoint),
            predictions=table,
        )
        return EvaluationRecord(**record_of(spec, quiet))


def evaluate_or_watch(
    watch: bool = False, interval: float | None = None, once: bool = False, **options: Any
) -> EvaluationRecord | Iterator[EvaluationRecord]:
    """Evaluate for the shell, with the `options` of `evaluate`. With `watch`, return an iterator
    that waits for checkpoints and yields a record of each.

    Args:
        watch: Evaluate every new checkpoint once, until the run ends. The run may start later. One
            process computes unless `processes` is given.
        interval: With `watch`: seconds between two checks for new checkpoints. Default: 5.
        once: With `watch`: check once, and evaluate the newest checkpoint if it is new.
        **options: Those of `evaluate`.
    """
    if not watch:
        if once or interval is not None:
            raise LockstepError(
                f"{'--once' if once else '--interval'} needs --watch: add it, or leave out the "
                "option"
            )
        return evaluate(**options)
    for name in ("checkpoint", "predictions"):
        if options[name] is not None:
            raise LockstepError(
                f"--{name} is for one checkpoint, and --watch evaluates each: leave one of them out"
            )
    require_alone("evaluate")
    seconds = 5.0 if interval is None else interval
    if not 0 < seconds < math.inf:
        raise LockstepError(f"--interval: got {interval}: give seconds, more than 0")
    quiet = options.pop("quiet")
    if not once:
        wait_for_run(given(options["run"]), seconds, quiet)
    if options["processes"] is None:
        options["processes"] = 1
    # The folder may change while it is watched.
    return watched(spec_of(**options).replace(surveyed=None), seconds, once, quiet)


def spec_of(
    run: Path | str | Run,
    split: str | None,
    trust_code: bool,
    data: Path | str | None,
    device: str,
    processes: int | None,
    **fields: Any,
) -> EvaluateSpec:
    """Return the spec of an evaluation with these `fields`."""
    if fields["weights"] not in ("ema", "raw", None):
        raise LockstepError(f"weights: got {fields['weights']!r}: give 'ema', 'raw' or None")
    of_run = fields_of_run(run, trust_code, data=data, device=device, processes=processes)
    of_split = {"split": split} if split else evaluated(**of_run)
    return EvaluateSpec(**of_run, **of_split, **fields)


def wait_for_run(path: Path, interval: float, quiet: bool) -> None:
    """Return as soon as the run at `path` has begun, or a file is there."""
    while not (path / "recipe.json").is_file() and (path.is_dir() or not path.exists()):
        if not quiet:
            logger.warning(f"{path} has not begun, as it has no recipe.json: {near(path)}waiting")
        quiet = True
        time.sleep(interval)


def watched(
    spec: EvaluateSpec, interval: float, once: bool, quiet: bool
) -> Iterator[WatchedRecord]:
    """Evaluate each new checkpoint once, the oldest first, until the run has ended, and yield its
    record.

    With `once`, check once, and only the newest checkpoint. Raises: LockstepError.
    """
    run, weights = Run(spec.path), spec.weights or spec.recipe.own_weights
    data = spec.placement.data
    log = EvaluationLog(
        run.path / "eval",
        split=spec.split,
        weights=weights,
        asked=spec.examples,
        data=None if data in (None, run.data()) else data,
    )
    warn = logger.debug if quiet else logger.warning
    damaged = set[int]()
    waiting = False
    while True:
        # The result is read before the folder: if it exists, the checkpoints found afterwards are
        # the last ones.
        ended, paths = Run.open(run.path).complete, run.files
        sound = [step for step in paths if step not in damaged]
        if (once and not sound) or (ended and not paths):
            raise no_checkpoint(run)
        new = [step for step in (sound[-1:] if once else sound) if step not in log.done]
        if not new and (once or ended):
            break
        if new:
            path = paths[new[0]]
            try:
                record = record_of(spec.replace(checkpoint=new[0]), quiet)
            except LockstepError as error:
                if path.exists():  # else training has deleted it
                    if not isinstance(error, DamagedFileError) or error.path != path:
                        raise
                    damaged.add(new[0])
                    warn(f"{error}: skipped")
                continue
            log.add(record, time.time())
            yield WatchedRecord(**record)
            continue
        if not (waiting or (paths and is_held(run.path))):
            warn(
                f"{run.path} has no checkpoint, or no program trains it now: waiting. Use "
                f"--once to stop here"
            )
            waiting = True
        time.sleep(interval)
    log.close()
    warn(f"{run.path}: all is evaluated, see {log.path}")


def table_lines(classes: Sequence[ClassRecord], confusion: list[list[int]]) -> list[str]:
    """Return a table with a line per class: its examples, its accuracy, and its row of the
    confusion matrix.

    With many classes the matrix is left out; the page of `lockstep report` has it.
    """
    names = [printable(counts["name"]) for counts in classes]
    columns = names if len(names) <= _MAX_COLUMNS else []
    rows = [["class", "examples", "accuracy", *columns]]
    for name, counts, predicted in zip(names, classes, confusion, strict=True):
        accuracy = "-" if counts["accuracy"] is None else f"{counts['accuracy']:.1%}"
        row = [name, str(counts["examples"]), accuracy]
        rows.append([*row, *map(str, predicted)] if columns else row)
    return _aligned(rows)


def _aligned(rows: list[list[str]]) -> list[str]:
    first, *rest = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"  {name.ljust(first)}  {'  '.join(map(str.rjust, cells, rest))}" for name, *cells in rows
    ]
