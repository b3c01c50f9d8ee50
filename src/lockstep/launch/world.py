"""World: this process among the processes of a run, read from the variables of the program that started it."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lockstep.errors import ENVIRONMENT, LockstepError

# Our launcher's variable: where its worker processes find each other. A file, or process 0's "address:port".
RENDEZVOUS = "LOCKSTEP_RENDEZVOUS"

_FIRST_PORT, _PORTS = 20_000, 20_000  # All tasks of a Slurm step derive the same port from its job number.
_MAX_PORT = 65_535


class _Names(NamedTuple):
    """The variables in which a launcher numbers its processes, on all hosts and on this host."""

    process: str
    processes: str
    local: str


_PLAIN = _Names("RANK", "WORLD_SIZE", "LOCAL_RANK")
_OPEN_MPI = _Names(*(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK")))
# Only srun sets the step's number of tasks. A batch script, which has SLURM_PROCID too, is one process.
_SLURM = _Names("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")


@dataclass(frozen=True)
class World:
    """This process among the processes of one run.

    Attributes:
        launcher: "" for a program that was started alone, "lockstep" for a worker process of our launcher, else the
            outer launcher: "torchrun", "Slurm", "Open MPI", or "RANK and WORLD_SIZE" for plain variables;
            "caller" for the worker process of one of several programs that call lockstep.train together.
        process, processes: its number, and how many there are on all hosts.
        local: its number on this host, which chooses its GPU.
        rendezvous: where the processes find each other: a file for our launcher, else an address and a port; None for
            a program that was started alone.
    """

    launcher: str = ""
    process: int = 0
    processes: int = 1
    local: int = 0
    rendezvous: Path | tuple[str, int] | None = None

    @property
    def joined(self) -> bool:
        """Return whether another program started this one as a part of a run."""
        return bool(self.launcher)

    @property
    def outer(self) -> bool:
        """Return whether a launcher other than Lockstep's own started this process."""
        return self.launcher not in ("", "lockstep")

    def variables(self) -> dict[str, str]:
        """Return the variables for a worker process of Lockstep that takes this place among the processes."""
        numbers = (self.process, self.processes, self.local)
        where = self.rendezvous
        meeting = ":".join(map(str, where)) if isinstance(where, tuple) else str(where)
        return dict(zip(_PLAIN, map(str, numbers), strict=True)) | {RENDEZVOUS: meeting}

    @staticmethod
    def from_environment(variables: Mapping[str, str] = os.environ) -> "World":
        """Read the variables of our launcher, torchrun, plain RANK and WORLD_SIZE, Open MPI's mpirun or Slurm's srun.

        The first of these that numbers this process counts: torchrun may run inside a task of srun, and mpirun starts
        its processes on other hosts with srun.
        Raises: LockstepError if variables are missing or contradict each other, or the processes cannot connect.
        """
        if RENDEZVOUS in variables:
            meeting = _meeting(variables[RENDEZVOUS])
            launcher = "lockstep" if isinstance(meeting, Path) else "caller"
            return _numbered(launcher, variables, _PLAIN, meeting)
        if "TORCHELASTIC_RUN_ID" in variables:
            return _numbered("torchrun", variables, _PLAIN, _master(variables, "torchrun"))
        alone = (variables.get("RANK", "0"), variables.get("WORLD_SIZE", "1")) == ("0", "1")
        if not alone and "RANK" in variables and "WORLD_SIZE" in variables:
            return _numbered("RANK and WORLD_SIZE", variables, _PLAIN, _master(variables, "RANK and WORLD_SIZE"))
        if _several(variables, _OPEN_MPI.processes):
            return _numbered("Open MPI", variables, _OPEN_MPI, _master(variables, "Open MPI"))
        if _several(variables, _SLURM.processes):
            return _numbered("Slurm", variables, _SLURM, _slurm_master(variables))
        if not alone:
            raise _contradiction("RANK and WORLD_SIZE", variables, _PLAIN)
        return World()


def _several(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "1") != "1"


def _numbered(launcher: str, variables: Mapping[str, str], names: _Names, rendezvous: Path | tuple[str, int]) -> World:
    """Return the world whose numbers are in the variables `names`. Raises: LockstepError."""
    try:
        process, processes = int(variables[names.process]), int(variables[names.processes])
        # Without a number on the host there is one process on each host, as in Kubernetes.
        local = int(variables.get(names.local, 0))
        if not (0 <= process < processes and 0 <= local < processes):
            raise ValueError
    except (KeyError, ValueError):
        raise _contradiction(launcher, variables, names) from None
    return World(launcher, process, processes, local, rendezvous)


def _contradiction(launcher: str, variables: Mapping[str, str], names: _Names) -> LockstepError:
    """Return the error for variables that are missing, are not numbers, or contradict each other."""
    got = ", ".join(f"{name}={variables[name]!r}" for name in names if name in variables)
    return LockstepError(
        f"{launcher} started this process, but the variables do not number it: got {got or 'none'}. {names.process} is "
        f"below {names.processes}, and so is {names.local}, if it is set. To run a separate program "
        f"instead, unset them",
        ENVIRONMENT,
    )


def _meeting(text: str) -> Path | tuple[str, int]:
    """Return the file, or the address and port, where the worker processes of our launcher find each other."""
    if text.startswith("/"):
        return Path(text)
    address, _, port = text.rpartition(":")
    return address, int(port)


def _master(variables: Mapping[str, str], launcher: str) -> tuple[str, int]:
    address, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT", "")
    if not address or not (port.isdecimal() and 0 < int(port) <= _MAX_PORT):
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
    if not port:
        job, step = (int(variables.get(name, "0") or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        port = str(_FIRST_PORT + (job * 16 + step) % _PORTS)
    return _master({"MASTER_ADDR": address, "MASTER_PORT": port}, "Slurm")


def _first_host(hosts: str) -> str:
    """Return the first of Slurm's list of hosts: "a3" of "a[3-7,9],b1", "r1n04" of "r[1-2]n[04-08]"."""
    first = re.match(r"(?:[^\[,]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0]) if first else ""
