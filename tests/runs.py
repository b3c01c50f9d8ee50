"""Complete runs in the process of the test, and changes to their folders."""

import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from signal import Signals
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.errors import SIGNAL_BASE
from lockstep.jobs.context import Context, Display
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.train import StoppedError, train
from lockstep.runs.manifest import MANIFEST, encoded, read_manifest


class Outcome(NamedTuple):
    """How a run ended: its result if it is complete, and the signal that stopped it, if one did."""

    result: dict[str, Any] | None = None
    stopped_by: int | None = None


def fit_here(
    recipe: Recipe,
    path: Path,
    placement: Placement = Placement(),  # noqa: B008  a frozen constant
    *,
    stop_requested: Callable[[], Signals | None] = lambda: None,
    **spec: object,
) -> Outcome:
    """Train the run at `path` on one process and the CPU. Its lines go to stderr."""
    train_spec = TrainSpec(recipe=recipe, placement=placement, path=path, started=time.time(), **spec)
    try:
        return Outcome(train(train_spec, Context(stop=stop_requested, display=Display(sys.stderr))))
    except StoppedError as stopped:
        return Outcome(stopped_by=stopped.code - SIGNAL_BASE)


def change_manifest(checkpoint: Path, change: Callable[[dict], object]) -> None:
    """Let `change` change the facts of a checkpoint, in place, as if it had been saved with them."""
    facts = read_manifest(checkpoint)
    change(facts)
    (checkpoint / MANIFEST).write_bytes(encoded(facts))


def change_checkpoint(run: Path, step: int, name: str, element: int) -> None:
    """Flip the lowest bit of an element, and make the manifest match, so that only a replay can notice."""
    folder = run / f"checkpoints/step-{step:09d}"
    tensors = load_file(folder / "state.safetensors")
    tensors[name].view(-1).view(torch.int32)[element] ^= 1
    save_file(tensors, folder / "state.safetensors")
    content = (folder / "state.safetensors").read_bytes()
    files = {"state.safetensors": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
    change_manifest(folder, lambda facts: facts.update(files=files))
