"""Rendezvous: how the processes of a run find each other, and what they know of each other beside the vectors.

An outer launcher such as torchrun may start the processes of a run again, with the same command: another start.
"""

import json
import os
import socket
import threading
import time
import uuid
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.jobs.specs import Spec, TrainSpec
from lockstep.launch.world import World
from lockstep.runs.folder import Run
from lockstep.runs.provenance import compare, releases

JOIN_TIMEOUT = timedelta(minutes=10)  # for all processes to start
ANSWER_S = 30.0  # for process 0, once a program listens at its address
_CONNECT_S = 5.0
_POLL_S = 0.02
_COMPLETE = "complete"

Store = Any  # a key-value store of torch.distributed, whose stubs do not define it


def open_store(rendezvous: Path | tuple[str, int], process: int, processes: int) -> Store:
    """Return the key-value store in which the processes find each other: a file's, or the one at an address.

    A store at an address may have keys of an earlier start: torchrun keeps one store while it restarts processes.
    """
    if isinstance(rendezvous, Path):
        store = dist.FileStore(str(rendezvous), processes)  # type: ignore[attr-defined]
        store.set_timeout(JOIN_TIMEOUT)
        return store
    address, port = rendezvous
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))  # srun does not set them
    if not _is_torchruns() and process == 0:
        try:
            return _store_of_torch(process, processes)
        except dist.DistNetworkError as error:
            raise LockstepError(
                f"process 0 cannot listen on port {port}: another program may have it. Set MASTER_PORT to a free port "
                f"in every process ({str(error).splitlines()[0]})",
                ENVIRONMENT,
            ) from None
    _wait_for_listener(address, port)
    # torch waits without end for a program that accepts the connection and says nothing.
    found: Future[Store] = Future()

    def connect() -> None:
        try:
            found.set_result(_store_of_torch(process, processes))
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=connect, name="rendezvous", daemon=True).start()
    try:
        return found.result(ANSWER_S)
    except TimeoutError:
        raise _other_program() from None


def _is_torchruns() -> bool:
    """Return whether torchrun has the store, before process 0 starts. Otherwise process 0 has it."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def _store_of_torch(process: int, processes: int) -> Store:
    return next(dist.rendezvous("env://", process, processes, timeout=JOIN_TIMEOUT))[0]  # type: ignore[attr-defined]


def _wait_for_listener(address: str, port: int) -> None:
    """Wait until a program listens at the address. Raises: LockstepError if none does for JOIN_TIMEOUT."""
    until = time.monotonic() + JOIN_TIMEOUT.total_seconds()
    while True:
        try:
            return socket.create_connection((address, port), timeout=_CONNECT_S).close()
        except OSError as error:
            if time.monotonic() > until:
                raise LockstepError(
                    f"process 0 cannot be reached at {address}, port {port}, for "
                    f"{JOIN_TIMEOUT.total_seconds() / 60:.0f} minutes ({error}): start it, and let the hosts connect "
                    f"to each other",
                    ENVIRONMENT,
                ) from None
        time.sleep(10 * _POLL_S)


def _other_program() -> LockstepError:
    return LockstepError(
        f"process 0 does not answer at {os.environ['MASTER_ADDR']}, port {os.environ['MASTER_PORT']}: another program "
        f"may have the port. Set MASTER_PORT to a free port in every process",
        ENVIRONMENT,
    )


def agreed_address(process: int, processes: int) -> tuple[str, int] | None:
    """Return an address and a free port of process 0's host, the same in all processes of this program's process group.

    None if this program has no process group. All programs of the outer launch call this together, number `process` of
    `processes`. They use a group of their own: a program's group may be NCCL's, which would need a GPU.
    Raises: LockstepError if the group's numbers are others.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    if (dist.get_rank(), dist.get_world_size()) != (process, processes):
        raise LockstepError(
            f"this program is process {process} of {processes} by the variables of its launcher, and process "
            f"{dist.get_rank()} of {dist.get_world_size()} in its process group: both must be the same",
            ENVIRONMENT,
        )
    found: list[tuple[str, int] | None] = [None]
    if process == 0:
        with socket.create_server(("", 0)) as listener:
            found = [(os.environ.get("MASTER_ADDR") or socket.gethostname(), listener.getsockname()[1])]
    group = dist.new_group(backend="gloo")
    dist.broadcast_object_list(found, src=0, group=group)
    dist.destroy_process_group(group)
    return found[0]


class CompleteError(Exception):
    """The run is complete in process 0's folder, so there is nothing to do."""


