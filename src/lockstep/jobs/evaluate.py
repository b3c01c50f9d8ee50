"""The evaluate job: a checkpoint of a run on a split. It takes no lock, so the run may be training
meanwhile. A CSV file gets what it says of each example, if asked for.
"""

from collections.abc import Iterator
from pathlib import Path

from lockstep.core.evaluation import Evaluation
from lockstep.core.loss import probabilities_of
from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError, option
from lockstep.files import Record, deliver
from lockstep.head.confidence import SHARE, Confidence
from lockstep.jobs.agreement import require_equal, restore
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica, read_splits
from lockstep.jobs.specs import EvaluateSpec
from lockstep.messages import logger
from lockstep.pages import prediction_table
from lockstep.pages.prediction import prediction_of
from lockstep.pictures.photos import ALL
from lockstep.runs import statefile
from lockstep.runs.provenance import compare, describe_custom_code
from lockstep.runs.run import Run
from lockstep.runs.statefile import StateFile
from lockstep.text import wilson_interval


def evaluate(spec: EvaluateSpec, ctx: Context) -> Record | None:
    """Evaluate the checkpoint that `spec` names. Return the record in process 0. Raises:
    LockstepError.
    """
    replica, dataset, record, result = judge(spec, ctx, spec.predictions is not None)
    if spec.predictions is not None and ctx.first:
        confidence = confidence_of(spec, replica)
        write_predictions(spec.predictions, ctx, dataset, result, confidence)
    return record


def replica_of(spec: EvaluateSpec, ctx: Context) -> Replica:
    """Return the replica with the dataset of training, or for the split "all" with all images of a
    folder.

    The folder may lack training images, and classes of the run. Raises: LockstepError.
    """
    recipe, placement = spec.recipe, spec.placement
    if recipe.dataset != IMAGE_FOLDER or spec.split != ALL:
        return Replica(recipe, placement, ctx, surveyed=spec.surveyed)
    images = read_splits(recipe, placement, Run(spec.path).classes or (), spec.surveyed)[ALL]
    for note in images.notes:
        logger.warning(note)
    return Replica(
        recipe, placement, ctx, dict.fromkeys(("train", recipe.evaluated_split, ALL), images)
    )


