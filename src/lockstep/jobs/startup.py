"""The start-up block: what a run is about to compute, where, and which devices of this host stay idle."""

import os
import shlex
import socket
import sys
from pathlib import Path

import psutil
import torch

from lockstep import hardware
from lockstep.config.placement import REDUCTIONS, Placement
from lockstep.config.recipe import Course, Recipe
from lockstep.core.reduction import owned, owned_in_words
from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import Dataset
from lockstep.jobs.session import Session, exchange
from lockstep.messages import script
from lockstep.words import plural

Line = tuple[str, str]  # (label, text)


def startup_lines(
    session: Session,
    course: Course,
    train_set: Dataset,
    test_set: Dataset,
    run: Path,
) -> list[Line]:
    """Return the start-up block."""
    recipe, placement, device = session.recipe, session.placement, session.device
    processes = session.group.processes
    data = str(placement.data) if recipe.dataset == IMAGE_FOLDER else recipe.dataset
    shape = "x".join(map(str, session.splits["train"].images.shape[1:]))
    watch = f"tail -f {shlex.quote(str(run / 'log.txt'))}"
    tensorboard = script(Path(sys.executable).with_name("tensorboard"))
    watch += f", or {tensorboard} --logdir {shlex.quote(str(run))}" if placement.summary_every else ""
    lines = [
        ("recipe", f"{recipe.name}, digest {recipe.digest()[:12]}"),
        ("data", f"{data}: {len(train_set)} training and {len(test_set)} {recipe.evaluated_split} "
                 f"images, {shape}, {len(train_set.classes)} classes"),
        ("model", f"{recipe.model}: {_parameters(session)}, computed in {recipe.precision}"
                  + (", the same bits on every kind of CPU tried" if recipe.arithmetic == "portable" else "")),
        ("batch", f"{recipe.batch} images a step (global) = {plural(recipe.towers, 'tower')} "
                  f"x {recipe.tower_batch}; {len(train_set) / recipe.batch:.1f} steps an epoch"),
        ("length", f"{course.steps} steps = {course.epochs:.1f} epochs"),
        ("rate", f"learning rate {recipe.lr:g}, {recipe.schedule.describe()}"
                 + (f"; gradients clipped to norm {recipe.clip:g}" if recipe.clip else "")),
        ("average", f"EMA of the weights, decay {recipe.ema.decay:g}" if recipe.ema else "no average of the weights"),
        ("processes", _processes(session)),
        ("run", f"{run}   (watch it: {watch})"),
    ]  # fmt: skip
    if session.initial_weights and not session.state.step:
        lines[3:3] = session.initial_weights.lines()
    if extras := _augmentation_extras(recipe):
        lines.insert(5, ("augmented", "; ".join(extras)))
    if recipe.patience is not None:
        epochs = plural(recipe.patience, "epoch")
        lines.insert(
            5, ("patience", f"ends after {epochs} without a better accuracy on the {recipe.evaluated_split} images")
        )
    if recipe.progressive:
        lines.insert(5, ("images", f"of the steps {recipe.progressive.describe()}"))
    if recipe.test_views != "one":
        lines.insert(-2, ("evaluation", f"each image in several views: {recipe.test_views}"))
    if note := idle_devices(recipe, placement, processes, session.local_processes, device):
        lines.append(("note", note))
    if placement.device == "auto" and device.type == "cpu" and (problem := hardware.gpu_problem()):
        lines.append(("note", f"a GPU driver is here, but torch sees no GPU, so the CPU computes: {problem}"))
    return lines


def _parameters(session: Session) -> str:
    """Return how many parameters are trained, and how many before a head are frozen."""
    own = f"{session.parameter_count:,} parameters"
    if session.recipe.head is None:
        return own
    return f"{own} of the head {session.recipe.head} are trained, {session.frozen_count:,} before it are frozen"


def _augmentation_extras(recipe: Recipe) -> list[str]:
    """Return what happens to training images beside `augmentation`, in words."""
    return [
        *([recipe.policy.describe()] if recipe.policy else []),
        *([f"MixUp, alpha {recipe.mixup:g}"] if recipe.mixup else []),
        *([f"CutMix, alpha {recipe.cutmix:g}"] if recipe.cutmix else []),
    ]


