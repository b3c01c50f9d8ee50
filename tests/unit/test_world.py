"""The world of a process, read from the variables that launchers set, and how processes find each
other.
"""

import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from tests.helpers import lockstep_error

from lockstep import hardware, messages
from lockstep.config.placement import Placement
from lockstep.core.monitor import Monitor
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.specs import Output
from lockstep.launch import worker, world as meeting
from lockstep.launch.worker import device_of
from lockstep.launch.world import RENDEZVOUS, World
from lockstep.recipes import get_recipe
from lockstep.runs import provenance

MASTER = {"MASTER_ADDR": "a1", "MASTER_PORT": "29500"}
RANKS = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", **MASTER}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "big", "TORCHELASTIC_USE_AGENT_STORE": "True"}
PLAIN = World("RANK and WORLD_SIZE", 3, 8, 1, ("a1", 29500))
# What srun sets in task 4 of 5, which is the only one of the third host.
SRUN = {"SLURM_STEP_NUM_TASKS": "5", "SLURM_PROCID": "4", "SLURM_LOCALID": "0", **MASTER}
SLURM = World("Slurm", 4, 5, 0, ("a1", 29500))
# What mpirun sets in process 3 of 4, the second of its host.
MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    **MASTER,
}
# What mpiexec of MPICH and of Intel MPI sets there.
MPIEXEC = {"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALRANKID": "1", **MASTER}
MPICH = World("MPICH or Intel MPI", 3, 4, 1, ("a1", 29500))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, World()),
        ({**RANKS, "RANK": "0", "WORLD_SIZE": "1"}, World()),
        (RANKS, PLAIN),
        (SRUN, SLURM),
        (MPIRUN, World("Open MPI", 3, 4, 1, ("a1", 29500))),
        (MPIEXEC, MPICH),
        ({**SRUN, **MPIEXEC}, MPICH),
        # srun --mpi=pmi2 sets two of MPICH's variables.
        ({**SRUN, "PMI_SIZE": "5", "PMI_RANK": "4"}, SLURM),
        # Without a number on the host there is one process on each host, as in Kubernetes.
        (
            {**MASTER, "RANK": "3", "WORLD_SIZE": "8"},
            World("RANK and WORLD_SIZE", 3, 8, 0, ("a1", 29500)),
        ),
        # A batch script is one process, although Slurm numbers it and states the job's number of
        # tasks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, World()),
        # Our launcher may run inside a task of Slurm: its workers read its own variables.
        ({**SRUN, RENDEZVOUS: "/tmp/x", **RANKS}, World("", 3, 8, 1, Path("/tmp/x"))),
        ({**SRUN, RENDEZVOUS: ""}, SLURM),
        # mpirun starts its daemons on other hosts with srun, and its processes inherit the daemon's
        # variables.
        ({**SRUN, **MPIRUN}, World("Open MPI", 3, 4, 1, ("a1", 29500))),
        ({**SRUN, **RANKS}, PLAIN),
        ({**SRUN, "WORLD_SIZE": "5"}, SLURM),  # Batch scripts export it for programs that want it.
        # What torchrun sets beside its numbers; of one process, these variables alone.
        ({**RANKS, **TORCHRUN}, replace(PLAIN, elastic=True, served=True)),
        (TORCHRUN, World(elastic=True)),
    ],
)
def test_each_launcher_is_recognised_by_its_variables(variables, expected):
    assert World.from_environment(variables) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {**RANKS, "MASTER_ADDR": ""},
        {**RANKS, "MASTER_PORT": "65536"},
        {**RANKS, "RANK": "8"},
        {**SRUN, "MASTER_PORT": "many"},
        {**MASTER, "WORLD_SIZE": "8"},
        {**MASTER, "RANK": "3"},
        {**RANKS, "MASTER_ADDR": "a1..b"},
        {**RANKS, "MASTER_ADDR": "a" * 64},
    ],
)
def test_processes_that_cannot_connect_do_not_train_separately(variables):
    with lockstep_error(r"Every process needs its number.* a free port", ENVIRONMENT):
        World.from_environment(variables)


@pytest.mark.parametrize(
    ("gpus", "world", "number"),
    [
        (2, World("Slurm", 3, 4, 1), 1),
        (1, World("Slurm", 3, 4, 1), 0),  # --gpus-per-task shows each task its own GPU only.
        (2, World("Slurm", 7, 8, 3), None),
        (1, World("", 1, 2, 1), None),
    ],
)
def test_a_process_takes_the_gpu_of_its_number_on_the_host(gpus, world, number, monkeypatch):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    if number is None:
        with lockstep_error(rf"process {world.process} is number {world.local} of host"):
            device_of(Placement(), world)
    else:
        assert device_of(Placement(), world) == torch.device("cuda", number)


