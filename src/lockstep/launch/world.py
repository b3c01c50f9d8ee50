"""World: this process among the processes of a job, and how they find each other.

Needs no torch at import time. Only this module and core/group.py import torch.distributed.
"""

import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.errors import ENVIRONMENT, LockstepError

if TYPE_CHECKING:
    import torch

# Where the worker processes that `submit` starts find each other: a file, or process 0's "address:port".
RENDEZVOUS = "LOCKSTEP_RENDEZVOUS"
# Set to "True" by torchrun, and for programs that have a process group: another program serves the store.
SERVED = "TORCHELASTIC_USE_AGENT_STORE"

# Launchers, with the variables that number a process: among all, how many, on its host. The first that fits counts:
# torchrun may run in a task of srun, and mpirun starts its processes on other hosts with srun.
_LAUNCHERS = {
    "RANK and WORLD_SIZE": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun, Kubernetes, Ray Train
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    # Only srun sets the step's number of tasks. A batch script, which has SLURM_PROCID too, is one process.
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}
_FIRST_PORT, _PORTS = 20_000, 20_000  # All tasks of a Slurm step derive the same port from its job number.
_MAX_PORT = 65_535
JOIN_S = 600.0  # for all processes to start
ANSWER_S = 30.0  # for process 0, once a program listens at its address
_POLL_S = 0.02

Store = Any  # a key-value store of torch.distributed, whose stubs do not define it


@dataclass(frozen=True)
class World:
    """This process among the processes of one job.

    Attributes:
        launcher: "" for a program that was started alone, "lockstep" for a worker process on one host, else the outer
            launcher: "RANK and WORLD_SIZE" (torchrun sets these too), "Slurm" or "Open MPI"; "an outer launcher" in
            the worker process of such a program.
        process, processes: its number, and how many there are on all hosts.
        local: its number on this host, which chooses its GPU.
        rendezvous: where the processes find each other: a file on one host, else an address and a port; None for a
            program that was started alone.
    """

    launcher: str = ""
    process: int = 0
    processes: int = 1
    local: int = 0
    rendezvous: Path | tuple[str, int] | None = None

    @property
    def joined(self) -> bool:
        """Return whether another program started this one as a part of a job."""
        return bool(self.launcher)

    @property
    def outer(self) -> bool:
        """Return whether a launcher other than Lockstep's own decides about the processes."""
        return self.launcher not in ("", "lockstep")

    def variables(self) -> dict[str, str]:
        """Return the variables for a worker process that takes this place."""
        where = self.rendezvous
        meeting = ":".join(map(str, where)) if isinstance(where, tuple) else str(where)
        numbers = map(str, (self.process, self.processes, self.local))
        return dict(zip(_LAUNCHERS["RANK and WORLD_SIZE"], numbers, strict=True)) | {RENDEZVOUS: meeting}

    @staticmethod
    def from_environment(variables: Mapping[str, str] = os.environ) -> "World":
        """Read the variables of Lockstep's launcher, or of one in the table of launchers.

        Raises: LockstepError if variables are missing or contradict each other, or the processes cannot connect.
        """
        plain = "RANK and WORLD_SIZE"
        if (meeting := variables.get(RENDEZVOUS)) is not None:
            if meeting.startswith("/"):
                return World("lockstep", *_numbers(plain, variables), Path(meeting))
            address, _, port = meeting.rpartition(":")
            return World("an outer launcher", *_numbers(plain, variables), (address, int(port)))
        found = [
            launcher
            for launcher, (process, processes, _) in _LAUNCHERS.items()
            if (variables.get(process, "0"), variables.get(processes, "1")) != ("0", "1")
        ]
        # Batch scripts export WORLD_SIZE alone, for programs that want it.
        found.sort(key=lambda launcher: not all(name in variables for name in _LAUNCHERS[launcher][:2]))
        if not found:
            return World()
        return World(found[0], *_numbers(found[0], variables), _master(variables, found[0]))


def _numbers(launcher: str, variables: Mapping[str, str]) -> tuple[int, int, int]:
    """Return the number of the process, how many there are, and its number on its host. Raises: LockstepError."""
    names = _LAUNCHERS[launcher]
    try:
        # Without a number on the host there is one process on each host, as in Kubernetes.
        process, processes, local = int(variables[names[0]]), int(variables[names[1]]), int(variables.get(names[2], 0))
        if 0 <= process < processes and 0 <= local < processes:
            return process, processes, local
    except (KeyError, ValueError):
        pass
    got = ", ".join(f"{name}={variables[name]!r}" for name in names if name in variables)
    raise LockstepError(
        f"{launcher} started this process, but the variables do not number it: got {got or 'none'}. {names[0]} is "
        f"below {names[1]}, and so is {names[2]}, if it is set. To run a separate program instead, unset them",
        ENVIRONMENT,
    )