def placement_lines(session: Session, vector_length: int) -> list[Line]:
    """Return each process's host, device and towers, the memory a process holds, and how vectors are added.

    All processes call this together. `vector_length` is the number of values that are reduced in a step.
    """
    recipe, group, state = session.recipe, session.group, session.state
    texts = exchange(_describe_process(session.device), group)
    lines = [
        (f"process {process}", f"{text}: {owned_in_words(recipe.towers, group.processes, process)}")
        for process, text in enumerate(texts)
    ]
    in_memory = [part for part in session.splits.values() if not part.mapped]
    held = {
        "parameters, float32": sum(t.nbytes for t in state.parameters.values()),
        "their average": sum(t.nbytes for t in (state.ema or {}).values()),
        f"the network's copy, {recipe.precision}": sum(t.nbytes for t in session.network.parameters.values()),
        "data": sum({id(part.images): part.images.nbytes for part in in_memory}.values()),
    }
    sizes = ", ".join(f"{what} {size / 2**20:.1f} MiB" for what, size in held.items() if size)
    lines.append(("in each", f"{sizes}; and the optimizer's state"))
    how = "all towers in one process"
    if group.processes > 1 or session.placement.reduction == "central":
        how = REDUCTIONS[session.placement.reduction]
    lines.append(("reduction", f"{vector_length:,} float32 values a step, {vector_length * 4 / 2**20:.1f} MiB; {how}"))
    return lines


def _describe_process(device: torch.device) -> str:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, total = f"{device} ({properties.name})", properties.total_memory
    else:
        cores = hardware.cores()
        name = f"CPU ({plural(cores, 'core')}, {torch.get_num_threads()} used)"
        total = psutil.virtual_memory().total
    return f"{socket.gethostname()}, pid {os.getpid()}, {name}, {total / 2**30:.1f} GiB"


def idle_devices(
    recipe: Recipe, placement: Placement, processes: int, local_processes: int, device: torch.device
) -> str | None:
    """Return a note if GPUs or cores of this host are idle, or towers share a GPU, with the options that use more.

    `processes` counts those of the whole run, `local_processes` those on this host.
    """
    if device.type == "cuda":
        available, each, unit = len(placement.gpus or range(torch.cuda.device_count())), 1, "GPU"
    else:
        available, each, unit = hardware.cores(), recipe.threads_per_tower, "core"
    towers = plural(recipe.towers, "tower")
    if unit == "core":
        towers += f" of {_threads(recipe)}"
    if recipe.towers > processes:
        shared = "GPU" if unit == "GPU" else "process"
        towers += f" take turns on {plural(processes, shared)}"
    idle = available - local_processes * each
    if idle <= 0:
        return towers if unit == "GPU" and recipe.towers > processes else None
    capacity = available // each
    more = min(capacity - local_processes, recipe.towers - processes)
    ways, other_recipes = [], []
    if more:
        count = local_processes + more
        ways.append(f"--processes {count}" if placement.processes else f"{count} processes on this host")
        ways[-1] += " (the same bits)"
    if capacity > local_processes + more:
        also = f" --processes {capacity}" if placement.processes else ""
        also = also or (" and as many processes" if processes > local_processes else "")
        other_recipes.append(f"--towers {recipe.towers + capacity - local_processes - more}{also}")
    if unit == "core" and not more and available // local_processes > each:
        other_recipes.append(f"--set threads_per_tower={available // local_processes}")
    if other_recipes:
        ways.append(f"{' or '.join(other_recipes)} (another recipe, with other bits)")
    how = f". To use more: {', or '.join(ways)}" if ways else ""
    return f"{idle} of {plural(available, unit)} {'is' if idle == 1 else 'are'} idle: {towers}{how}"


def _processes(session: Session) -> str:
    recipe, processes, device = session.recipe, session.group.processes, session.device
    shares = [owned(recipe.towers, processes, process) for process in range(processes)]
    counts = f"{' + '.join(str(len(share)) for share in shares)} {'tower' if recipe.towers == 1 else 'towers'}"
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {_threads(recipe)} each"
    shown = processes > 1 or session.placement.reduction == "central"
    how = f", reduction {session.placement.reduction}" if shown else ""
    how += "" if session.reduction.exact else " (not exact)"
    return f"{processes} on {where}; {counts}{how}"


def _threads(recipe: Recipe) -> str:
    return plural(recipe.threads_per_tower, "thread")
