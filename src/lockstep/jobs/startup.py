"""The start-up block: what a run is about to compute and where, in four lines; and the details for
its log.
"""

import os
import socket
from pathlib import Path

import torch

from lockstep import hardware
from lockstep.config.placement import REDUCTIONS
from lockstep.core.tree import owned_in_words
from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import Dataset
from lockstep.jobs.session import Session, exchange
from lockstep.jobs.weights import PACKAGED
from lockstep.schema import dotted
from lockstep.text import plural

Line = tuple[str, str]  # (label, text)


def startup_lines(session: Session, test_set: Dataset, run: Path) -> list[Line]:
    """Return the start-up block."""
    recipe, bound, train_set = session.recipe, session.bound, session.splits["train"]
    data = str(session.placement.data) if recipe.dataset == IMAGE_FOLDER else recipe.dataset
    shape = "x".join(map(str, train_set.images.shape[1:]))
    done = f", {session.state.step} of them done" if session.state.step else ""
    epochs = bound.epoch(bound.steps)
    # The user has given a file of weights.
    given = session.initial_weights is not None and recipe.init_sha256 not in PACKAGED
    origin = f", from the weights {session.placement.init}" if given else ""
    turns, gpus = "", len(session.gpus)
    if 0 < gpus < recipe.towers:
        turns = f"; {plural(recipe.towers, 'tower')} take turns on {plural(gpus, 'GPU')}"
    turns += "; they exchange through the hosts' memory" * session.group.through_host
    if session.device.type == "cuda" and session.without_graphs:
        turns += f"; no CUDA graphs: {session.without_graphs}"
    return [
        (
            "data",
            f"{data}: {len(train_set)} training and {len(test_set)} {recipe.evaluated_split} "
            f"images, {shape}, "
            f"{len(train_set.classes)} classes",
        ),
        (
            "network",
            f"{recipe.model}: {session.parameter_count:,} parameters"
            + (" to train, those of its last layer" if recipe.head else "")
            + origin,
        ),
        (
            "time",
            f"{plural(bound.steps, 'step')} of {recipe.batch} images "
            f"({epochs:.{int(epochs < 10)}f} epochs)"
            f"{done}, on {plural(session.group.processes, 'process')}{turns}",
        ),
        ("run", f"{run}, with all settings in its log.txt"),
    ]


def detail_lines(session: Session) -> list[Line]:
    """Return what else decides the run, for its log, with all settings of the recipe."""
    recipe, initial = session.recipe, session.initial_weights
    return [
        ("digest", recipe.digest()),
        (
            "step",
            f"{recipe.batch} images (global) = {plural(recipe.towers, 'tower')} x "
            f"{recipe.tower_batch}",
        ),
        *(
            [("init", f"{session.placement.init}: {initial}")]
            if initial and not session.state.step
            else []
        ),
        *(
            (name, str(value))
            for name, value in dotted(recipe.model_dump(mode="json", exclude_none=True)).items()
        ),
    ]


def placement_lines(session: Session) -> list[Line]:
    """Return each process's host, device and towers, and how vectors are added. All processes call
    this together.
    """
    recipe, group, device, length = (
        session.recipe,
        session.group,
        session.device,
        session.tower.layout.length,
    )
    name = f"CPU ({plural(hardware.cores(), 'core')}, {torch.get_num_threads()} used)"
    if device.type == "cuda":
        name = f"{device} ({torch.cuda.get_device_name(device)})"
    own = f"{socket.gethostname()}, pid {os.getpid()}, {name}"
    how = (
        f"{length:,} float32 values a step, {length * 4 / 2**20:.1f} MiB; "
        f"{REDUCTIONS[session.placement.reduction]}"
    )
    places = [
        (f"process {process}", f"{text}: {owned_in_words(recipe.towers, group.processes, process)}")
        for process, text in enumerate(exchange(own, group))
    ]
    return [*places, ("reduction", how)]