def judge(
    spec: EvaluateSpec, ctx: Context, keep_logits: bool
) -> tuple[Replica, Dataset, Record, Evaluation]:
    """Evaluate the checkpoint that `spec` names, with all processes. Return the replica, the
    examples, the record, and what it was made of.

    Raises: LockstepError.
    """
    replica = replica_of(spec, ctx)
    # Each program of an outer launch has surveyed the folder for itself, perhaps before a change.
    images = replica.splits.get(spec.split)
    require_equal(replica, {f"{spec.split} images": images and images.sha256})
    dataset = replica.split(spec.split, spec.examples)
    run, checkpoint, notes = Run(spec.path), None, list[str]()
    if ctx.first:
        checkpoint = run.read_checkpoint(spec.checkpoint)
        notes = _differences(spec, replica, checkpoint)
        for note in notes:
            logger.warning(note)
        # An evaluation makes no update, so it needs no optimizer.
        for name in [name for name in checkpoint.tensors if name.startswith("optimizer/")]:
            del checkpoint.tensors[name]
    restore(replica, checkpoint)
    step, weights = replica.state.step, spec.weights or spec.recipe.own_weights
    if weights == "ema" and spec.recipe.ema is None:
        raise LockstepError(f"{spec.path} has no averaged weights: use {option('weights', 'raw')}")
    calls = 1 + -(-len(dataset) // spec.recipe.eval_batch) // ctx.group.processes
    with ctx.progress(f"evaluating on {spec.split}", calls) as advance:
        result = replica.evaluate(dataset, weights, lambda share: advance(1), keep_logits)
    if result.multi_label and ctx.first and (confidence := confidence_of(spec, replica)):
        result = result.at(confidence.found_from, dataset.labels)
    record = {
        "run": str(run.path),
        "step": step,
        "split": spec.split,
        "weights": weights,
        **record_of(result, dataset.classes),
        "notes": notes,
    }
    return replica, dataset, record, result


def confidence_of(spec: EvaluateSpec, replica: Replica, share: float = SHARE) -> Confidence | None:
    """Return what tells which answers are confident, so that a `share` of them is right, by the
    run's model file.

    None for other weights than those of that file, as in `lockstep predict`. Raises: LockstepError
    if it is damaged.
    """
    model = Run(spec.path).model
    if not spec.is_of_model or not model.is_file():
        return None
    file, classes = statefile.read(model), len(replica.splits["train"].classes)
    if file.metadata["weights_sha256"] != replica.state.weights_sha256():
        return None  # The newest checkpoint is gone, and an older one is evaluated.
    try:
        return Confidence(file.tensors, spec.recipe, replica.backbone, classes, share)
    except ValueError as error:
        raise LockstepError(f"{model} is damaged: {error}", DATA) from None


def record_of(result: Evaluation, classes: tuple[str, ...]) -> Record:
    """Return the complete result, with classes and confusion matrix, for programs to read."""
    if result.multi_label:
        by_class = result.multi_label.by_class(classes)
    else:
        counts = zip(classes, result.class_examples, result.class_correct, strict=True)
        by_class = [
            {"name": name, "examples": n, "correct": k, "accuracy": k / n if n else None}
            for name, n, k in counts
        ]
    return {
        **result.summary(),
        "accuracy_interval": wilson_interval(result.correct, result.examples),
        "classes": by_class,
        "confusion": result.confusion,
    }


def _differences(spec: EvaluateSpec, replica: Replica, checkpoint: StateFile) -> list[str]:
    """Return a sentence for each difference from training: other source, and another split. Raises:
    LockstepError if the data has other classes than the run's.
    """
    notes = []
    if changed := compare(checkpoint.metadata, {"model_source": replica.model_source}):
        code = describe_custom_code(replica.recipe)
        notes.append(
            f"the source of {code} has changed since training ({'; '.join(map(str, changed))})"
        )
    replica.require_same_classes(spec.path, checkpoint.metadata["classes"])
    whole = replica.splits[spec.split].sha256
    if checkpoint.metadata["data_sha256"].get(spec.split, whole) != whole:
        notes.append(f"the {spec.split} data has changed since training (its sha256 differs)")
    return notes


def write_predictions(
    path: Path, ctx: Context, dataset: Dataset, result: Evaluation, confidence: Confidence | None
) -> None:
    """Write what `result` says of each example of `dataset`, in its order, to the file `path`.
    `confidence` tells which answers are confident; None: this is not known.

    The file is written whole or not at all. Raises: LockstepError.
    """

    def write(temporary: Path) -> None:
        with (
            open(temporary, "w", encoding="utf-8", newline="") as file,
            ctx.progress("writing the predictions", len(dataset)) as advance,
        ):
            for line in _lines(dataset, result, confidence):
                file.write(f"{line}\n")
                advance(1)

    deliver(path, write)


def _lines(dataset: Dataset, result: Evaluation, confidence: Confidence | None) -> Iterator[str]:
    """Yield the lines of the file."""
    assert result.logits is not None
    classes, multi_label = dataset.classes, dataset.multi_label
    thresholds = result.multi_label.thresholds if result.multi_label else None
    yield prediction_table.head(classes, multi_label=multi_label, with_truth=True)
    for row, (name, logits) in enumerate(zip(dataset.names(), result.logits, strict=True)):
        probabilities = probabilities_of(logits[None], multi_label)[0]
        least, unfamiliar = None, False
        if confidence is not None:
            least = confidence.confident_from
            unfamiliar = bool(confidence.unfamiliar(dataset.pixels(slice(row, row + 1)).cpu()))
        prediction = prediction_of(name, probabilities, classes, 1, thresholds, least, unfamiliar)
        yield prediction_table.row(prediction, classes, labels_of(dataset, row))


def labels_of(images: Dataset, row: int) -> list[str]:
    """Return the names of the labels of an example."""
    label = images.labels[row]
    numbers = label.nonzero()[:, 0].tolist() if images.multi_label else [int(label)]
    return [images.classes[number] for number in numbers]
