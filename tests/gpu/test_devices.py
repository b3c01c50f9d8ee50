"""What a GPU's driver, NCCL or torch may answer, by stand-ins for these alone: choice, connection
and failures.
"""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from lockstep import hardware
from lockstep.config.placement import Placement, gpus_here
from lockstep.core.group import connect
from lockstep.core.monitor import Monitor
from lockstep.core.tower import Tower
from lockstep.errors import ENVIRONMENT, PeerLostError
from lockstep.jobs.context import Context
from lockstep.jobs.specs import TrainSpec
from lockstep.launch import worker
from lockstep.launch.world import World
from tests.helpers import lockstep_error, recipe_with
from tests.runs import fit_here

RECIPE = recipe_with("digits", {"steps": 2, "portable": False})
TOO_OLD = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."
OUT_OF_MEMORY = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation"
)


@pytest.fixture
def old_driver(monkeypatch, tmp_path):
    """A driver that torch refuses, with its warning."""

    def init():
        raise RuntimeError(TOO_OLD)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(hardware, "has_gpu_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)


def test_a_refused_driver_is_named_and_no_run_falls_back(old_driver, tmp_path, capfd):
    with lockstep_error(r"sees no CUDA GPU here \(CUDA initialization: .* driver .* is too old"):
        gpus_here(Placement(device="cuda"))
    fit_here(RECIPE, tmp_path / "auto")
    note = f"torch sees no GPU, so the run uses the CPU: {TOO_OLD}"
    assert note in " ".join(capfd.readouterr().err.split())
    fit_here(RECIPE, tmp_path / "cpu", Placement(device="cpu", summary_every=0))
    assert "torch sees no GPU" not in capfd.readouterr().err


def test_hidden_gpus_are_no_problem(old_driver, monkeypatch):
    assert hardware.gpu_problem() == TOO_OLD
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert hardware.gpu_problem() is None


class Store(dict):
    """The store of two processes, of which the first one has the GPU `other`."""

    def __init__(self, other):
        super().__init__({"device/0": other.encode()})

    def set(self, name, value):
        self[name] = value.encode()

    def set_timeout(self, timeout):
        self.timeout = timeout


@pytest.fixture
def connected(monkeypatch):
    """connected(device, store, **options) -> the group of process 1 of 2, and how it was
    initialised.
    """
    calls = []
    monkeypatch.setattr(
        dist, "init_process_group", lambda *args, **kwargs: calls.append((args, kwargs))
    )
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(uuid=f"GPU-{device.index}"),
    )
    return lambda *args, **options: (connect(1, 2, *args, Monitor(), **options), *calls[-1])


def test_processes_with_gpus_connect_by_nccl_each_on_its_own(connected):
    store = Store("GPU-0")
    group, args, options = connected(torch.device("cuda", 3), store)
    assert args == ("nccl",)
    assert options["timeout"] >= timedelta(days=1)
    assert {**options, "timeout": None} == {
        "timeout": None,
        "device_id": torch.device("cuda", 3),
        "store": store,
        "rank": 1,
        "world_size": 2,
    }
    assert (group.process, group.processes, group.through_host) == (1, 2, False)
    # The store must not give up on a slow process before the group does.
    assert store.timeout == options["timeout"]


def test_processes_on_one_gpu_exchange_through_the_host_if_asked(connected):
    with lockstep_error(r"processes 0 and 1 have one GPU.*--device cuda:0,0"):
        connected(torch.device("cuda", 3), Store("GPU-3"))
    group, args, options = connected(torch.device("cuda", 3), Store("GPU-3"), shares_gpu=True)
    assert (args, options["device_id"], group.through_host, group.overlaps) == (
        ("gloo",),
        None,
        True,
        False,
    )


def test_hosts_without_gpu_or_nccl_exchange_through_the_host(connected, monkeypatch):
    for device, other in ((torch.device("cpu"), "GPU-0"), (torch.device("cuda", 3), "")):
        group, args, _ = connected(device, Store(other))
        assert (args, group.through_host) == (("gloo",), True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert connected(torch.device("cuda", 3), Store("GPU-0"))[1] == ("gloo",)
    group, args, _ = connected(torch.device("cpu"), Store(""))
    assert (args, group.through_host) == (("gloo",), False)


def trained(tmp_path, monkeypatch, error, world):
    """Train a run whose towers raise `error`."""

    def fails(*_):
        raise error

    monkeypatch.setattr(Tower, "__call__", fails)
    spec = TrainSpec(
        recipe=RECIPE, placement=Placement(processes=1), path=tmp_path / "x", started=0.0
    )
    return worker.run_worker(spec, world, Context())


@pytest.mark.parametrize(
    "error",
    [
        OUT_OF_MEMORY,
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"),
    ],
)
def test_too_little_memory_is_an_error_that_says_what_takes_less(tmp_path, monkeypatch, error):
    with lockstep_error(
        r"too little memory \(.*more --towers, a smaller --batch", ENVIRONMENT
    ) as raised:
        trained(tmp_path, monkeypatch, error, World())
    assert "\n" not in str(raised.value)


def test_a_lost_gpu_is_a_crash_after_which_a_restart_may_help(tmp_path, monkeypatch):
    with pytest.raises(torch.AcceleratorError):
        trained(tmp_path, monkeypatch, torch.AcceleratorError("CUDA error: device lost"), World())


def test_an_error_of_nccl_is_the_loss_of_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_join", lambda *_: None)
    with pytest.raises(PeerLostError, match="lost the other processes"):
        trained(
            tmp_path,
            monkeypatch,
            dist.DistBackendError("NCCL error: remote process exited"),
            World("Slurm", 0, 2),
        )
