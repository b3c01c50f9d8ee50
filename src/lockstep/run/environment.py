"""What a run computes on, for the records and the start-up block."""

import os
import platform
import re
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import psutil
import torch

from lockstep import numerics
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe, dotted
from lockstep.reduce import Reduction, owned

_LIBRARIES = {"onednn": r"MKL-DNN v([\w.]+)", "mkl": r"Math Kernel Library Version ([\w.]+)"}
_VARIABLES = re.compile(r"(ONEDNN|DNNL|MKL|OMP|OPENBLAS|CUBLAS|CUDNN)_\w+|ATEN_CPU_CAPABILITY|NVIDIA_TF32_OVERRIDE")


def fingerprint(device: torch.device) -> dict[str, Any]:
    """What the bits of a run depend on besides its recipe: they are promised only where all of this is equal."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else numerics.processor(),
        "cpu": numerics.cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        **({"gpu": _gpu(device)} if device.type == "cuda" else {}),
        "environment": {
            key: os.environ.get(key)
            for key in sorted({*numerics.environment(1), *filter(_VARIABLES.fullmatch, os.environ)})
        },
        "versions": {
            "lockstep": _own_version(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            **{name: _library(pattern) for name, pattern in _LIBRARIES.items()},
        },
    }


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """`entry: before -> after` for each entry of two fingerprints that differs.

    An entry that only a newer release of Lockstep records is no difference; an environment variable that only one has
    is one.
    """
    old, new = dotted(before), dotted(after)
    names = [name for name in {**new, **old} if name.startswith("environment.") or (name in old and name in new)]
    return [f"{name}: {old.get(name)} -> {new.get(name)}" for name in names if old.get(name) != new.get(name)]


def _library(pattern: str) -> str | None:
    found = re.search(pattern, torch.__config__.show())
    return found[1] if found else None


def _gpu(device: torch.device) -> dict[str, Any]:
    """Architecture and libraries of a CUDA device."""
    try:
        driver: str | None = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        driver = None
    return {
        "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
        "multiprocessors": torch.cuda.get_device_properties(device).multi_processor_count,
        "cuda": torch.version.cuda,  # cuBLAS comes with it
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "driver": driver,
    }


def here(device: torch.device) -> str:
    """Where this process is, in words: host, process number, device and its memory."""
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        what, total = f"{device} ({facts.name})", facts.total_memory
    else:
        what = f"CPU ({numerics.cores()} {_plural('core', numerics.cores())}, {torch.get_num_threads()} used)"
        total = psutil.virtual_memory().total
    return f"{socket.gethostname()}, pid {os.getpid()}, {what}, {total / 2**30:.1f} GiB"


def exchange(text: str, reduction: Reduction) -> list[str]:
    """Every process's `text`, in order of process."""
    data = text.encode()
    longest = int(reduction.gather(torch.tensor([len(data)])).max())
    padded = torch.tensor(list(data.ljust(longest)), dtype=torch.uint8)
    return [bytes(row.tolist()).decode().rstrip() for row in reduction.gather(padded)]


def towers_of(recipe: Recipe, processes: int, process: int) -> str:
    """The towers of a process, in words."""
    share = owned(recipe.towers, processes, process)
    return f"tower {share.start}" if len(share) == 1 else f"towers {share.start} to {share.stop - 1}"


