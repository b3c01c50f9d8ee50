"""The labels job: which labels of a folder are contradicted by a head that was not trained on these images.

The images are divided into five folds. For each fold, a head is trained on the images of all other folds, by the
ordinary loop, and classifies the images of the fold. The features of all images are computed once.
"""

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lockstep.core.evaluate import evaluate
from lockstep.core.group import Alone
from lockstep.core.loop import updates
from lockstep.core.reduction import Reduction, owned
from lockstep.core.tower import Tower
from lockstep.data.dataset import Dataset
from lockstep.data.photos import survey
from lockstep.data.progress import progress
from lockstep.data.scan import SPLITS
from lockstep.errors import DATA, LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.session import Session
from lockstep.jobs.specs import LabelsSpec
from lockstep.listeners.log import Log
from lockstep.words import listed

_FOLDS = 5
_LEFT_OUT = 0.8  # An image is left out of the second training if another class has at least this probability.
_DOUBTFUL = 0.03  # A label is contradicted if its calibrated probability is at most this.
_TEMPERATURES = np.geomspace(0.2, 5.0, 60)

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Probabilities = NDArray[np.float64]  # [images, classes]


def labels(spec: LabelsSpec, ctx: Context) -> dict[str, Any] | None:
    """Judge each image of the folder twice. Return the record in process 0, None in the others.

    The second training leaves out the images whose labels the first one contradicts, so that wrong labels do not
    confirm each other. Raises: LockstepError.
    """
    session = Session(spec.recipe, spec.placement, ctx)
    found = survey(spec.placement.data, spec.recipe.test_share, spec.recipe.group)
    # A division by `test_share` is of all images.
    names = ["train", "test"] if found.scan.divided else [name for name in SPLITS if name in found.scan.folders]
    photos = [photo for name in names for photo in found.splits[name]]
    numbers = np.concatenate([found.labels(name) for name in names])
    _, contents = np.unique([found.units[photo.sha256] for photo in photos], return_inverse=True)
    fold_of = divide(numbers, contents, found.classes)
    features = torch.cat([session.split(name).pixels(slice(None)) for name in names]).cpu().numpy()
    images = Dataset.of(features, numbers, found.classes)
    session.require_agreement(images.to(ctx.device))
    first = _judged(session, images, fold_of, np.ones(len(photos), bool), ctx)
    trusted = (first.argmax(1) == numbers) | (first.max(1) < _LEFT_OUT)
    probabilities = _calibrated(_judged(session, images, fold_of, trusted, ctx), numbers, trusted)
    if not ctx.first:
        return None
    predicted, own = probabilities.argmax(1), probabilities[np.arange(len(numbers)), numbers]
    doubtful = [row for row in own.argsort(kind="stable") if own[row] <= _DOUBTFUL and predicted[row] != numbers[row]]
    return {
        "folder": str(spec.placement.data),
        "images": len(photos),
        "agreement": float((predicted == numbers).mean()),
        "doubtful": [
            {
                "path": photos[row].path,
                "label": found.classes[numbers[row]],
                "predicted": found.classes[predicted[row]],
                "probability_of_label": round(float(own[row]), 6),
                "probability": round(float(probabilities[row].max()), 6),
            }
            for row in doubtful
        ],
    }


def divide(labels: Rows, contents: Rows, classes: tuple[str, ...]) -> Rows:
    """Return the fold of each image, in range(_FOLDS), by its class and the order of its SHA-256.

    So each fold has an equal share of each class, equal files are in one fold, and names do not matter. `contents` are
    numbers of the files' contents, in the order of their SHA-256, or of their groups.
    Raises: LockstepError if a class has fewer different images than there are folds.
    """
    order = np.lexsort((contents, labels))
    _, firsts = np.unique(contents[order], return_index=True)
    different = order[np.sort(firsts)]  # one image of each content, by class
    in_class = np.unique(np.column_stack([labels, contents]), axis=0)[:, 0]
    numbers = np.bincount(in_class, minlength=len(classes))
    if few := [f"{classes[label]} ({numbers[label]})" for label in np.flatnonzero(numbers < _FOLDS)]:
        raise LockstepError(
            f"--labels needs {_FOLDS} different images of each class, and there are fewer of {listed(few)}: add images",
            DATA,
        )
    of_content = np.zeros(contents.max() + 1, np.int64)
    of_content[contents[different]] = np.arange(len(different)) % _FOLDS
    return of_content[contents]


def _judged(session: Session, images: Dataset, fold_of: Rows, trusted: Mask, ctx: Context) -> Probabilities:
    """Return the probabilities that the head of each image's fold gives it. Heads are trained on `trusted` images.

    Each process trains the heads of its share of the folds alone, so that no step waits for another process.
    """
    recipe, placement, device = session.recipe, session.placement, session.device
    reduction = Reduction(Alone(), recipe.towers, placement.reduction, device)
    own = owned(_FOLDS, ctx.group.processes, ctx.group.process)
    probabilities = torch.zeros(len(images), len(images.classes), dtype=torch.float64)
    with progress("training a head for each fold", 100 * len(own)) if ctx.shows_progress else nullcontext() as advance:
        for fold in own:
            inside = fold_of == fold
            train_set = images.select(np.flatnonzero(~inside & trusted)).to(device)
            course, state = recipe.bind(len(train_set)), session.state.fresh()
            log = Log(course, (), ctx.monitor, device=device)
            for _ in updates(train_set, Tower(course, session.network), reduction, state, log):
                if advance and (done := state.step * 100 // course.steps - (state.step - 1) * 100 // course.steps):
                    advance(done)
            rows = torch.from_numpy(np.flatnonzero(inside))

            def keep(examples: Tensor, logits: Tensor, rows: Tensor = rows) -> None:
                probabilities[rows[examples.cpu()]] = logits.double().softmax(1).cpu()

            weights, judged = state.parameters_of(recipe.own_weights), images.select(rows.numpy())
            evaluate(session.network, weights, state.buffers, judged.to(device), Alone(), each=keep)
    # Every image is classified by one process. The others have zeros for it.
    every: Probabilities = ctx.group.gather(probabilities.to(device)).sum(0).cpu().numpy()
    return every


def _calibrated(probabilities: Probabilities, labels: Rows, trusted: Mask) -> Probabilities:
    """Return the probabilities at the temperature at which they fit the labels of the `trusted` images best.

    So "doubtful" means the same, however long and with which settings the heads were trained.
    Source: temperature scaling of Guo et al. 2017 (arXiv:1706.04599).
    """
    logits = torch.from_numpy(np.log(probabilities + 1e-12))
    own = torch.from_numpy(trusted)
    fitted, expected = logits[own], torch.from_numpy(labels)[own]
    best = min(_TEMPERATURES, key=lambda temperature: float(functional.cross_entropy(fitted / temperature, expected)))
    values: Probabilities = (logits / best).softmax(1).numpy()
    return values
