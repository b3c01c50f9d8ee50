"""The start-up block: what a run is about to compute and where, in four lines; and the details for
its log.
"""

import os
import socket
import time
from pathlib import Path

import torch

from lockstep import hardware
from lockstep.core.tree import owned_in_words
from lockstep.data import IMAGE_FOLDER
from lockstep.jobs.agreement import exchange
from lockstep.jobs.replica import Replica
from lockstep.jobs.weights import PACKAGED
from lockstep.schema import dotted
from lockstep.text import plural

Line = tuple[str, str]  # (label, text)

# name -> a description for several processes
_REDUCTIONS = {
    "tree": "each process adds one slice of the vectors, in the order of one fixed tree, so the "
    "sum is the same on any number of processes",
    "allreduce": "the backend's own all-reduce adds them in its own order, so the low-order bits "
    "depend on the number of processes",
}


def startup_lines(replica: Replica, run: Path) -> list[Line]:
    """Return the start-up block."""
    recipe, bound, train_set = replica.recipe, replica.bound, replica.splits["train"]
    data = str(replica.placement.data) if recipe.dataset == IMAGE_FOLDER else recipe.dataset
    shape = "x".join(map(str, train_set.images.shape[1:]))
    done = f", {replica.state.step} of them done" if replica.state.step else ""
    epochs = bound.epoch(bound.steps)
    passes = f"of {recipe.batch} images ({epochs:.{int(epochs < 10)}f} epochs)"
    if recipe.head:  # A step takes features, so a number of epochs would mislead about the time.
        passes = f"over {plural(len(train_set), 'training image')}"
    parameters = sum(tensor.numel() for tensor in replica.state.parameters.values())
    # The user has given a file of weights, or a network of timm.
    given = replica.initial_weights is not None and recipe.init_sha256 not in PACKAGED
    origin = f", from the weights {replica.placement.init}" if given else ""
    turns, gpus = "", len(replica.gpus)
    if 0 < gpus < recipe.towers:
        turns = f"; {plural(recipe.towers, 'tower')} take turns on {plural(gpus, 'GPU')}"
    turns += "; GPUs exchange through host memory" * replica.group.through_host
    if replica.device.type == "cuda" and replica.without_graphs:
        turns += f"; no CUDA graphs: {replica.without_graphs}"
    return [
        (
            "data",
            f"{data}: {len(train_set)} training and {len(replica.test_set)} "
            f"{recipe.evaluated_split} images, {shape}, {len(train_set.classes)} classes",
        ),
        (
            "network",
            f"{recipe.model}: {parameters:,} parameters"
            + (" to train, all in its last layer" if recipe.head else "")
            + origin,
        ),
        (
            "time",
            f"{plural(bound.steps, 'step')} {passes}"
            f"{done}, on {plural(replica.group.processes, 'process')}{turns}",
        ),
        ("run", f"{run}, with all settings in its log.txt"),
    ]


def detail_lines(replica: Replica) -> list[Line]:
    """Return what else decides the run, for its log, with all settings of the recipe."""
    recipe, initial = replica.recipe, replica.initial_weights
    settings = dotted(recipe.model_dump(mode="json", exclude_none=True))
    chosen: list[Line] = []
    if recipe.decay_factors:
        decay = replica.bound.recipe.weight_decay
        chosen = [("weight_decay used", ", ".join(f"{name}: {c:g}" for name, c in decay.items()))]
    init: list[Line] = []
    if initial and not replica.state.step:
        init = [("init", f"{replica.placement.init}: {initial}")]
    return [
        ("digest", recipe.digest()),
        (
            "step",
            f"{recipe.batch} images (global) = {plural(recipe.towers, 'tower')} x "
            f"{recipe.tower_batch}",
        ),
        *init,
        *((name, str(value)) for name, value in settings.items()),
        *chosen,
    ]


def host_lines(replica: Replica) -> list[Line]:
    """Return what an exchange between hosts costs; nothing on one host. All processes call this
    together.
    """
    group, hosts = replica.group, len({*replica.group.hosts()})
    if hosts == 1:
        return []
    vector = group.exchanged(torch.zeros(replica.tower.layout.length))
    for _ in range(2):  # The first time has other costs too.
        began = time.perf_counter()
        group.send_from_first(vector)
        group.gather(vector[:1]).tolist()  # All have it.
        milliseconds = (time.perf_counter() - began) * 1000
    text = (
        f"{hosts}; each step exchanges {vector.nbytes / 2**20:.1f} MiB up to twice; sending them "
        f"from process 0 takes {milliseconds:.1f} ms"
    )
    return [("hosts", text)]


def placement_lines(replica: Replica) -> list[Line]:
    """Return each process's host, device and towers, and how vectors are added. All processes call
    this together.
    """
    device, length = replica.device, replica.tower.layout.length
    name = f"CPU ({plural(hardware.cores(), 'core')}, {torch.get_num_threads()} used)"
    if device.type == "cuda":
        name = f"{device} ({torch.cuda.get_device_name(device)})"
    place = f"{socket.gethostname()}, pid {os.getpid()}, {name}"
    how = (
        f"{length:,} float32 values a step, {length * 4 / 2**20:.1f} MiB; "
        f"{_REDUCTIONS[replica.placement.reduction]}"
    )
    places = exchange(place, replica.group)
    lines = []
    for process, text in enumerate(places):
        towers = owned_in_words(replica.recipe.towers, len(places), process)
        lines.append((f"process {process}", f"{text}: {towers}"))
    return [*lines, ("reduction", how)]
