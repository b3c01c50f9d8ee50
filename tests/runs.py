"""Complete runs in the process of the test, and changes to their folders."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from signal import Signals

import torch
from safetensors.torch import load_file, save_file

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.core.local import Local
from lockstep.jobs.specs import TrainJob
from lockstep.jobs.train import Outcome, fit
from lockstep.runs.manifest import MANIFEST, encoded, read_manifest


def fit_here(
    recipe: Recipe,
    path: Path,
    placement: Placement = Placement(),  # noqa: B008  a frozen constant
    *,
    stop_requested: Callable[[], Signals | None] = lambda: None,
    **job: object,
) -> Outcome:
    """Train the run at `path` on one process and the CPU. Its lines go to stderr."""
    train_job = TrainJob(recipe=recipe, placement=placement, path=path, json_output=True, started=time.time(), **job)
    return fit(train_job, Local(recipe.towers), torch.device("cpu"), stop_requested=stop_requested)


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
