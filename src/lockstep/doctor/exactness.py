"""Checks of exactness: the sum over two processes, and the arithmetic probe of a fixed network."""

import json
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
from lockstep.jobs.context import Context
from lockstep.jobs.session import Session
from lockstep.optim import SGD
from lockstep.runs.provenance import fingerprint

_TIMEOUT_S = 120.0
_KNOWN = Path(__file__).with_name("known_machines.json")
# The table holds the probe of exactly this recipe: a change makes it useless.
_RECIPE = Recipe(
    name="doctor", dataset="cifar10", model="tutorial", augmentation=Plain(), batch=16, steps=1,
    optimizer=SGD(momentum=0.9), lr=0.1, schedule=Constant(),
)  # fmt: skip


@contextmanager
def two_processes(folder: Path, variables: Mapping[str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start two processes that add the vectors of all towers, and meet in `folder`. They are ended with the context."""
    environment = {
        **variables,
        **numerics.of_program(1),
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
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
    expected = digest([Reduction(Alone(), TOWERS, "tree", torch.device("cpu"))(vectors())]).hex()
    if wrong := [f"process {number}: {text}" for number, text in enumerate(printed) if text != expected]:
        return Finding(
            "exact sum", "FAIL", f"two processes do not get the sum of one: {'; '.join(wrong)}",
            "allow processes to connect on the loopback interface; if they do connect, test the memory of this machine",
        )  # fmt: skip
    return passed("exact sum", f"2 processes add {TOWERS} vectors with the bits of one process")


def machine(device: torch.device) -> dict[str, Any]:
    """Return the entry of this machine for the table: all that is known to decide its bits, and its arithmetic probe.

    The probe is that of a fixed small network on random images. Torch must be configured for one thread.
    """
    splits = synthetic.load(_RECIPE.dataset, 64)
    session = Session(_RECIPE, Placement(device=device.type), Context(device=device), splits)
    facts = fingerprint(device)
    kept: dict[str, Any] = {name: facts[name] for name in ("device", "cpu", "cpu_capability", "gpu") if name in facts}
    versions = {name: facts["versions"][name] for name in ("torch", "onednn", "mkl")}
    return kept | versions | {"probe": session.probe(session.split("train")).sha256}


def known_machines() -> list[dict[str, Any]]:
    """Return the table of known machines that comes with Lockstep."""
    table: list[dict[str, Any]] = json.loads(_KNOWN.read_text())
    return table


def arithmetic(own: Mapping[str, Any], table: Sequence[Mapping[str, Any]]) -> Finding:
    """Judge the entry of this machine by the `table` of known machines."""
    probe = own["probe"]
    facts = {name: value for name, value in own.items() if name != "probe"}
    alike = [entry["probe"] for entry in table if {k: v for k, v in entry.items() if k != "probe"} == facts]
    if probe in alike:
        return passed("arithmetic", f"probe {probe[:12]}, as known for this CPU or GPU and this torch")
    if alike:
        return Finding(
            "arithmetic", "WARN", f"probe {probe[:12]}, but such a machine with this torch has {alike[0][:12]}",
            "unset variables that restrict instructions, such as ONEDNN_MAX_CPU_ISA; if none is set, test the memory",
        )  # fmt: skip
    equal = sorted({str(entry["device"]) for entry in table if entry["probe"] == probe})
    where = f"it computes the bits of {', '.join(equal)}" if equal else "its bits are not those of a known machine"
    return passed("arithmetic", f"probe {probe[:12]}: this machine is not in the table yet; {where}")


def gpu_names() -> list[str]:
    """Return the names of the GPUs that torch sees."""
    return [torch.cuda.get_device_name(number) for number in range(hardware.gpus())]
