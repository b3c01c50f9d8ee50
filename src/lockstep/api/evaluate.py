"""lockstep.evaluate."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lockstep.api.output import streams
from lockstep.api.specs import evaluate_spec
from lockstep.config.placement import Placement
from lockstep.errors import LockstepError
from lockstep.launch.submit import require_alone, submit
from lockstep.launch.workers import Output
from lockstep.launch.world import World
from lockstep.messages import muted
from lockstep.runs.folder import Run
from lockstep.settings import validated


@dataclass(frozen=True)
class EvaluationRecord:
    """What `lockstep.evaluate` counts. `lockstep eval --json` prints the same.

    Attributes:
        run, step: the run's folder, and after how many updates the checkpoint was saved.
        split, weights: what was evaluated; weights are "ema" or "raw".
        examples, correct: how many examples there are, and how many are classified correctly.
        accuracy: correct / examples.
        accuracy_interval: its 95 % interval [low, high], by Wilson's score.
        loss: mean cross-entropy; None if it is not finite.
        classes: for each class its "name", "examples", "correct" and "accuracy", in order of label.
        confusion: a list of lists of counts; the row is the label, the column the prediction.
        accuracy_one_view: accuracy by the image alone, if the recipe's `test_views` are several; else None.
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
    classes: list[dict[str, Any]]
    confusion: list[list[int]]
    accuracy_one_view: float | None = None


def evaluate(
    run: str | Path | Run,
    split: str | None = None,
    checkpoint: str | int | None = None,
    weights: Literal["ema", "raw"] | None = None,
    *,
    examples: int | None = None,
    data: str | Path | None = None,
    processes: int | None = None,
    device: str = "auto",
    model: str | None = None,
    dataset: str | None = None,
    strict: bool = False,
    quiet: bool = False,
) -> EvaluationRecord:
    """Evaluate a checkpoint of a run on a split, in worker processes. `lockstep eval` does the same.

        record = lockstep.evaluate("runs/first", checkpoint="best")
        print(record.accuracy, record.correct, record.confusion[3])

    Args:
        run: a run, or its folder.
        split: "train", "test" or another split; None for the one that training evaluates.
        checkpoint: "best", or the number of steps; None for the newest.
        weights: "ema" or "raw"; None for those of the classifier.
        examples: only the first N of the split, or N evenly spread ones of a folder of images; None for all.
        data: folder of the dataset; None for that of training.
        processes: number of processes; None: one for each GPU, or on CPU min(towers, cores / threads).
        device: "auto", "cpu", "cuda", or GPUs as in "cuda:0,2".
        model: the run's own package.module:function, to allow that its code is executed.
        dataset: likewise for a dataset of your own.
        strict: True to refuse a model whose source has changed since it was trained.
        quiet: True to print no messages.

    Raises:
        LockstepError: a run, checkpoint or split that does not exist, damaged or missing data, a device that is not
            here.
        KeyboardInterrupt: Ctrl-C.
    """
    require_alone("evaluate")
    if weights not in ("ema", "raw", None):
        raise LockstepError(f"weights: got {weights!r}: give 'ema', 'raw' or None")
    opened = run if isinstance(run, Run) else Run.existing(Path(run).expanduser())
    placement = validated(
        Placement,
        {
            "device": device, "processes": processes,
            "data": Path(data).expanduser().absolute() if data else None,
        },
    )  # fmt: skip
    with muted(quiet), streams(quiet) as (out, err):
        spec = evaluate_spec(
            opened, placement, code={"model": model, "dataset": dataset}, split=split, checkpoint=checkpoint,
            weights=weights, examples=examples, strict=strict,
        )  # fmt: skip
        outcome = submit(spec, Output(quiet, lines_to_stderr=True), World(), streams=(out, err))
    if outcome.record is None:
        raise KeyboardInterrupt
    return EvaluationRecord(**outcome.record)
