"""World: this process among the processes of a run, read from the variables of the program that started it."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import ENVIRONMENT, LockstepError

# Our launcher's variable: the file through which its worker processes find each other.
RENDEZVOUS = "LOCKSTEP_MEETING"

_FIRST_PORT, _PORTS = 20_000, 20_000  # All tasks of a Slurm step derive the same port from its job number.


@dataclass(frozen=True)
class World:
    """This process among the processes of one run.

    Attributes:
        launcher: "" for a program that was started alone, "lockstep" for a worker process of our launcher, else the
            outer launcher: "torchrun", "Slurm", "Open MPI", or "RANK and WORLD_SIZE" for plain variables.
        process, processes: its number, and how many there are on all hosts.
        local: its number on this host, which chooses its GPU.
        local_processes: how many of the processes are on this host.
        rendezvous: where the processes find each other: a file for our launcher, else an address and a port; None for
            a program that was started alone.
    """

    launcher: str = ""
    process: int = 0
    processes: int = 1
    local: int = 0
    local_processes: int = 1
    rendezvous: Path | tuple[str, int] | None = None

    @property
    def joined(self) -> bool:
        """Return whether another program started this one as a part of a run."""
        return bool(self.launcher)

    @property
    def outer(self) -> bool:
        """Return whether a launcher other than Lockstep's own started this process."""
        return self.launcher not in ("", "lockstep")

    @staticmethod
    def from_environment(variables: Mapping[str, str] = os.environ) -> "World":
        """Read the variables of our launcher, torchrun, plain RANK and WORLD_SIZE, Slurm's srun or Open MPI's mpirun.

        Raises: LockstepError if several processes were started, but cannot find each other.
        """
        if RENDEZVOUS in variables:
            return _numbered("lockstep", variables, "RANK", "WORLD_SIZE", "LOCAL_RANK", Path(variables[RENDEZVOUS]))
        if "TORCHELASTIC_RUN_ID" in variables:
            address = _master(variables, "torchrun")
            return _numbered("torchrun", variables, "RANK", "WORLD_SIZE", "LOCAL_RANK", address)
        if _several(variables, "WORLD_SIZE") and "RANK" in variables:
            address = _master(variables, "RANK and WORLD_SIZE")
            return _numbered("RANK and WORLD_SIZE", variables, "RANK", "WORLD_SIZE", "LOCAL_RANK", address)
        # Only srun sets the step's number of tasks. A batch script, which has SLURM_PROCID too, is one process.
        if _several(variables, "SLURM_STEP_NUM_TASKS"):
            address = _slurm_master(variables)
            return _numbered("Slurm", variables, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", address)
        if _several(variables, "OMPI_COMM_WORLD_SIZE"):
            process, processes, local = (f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK"))
            return _numbered("Open MPI", variables, process, processes, local, _master(variables, "Open MPI"))
        return World()


def _several(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "").isdigit() and int(variables[name]) > 1


def _numbered(
    launcher: str,
    variables: Mapping[str, str],
    process: str,
    processes: str,
    local: str,
    rendezvous: Path | tuple[str, int],
) -> World:
    """Return the world whose numbers are in the variables called `process`, `processes` and `local`."""
    try:
        numbers = int(variables[process]), int(variables[processes]), int(variables.get(local, variables[process]))
        # Only torchrun and our launcher say how many processes a host has; the others are taken to be on one host.
        local_processes = min(numbers[1], int(variables.get("LOCAL_WORLD_SIZE", numbers[1])))
    except (KeyError, ValueError):
        names = (process, processes, local, "LOCAL_WORLD_SIZE")
        got = ", ".join(f"{name}={variables[name]!r}" for name in names if name in variables)
        raise LockstepError(
            f"{launcher} started this process, but {process} and {processes} do not number it: got {got or 'neither'}",
            ENVIRONMENT,
        ) from None
    return World(launcher, *numbers, local_processes, rendezvous)


def _master(variables: Mapping[str, str], launcher: str) -> tuple[str, int]:
    """Return MASTER_ADDR and MASTER_PORT."""
    address, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT", "")
    if not address or not port.isdigit():
        raise LockstepError(
            f"{launcher} started several processes, which connect at MASTER_ADDR and MASTER_PORT: got "
            f"{address!r} and {port!r}. Set both to the first host's name and a free port in every process. To run "
            f"separate programs instead, unset the variables that number them",
            ENVIRONMENT,
        )
    return address, int(port)


def _slurm_master(variables: Mapping[str, str]) -> tuple[str, int]:
    """Return MASTER_ADDR and MASTER_PORT; by default the step's first host, and a port derived from job and step."""
    hosts = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_NODELIST", "")
    address = variables.get("MASTER_ADDR") or _first_host(hosts)
    port = variables.get("MASTER_PORT", "")
    if not port.isdigit():
        job, step = (int(variables.get(name, "0") or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        port = str(_FIRST_PORT + (job * 16 + step) % _PORTS)
    return _master({"MASTER_ADDR": address, "MASTER_PORT": port}, "Slurm")


def _first_host(hosts: str) -> str:
    """Return the first of Slurm's list of hosts: "a3" of "a[3-7,9],b1"."""
    match = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\])?([^,\[]*)", hosts)
    return "".join(part or "" for part in match.groups()) if match else ""
