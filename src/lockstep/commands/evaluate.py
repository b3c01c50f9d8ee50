"""lockstep.evaluate, and `lockstep eval`."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lockstep.commands import watch as loop
from lockstep.commands.options import (
    AS_TRAINED,
    EVERYWHERE,
    Checkpoint,
    Json,
    RunPath,
    TrustCode,
    options_from,
    placement_of,
    present,
    streams,
)
from lockstep.commands.specs import chosen_checkpoint, of_run
from lockstep.errors import LockstepError, printable
from lockstep.jobs.context import Output
from lockstep.jobs.specs import EvaluateSpec
from lockstep.launch.signals import handled_by, leave
from lockstep.launch.submit import Outcome, require_alone, submit
from lockstep.launch.world import World
from lockstep.messages import logger, muted
from lockstep.runs.folder import Run
from lockstep.words import counted, loss_text

_MAX_COLUMNS = 20  # classes up to which the confusion matrix fits a screen
_NAME_LENGTH = 24  # characters of a class's name that the table shows


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
    trust_code: bool = False,
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
        trust_code: True to execute the run's own model and dataset.
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
    placement = placement_of({"device": device, "processes": processes, "data": data})
    with muted(quiet), streams(quiet) as out:
        fields = of_run(opened, placement, trust_code)
        spec = EvaluateSpec(
            **fields, split=split or fields["recipe"].evaluated_split, checkpoint=chosen_checkpoint(checkpoint),
            weights=weights, examples=examples,
        )  # fmt: skip
        outcome = submit(spec, Output(quiet, lines_to_stderr=True), stdout=out)
    if outcome.record is None:
        raise KeyboardInterrupt
    return EvaluationRecord(**outcome.record)


@options_from(placement=EVERYWHERE, defaults={**AS_TRAINED, "processes": "as in training; with --watch 1"})
def evaluate_shell(
    run: RunPath,
    weights: Annotated[
        Literal["ema", "raw"] | None,
        typer.Option(help="Weights to evaluate. Default: ema if the run keeps an average, else raw."),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="train, test, or another split. Default: held-out if the recipe holds out images, else test."
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Evaluate only the first N examples of the split; of a folder of images N evenly spread ones, as its "
            "order is by class. Default: all.",
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Evaluate each new checkpoint once, until the run ends. The run may start later."),
    ] = False,
    interval: Annotated[
        float | None, typer.Option(metavar="S", help="With --watch: seconds between two searches. Default: 5.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="With --watch: search once, evaluate the newest checkpoint if it is new.")
    ] = False,
    trust_code: TrustCode = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Print only errors (and the JSON of --json). --watch still records in RUN/eval."
        ),
    ] = False,
    json_output: Json = False,
    **options: Any,
) -> None:
    """Evaluate a checkpoint of a run, by default the newest valid one. Every example of a split counts exactly once.

    Images are not augmented; the recipe's test_views apply. Prints the accuracy, then a row for each class: examples,
    accuracy, and its row of the confusion matrix (with more than 20 classes the three most frequent mistakes).

    --watch prints a line for each new checkpoint, the oldest first, in the format of TensorFlow's CIFAR-10 evaluator.
    The run may be training in another program. Evaluations are recorded in RUN/eval, as TensorBoard events and in
    metrics.jsonl, and are not repeated. With --json, each evaluation is one line.

    \b
    Examples:
      lockstep eval runs/digits-1
      lockstep eval runs/digits-1 --weights raw --split train --json
      lockstep eval runs/digits-1 --examples 100
      lockstep eval runs/big --checkpoint best
      lockstep eval runs/big --watch --interval 60          beside lockstep train --name big
      lockstep eval runs/big --watch --once; tensorboard --logdir runs/big/eval
    """
    if watch:
        require_alone("evaluate")
    if not watch and (once or interval is not None):
        raise LockstepError(f"{'--once' if once else '--interval'} needs --watch: add it, or leave out the option")
    interval = 5.0 if interval is None else interval
    if not 0 < interval < math.inf:
        raise LockstepError(f"--interval: got {interval}: give seconds, more than 0")
    if watch and checkpoint is not None:
        raise LockstepError("--checkpoint is for one checkpoint, and --watch evaluates each: leave one of them out")
    chosen = chosen_checkpoint(checkpoint)  # raises before the run is waited for
    world = World.from_environment()
    opened = _wait_for_run(run, interval, quiet or world.process != 0) if watch and not once else Run.existing(run)
    if watch and options["processes"] is None:
        options["processes"] = 1  # which leaves other cores to training
    fields = of_run(opened, placement_of(options), trust_code)
    spec = EvaluateSpec(
        **fields, split=split or fields["recipe"].evaluated_split, checkpoint=chosen, weights=weights,
        examples=examples,
    )  # fmt: skip

    def show(record: Mapping[str, Any]) -> None:
        if json_output or not quiet:
            lines = [precision_line(record)] if watch else [summary_line(record), "", *table_lines(record)]
            present(lines, record if json_output else None)

    def compute(one: EvaluateSpec) -> Outcome:
        return submit(one, Output(quiet))

    if watch:
        with muted(quiet):
            code = loop.watch(spec, compute, show, interval=interval, once=once)
        raise typer.Exit(code)
    outcome = compute(spec)
    if outcome.record is not None:
        show(outcome.record)
    raise typer.Exit(outcome.code)


def _wait_for_run(path: Path, interval: float, silent: bool) -> Run:
    """Return the run at `path` as soon as it has begun. Raises: LockstepError if `path` is a file."""
    with handled_by(leave):
        while not (path / "recipe.json").is_file() and (path.is_dir() or not path.exists()):
            if not silent:
                logger.warning(f"{path} has not begun, as it has no recipe.json: waiting")
            silent = True
            time.sleep(interval)
    return Run.existing(path)


def summary_line(record: Mapping[str, Any]) -> str:
    """Return one line with the checkpoint, the weights, the accuracy and the loss."""
    return (
        f"{record['run']} after {record['step']} steps, {record['weights']} weights, {record['split']}: "
        f"accuracy {record['accuracy']:.2%} ({counted(record['correct'], record['examples'])}), "
        f"loss {loss_text(record['loss'])}"
    )


def precision_line(record: Mapping[str, Any]) -> str:
    """Return one line in the shape of TensorFlow's CIFAR-10 evaluator."""
    subject = f"step {record['step']}, {record['weights']}, {record['examples']} {record['split']} images"
    return f"{datetime.now()}: precision @ 1 = {record['accuracy']:.3f}  ({subject})"


