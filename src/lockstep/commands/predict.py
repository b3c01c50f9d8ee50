"""lockstep.load, lockstep.predict, and `lockstep predict`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep import numerics
from lockstep.commands.options import Checkpoint, Source, TrustCode, options_from
from lockstep.commands.specs import chosen_checkpoint
from lockstep.errors import DATA, LockstepError, printable
from lockstep.runs.folder import Run

if TYPE_CHECKING:
    from lockstep.classify.pictures import Sources
    from lockstep.classify.predict import Classifier, Prediction


def load(
    source: str | Path | Run, checkpoint: str | int | None = None, trust_code: bool = False, device: str = "auto"
) -> "Classifier":
    """Return the classifier of a run or a file, to use in this process.

        classifier = lockstep.load("runs/first")
        classifier = lockstep.load("model.safetensors")         # the file alone: it contains the recipe
        classifier = lockstep.load(run, checkpoint="best")
        print(classifier.classes, next(classifier.predict("cat.jpg")).label)

    It preprocesses as evaluation does, and computes in the recipe's precision. A network that the recipe compiles is
    computed uncompiled. Torch's default dtype does not matter. Torch's number of threads and its flags stay as they
    are; another number than the recipe's, which `lockstep predict` sets, may change low-order bits of probabilities.

    Args:
        source: a run, its folder, the file of one of its checkpoints, or a model file.
        checkpoint: "best", or a number of steps; None for the newest.
        trust_code: True to execute the run's own model.
        device: "auto", "cpu", "cuda", or a GPU as in "cuda:1".

    Raises:
        LockstepError: a folder or file that does not exist or is damaged, a checkpoint that the run does not have, a
            model whose code was not allowed, a device that is not here.
    """
    from lockstep.classify import predict as classifier  # imports torch

    return classifier.load(source, chosen_checkpoint(checkpoint), trust_code, device)


def predict(
    source: str | Path | Run, sources: "Sources", top: int = 1, *, trust_code: bool = False, device: str = "auto"
) -> "Iterator[Prediction]":
    """Classify images with the classifier of a run or a file, and yield a prediction for each, in order.

        for p in lockstep.predict("runs/first", "photos/", top=3):
            print(p.source, p.label, p.probability, p.error)

    To classify more than once, `lockstep.load` the classifier and call its `predict`.

    Args:
        source: a run, its folder, or a model file.
        sources: paths, folders, Pillow images or arrays; see `Classifier.predict`.
        top: how many of the most probable classes each prediction lists.
        trust_code: as for `lockstep.load`.
        device: as for `lockstep.load`.

    Raises:
        LockstepError: as `lockstep.load`. An image that cannot be read gives a prediction with an `error`.
    """
    return load(source, trust_code=trust_code, device=device).predict(sources, top)


def load_in_own_program(
    source: Path, checkpoint: str | int | None, trust_code: bool, device: str | None
) -> "Classifier":
    """Return what `load` returns. Set the recipe's flags and number of threads, before and after torch is imported."""
    numerics.prepare(1)
    classifier = load(source, checkpoint, trust_code, device or "auto")
    numerics.configure(classifier.recipe.threads_per_tower, classifier.recipe.exact)
    return classifier


@options_from(placement=("device",))
def predict_shell(
    source: Source,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|DIR...",
            help="Images, or folders of images with their subfolders.",
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="How many of the most probable classes to print.")] = 1,
    checkpoint: Checkpoint = None,
    trust_code: TrustCode = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, for each image.")] = False,
    **options: Any,
) -> None:
    """Classify images with a trained run, or with a model file alone.

    Prints path, class and probability of each image, in the order in which the images are given. A folder's images
    are sorted by name. Each image is prepared as in evaluation and computed alone, so its probabilities have the same
    bits beside any others. `lockstep eval` computes batches: its probabilities may differ in low-order bits.

    A run of recipe photos also marks images that are unlike its training images, as about 1 % of held-out images are.
    The class of a marked image means little.

    Each result is printed as soon as those before it are. A file that cannot be read is reported on stderr, the others
    go on, and the exit code is 3 at the end.

    \b
    Examples:
      lockstep predict runs/photos cat.jpg holiday/
      lockstep predict runs/photos holiday/ --top 3
      lockstep predict model.safetensors new/ --json
    """
    if "" in images:
        raise LockstepError('got "" as the name of an image, perhaps from an unset variable: give a file or a folder')
    classifier = load_in_own_program(source, checkpoint, trust_code, options["device"])
    count = unreadable = 0
    for prediction in classifier.predict([Path(path) for path in images], top):
        count += 1
        _show(prediction, json_output)
        if prediction.error is not None:
            unreadable += 1
            print(printable(f"{prediction.source}: {prediction.error}"), file=sys.stderr, flush=True)
    if unreadable:
        raise LockstepError(f"{unreadable} of {count} images could not be classified", DATA)


def _show(prediction: "Prediction", as_json: bool) -> None:
    """Print a prediction: path, class and probability, or a JSON object, whose keys are always the same."""
    if as_json:
        print(json.dumps(prediction.record()), flush=True)
    elif prediction.error is None:
        ranked = ", ".join(f"{label} {probability:.2%}" for label, probability in prediction.top)
        mark = "  (unlike the training images)" if prediction.unlike else ""
        print(printable(f"{prediction.source}  {ranked}{mark}"), flush=True)