def of_this_start(store: Store, process: int, processes: int, *, complete: bool = False) -> Store:
    """Return a part of `store` that only these processes use, and no processes of an earlier start.

    Process 0 makes a new name and gives it to each of the others, by the name that they give themselves. It waits
    until each has answered, because a name that it finds may be that of an earlier process. If process 0 finds that the
    run is `complete`, it tells the others so.
    Raises: LockstepError if a process does not come, CompleteError in the others if the run is complete.
    """
    own = f"{_COMPLETE}-{uuid.uuid4().hex}" if complete else uuid.uuid4().hex
    if process != 0:
        store.set(f"here/{process}", own)
        try:
            # A store of process 0 is there only if process 0 is. If it does not answer, the store is of another run.
            store.wait([f"start/{own}"], JOIN_TIMEOUT if _is_torchruns() else timedelta(seconds=ANSWER_S))
        except dist.DistStoreError:
            raise _other_program() from None
        name = store.get(f"start/{own}").decode()
        store.set(f"joined/{name}/{process}", "")
        if name.startswith(_COMPLETE):
            raise CompleteError
        return dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    missing, until = set(range(1, processes)), time.monotonic() + JOIN_TIMEOUT.total_seconds()
    while missing:
        for other in sorted(missing):
            if store.check([f"joined/{own}/{other}"]):
                missing.remove(other)
            elif store.check([f"here/{other}"]):
                store.set(f"start/{store.get(f'here/{other}').decode()}", own)
        if time.monotonic() > until:
            absent = ", ".join(map(str, sorted(missing)))
            raise LockstepError(
                f"process {absent} of {processes} did not come within {JOIN_TIMEOUT.total_seconds() / 60:.0f} minutes: "
                f"start all processes, and let the hosts connect to each other",
                ENVIRONMENT,
            )
        time.sleep(_POLL_S)
    return dist.PrefixStore(own, store)  # type: ignore[attr-defined]


def require_alike(store: Store, process: int, processes: int, device: torch.device) -> None:
    """Raise a LockstepError unless all processes run the same code and compute on one type of device.

    This comes before they connect: processes with NCCL and Gloo, or with other code, could wait for each other.
    """
    own = {"host": socket.gethostname(), "device": device.type, "versions": releases()}
    store.set(f"facts/{process}", json.dumps(own))
    first, *others = [json.loads(store.get(f"facts/{other}")) for other in range(processes)]
    for number, other in enumerate(others, start=1):
        if differing := compare({"versions": first["versions"]}, {"versions": other["versions"]}):
            raise LockstepError(
                f"process 0 (host {first['host']}) and process {number} (host {other['host']}) do not run the same "
                f"code ({'; '.join(map(str, differing))}), so they would not train one network. Install the same "
                f"versions on every host",
                ENVIRONMENT,
            )
        if first["device"] != other["device"]:
            raise LockstepError(
                f"process 0 computes on {first['device']} on host {first['host']} and process {number} on "
                f"{other['device']} on host {other['host']}: all need the same type of device. Give --device cpu or "
                f"--device cuda to all",
                ENVIRONMENT,
            )


def continued(spec: Spec, world: World, store: Store) -> Spec:
    """Return `spec`, or if an earlier start of this launch has begun the run, one that resumes it.

    The launcher's `store` outlives a start, and process 0 has written the path of the run's folder into it.
    """
    if not isinstance(spec, TrainSpec) or world.process != 0 or not store.check([_key()]):
        return spec
    path = Path(store.get(_key()).decode())
    # Process 0 may be on another host than before. Its folder of the same name may hold another run.
    if (path / "recipe.json").is_file() and Run(path).recipe().digest() == spec.recipe.digest():
        return spec.replace(path=path, resume=True, numbered=False)
    note = f"an earlier start trained in {path}, which is not on this host: starting at step 0, with the same bits"
    return spec.replace(notes=(*spec.notes, note))


def report_complete(world: World) -> None:
    """Tell the other processes that the run is complete: those whose hosts do not have its folder wait for this one.

    Raises: LockstepError if process 0 does not have the complete run.
    """
    assert world.rendezvous is not None
    store = open_store(world.rendezvous, world.process, world.processes)
    try:
        of_this_start(store, world.process, world.processes, complete=world.process == 0)
    except CompleteError:
        return
    if world.process != 0:
        raise LockstepError(
            f"the run is complete on host {socket.gethostname()}, but process 0 trains it: it does not have this "
            f"folder. Give all hosts one folder as --runs, or remove the copy here",
            ENVIRONMENT,
        )


def begun(store: Store, path: Path) -> None:
    """Record, for later starts of this launch, that process 0 trains the run in the folder `path`."""
    store.set(_key(), str(path))


def _key() -> str:
    return f"lockstep/run/{os.environ.get('TORCHELASTIC_RUN_ID', '')}"


def record_failure(world: World, error: Exception) -> None:
    """Write `error` where torchrun looks for the cause of a failure, in the file TORCHELASTIC_ERROR_FILE."""
    if world.launcher == "torchrun":
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler  # takes a tenth of a second

        get_error_handler().record_exception(error)