@pytest.mark.parametrize(("process", "taken"), [(0, True), (1, True), (1, False)])
def test_a_port_of_another_program_or_of_none_ends_every_process(monkeypatch, process, taken):
    # A program that listens and is not process 0 costs seconds; only a program that is not there
    # yet is awaited.
    monkeypatch.setattr(meeting, "JOIN_S", 60.0 if taken else 0.5)
    monkeypatch.setattr(meeting, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        if not taken:
            listener.close()
        with lockstep_error(rf"at 127.0.0.1, port {address[1]} .*MASTER_PORT") as ended:
            meeting.meet(World("Slurm", process, 2, 0, address), "cpu")
    assert ended.value.code == ENVIRONMENT
    for thread in threading.enumerate():
        if thread.name == "rendezvous":
            thread.join(20)


@pytest.fixture
def said(monkeypatch):
    """What is said about waits, of whatever length: a queue."""
    texts = queue.SimpleQueue()
    monkeypatch.setattr(messages, "_WAIT_S", 0.0)
    monkeypatch.setattr(messages, "_AGAIN_S", 0.01)
    monkeypatch.setattr(messages.logger, "warning", lambda text, **_: texts.put(text))
    return texts


def test_a_short_wait_is_not_said(monkeypatch):
    texts = []
    monkeypatch.setattr(messages.logger, "warning", lambda text, **_: texts.append(text))
    with messages.waiting(lambda: "a short wait"):
        pass
    assert texts == []


def until_said(said, text):
    """Wait until `text` is said."""
    texts = (said.get(timeout=60) for _ in range(1000))
    assert any(text in told for told in texts), text


@pytest.mark.parametrize(
    ("process", "name", "error"),
    [
        (0, "getaddrinfo", socket.gaierror(-2, "Name or service not known")),
        (1, "create_connection", socket.gaierror(-2, "Name or service not known")),
        (1, "create_connection", ConnectionRefusedError(111, "Connection refused")),
        (1, "create_connection", TimeoutError("timed out")),
    ],
)
def test_a_wait_for_process_0_is_said_with_its_reason(monkeypatch, said, process, name, error):
    reason = error.strerror or "timed out"

    def refused(*address, **options):
        until_said(said, f"process 0 of 2 at a1:9, at most 10 min ({reason})" if tries else "(")
        tries.append(address[0])
        if len(tries) > 2:
            raise LockstepError("as the test ends")
        raise error

    tries = []
    monkeypatch.setattr(socket, name, refused)
    with lockstep_error("as the test ends"):
        meeting.meet(World("Slurm", process, 2, 0, ("a1", 9)), "cpu")


def test_a_program_that_does_not_answer_is_said(monkeypatch, said):
    monkeypatch.setattr(meeting, "ANSWER_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with pytest.raises(LockstepError):
            meeting.meet(World("Slurm", 1, 2, 0, address), "cpu")
    until_said(said, f"process 0 of 2 at 127.0.0.1:{address[1]}, at most 10 min (no answer)")
    for thread in threading.enumerate():
        if thread.name == "rendezvous":
            thread.join(20)


@pytest.fixture
def store(monkeypatch):
    """A store in which process 1 of an earlier start has left its name."""
    monkeypatch.setattr(meeting, "JOIN_S", 5.0)
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=5))
    store.set("here/1", "of an earlier start")
    monkeypatch.setattr(meeting, "_connect", lambda world, serves, wait: store)
    return store


def join(process, processes=2, device="cpu"):
    return meeting.meet(World("Slurm", process, processes, 0, ("a1", 1)), device)


def on_two(work):
    """Return what `work(process)` returns or raises in two processes, which are threads."""

    def one(process):
        try:
            return work(process)
        except LockstepError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def test_each_start_has_its_own_part_of_a_store_that_outlives_it(store):
    for start in ("first", "second"):
        parts = on_two(join)
        assert not parts[1].check(["word"])
        parts[0].set("word", start)
        assert parts[1].get("word").decode() == start


def test_process_0_says_which_processes_are_missing(store, said):
    sights = {
        1: ["processes 1, 2, 3 of 4 at a1:1, at most 5 s (not started"],
        2: ["processes 2, 3 of 4 at a1:1", "the others of 4 at a1:1"],
        3: ["process 3 of 4 at a1:1"],
    }

    def late(process):
        for sight in sights.get(process, []):
            until_said(said, f"waiting for {sight}")
        return join(process, 4)

    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(late, range(4)))
    assert all(part.get("problem") == b"" for part in parts)


@pytest.mark.parametrize(
    ("process", "local", "quiet", "shown"),
    [(0, 0, False, True), (2, 0, False, True), (1, 1, False, False), (2, 0, True, False)],
)
def test_the_first_process_of_each_host_says_that_it_waits(
    monkeypatch, capsys, process, local, quiet, shown
):
    def never_met(world, device):
        messages.logger.warning("waiting for process 1")
        raise LockstepError("as the test ends")

    monkeypatch.setattr(worker, "meet", never_met)
    spec = SimpleNamespace(placement=Placement(), recipe=get_recipe("digits"))
    ctx = Context(Output(quiet=quiet), Monitor())
    with messages.handled(lambda text: None), lockstep_error("as the test ends"):
        worker._join(spec, World("Slurm", process, 4, local), ctx)
    assert ("waiting for process 1" in capsys.readouterr().err) == shown


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_that_does_not_come_is_an_error_in_the_end(monkeypatch, store, process):
    monkeypatch.setattr(meeting, "JOIN_S" if process == 0 else "ANSWER_S", 0.3)
    store.set_timeout(timedelta(seconds=0.3))
    with lockstep_error(rf"process {process} of 2 cannot reach the others at a1, port 1 "):
        join(process)


@pytest.mark.parametrize(
    ("versions", "devices", "words"),
    [
        (["2.13.0", "2.14.0"], ["cpu", "cpu"], "(versions.torch: 2.13.0 -> 2.14.0)"),
        (["2.13.0", "2.13.0"], ["cpu", "cuda"], "(device: cpu -> cuda)"),
    ],
)
def test_processes_need_the_same_code_and_type_of_device(
    monkeypatch, store, versions, devices, words
):
    own = threading.local()
    monkeypatch.setattr(provenance, "releases", lambda: {"torch": own.version})

    def told(process):
        own.version = versions[process]
        return join(process, device=devices[process])

    assert all(words in text for text in on_two(told))
