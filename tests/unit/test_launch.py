import subprocess
import sys

import pytest

from lockstep import hardware
from lockstep.config.placement import Placement
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.processes import launch
from lockstep.recipes import named
from lockstep.settings import validated


@pytest.mark.parametrize(
    ("gpus", "cores", "placement", "processes"),
    [
        (0, 2, {}, 2),  # CPU: min(towers, cores)
        (0, 16, {}, 4),
        (0, 2, {"processes": 3}, 3),
        (2, 16, {}, 2),  # one for each GPU
        (8, 16, {}, 4),
        (2, 16, {"device": "cpu"}, 4),
        (2, 16, {"device": "cuda", "processes": 1}, 1),
        (4, 16, {"device": "cuda:0,2"}, 2),
        (4, 16, {"device": "cuda:3"}, 1),
    ],
)
def test_processes_by_what_there_is(monkeypatch, gpus, cores, placement, processes):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    monkeypatch.setattr(hardware, "cores", lambda: cores)
    assert launch._count(named("digits"), Placement(**placement)) == processes


@pytest.mark.parametrize(
    ("gpus", "placement", "words"),
    [
        (0, {"device": "cuda"}, "sees no CUDA GPU"),
        (1, {"processes": 2}, "2 processes need as many GPUs, and there is 1: choose --processes 1 to 1"),
        (2, {"device": "cuda:0,2"}, "there is no GPU 2: choose from 0 to 1"),
        (4, {"device": "cuda:1,2", "processes": 3}, "3 processes need as many GPUs, and there are 2"),
        (2, {"device": "cuda", "processes": 3}, "3 processes need as many GPUs, and there are 2"),
    ],
)
def test_more_gpus_than_exist(monkeypatch, gpus, placement, words):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    with pytest.raises(LockstepError, match=words) as error:
        launch._count(named("digits"), Placement(**placement))
    assert error.value.code == ENVIRONMENT


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:a", "cuda:0,", "cpu:0", "cuda:0 2", ""])
def test_devices_that_are_none(text):
    with pytest.raises(LockstepError, match="as in cuda:0 or cuda:0,2"):
        validated(Placement, {"device": text})


def test_a_gpu_is_named_once():
    with pytest.raises(LockstepError, match="name it once"):
        validated(Placement, {"device": "cuda:1,0,1"})
    assert Placement(device="cuda:2,0").gpus == [2, 0]
    assert Placement(device="cuda").gpus is None


def test_fewer_processes_take_the_first_of_the_gpus_named():
    assert Placement(device="cuda:2,0,1").on(2) == Placement(device="cuda:2,0", processes=2)
    assert Placement(device="cuda", processes=4).on(2) == Placement(device="cuda", processes=2)


def test_where_no_driver_is_torch_is_not_asked_for_gpus(monkeypatch):
    monkeypatch.setattr(hardware, "_GPU_DEVICES", ("no such device",))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert hardware.gpus() == 0


def test_the_first_to_fail_is_told_and_the_others_are_ended():
    codes = ["pass", "import sys; sys.exit(3)", "import time; time.sleep(60)"]
    started = [subprocess.Popen([sys.executable, "-S", "-c", code]) for code in codes]
    assert launch._wait_for_failure(started) == {1: 3}
    launch._end(started)
    assert [process.returncode for process in started[1:]] == [3, -15]
