"""The world of a process, read from the variables that launchers set, and how processes find each other."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lockstep import hardware
from lockstep.config.placement import Placement
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.launch import world as meeting
from lockstep.launch.worker import device_of
from lockstep.launch.world import RENDEZVOUS, World
from lockstep.runs import provenance

MASTER = {"MASTER_ADDR": "a1", "MASTER_PORT": "29500"}
RANKS = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}


# What srun sets in task 4 of 5, which is the only one of the third host.
SRUN = {
    "SLURM_STEP_NUM_TASKS": "5", "SLURM_PROCID": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "41",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "a[1-3]",
}  # fmt: skip
# What mpirun sets in process 3 of 4, the second of its host.
MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", **MASTER,
}  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, World()),
        ({"RANK": "0", "WORLD_SIZE": "1", **MASTER}, World()),
        ({RENDEZVOUS: "a1:4000", **RANKS}, World("an outer launcher", 3, 8, 1, ("a1", 4000))),
        ({RENDEZVOUS: "/tmp/x", **RANKS}, World("lockstep", 3, 8, 1, Path("/tmp/x"))),
        ({**RANKS, **MASTER}, World("RANK and WORLD_SIZE", 3, 8, 1, ("a1", 29500))),
        (
            {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", **MASTER},
            World("Slurm", 2, 4, 0, ("a1", 29500)),
        ),
        (
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1", **MASTER},
            World("Open MPI", 1, 2, 1, ("a1", 29500)),
        ),
        # Without a number on the host there is one process on each host, as in Kubernetes.
        ({**MASTER, "RANK": "3", "WORLD_SIZE": "8"}, World("RANK and WORLD_SIZE", 3, 8, 0, ("a1", 29500))),
        # A batch script is one process, although Slurm numbers it and states the job's number of tasks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, World()),
        # Our launcher may run inside a task of Slurm: its workers read its own variables.
        ({"SLURM_STEP_NUM_TASKS": "4", RENDEZVOUS: "/tmp/x", **RANKS}, World("lockstep", 3, 8, 1, Path("/tmp/x"))),
    ],
)
def test_each_launcher_is_recognised_by_its_variables(variables, expected):
    assert World.from_environment(variables) == expected


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("a3", "a3"),
        ("a[03-07,9],b1", "a03"),
        ("node-[12]", "node-12"),
        ("x1,x2", "x1"),
        ("rack[1-2]node[04-08]-ib,b", "rack1node04-ib"),
    ],
)
def test_the_tasks_of_a_slurm_step_connect_at_its_first_host(hosts, first):
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": hosts, "SLURM_JOB_ID": "41"}
    one, other = (World.from_environment({**step, "SLURM_PROCID": task}) for task in "01")
    assert one.rendezvous == other.rendezvous
    assert one.rendezvous[0] == first
    assert 1024 < one.rendezvous[1] < 65536
    assert World.from_environment({**step, "SLURM_JOB_ID": "42"}).rendezvous != one.rendezvous


@pytest.mark.parametrize(
    "variables",
    [
        RANKS,
        {**RANKS, "MASTER_ADDR": "a1"},
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
        {**RANKS, **MASTER, "MASTER_PORT": "0"},
        {**RANKS, **MASTER, "MASTER_PORT": "65536"},
        {**SRUN, "MASTER_PORT": "many"},
        {"WORLD_SIZE": "2", **MASTER},
        {"RANK": "1", **MASTER},
        {**MASTER, "RANK": "0", "WORLD_SIZE": "two"},
        {**MASTER, "RANK": "8", "WORLD_SIZE": "8"},
        {**MASTER, "RANK": "1", "WORLD_SIZE": "1"},
        {**RANKS, **MASTER, "LOCAL_RANK": "-1"},
        {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_RANK": "4", "WORLD_SIZE": "8"},
        {**SRUN, "SLURM_PROCID": "5"},
    ],
)
def test_processes_that_cannot_connect_are_an_error_and_do_not_train_separately(variables):
    with pytest.raises(LockstepError, match=r"MASTER_ADDR|WORLD_SIZE|SLURM_STEP_NUM_TASKS") as error:
        World.from_environment(variables)
    assert error.value.code == ENVIRONMENT


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        # mpirun starts its daemons on other hosts with srun, and its processes inherit the daemon's variables.
        ({**SRUN, **MPIRUN}, "Open MPI"),
        ({**SRUN, "TORCHELASTIC_RUN_ID": "x", **RANKS, **MASTER}, "RANK and WORLD_SIZE"),
        ({**SRUN, **RANKS, **MASTER}, "RANK and WORLD_SIZE"),
        ({**SRUN, "WORLD_SIZE": "5"}, "Slurm"),  # Batch scripts export it for programs that want it.
        ({**SRUN, "RANK": "0", "WORLD_SIZE": "1"}, "Slurm"),
    ],
)
def test_the_launcher_that_started_the_process_itself_counts(variables, launcher):
    assert World.from_environment(variables).launcher == launcher


def test_the_variables_of_a_world_are_read_as_that_world():
    for world in (World("an outer launcher", 3, 8, 1, ("a1", 4000)), World("lockstep", 1, 2, 1, Path("/tmp/x"))):
        assert World.from_environment(world.variables()) == world


@pytest.mark.parametrize(
    ("gpus", "world", "number"),
    [
        (2, World("Slurm", 3, 4, 1), 1),
        (1, World("Slurm", 3, 4, 1), 0),  # --gpus-per-task shows each task its own GPU only.
        (1, World("RANK and WORLD_SIZE", 3, 4), 0),
        (2, World("Slurm", 7, 8, 3), None),
        (1, World("lockstep", 1, 2, 1), None),
    ],
)
def test_a_process_takes_the_gpu_of_its_number_on_the_host(gpus, world, number, monkeypatch):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    if number is None:
        with pytest.raises(LockstepError, match=rf"process {world.process} is number {world.local} of host .*GPUs are"):
            device_of(Placement(), world)
    else:
        assert device_of(Placement(), world) == torch.device("cuda", number)


@pytest.mark.parametrize(("process", "words"), [(0, "cannot listen on"), (1, "does not answer at")])
@pytest.mark.parametrize("taken", [True, False])
def test_a_port_of_another_program_or_of_none_ends_every_process(monkeypatch, process, words, taken):
    # A program that listens and is not process 0 costs seconds; only a program that is not there yet is awaited.
    monkeypatch.setattr(meeting, "JOIN_S", 2.0 if taken else 0.2)
    monkeypatch.setattr(meeting, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        if not taken:
            listener.close()
            if process == 0:
                return
        with pytest.raises(LockstepError, match=rf"{words} 127.0.0.1, port {address[1]} .*MASTER_PORT") as ended:
            meeting.open_store(World("Slurm", process, 2, 0, address))
    assert ended.value.code == ENVIRONMENT
    for thread in threading.enumerate():
        if thread.name == "rendezvous":
            thread.join(20)


def on_two(work):
    """Return what `work(process)` returns or raises in two processes, which are threads."""

    def one(process):
        try:
            return work(process)
        except LockstepError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def test_each_start_has_its_own_part_of_a_store_that_outlives_it(monkeypatch):
    """Process 1 of an earlier start has left its name there."""
    monkeypatch.setattr(meeting, "JOIN_S", 5.0)
    store = dist.HashStore()
    store.set("here/1", "of an earlier start")
    for start in ("first", "second"):
        parts = on_two(lambda process: meeting.meet(store, World("Slurm", process, 2)))
        assert not parts[1].check(["word"])
        parts[0].set("word", start)
        assert parts[1].get("word").decode() == start


@pytest.mark.parametrize(
    ("process", "words"), [(0, "process 1 of 2 did not come"), (1, "process 0 of this job did not")]
)
def test_a_process_that_does_not_come_is_an_error_in_the_end(monkeypatch, process, words):
    monkeypatch.setattr(meeting, "JOIN_S" if process == 0 else "ANSWER_S", 0.3)
    with pytest.raises(LockstepError, match=words):
        meeting.meet(dist.HashStore(), World("Slurm", process, 2))


@pytest.mark.parametrize(
    ("versions", "devices", "words"),
    [
        (["2.13.0", "2.13.0"], ["cpu", "cpu"], None),
        (["2.13.0", "2.14.0"], ["cpu", "cpu"], "do not run the same code (versions.torch: 2.13.0 -> 2.14.0)"),
        (["2.13.0", "2.13.0"], ["cpu", "cuda"], "compute on cpu and on cuda"),
    ],
)
def test_processes_need_the_same_code_and_type_of_device(monkeypatch, versions, devices, words):
    store, own = dist.HashStore(), threading.local()
    monkeypatch.setattr(provenance, "releases", lambda: {"torch": own.version})

    def join(process):
        own.version = versions[process]
        return meeting.require_alike(store, World("Slurm", process, 2), torch.device(devices[process]))

    for told in on_two(join):
        assert (told is None) if words is None else (words in told)
