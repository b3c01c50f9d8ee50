"""The start-up block: what a run is about to compute and where, in at most eight lines (ten with initial weights)."""

import os
import shlex
import socket
from pathlib import Path

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
    head = f" of the head {recipe.head} are trained" if recipe.head else ""
    return [
        ("recipe", f"{recipe.name}, digest {recipe.digest()[:12]}"),
        ("data", f"{data}: {len(train_set)} training and {len(test_set)} {recipe.evaluated_split} images, {shape}, "
                 f"{len(train_set.classes)} classes"),
        ("model", f"{recipe.model}: {session.parameter_count:,} parameters{head}, computed in {recipe.precision}"
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
    values = {name: getattr(recipe, name) for name in ("ema", "policy", "progressive", "patience", "test_views")}
    texts = [f"{name} {_described(value)}" for name, value in values.items() if value not in (None, "one")]
    return [("with", "; ".join(texts))] if texts else []


def _described(value: object) -> str:
    """Return a value; of a group of settings the kind, if any, and the settings: `triangle, start 0.2, warmup 0.2`."""
    if not isinstance(value, Settings):
        return str(value)
    return ", ".join(str(one) if name == "kind" else f"{name} {one}" for name, one in value)


def _processes(session: Session) -> str:
    recipe, group, device = session.recipe, session.group, session.device
    counts = " + ".join(str(len(owned(recipe.towers, group.processes, process))) for process in range(group.processes))
    where = f"CPU, {plural(recipe.threads_per_tower, 'thread')} each"
    note = f", reduction {session.placement.reduction}{'' if session.reduction.exact else ' (not exact)'}"
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
        if recipe.towers > session.local_processes:
            note += f"; {plural(recipe.towers, 'tower')} take turns on {plural(session.local_processes, 'GPU')}"
    elif session.placement.device == "auto" and (problem := hardware.gpu_problem()):
        note += f"; a GPU driver is here, but torch sees no GPU, so the CPU computes: {problem}"
    return f"{group.processes} on {where}; {counts} {'tower' if recipe.towers == 1 else 'towers'}{note}"


def placement_lines(session: Session) -> list[Line]:
    """Return each process's host, device and towers, and how vectors are added. All processes call this together."""
    recipe, group, device, length = session.recipe, session.group, session.device, session.tower.layout.length
    name = f"CPU ({plural(hardware.cores(), 'core')}, {torch.get_num_threads()} used)"
    if device.type == "cuda":
        name = f"{device} ({torch.cuda.get_device_name(device)})"
    own = f"{socket.gethostname()}, pid {os.getpid()}, {name}"
    how = f"{length:,} float32 values a step, {length * 4 / 2**20:.1f} MiB; {REDUCTIONS[session.placement.reduction]}"
    places = [
        (f"process {process}", f"{text}: {owned_in_words(recipe.towers, group.processes, process)}")
        for process, text in enumerate(exchange(own, group))
    ]
    return [*places, ("reduction", how)]