def table_lines(record: Mapping[str, Any]) -> list[str]:
    """Return a table with a line per class: its examples, its accuracy, and how its images were classified.

    The last part is the class's row of the confusion matrix, or with many classes its three most frequent errors.
    """
    names = [
        name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1] + "…"
        for name in (printable(one["name"]) for one in record["classes"])
    ]
    matrix = len(names) <= _MAX_COLUMNS
    rows = [["class", "examples", "accuracy", *(names if matrix else ["most often taken for"])]]
    for label, (name, one, row) in enumerate(zip(names, record["classes"], record["confusion"], strict=True)):
        accuracy = "-" if one["accuracy"] is None else f"{one['accuracy']:.1%}"
        predictions = list(map(str, row)) if matrix else [_most_frequent_errors(names, label, row)]
        rows.append([name, str(one["examples"]), accuracy, *predictions])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        # Align numbers right. Without a matrix the last column holds names: align it left.
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        cells = cells if matrix else [*cells[:-1], others[-1]]
        lines.append(f"  {first:<{widths[0]}}  {'  '.join(cells)}".rstrip())
    return lines


def _most_frequent_errors(names: list[str], label: int, row: list[int]) -> str:
    """Return the three most frequent wrong predictions as `name count`. Equal counts stand in label order."""
    wrong = [(count, other) for other, count in enumerate(row) if count and other != label]
    wrong.sort(key=lambda pair: (-pair[0], pair[1]))
    return ", ".join(f"{names[other]} {count}" for count, other in wrong[:3])
