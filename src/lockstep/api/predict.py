"""lockstep.load and lockstep.predict."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.api.specs import chosen_checkpoint
from lockstep.runs.folder import Run
from lockstep.settings import import_path_restored

if TYPE_CHECKING:
    from lockstep.inference.classifier import Classifier, Prediction
    from lockstep.inference.sources import Sources


def load(
    source: str | Path | Run, checkpoint: str | int | None = None, model: str | None = None, device: str = "auto"
) -> "Classifier":
    """Return the classifier of a run or a file, to use in this process.

        classifier = lockstep.load("runs/first")
        classifier = lockstep.load("model.safetensors")         # the file alone: it contains the recipe
        classifier = lockstep.load(run, checkpoint="best")
        print(classifier.classes, next(classifier.predict("cat.jpg")).label)

    It preprocesses as evaluation does, and computes in the recipe's precision, with this process's number of threads.
    Another number than the recipe's may change low-order bits of the probabilities; `lockstep predict` uses the
    recipe's. A network that the recipe compiles is computed uncompiled. No setting of torch is changed, and its default
    dtype does not matter. sys.path is left as it was.

    Args:
        source: a run, its folder, the folder of one of its checkpoints, or a model file.
        checkpoint: "best", or a number of steps; None for the newest.
        model: the run's own package.module:function, to allow that its code is executed. If options of the model hold
            text, they are named too: "timm:create_model(model_name='resnet18')".
        device: "auto", "cpu", "cuda", or a GPU as in "cuda:1".

    Raises:
        LockstepError: a folder or file that does not exist or is damaged, a checkpoint that the run does not have, a
            model whose code was not allowed, a device that is not here.
    """
    from lockstep.inference import classifier  # imports torch

    with import_path_restored():
        return classifier.load(source, chosen_checkpoint(checkpoint), model, device)


def predict(
    source: str | Path | Run, sources: "Sources", top: int = 1, *, model: str | None = None, device: str = "auto"
) -> "Iterator[Prediction]":
    """Classify images with the classifier of a run or a file, and yield a prediction for each, in order.

        for p in lockstep.predict("runs/first", "photos/", top=3):
            print(p.source, p.label, p.probability, p.error)

    To classify more than once, `lockstep.load` the classifier and call its `predict`.

    Args:
        source: a run, its folder, or a model file.
        sources: paths, folders, Pillow images or arrays; see `Classifier.predict`.
        top: how many of the most probable classes each prediction lists.
        model: as for `lockstep.load`.
        device: as for `lockstep.load`.

    Raises:
        LockstepError: as `lockstep.load`. An image that cannot be read gives a prediction with an `error`.
    """
    return load(source, model=model, device=device).predict(sources, top)
