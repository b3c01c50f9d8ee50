"""The world of a process, read from the variables that launchers set."""

from pathlib import Path

import pytest

from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.processes.world import RENDEZVOUS, World

MASTER = {"MASTER_ADDR": "a1", "MASTER_PORT": "29500"}
RANKS = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, World()),
        ({"RANK": "0", "WORLD_SIZE": "1", **MASTER}, World()),
        ({RENDEZVOUS: "/tmp/x", **RANKS}, World("lockstep", 3, 8, 1, 8, Path("/tmp/x"))),
        ({"TORCHELASTIC_RUN_ID": "x", **RANKS, **MASTER}, World("torchrun", 3, 8, 1, 8, ("a1", 29500))),
        ({**RANKS, **MASTER}, World("RANK and WORLD_SIZE", 3, 8, 1, 8, ("a1", 29500))),
        (
            {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", **MASTER},
            World("Slurm", 2, 4, 0, 4, ("a1", 29500)),
        ),
        (
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1", **MASTER},
            World("Open MPI", 1, 2, 1, 2, ("a1", 29500)),
        ),
        # torchrun states how many of its processes are on this host.
        (
            {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", **RANKS, **MASTER},
            World("torchrun", 3, 8, 1, 2, ("a1", 29500)),
        ),
        # A batch script is one process, although Slurm numbers it and states the job's number of tasks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, World()),
        # Our launcher may run inside a task of Slurm: its workers read its own variables.
        ({"SLURM_STEP_NUM_TASKS": "4", RENDEZVOUS: "/tmp/x", **RANKS}, World("lockstep", 3, 8, 1, 8, Path("/tmp/x"))),
    ],
)
def test_each_launcher_is_recognised_by_its_variables(variables, expected):
    assert World.from_environment(variables) == expected


@pytest.mark.parametrize(
    ("hosts", "first"), [("a3", "a3"), ("a[03-07,9],b1", "a03"), ("node-[12]", "node-12"), ("x1,x2", "x1")]
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
        {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", **MASTER},
        {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "many", **RANKS, **MASTER},
    ],
)
def test_processes_that_cannot_connect_are_an_error_and_do_not_train_separately(variables):
    with pytest.raises(LockstepError, match=r"MASTER_ADDR|WORLD_SIZE") as error:
        World.from_environment(variables)
    assert error.value.code == ENVIRONMENT


@pytest.mark.parametrize(
    ("variables", "local_processes"),
    [
        ({}, 1),
        ({"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", **RANKS, **MASTER}, 2),
        ({"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "16", **RANKS, **MASTER}, 8),  # not more than all processes
        ({RENDEZVOUS: "/tmp/x", "LOCAL_WORLD_SIZE": "8", **RANKS}, 8),
        ({**RANKS, **MASTER}, 8),  # plain variables name no host, so all processes count as local
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", **MASTER}, 4),
    ],
)
def test_the_processes_of_this_host_are_counted_where_the_launcher_states_them(variables, local_processes):
    assert World.from_environment(variables).local_processes == local_processes
