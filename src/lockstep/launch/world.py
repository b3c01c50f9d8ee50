"""World: this process among the processes of a job, and how they find each other.

Needs no torch at import time. Only this module and core/group.py import torch.distributed.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

from lockstep.errors import ENVIRONMENT, LockstepError, option
from lockstep.messages import waiting
from lockstep.text import duration, few

# The file in which the worker processes of one host find each other; "" in a worker process of an
# outer launch.
RENDEZVOUS = "LOCKSTEP_RENDEZVOUS"
_ELASTIC = "TORCHELASTIC_RUN_ID"  # set by torchrun, also for one process
# "True" where torchrun serves the store, or a process group that the program has.
_SERVED = "TORCHELASTIC_USE_AGENT_STORE"


class Launcher(NamedTuple):
    """A program that starts the processes of a job, by its `name` in messages and the variables
    that it sets.

    process, processes, local: number a process among all, count them, and number it on its host.
    mark: also set, where other launchers set the rest too; "" if they do not.
    """

    name: str
    process: str
    processes: str
    local: str
    mark: str = ""


# The first that fits counts: torchrun may run in a task of srun, and both kinds of mpirun may start
# their processes on other hosts with srun.
LAUNCHERS = (
    # torchrun, Kubernetes, Ray Train
    Launcher("RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    # srun --mpi=pmi2 sets the first two, and only SLURM_LOCALID for the third.
    Launcher(
        "MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", mark="MPI_LOCALRANKID"
    ),
    # Only srun sets the step's number of tasks. A batch script, which has SLURM_PROCID too, is one
    # process.
    Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
JOIN_S = 600.0  # for all processes to start
ANSWER_S = 30.0  # for process 0, once a program listens at its address
_POLL_S = 0.05

Store = Any  # a key-value store of torch.distributed, whose stubs do not define it


@dataclass(frozen=True)
class World:
    """This process among the processes of one job.

    Attributes:
        launcher: the outer launcher, which decides about the processes: "RANK and WORLD_SIZE"
            (torchrun sets these too), "Open MPI", "MPICH or Intel MPI" or "Slurm"; "" for a program
            that was started alone, and for its worker processes.
        process, processes: its number, and how many there are on all hosts.
        local: its number on this host, which chooses its GPU.
        rendezvous: where the processes find each other: a file on one host, else an address and a
            port; None for a program that was started alone.
        elastic: True if torchrun started this program, also as the only one.
        served: True if another program serves the store at the address.
    """

    launcher: str = ""
    process: int = 0
    processes: int = 1
    local: int = 0
    rendezvous: Path | tuple[str, int] | None = None
    elastic: bool = False
    served: bool = False

    @staticmethod
    def from_environment(variables: Mapping[str, str] = os.environ) -> "World":
        """Read the variables of Lockstep's launcher, or of one in the table of launchers.

        Raises: LockstepError if they do not number this process, or do not say where the processes
        connect.
        """
        if file := variables.get(RENDEZVOUS):
            own = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
            process, processes, local = (int(variables[name]) for name in own)
            return World("", process, processes, local, Path(file))
        elastic, served = _ELASTIC in variables, variables.get(_SERVED) == "True"
        # Batch scripts export WORLD_SIZE alone, for programs that want it, so a launcher with both
        # numbers comes first.
        for enough in (all, any):
            for launcher, *names, mark in LAUNCHERS:
                given = {
                    name: variables.get(name, "") for name in (*names, "MASTER_ADDR", "MASTER_PORT")
                }
                number, count = given[names[0]], given[names[1]]
                if mark and mark not in variables:
                    continue
                if enough((number, count)) and (number or "0", count or "1") != ("0", "1"):
                    return replace(_outer(launcher, given), elastic=elastic, served=served)
        return World(elastic=elastic)

    def workers(self, processes: int, meeting: Path) -> dict[int, dict[str, str]]:
        """Return the variables of each worker that this program starts, by its number: of its own
        in an outer launch, otherwise of all `processes`, which meet in the file `meeting`.
        """
        from lockstep import hardware  # imports psutil, for which no --help waits

        if self.launcher:  # whose variables number the worker
            return {self.process: {RENDEZVOUS: "", _SERVED: str(self.served)}}
        # They meet in a file, so no port can be in use already, and listen only where no other host
        # connects.
        return {
            number: {
                "RANK": str(number),
                "WORLD_SIZE": str(processes),
                "LOCAL_RANK": str(number),
                RENDEZVOUS: str(meeting),
                "GLOO_SOCKET_IFNAME": hardware.LOOPBACK,
            }
            for number in range(processes)
        }


def _outer(launcher: str, given: Mapping[str, str]) -> World:
    """Return the place of a process that the variables `given` describe. Raises: LockstepError."""
    process, processes, local, address, port = given.values()
    try:
        # Without a number on the host there is one process on each host, as in Kubernetes.
        world = World(launcher, int(process), int(processes), int(local or 0), (address, int(port)))
        numbered = 0 <= world.process < world.processes and 0 <= world.local < world.processes
        # A name that no network can have, as one of empty parts, is a ValueError.
        if numbered and address.encode("idna") and 0 < int(port) < 1 << 16:
            return world
    except ValueError:
        pass
    got = ", ".join(f"{name}={value!r}" for name, value in given.items())
    raise LockstepError(
        f"{launcher} started this process with {got}. Every process needs its number (below "
        f"the number of processes), the name of the first host, and a free port there. To run a "
        f"program alone, unset these variables",
        ENVIRONMENT,
    )


@dataclass
class _Wait:
    """What this process waits for: `who` of the processes, and `why` that takes so long."""

    who: str = "process 0"
    why: str = ""


def meet(world: World, device: str) -> Store:
    """Return a key-value store that only the processes of this start of the job use, after all of
    them have connected.

    `device` is the type of device on which this process computes.
    Raises: LockstepError if they do not find each other, run different code or compute on different
    devices.
    """
    import torch.distributed as dist

    if isinstance(world.rendezvous, Path):
        return dist.FileStore(str(world.rendezvous), world.processes)  # type: ignore[attr-defined]
    assert world.rendezvous is not None
    serves = world.process == 0 and not world.served
    wait, (host, port) = _Wait(), world.rendezvous
    try:
        with waiting(
            lambda: (
                f"waiting for {wait.who} of {world.processes} at {host}:{port}, at most "
                f"{duration(JOIN_S)} ({wait.why})"
            )
        ):
            return _agree(_connect(world, serves, wait), world, device, wait)
    except (OSError, dist.DistError) as error:  # a TimeoutError is an OSError
        raise LockstepError(
            f"process {world.process} of {world.processes} cannot reach the others at {host}, "
            f"port {port} ({str(error).partition(chr(10))[0] or 'no answer'}). Start all "
            f"processes, and let the hosts connect to each other. If another program has the port, "
            f"set MASTER_PORT to a free one",
            ENVIRONMENT,
        ) from None


def _connect(world: World, serves: bool, wait: _Wait) -> Store:
    """Return the store at the address of the job, which process 0 `serves`. Raises: OSError,
    DistError.
    """
    import torch.distributed as dist

    found, address = Future[Store](), cast(tuple[str, int], world.rendezvous)
    limit, until = timedelta(seconds=ANSWER_S), time.monotonic() + JOIN_S
    while True:
        try:
            if serves:  # Kubernetes may publish the name after the program has started.
                socket.getaddrinfo(*address)
            else:
                socket.create_connection(address, timeout=5.0).close()
            break
        except OSError as error:
            if time.monotonic() > until:
                raise
            wait.why = error.strerror or str(error)
        time.sleep(_POLL_S)
    wait.why = "no answer"

    def connect() -> None:
        try:
            store = dist.TCPStore(  # type: ignore
                *address, is_master=serves, timeout=limit, wait_for_workers=False
            )
            found.set_result(store)
        except Exception as error:
            found.set_exception(error)

    # In a thread: torch waits without end for a program that accepts the connection and says
    # nothing.
    threading.Thread(target=connect, name="rendezvous", daemon=True).start()
    store = found.result(ANSWER_S)
    store.set_timeout(timedelta(seconds=JOIN_S))
    return store


def _agree(store: Store, world: World, device: str, wait: _Wait) -> Store:
    """Return the part of `store` for this start, after process 0 has compared what all processes
    run.

    torchrun keeps one store while it restarts processes, so it may have keys of an earlier start.
    Process 0 makes a new name and gives it to each of the others, by the name that they give
    themselves, until each has answered.
    """
    import torch.distributed as dist

    from lockstep.runs.provenance import compare, releases

    own, identity = uuid.uuid4().hex, {"device": device, "versions": releases()}
    if world.process != 0:
        store.set(f"here/{world.process}", own)
        # A store that process 0 serves is there only if process 0 is. If it does not answer, it is
        # of another run.
        store.wait([f"start/{own}"], timedelta(seconds=JOIN_S if world.served else ANSWER_S))
        part = dist.PrefixStore(store.get(f"start/{own}").decode(), store)  # type: ignore[attr-defined]
        part.set(f"identity/{world.process}", json.dumps([socket.gethostname(), identity]))
        wait.who, wait.why = "the others", "process 0 waits for them too"
        problem = part.get("problem").decode()
        part.set(f"read/{world.process}", "")
    else:
        part, problem = dist.PrefixStore(own, store), ""  # type: ignore[attr-defined]
        missing, until = set(range(1, world.processes)), time.monotonic() + JOIN_S
        while missing:
            wait.who = (
                f"process{'es' * (len(missing) > 1)} {few([str(n) for n in sorted(missing)])}"
            )
            wait.why = "not started, or not connected"
            for other in sorted(missing):
                if part.check([f"identity/{other}"]):
                    missing.remove(other)
                    host, others = json.loads(part.get(f"identity/{other}"))
                    if differences := compare(identity, others):
                        problem = (
                            f"process 0 (host {socket.gethostname()}) and process {other} (host "
                            f"{host}) do not run the same code and device "
                            f"({'; '.join(map(str, differences))}): install one version on every "
                            f"host, and give one {option('device')} to all"
                        )
                elif store.check([f"here/{other}"]):
                    store.set(f"start/{store.get(f'here/{other}').decode()}", own)
            if time.monotonic() > until:
                raise TimeoutError(f"missing: {wait.who}")
            time.sleep(_POLL_S)
        part.set("problem", problem)
        # It may serve the store, so it must not end before the others have read.
        part.wait([f"read/{other}" for other in range(1, world.processes)])
    if problem:
        raise LockstepError(problem, ENVIRONMENT)
    return part
