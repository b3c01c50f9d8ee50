"""Checks of exactness: the sum over two processes, and the arithmetic probe of a fixed network."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lockstep import hardware, numerics
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.config.schedule import Constant
from lockstep.core.digest import digest
from lockstep.core.group import Alone
from lockstep.core.reduction import Reduction
from lockstep.data import Plain, synthetic
from lockstep.doctor.finding import Finding, passed
from lockstep.doctor.peer import TOWERS, vectors
from lockstep.errors import LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.session import Session
from lockstep.kernels.portable import units
from lockstep.optim import SGD
from lockstep.runs.provenance import fingerprint

_TIMEOUT_S = 120.0
# Probes are compared between machines: a change of this recipe makes earlier ones useless.
_RECIPE = Recipe(
    name="doctor", dataset="cifar10", model="tutorial", augmentation=Plain(), batch=16, steps=1,
    optimizer=SGD(momentum=0.9), lr=0.1, schedule=Constant(),
)  # fmt: skip

# Of the recipe in portable arithmetic, on every machine.
_PORTABLE_PROBE = "2f3ca44fb8b55253bee862537851eeac5b1b8d139917ffc9e58015ca417fda48"


@contextmanager
def two_processes(folder: Path, variables: Mapping[str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start two processes that add the vectors of all towers, and meet in `folder`. They are ended with the context."""
    environment = {
        **variables,
        **numerics.of_program(1),
        "GLOO_SOCKET_IFNAME": hardware.LOOPBACK,
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "lockstep.doctor.peer", str(folder / "meeting"), str(number)],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def totals(processes: Sequence[subprocess.Popen[str]], timeout_s: float = _TIMEOUT_S) -> list[str]:
    """Return what each of the `processes` has printed: the digest of its total, or the last line of its error."""
    printed = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=timeout_s)
            printed.append(out.strip() or (err.strip().splitlines() or ["nothing"])[-1])
        except subprocess.TimeoutExpired:
            printed.append(f"no answer within {timeout_s:.0f} s")
    return printed


def reduction(printed: Sequence[str]) -> Finding:
    """Judge the totals that two processes have `printed` by the total of one process."""
    expected = digest([Reduction(Alone(), TOWERS)(vectors())]).hex()
    if wrong := [f"process {number}: {text}" for number, text in enumerate(printed) if text != expected]:
        return Finding(
            "exact sum", "FAIL", f"two processes do not get the sum of one: {'; '.join(wrong)}",
            "allow processes to connect on the loopback interface; if they do connect, test the memory of this machine",
        )  # fmt: skip
    return passed("exact sum", f"2 processes add {TOWERS} vectors with the bits of one process")


def portable() -> Finding:
    """Check that portable arithmetic computes the bits here that it computes on every machine."""
    try:
        found, unit = _probe(_RECIPE.replace(arithmetic="portable"), torch.device("cpu")), type(units.unit()).__name__
    except LockstepError as error:
        found, unit = str(error), "none"
    if found == _PORTABLE_PROBE:
        return passed("portable", f"portable arithmetic computes the bits of all machines, by the unit {unit.lower()}")
    return Finding(
        "portable", "FAIL", f"portable arithmetic has other bits than on other machines: {found}",
        "train with --no-portable, and report this CPU and this version of PyTorch",
    )  # fmt: skip


def _probe(recipe: Recipe, device: torch.device) -> str:
    session = Session(recipe, Placement(device=device.type), Context(device=device), synthetic.load(recipe.dataset, 64))
    return session.probe(session.split("train"))


def machine(device: torch.device) -> dict[str, Any]:
    """Return all that is known to decide the bits of this machine, and its arithmetic probe.

    The probe is that of a fixed small network on random images. Torch must be configured for one thread.
    """
    facts = fingerprint(device)
    kept: dict[str, Any] = {name: facts[name] for name in ("device", "cpu", "cpu_capability", "gpu") if name in facts}
    versions = {name: facts["versions"][name] for name in ("torch", "onednn", "mkl")}
    return kept | versions | {"probe": _probe(_RECIPE, device)}


def arithmetic(entry: Mapping[str, Any]) -> Finding:
    """Return the finding that states the probe of this machine's `entry`."""
    return passed("arithmetic", f"probe {entry['probe'][:12]}: machines with an equal probe compute equal native bits")
