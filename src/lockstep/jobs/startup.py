"""The start-up block: what a run is about to compute and where, in at most eight lines (ten with initial weights)."""

import os
import shlex
import socket
from pathlib import Path

import psutil
import torch

from lockstep import hardware
from lockstep.config.placement import REDUCTIONS
from lockstep.config.recipe import Recipe
from lockstep.core.reduction import owned, owned_in_words
from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import Dataset
from lockstep.jobs.session import Session, exchange
from lockstep.settings import Settings
from lockstep.words import plural

Line = tuple[str, str]  # (label, text)


def startup_lines(session: Session, test_set: Dataset, run: Path) -> list[Line]:
    """Return the start-up block."""
    recipe, course, train_set = session.recipe, session.course, session.splits["train"]
    data = str(session.placement.data) if recipe.dataset == IMAGE_FOLDER else recipe.dataset
    shape = "x".join(map(str, train_set.images.shape[1:]))
    trained = f"{session.parameter_count:,} parameters"
    if recipe.head is not None:
        trained += f" of the head {recipe.head} are trained, {session.frozen_count:,} before it are frozen"
    return [
        ("recipe", f"{recipe.name}, digest {recipe.digest()[:12]}"),
        ("data", f"{data}: {len(train_set)} training and {len(test_set)} {recipe.evaluated_split} images, {shape}, "
                 f"{len(train_set.classes)} classes"),
        ("model", f"{recipe.model}: {trained}, computed in {recipe.precision}"
                  + (", the same bits on every kind of CPU tried" if recipe.arithmetic == "portable" else "")),
        *([("init", f"{session.placement.init}: {session.initial_weights}")]
          if session.initial_weights and not session.state.step else []),
        ("batch", f"{recipe.batch} images a step (global) = {plural(recipe.towers, 'tower')} x {recipe.tower_batch}; "
                  f"{course.steps} steps = {course.epochs:.1f} epochs"),
        ("rate", f"learning rate {recipe.lr:g}, {_described(recipe.schedule)}"),
        *_others(recipe),
        ("processes", _processes(session)),
        ("run", f"{run}   (watch it: tail -f {shlex.quote(str(run / 'log.txt'))})"),
    ]  # fmt: skip


def _others(recipe: Recipe) -> list[Line]:
    """Return one line with what not every recipe has."""
    texts = [
        f"EMA of the weights, decay {recipe.ema.decay:g}" if recipe.ema else "",
        f"policy {_described(recipe.policy)}" if recipe.policy else "",
        f"progressive {_described(recipe.progressive)}" if recipe.progressive else "",
        f"evaluated in several views: {recipe.test_views}" if recipe.test_views != "one" else "",
        f"ends after {plural(recipe.patience, 'epoch')} without a better accuracy" if recipe.patience else "",
    ]
    return [("with", "; ".join(filter(None, texts)))] if any(texts) else []


def _described(group: Settings) -> str:
    """Return the kind of a group of settings, if it has kinds, and its settings: `triangle, start 0.2, warmup 0.2`."""
    return ", ".join(str(value) if name == "kind" else f"{name} {value}" for name, value in group)


def _processes(session: Session) -> str:
    recipe, processes, device = session.recipe, session.group.processes, session.device
    shares = [owned(recipe.towers, processes, process) for process in range(processes)]
    counts = f"{' + '.join(str(len(share)) for share in shares)} {'tower' if recipe.towers == 1 else 'towers'}"
    threads = plural(recipe.threads_per_tower, "thread")
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {threads} each"
    shown = processes > 1 or session.placement.reduction == "central"
    how = f", reduction {session.placement.reduction}" if shown else ""
    note = ""
    if (session.placement.device, device.type) == ("auto", "cpu") and (problem := hardware.gpu_problem()):
        note = f"; a GPU driver is here, but torch sees no GPU, so the CPU computes: {problem}"
    elif device.type == "cuda" and recipe.towers > session.local_processes:
        note = f"; {plural(recipe.towers, 'tower')} take turns on {plural(session.local_processes, 'GPU')}"
    return f"{processes} on {where}; {counts}{how}{'' if session.reduction.exact else ' (not exact)'}{note}"


def placement_lines(session: Session) -> list[Line]:
    """Return each process's host, device and towers, the memory a process holds, and how vectors are added.

    All processes call this together.
    """
    recipe, group, state, device = session.recipe, session.group, session.state, session.device
    vector_length = session.tower.layout.length
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, total = f"{device} ({properties.name})", properties.total_memory
    else:
        name = f"CPU ({plural(hardware.cores(), 'core')}, {torch.get_num_threads()} used)"
        total = psutil.virtual_memory().total
    own = f"{socket.gethostname()}, pid {os.getpid()}, {name}, {total / 2**30:.1f} GiB"
    places = [
        (f"process {process}", f"{text}: {owned_in_words(recipe.towers, group.processes, process)}")
        for process, text in enumerate(exchange(own, group))
    ]
    in_memory = [part for part in session.splits.values() if not part.mapped]
    held = {
        "parameters, float32": sum(t.nbytes for t in state.parameters.values()),
        "their average": sum(t.nbytes for t in (state.ema or {}).values()),
        f"the network's copy, {recipe.precision}": sum(t.nbytes for t in session.network.parameters.values()),
        "data": sum({id(part.images): part.images.nbytes for part in in_memory}.values()),
    }
    sizes = ", ".join(f"{what} {size / 2**20:.1f} MiB" for what, size in held.items() if size)
    how = "all towers in one process"
    if group.processes > 1 or session.placement.reduction == "central":
        how = REDUCTIONS[session.placement.reduction]
    return [
        *places,
        ("in each", f"{sizes}; and the optimizer's state"),
        ("reduction", f"{vector_length:,} float32 values a step, {vector_length * 4 / 2**20:.1f} MiB; {how}"),
    ]
