"""World: which of the run's processes this one is, read from the variables of whoever started it."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.errors import ENVIRONMENT, LockstepError

# The variable in which our launcher names the file where the processes it started meet.
MEETING = "LOCKSTEP_MEETING"

_FIRST_PORT, _PORTS = 20_000, 20_000  # a Slurm step's port is derived from its job, so that all tasks know it


@dataclass(frozen=True)
class World:
    """This process among the processes of one run.

    Attributes:
        launcher: "" for a program that was started alone, "lockstep" for a process of our own launcher, else the outer
            launcher: "torchrun", "Slurm", "Open MPI", or "RANK and WORLD_SIZE" for plain variables.
        process, processes: its number and how many there are, over all hosts.
        local: its number on this host, which chooses its GPU.
        meeting: address and port at which the processes of an outer launch meet; None for our own.
    """

    launcher: str = ""
    process: int = 0
    processes: int = 1
    local: int = 0
    meeting: tuple[str, int] | None = None

    @property
    def joined(self) -> bool:
        """Whether another program started this one as a part of a run."""
        return bool(self.launcher)

    @property
    def outer(self) -> bool:
        """Whether that program is not Lockstep's own launcher."""
        return self.launcher not in ("", "lockstep")

    @staticmethod
    def from_environment(variables: Mapping[str, str] = os.environ) -> "World":
        """Read the variables of our launcher, torchrun, plain RANK and WORLD_SIZE, Slurm's srun or Open MPI's mpirun.

        Raises: LockstepError if several processes were started, but they cannot find each other.
        """
        if MEETING in variables:
            return _numbered("lockstep", variables, "RANK", "WORLD_SIZE", "LOCAL_RANK")
        if "TORCHELASTIC_RUN_ID" in variables:
            return _numbered("torchrun", variables, "RANK", "WORLD_SIZE", "LOCAL_RANK", _stated(variables, "torchrun"))
        if _several(variables, "WORLD_SIZE") and "RANK" in variables:
            where = _stated(variables, "RANK and WORLD_SIZE")
            return _numbered("RANK and WORLD_SIZE", variables, "RANK", "WORLD_SIZE", "LOCAL_RANK", where)
        # Only srun sets the step's number of tasks: a batch script, which has SLURM_PROCID too, is one process.
        if _several(variables, "SLURM_STEP_NUM_TASKS"):
            where = _of_slurm(variables)
            return _numbered("Slurm", variables, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", where)
        if _several(variables, "OMPI_COMM_WORLD_SIZE"):
            process, processes, local = (f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK"))
            return _numbered("Open MPI", variables, process, processes, local, _stated(variables, "Open MPI"))
        return World()


def _several(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "").isdigit() and int(variables[name]) > 1


def _numbered(
    launcher: str,
    variables: Mapping[str, str],
    process: str,
    processes: str,
    local: str,
    meeting: tuple[str, int] | None = None,
) -> World:
    try:
        numbers = int(variables[process]), int(variables[processes]), int(variables.get(local, variables[process]))
    except (KeyError, ValueError):
        raise LockstepError(
            f"{launcher} started this process, but {process} and {processes} do not number it: "
            f"got {variables.get(process)!r} and {variables.get(processes)!r}",
            ENVIRONMENT,
        ) from None
    return World(launcher, *numbers, meeting)


def _stated(variables: Mapping[str, str], launcher: str) -> tuple[str, int]:
    """MASTER_ADDR and MASTER_PORT."""
    address, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT", "")
    if not address or not port.isdigit():
        raise LockstepError(
            f"{launcher} started several processes, which meet at MASTER_ADDR and MASTER_PORT: got "
            f"{address!r} and {port!r}. Set both to the first host's name and a free port in every process; or, for "
            f"separate programs, unset what numbers them",
            ENVIRONMENT,
        )
    return address, int(port)


def _of_slurm(variables: Mapping[str, str]) -> tuple[str, int]:
    """MASTER_ADDR and MASTER_PORT; by default the step's first host, and a port derived from the job and the step."""
    hosts = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_NODELIST", "")
    address = variables.get("MASTER_ADDR") or _first_host(hosts)
    port = variables.get("MASTER_PORT", "")
    if not port.isdigit():
        job, step = (int(variables.get(name, "0") or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        port = str(_FIRST_PORT + (job * 16 + step) % _PORTS)
    return _stated({"MASTER_ADDR": address, "MASTER_PORT": port}, "Slurm")


def _first_host(hosts: str) -> str:
    """The first of Slurm's list of hosts: "a3" of "a[3-7,9],b1"."""
    match = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\])?([^,\[]*)", hosts)
    return "".join(part or "" for part in match.groups()) if match else ""
