"""lockstep.load, and `lockstep predict`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep import hardware, numerics
from lockstep.commands.hub import is_address, model_at
from lockstep.commands.shell import as_json
from lockstep.config.placement import Placement, device_for, gpus_here
from lockstep.errors import DATA, LockstepError, printable
from lockstep.messages import logger
from lockstep.pictures.hub import located
from lockstep.runs.run import Run
from lockstep.runs.statefile import step_or_best
from lockstep.schema import validated

if TYPE_CHECKING:
    from lockstep.classify.classifier import Classifier


def load(
    source: Path | str | Run,
    checkpoint: str | int | None = None,
    trust_code: bool = False,
    device: str = "auto",
    confident: float = 0.95,
) -> Classifier:
    """Load the classifier of a run or a file, to use it in this program.

    The classifier preprocesses images as an evaluation does, and computes in the precision of the
    recipe. While it computes, torch's flags and number of threads are those of the recipe, so the
    probabilities are those of `lockstep predict`. Afterwards they are those of your program again.

    Args:
        source: A run, its folder, the file of one of its checkpoints, a model.safetensors, or
            hf://OWNER/NAME@REVISION on the Hugging Face Hub (the extra "hf"), whose file is
            downloaded once. Without @REVISION, it is the newest commit.
        checkpoint: A number of steps, or "best": the checkpoint that had the best accuracy when
            training evaluated it. Default: the newest.
        trust_code: Execute the model that the run names, if it is not built in.
        device: "auto", "cpu", "cuda", or a GPU by number as in "cuda:1".
        confident: How often answers that are called confident should be right, for pictures like
            the training images: 0.95 means 95 times in 100.

    Returns:
        The classifier.

    Raises:
        LockstepError: A folder or file that does not exist or is damaged, a checkpoint that the run
            does not have, a model whose code was not trusted, or a device that is not here.

    Examples:
        >>> classifier = lockstep.load("runs/first")
        >>> print(classifier.classes, classifier.predict("cat.jpg").label)
        >>> classifier = lockstep.load("model.safetensors")  # alone, as it contains the recipe
    """
    import torch

    from lockstep.classify.classifier import END_OTHERS, Classifier, weights_of
    from lockstep.runs.provenance import compare, sources

    if not 0 < confident < 1:
        raise LockstepError(
            f"confident: got {confident}: give a share of right answers between 0 and 1, as in 0.99"
        )
    if is_address(source):
        source = model_at(str(source))
    recipe, file = weights_of(source, step_or_best(checkpoint))
    recipe.require_trust(file.path, trust_code, ["model"])
    gpus = gpus_here(validated(Placement, {"device": device_for(recipe.arithmetic, device)}))
    with hardware.memory_named(END_OTHERS):
        classifier = Classifier(
            recipe, file, torch.device("cuda", gpus[0]) if gpus else torch.device("cpu"), confident
        )
    here = sources(recipe.model)
    # The recorded files may include those of a dataset, which a classifier does not need.
    before = {
        path: sha256
        for path, sha256 in file.metadata.get("model_source", {}).items()
        if path in here
    }
    if changed := compare({"model_source": before}, {"model_source": here}):
        logger.warning(
            f"the source of model {recipe.model} is not the one it was trained with "
            f"({'; '.join(map(str, changed))})"
        )
    return classifier


def load_in_own_program(*arguments: Any) -> Classifier:
    """Return what `load` returns for the `arguments`. Set the recipe's flags and number of threads,
    before and after torch is imported.
    """
    numerics.prepare(1)
    classifier = load(*arguments)
    numerics.configure(classifier.recipe.threads_per_tower, classifier.recipe.exact)
    return classifier


def predict(
    source: Path | str | Run,
    images: Sequence[Path],
    top: int = 1,
    csv: bool = False,
    confident: float = 0.95,
    checkpoint: str | int | None = None,
    device: str = "auto",
    trust_code: bool = False,
) -> Iterator[str | dict[str, object]]:
    """Classify images with a trained run, or with a model file alone.

    Each image gets a line with its path, its class and the probability of that class. A run that
    was trained on the features of a pretrained network, on at least 50 images, also says how far to
    trust the answer. Confident answers are meant to be right at least 95 times in 100, for pictures
    like the training images. Other answers are unsure. An image is unfamiliar if it is less like
    the training images than 99 in 100 of the held-out ones: do not trust its class. An image of a
    class that the run does not know, but of the same kind as the others, is mostly not marked so.

    Images come in the order in which they are given, and the images of a folder sorted by name.
    Each is prepared as in an evaluation and computed alone, so its probabilities have the same bits
    whatever else is classified. Batches, as `lockstep eval` computes them, may give different
    low-order bits. A file that cannot be read is reported on stderr, and the exit code is 3 at the
    end.

    Examples:
      lockstep predict runs/photos cat.jpg holiday/
      lockstep predict runs/photos holiday/ --top 3
      lockstep predict model.safetensors new/ --json
      lockstep predict runs/photos holiday/ --csv > holiday.csv
      lockstep predict hf://me/ants-and-bees new.jpg

    Args:
        source: Folder of a run, a model.safetensors, or hf://OWNER/NAME on the Hugging Face Hub.
        images: Images, or folders of images with their subfolders.
        top: How many of the most probable classes to print.
        csv: Print a table: a row for each image, a column for each class.
        confident: How often answers that are called confident should be right, for pictures like
            the training images: 0.95 means 95 times in 100.
        checkpoint: The checkpoint after this many steps, or best: the one with the best accuracy of
            those that training evaluated. Default: the newest.
        device: cpu, cuda, GPUs by number as in cuda:0,2, or auto: GPUs if there are any.
        trust_code: Execute code that a recipe file or a run names: a model or a dataset that is not
            built in.
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
    for prediction in classifier.predict_each([located(image) for image in images], top):
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
