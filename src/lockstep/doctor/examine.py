"""All checks, in order."""

import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import psutil
import torch

from lockstep import hardware, numerics
from lockstep.doctor import exactness, machine, storage
from lockstep.doctor.finding import Finding


class Examination:
    """The checks of this machine. `variables` are those of the user's shell, before Lockstep has set its own.

    Attributes:
        entry: what is known to decide the bits of this machine, and its arithmetic probe.
    """

    def __init__(self, variables: Mapping[str, str], runs: Path, data: Path | None) -> None:
        self._variables, self._runs, self._data = variables, runs, data
        self.entry: dict[str, Any] = {}

    def findings(self) -> Iterator[Finding]:
        """Make all checks, and yield their findings one by one. Takes a few seconds."""
        with (
            tempfile.TemporaryDirectory(prefix="lockstep-doctor-") as folder,
            exactness.two_processes(Path(folder), self._variables) as peers,  # They start while we check the rest.
        ):
            yield from self._of_machine()
            yield from self._of_storage()
            self.entry = exactness.machine(torch.device("cuda", 0) if hardware.gpus() else torch.device("cpu"))
            yield exactness.arithmetic(self.entry)
            yield exactness.portable()
            yield exactness.reduction(exactness.totals(peers))

    def _of_machine(self) -> Iterator[Finding]:
        numerics.configure(1, exact=True)
        gpus = [torch.cuda.get_device_name(number) for number in range(hardware.gpus())]
        cores = hardware.cores()
        needs_torch = next(text for text in requires("lockstep") or () if text.startswith("torch>"))
        yield machine.torch_build(torch.__version__, needs_torch)
        yield machine.devices(hardware.processor(), cores, gpus, hardware.gpu_problem())
        yield machine.threads(self._variables, torch.get_num_threads())
        yield machine.cpu_quota(cores, os.cpu_count() or cores, hardware.quota())
        yield machine.shared_memory(Path("/dev/shm"), len(gpus))
        internet = socket.AF_INET, socket.AF_INET6
        addresses = {
            name: [one.address for one in own if one.family in internet] for name, own in psutil.net_if_addrs().items()
        }
        host = socket.gethostname()
        yield machine.network(self._variables, addresses, host, machine.resolve(host))

    def _of_storage(self) -> Iterator[Finding]:
        folder = storage.existing(self._runs)
        try:
            measured = storage.measure(folder)
        except OSError as error:
            yield storage.not_writable(folder, error)
        else:
            yield storage.disk(folder, measured)
            yield machine.clock(time.time(), measured.lag_s)
        yield from storage.datasets(self._data)
        yield storage.image_caches()
