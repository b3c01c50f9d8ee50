"""Complete runs in the process of the test, and changes to their folders."""

import time
from collections.abc import Callable
from pathlib import Path
from signal import Signals
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.data import arrays
from lockstep.errors import SIGNAL_BASE
from lockstep.jobs.context import Context
from lockstep.jobs.specs import Output, TrainSpec
from lockstep.jobs.train import StoppedError, train
from lockstep.runs import statefile
from tests.helpers import recipe_with
from tests.images import noise

# a recipe that trains a head on small pictures in a moment
HEAD = {
    "model": "digits",
    "head": "logits",
    "image_px": 32,
    "augmentation": {"kind": "flip-translate", "pixels": 0},
    "steps": 4,
    "min_steps": 1,
    "precision": "float32",
    "eval_batch": 16,
    "towers": 2,
    "batch": 16,
}


class Outcome(NamedTuple):
    """How a run ended: its result if it is complete, and the signal that stopped it, if one did."""

    result: dict[str, Any] | None = None
    stopped_by: int | None = None


def fit_here(
    recipe: Recipe,
    path: Path,
    placement: Placement = Placement(summary_every=0),  # noqa: B008  a frozen constant
    *,
    stop_requested: Callable[[], Signals | None] = lambda: None,
    **spec: object,
) -> Outcome:
    """Train the run at `path` on one process and the CPU. Its lines go to stderr."""
    train_spec = TrainSpec(
        recipe=recipe, placement=placement, path=path, started=time.time(), **spec
    )
    try:
        return Outcome(
            train(train_spec, Context(stop=stop_requested, output=Output(lines_to_stderr=True)))
        )
    except StoppedError as stopped:
        return Outcome(stopped_by=stopped.code - SIGNAL_BASE)


def state_path(run: Path, step: int) -> Path:
    """Return the checkpoint of the run after `step` updates."""
    return run / "checkpoints" / statefile.file_name(step)


def change_state(path: Path, change: Callable[[dict, dict], object]) -> None:
    """Let `change` change the metadata and the tensors of a state file, in place, as if it had been
    written so.
    """
    found = statefile.read(path)
    change(found.metadata, found.tensors)
    tensors = {name: tensor.clone() for name, tensor in found.tensors.items()}
    statefile.write(path, tensors, found.metadata)


def change_checkpoint(run: Path, step: int, name: str, element: int) -> None:
    """Flip the lowest bit of an element, and seal the file again, so that only a replay can
    notice.
    """

    def flip(metadata: dict, tensors: dict) -> None:
        tensors[name] = tensors[name].clone()
        tensors[name].view(-1).view(torch.int32)[element] ^= 1

    change_state(state_path(run, step), flip)


def stripes(count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images [count, 8, 8, 1], and which of three sets of their columns are bright
    [count, 3].
    """
    labels = noise(3, count, 3) % 2
    light = labels.repeat(2, 1)[:, [*range(6), 0, 1], None][:, None]
    return noise(4, count, 8, 8, 1) // 4 + 150 * light, labels


def recipe_of_stripes(count: int, tests: int, classes: list[str], **changes: object) -> Recipe:
    """Return a recipe that finds the labels of `stripes`, of which the last `tests` are test
    images.
    """
    images, labels = stripes(count)
    data: dict[str, Any] = {
        "train": (images[:-tests], labels[:-tests]),
        "test": (images[-tests:], labels[-tests:]),
        "classes": classes,
    }
    own = {"dataset": "memory", "dataset_sha256": arrays.store(data, None), "multi_label": True}
    own |= {"portable": False, "augmentation": "plain", "batch": 40}
    return recipe_with("digits", own | changes)
