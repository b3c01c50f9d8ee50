"""The evaluate job: a checkpoint of a run on a split. It takes no lock, so the run may be training
meanwhile. A CSV file gets what it says of each example, if asked for.
"""

from pathlib import Path

from lockstep.data import IMAGE_FOLDER
from lockstep.errors import DATA, LockstepError, option
from lockstep.files import Record, deliver
from lockstep.head.confidence import Confidence
from lockstep.jobs.agreement import require_equal, require_same_classes, restore
from lockstep.jobs.context import Context
from lockstep.jobs.judge import Judgement, judge
from lockstep.jobs.replica import Replica
from lockstep.jobs.specs import EvaluateSpec
from lockstep.jobs.splits import read_splits
from lockstep.messages import logger
from lockstep.pages import prediction_table
from lockstep.pictures.manifest import ALL
from lockstep.runs import statefile
from lockstep.runs.provenance import compare, describe_custom_code
from lockstep.runs.run import Run
from lockstep.runs.statefile import StateFile


def evaluate(spec: EvaluateSpec, ctx: Context) -> Record | None:
    """Evaluate the checkpoint that `spec` names. Return the record in process 0. Raises:
    LockstepError.
    """
    _, judgement, record = judge_checkpoint(spec, ctx, spec.predictions is not None)
    if spec.predictions is not None and ctx.first:
        write_predictions(spec.predictions, ctx, judgement)
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


def judge_checkpoint(
    spec: EvaluateSpec, ctx: Context, keep_logits: bool
) -> tuple[Replica, Judgement, Record]:
    """Evaluate the checkpoint that `spec` names, with all processes. Return the replica, what is
    true of its answers, and the record.

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
        score = replica.evaluate(dataset, weights, lambda share: advance(1), keep_logits)
    # Without logits, which only process 0 has, no answer is looked at.
    confidence = None if score.logits is None else confidence_of(spec, replica)
    judgement = judge(dataset, score, confidence)
    record = {
        "run": str(run.path),
        "step": step,
        "split": spec.split,
        "weights": weights,
        **judgement.record(),
        "notes": notes,
    }
    return replica, judgement, record


def confidence_of(spec: EvaluateSpec, replica: Replica) -> Confidence | None:
    """Return what tells which answers are confident, by the run's model file.

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
        return Confidence(file.tensors, spec.recipe, replica.backbone, classes)
    except ValueError as error:
        raise LockstepError(f"{model} is damaged: {error}", DATA) from None


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
    require_same_classes(replica, spec.path, checkpoint.metadata["classes"])
    whole = replica.splits[spec.split].sha256
    if checkpoint.metadata["data_sha256"].get(spec.split, whole) != whole:
        notes.append(f"the {spec.split} data has changed since training (its sha256 differs)")
    return notes


def write_predictions(path: Path, ctx: Context, judgement: Judgement) -> None:
    """Write the prediction for each example, in the dataset's order, to the file `path`.

    The file is written whole or not at all. Raises: LockstepError.
    """
    dataset = judgement.dataset
    head = prediction_table.head(dataset.classes, multi_label=dataset.multi_label, with_truth=True)

    def write(temporary: Path) -> None:
        with (
            open(temporary, "w", encoding="utf-8", newline="") as file,
            ctx.progress("writing the predictions", len(dataset)) as advance,
        ):
            file.write(f"{head}\n")
            for row in range(len(dataset)):
                prediction = judgement.prediction(row)
                line = prediction_table.row(prediction, dataset.classes, judgement.labels(row))
                file.write(f"{line}\n")
                advance(1)

    deliver(path, write)
