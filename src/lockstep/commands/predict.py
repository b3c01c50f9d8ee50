"""lockstep.load, and `lockstep predict`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep import numerics
from lockstep.commands.shell import Checkpoint, Source, as_json
from lockstep.errors import DATA, LockstepError, printable
from lockstep.files import given

if TYPE_CHECKING:
    from lockstep.classify.predict import Classifier


def load(
    source: Source,
    checkpoint: Checkpoint = None,
    trust_code: bool = False,
    device: str = "auto",
    confident: float = 0.95,
) -> "Classifier":
    """Return the classifier of a run or a file, to use in this process.

        classifier = lockstep.load("runs/first")
        classifier = lockstep.load("model.safetensors")  # the file alone: it contains the recipe
        classifier = lockstep.load(run, checkpoint="best")
        print(classifier.classes, classifier.predict("cat.jpg").label)

    It preprocesses as evaluation does, and computes in the recipe's precision. Torch's default
    dtype does not matter. A prediction computes with torch's flags as evaluation sets them:
    deterministic, without TF32, and with the recipe's number of threads. So its probabilities are
    those of `lockstep predict`. The flags of your program are as before when it returns.

    Args:
        source: a run, its folder, the file of one of its checkpoints, or a model file.
        checkpoint: "best", or a number of steps; None for the newest.
        trust_code: True to execute the run's own model.
        device: "auto", "cpu", "cuda", or a GPU as in "cuda:1".
        confident: share of the confident answers that shall be right, by training images that were
            held out.

    Raises:
        LockstepError: a folder or file that does not exist or is damaged, a checkpoint that the run
            does not have, a model whose code was not allowed, a device that is not here.
    """
    from lockstep.classify import predict as classifier  # imports torch

    return classifier.load(source, checkpoint, trust_code, device, confident)


def load_in_own_program(*arguments: Any) -> "Classifier":
    """Return what `load` returns for the `arguments`. Set the recipe's flags and number of threads,
    before and after torch is imported.
    """
    numerics.prepare(1)
    classifier = load(*arguments)
    numerics.configure(classifier.recipe.threads_per_tower, classifier.recipe.exact)
    return classifier


def predict(
    source: Source,
    images: Annotated[list[Path], typer.Argument(metavar="FILE|DIR...")],
    top: Annotated[int, typer.Option(min=1)] = 1,
    csv: bool = False,
    confident: float = 0.95,
    checkpoint: Checkpoint = None,
    device: str = "auto",
    trust_code: bool = False,
) -> Iterator[str | dict[str, object]]:
    """Classify images with a trained run, or with a model file alone.

    Prints path, class and probability of each image, in the order in which the images are given. A
    folder's images are sorted by name. Each image is prepared as in evaluation and computed alone,
    so its probabilities have the same bits beside any others. `lockstep eval` computes batches: its
    probabilities may differ in low-order bits.

    A run of recipe photos also says whether its answer is confident, unsure, or the image
    unfamiliar , as about 1 % of held-out images are. Other runs, and those with fewer than 50
    training images, do not say it.

    Each result is printed as soon as those before it are. A file that cannot be read is reported on
    stderr, the others go on, and the exit code is 3 at the end.

    Examples:
      lockstep predict runs/photos cat.jpg holiday/
      lockstep predict runs/photos holiday/ --top 3
      lockstep predict model.safetensors new/ --json
      lockstep predict runs/photos holiday/ --csv > holiday.csv

    Args:
        source: A run's folder, or model.safetensors.
        images: Images, or folders of images with their subfolders.
        top: How many of the most probable classes to print.
        csv: Print a table: a row for each image, a column for each class.
        confident: Share of the confident answers that shall be right, by training images that were
            held out.
        checkpoint: The checkpoint after STEP steps, or the one with the best accuracy in training
            (--eval-every). Default: the newest.
        device: cpu, cuda, certain GPUs as in cuda:0,2, or auto: GPUs if there are any.
        trust_code: Execute the model and dataset of your own that a file or a run names.
    """
    if csv and (as_json() or top > 1):
        other = "--top" if top > 1 else "--json"
        raise LockstepError(
            f"--csv prints a table with all classes, so it excludes {other}: leave one of them out"
        )
    classifier = load_in_own_program(source, checkpoint, trust_code, device, confident)
    from lockstep.pages import prediction_table  # imports NumPy

    count = unreadable = 0
    if csv:
        yield prediction_table.head(classifier.classes, multi_label=classifier.recipe.multi_label)
    for prediction in classifier.predict_each([given(image) for image in images], top):
        count += 1
        yield prediction.record()
        if csv:
            yield prediction_table.row(prediction, classifier.classes)
        elif prediction.error is None:
            yield prediction.text()
        if prediction.error is not None:
            unreadable += 1
            print(printable(prediction.text()), file=sys.stderr, flush=True)
    if unreadable:
        raise LockstepError(f"{unreadable} of {count} images could not be classified", DATA)