def describe(
    recipe: Recipe,
    placement: Placement,
    reduction: Reduction,
    device: torch.device,
    *,
    images: tuple[int, int],
    shape: tuple[int, ...],
    classes: int,
    parameters: int,
    run: Path,
) -> list[tuple[str, str]]:
    """The start-up block: (label, text) lines. `images` counts training and test images, `shape` is [H, W, C]."""
    steps = recipe.total_steps(images[0])
    epochs = steps * recipe.batch / images[0]
    lines = [
        ("recipe", f"{recipe.name}, digest {recipe.digest()[:12]}"),
        ("data", f"{recipe.dataset}: {images[0]} training and {images[1]} {recipe.tested_on} images, "
                 f"{'x'.join(map(str, shape))}, {classes} classes"),
        ("model", f"{recipe.model}: {parameters:,} parameters, computed in {recipe.precision}"),
        ("batch", f"{recipe.batch} images a step (global) = {recipe.towers} {_plural('tower', recipe.towers)} "
                  f"x {recipe.tower_batch}; {images[0] / recipe.batch:.1f} steps an epoch"),
        ("length", f"{steps} steps = {epochs:.1f} epochs"),
        ("rate", f"learning rate {recipe.lr:g}, {recipe.schedule.describe()}"),
        ("average", f"EMA of the weights, decay {recipe.ema.decay:g}" if recipe.ema else "no average of the weights"),
        ("processes", _processes(recipe, placement, reduction, device)),
        ("run", f"{run}   (watch it: tail -f {shlex.quote(str(run / 'log.txt'))}"
                f"{f', or tensorboard --logdir {shlex.quote(str(run))}' if placement.summary_every else ''})"),
    ]  # fmt: skip
    if recipe.progressive:
        lines.insert(5, ("images", f"of the steps {recipe.progressive.describe()}"))
    if recipe.test_views != "one":
        lines.insert(-2, ("evaluation", f"each image in several views: {recipe.test_views}"))
    if note := _idle(recipe, placement, reduction.processes, device):
        lines.append(("note", note))
    return lines


def _idle(recipe: Recipe, placement: Placement, processes: int, device: torch.device) -> str | None:
    """What to say where GPUs or cores of this host are idle, or towers share a GPU, and how to use more devices."""
    here = _on_this_host(processes)
    if device.type == "cuda":
        there, each, unit = len(placement.gpus or range(torch.cuda.device_count())), 1, "GPU"
    else:
        there, each, unit = numerics.cores(), recipe.threads_per_tower, "core"
    towers = f"{recipe.towers} {_plural('tower', recipe.towers)}"
    if unit == "core":
        towers += f" of {_threads(recipe)}"
    if recipe.towers > processes:
        places = "GPU" if unit == "GPU" else "process"
        towers += f" take turns on {processes} {_plural(places, processes)}"
    idle = there - here * each
    if idle <= 0:
        return towers if unit == "GPU" and recipe.towers > processes else None
    room = there // each  # the number of processes this host has devices for
    more = min(room - here, recipe.towers - processes)
    ways, others = [], []
    if more:
        flag = f"--processes {here + more}" if placement.processes else f"{here + more} processes on this host"
        ways.append(f"{flag} (the same bits)")
    if room > here + more:
        also = f" --processes {room}" if placement.processes else " and as many processes" if processes > here else ""
        others.append(f"--towers {recipe.towers + room - here - more}{also}")
    if unit == "core" and not more and there // here > each:
        others.append(f"--set threads_per_tower={there // here}")
    if others:
        ways.append(f"{' or '.join(others)} (another recipe, with other bits)")
    how = f". To use more: {', or '.join(ways)}" if ways else ""
    return f"{idle} of {there} {_plural(unit, there)} {'is' if idle == 1 else 'are'} idle: {towers}{how}"


def _on_this_host(processes: int) -> int:
    """How many of the run's processes are on this host: launchers tell those of several hosts by a variable."""
    return min(processes, int(os.environ.get("LOCAL_WORLD_SIZE", processes)))


def _processes(recipe: Recipe, placement: Placement, reduction: Reduction, device: torch.device) -> str:
    shares = [owned(recipe.towers, reduction.processes, p) for p in range(reduction.processes)]
    counts = f"{' + '.join(str(len(share)) for share in shares)} {_plural('tower', recipe.towers)}"
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {_threads(recipe)} each"
    shown = reduction.processes > 1 or placement.reduction == "central-cpu"
    how = f", reduction {placement.reduction}" if shown else ""
    how += "" if reduction.exact else " (not exact)"
    return f"{reduction.processes} on {where}; {counts}{how}"


def _threads(recipe: Recipe) -> str:
    return f"{recipe.threads_per_tower} {_plural('thread', recipe.threads_per_tower)}"


def _plural(word: str, count: int) -> str:
    if count == 1:
        return word
    return f"{word}es" if word.endswith("s") else f"{word}s"


def _own_version() -> str:
    from importlib.metadata import version

    return version("lockstep")