def _master(variables: Mapping[str, str], launcher: str) -> tuple[str, int]:
    """Return MASTER_ADDR and MASTER_PORT; for Slurm the step's first host and a port from job and step by default."""
    address, port = variables.get("MASTER_ADDR", ""), variables.get("MASTER_PORT", "")
    if launcher == "Slurm":
        address = address or _first_host(variables.get("SLURM_STEP_NODELIST", ""))
        job, step = (int(variables.get(name, "0") or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        port = port or str(_FIRST_PORT + (job * 16 + step) % _PORTS)
    if not address or not (port.isdecimal() and 0 < int(port) <= _MAX_PORT):
        raise LockstepError(
            f"{launcher} started several processes, which connect at MASTER_ADDR and MASTER_PORT: got {address!r} and "
            f"{port!r}. Set both to the first host's name and a free port in every process. To run separate programs "
            f"instead, unset the variables that number them",
            ENVIRONMENT,
        )
    return address, int(port)


def _first_host(hosts: str) -> str:
    """Return the first of Slurm's list of hosts: "a3" of "a[3-7,9],b1", "r1n04" of "r[1-2]n[04-08]"."""
    first = re.match(r"(?:[^\[,]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0]) if first else ""


def open_store(world: World) -> Store:
    """Return the key-value store in which the processes find each other: a file's, or the one at an address.

    A store at an address may have keys of an earlier start: torchrun keeps one store while it restarts processes.
    Raises: LockstepError if process 0 cannot have the port, or does not answer there.
    """
    import torch.distributed as dist

    wait = timedelta(seconds=JOIN_S)
    if isinstance(world.rendezvous, Path):
        store = dist.FileStore(str(world.rendezvous), world.processes)  # type: ignore[attr-defined]
        store.set_timeout(wait)
        return store
    assert world.rendezvous is not None
    address, port = world.rendezvous
    serves = world.process == 0 and os.environ.get(SERVED) != "True"
    found: Future[Store] = Future()

    def connect() -> None:
        try:
            found.set_result(
                dist.TCPStore(address, port, is_master=serves, timeout=wait, wait_for_workers=False)  # type: ignore[attr-defined]
            )
        except Exception as error:
            found.set_exception(error)

    try:
        if not serves:
            _wait_for_listener(address, port)
        # In a thread: torch waits without end for a program that accepts the connection and says nothing.
        threading.Thread(target=connect, name="rendezvous", daemon=True).start()
        return found.result(ANSWER_S)
    except (OSError, dist.DistNetworkError) as error:  # a TimeoutError is an OSError
        problem = "cannot listen on" if serves else "does not answer at"
        raise LockstepError(
            f"process 0 {problem} {address}, port {port} ({str(error).partition(chr(10))[0] or 'no answer'}). Start "
            f"it, and let the hosts connect to each other. If another program has the port, set MASTER_PORT to a free "
            f"port in every process",
            ENVIRONMENT,
        ) from None


def _wait_for_listener(address: str, port: int) -> None:
    """Wait until a program listens at the address. Raises: OSError if none does for JOIN_S seconds."""
    until = time.monotonic() + JOIN_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=5.0).close()
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(10 * _POLL_S)


def meet(store: Store, world: World) -> Store:
    """Return a part of `store` that only the processes of this start use, and none of an earlier start.

    Process 0 makes a new name and gives it to each of the others, by the name that they give themselves. It waits
    until each has answered, because a name that it finds may be that of an earlier process.
    Raises: LockstepError if a process does not come.
    """
    import torch.distributed as dist

    own, missing, until = uuid.uuid4().hex, set(range(1, world.processes)), time.monotonic() + JOIN_S
    if world.process != 0:
        store.set(f"here/{world.process}", own)
        # A store that process 0 serves is there only if process 0 is. If it does not answer, it is of another run.
        wait_s = JOIN_S if os.environ.get(SERVED) == "True" else ANSWER_S
        try:
            store.wait([f"start/{own}"], timedelta(seconds=wait_s))
        except dist.DistStoreError:
            raise LockstepError("process 0 of this job did not come: it may train another run", ENVIRONMENT) from None
        name = store.get(f"start/{own}").decode()
        store.set(f"joined/{name}/{world.process}", "")
        return dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    while missing:
        for other in sorted(missing):
            if store.check([f"joined/{own}/{other}"]):
                missing.remove(other)
            elif store.check([f"here/{other}"]):
                store.set(f"start/{store.get(f'here/{other}').decode()}", own)
        if time.monotonic() > until:
            raise LockstepError(
                f"process {', '.join(map(str, sorted(missing)))} of {world.processes} did not come within "
                f"{JOIN_S / 60:.0f} minutes: start all processes, and let the hosts connect to each other",
                ENVIRONMENT,
            )
        time.sleep(_POLL_S)
    return dist.PrefixStore(own, store)  # type: ignore[attr-defined]


def require_alike(store: Store, world: World, device: "torch.device") -> None:
    """Raise a LockstepError unless all processes run the same code and compute on one type of device.

    This comes before they connect: processes with NCCL and Gloo, or with other code, could wait for each other.
    """
    from lockstep.runs.provenance import compare, releases

    own = {"host": socket.gethostname(), "device": device.type, "versions": releases()}
    store.set(f"facts/{world.process}", json.dumps(own))
    first, *others = [json.loads(store.get(f"facts/{other}")) for other in range(world.processes)]
    store.set(f"read/{world.process}", "")
    if world.process == 0:  # It may serve the store, so it must not end before the others have read.
        store.wait([f"read/{other}" for other in range(world.processes)])
    for number, other in enumerate(others, start=1):
        hosts = f"process 0 (host {first['host']}) and process {number} (host {other['host']})"
        if differing := compare({"versions": first["versions"]}, {"versions": other["versions"]}):
            raise LockstepError(
                f"{hosts} do not run the same code ({'; '.join(map(str, differing))}), so they would not train one "
                f"network. Install the same versions on every host",
                ENVIRONMENT,
            )
        if first["device"] != other["device"]:
            raise LockstepError(
                f"{hosts} compute on {first['device']} and on {other['device']}: all need the same type of device. "
                f"Give --device cpu or --device cuda to all",
                ENVIRONMENT,
            )
