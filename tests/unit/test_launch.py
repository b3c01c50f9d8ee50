"""The launcher: number of processes, choice of GPUs, and the first failure of a worker process."""

import signal
import subprocess
import sys
import time

import pytest

from lockstep import hardware
from lockstep.config.placement import Placement
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.jobs.specs import BenchSpec
from lockstep.launch import submit as launch
from lockstep.launch import worker
from lockstep.launch.signals import SignalForwarder, StopRequests
from lockstep.launch.workers import Workers
from lockstep.recipes import get_recipe
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
def test_the_number_of_processes_follows_from_devices_and_towers(monkeypatch, gpus, cores, placement, processes):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    monkeypatch.setattr(hardware, "cores", lambda: cores)
    assert launch.count(get_recipe("digits"), Placement(**placement)) == processes


@pytest.mark.parametrize(
    ("gpus", "placement", "message"),
    [
        (0, {"device": "cuda"}, "sees no CUDA GPU"),
        (1, {"processes": 2}, "2 processes need as many GPUs, and there is 1: choose --processes 1 to 1"),
        (2, {"device": "cuda:0,2"}, "there is no GPU 2: choose from 0 to 1"),
        (4, {"device": "cuda:1,2", "processes": 3}, "3 processes need as many GPUs, and there are 2"),
        (2, {"device": "cuda", "processes": 3}, "3 processes need as many GPUs, and there are 2"),
    ],
)
def test_a_gpu_that_does_not_exist_is_an_error(monkeypatch, gpus, placement, message):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    with pytest.raises(LockstepError, match=message) as error:
        launch.count(get_recipe("digits"), Placement(**placement))
    assert error.value.code == ENVIRONMENT


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:a", "cuda:0,", "cpu:0", "cuda:0 2", ""])
def test_a_malformed_device_is_rejected(text):
    with pytest.raises(LockstepError, match="as in cuda:0 or cuda:0,2"):
        validated(Placement, {"device": text})


def test_a_gpu_may_be_named_only_once():
    with pytest.raises(LockstepError, match="name it once"):
        validated(Placement, {"device": "cuda:1,0,1"})
    assert Placement(device="cuda:2,0").gpus == [2, 0]
    assert Placement(device="cuda").gpus is None


def test_fewer_processes_use_the_first_of_the_named_gpus():
    assert Placement(device="cuda:2,0,1").on(2) == Placement(device="cuda:2,0", processes=2)
    assert Placement(device="cuda", processes=4).on(2) == Placement(device="cuda", processes=2)


def test_without_a_gpu_driver_torch_is_not_imported_to_count_gpus(monkeypatch):
    monkeypatch.setattr(hardware, "_GPU_DEVICES", ("no such device",))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert hardware.gpus() == 0


SPEC = BenchSpec(recipe=get_recipe("digits"), placement=Placement(), steps=1)


def workers_of(codes, folder):
    """Workers that run Python code in place of a job."""
    workers = Workers(SPEC, len(codes), folder)
    programs = [subprocess.Popen([sys.executable, "-S", "-c", code]) for code in codes]
    for number, code in enumerate(codes):
        if code == "pass":
            (folder / f"ended-{number}").write_text("0")
    workers._programs = dict(enumerate(programs))
    return workers


def test_the_first_failure_is_returned_and_the_other_workers_are_ended(tmp_path):
    workers = workers_of(["pass", "import sys; sys.exit(3)", "import time; time.sleep(60)"], tmp_path)
    while (failed := workers.failed()) is None:
        time.sleep(0.01)
    assert failed == {1: 3}
    workers.end()
    assert [program.returncode for program in workers._programs.values()][1:] == [3, -15]


def test_signals_reach_the_workers_and_no_other_child(tmp_path):
    sleeping = "import time; time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-S", "-c", sleeping])
    workers = workers_of([sleeping, "pass"], tmp_path)
    workers._programs[1].wait()
    forwarder = SignalForwarder(workers)
    forwarder.stop(signal.SIGINT, None)
    forwarder.repeat()
    assert [program.wait() for program in workers._programs.values()] == [-signal.SIGTERM, 0]
    assert forwarder.received == signal.SIGINT
    assert not forwarder.killed
    assert other.poll() is None
    other.kill()
    other.wait()


@pytest.mark.parametrize(("begun", "silent"), [(False, False), (True, False), (False, True)])
def test_a_signal_ends_the_preparation_of_the_data_and_says_so(capsys, begun, silent):
    requests = StopRequests()
    if begun:
        requests.handle(signal.SIGTERM, None)
    prepared = []

    def prepare():
        with worker._loading(requests, silent=silent):
            prepared.append("a part")
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as end:
        prepare()
    assert bool(prepared) == (not begun)
    assert end.value.code == 128 + signal.SIGTERM
    assert ("start again with the same command\n" in capsys.readouterr().err) == (not silent)


INTERRUPTED = """
import signal, sys
from lockstep.__main__ import main

class Interrupted:
    def find_spec(self, name, *others):
        if name == "lockstep.commands.program":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupted())
main()
"""


def test_ctrl_c_while_the_program_starts_shows_no_traceback():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_in_a_command_says_how_to_go_on(here, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("lockstep.commands.specs.train_spec", interrupted)
    done = here("train", "digits")
    assert (done.returncode, done.stderr) == (130, "stopped by Ctrl-C: start again with the same command\n")


def test_a_second_ctrl_c_kills_the_workers_and_other_signals_do_not(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    sent = []
    workers = Workers(SPEC, 1, tmp_path)
    monkeypatch.setattr(Workers, "started", True)
    monkeypatch.setattr(workers, "send", sent.append)
    forwarder = SignalForwarder(workers)
    forwarder.repeat()
    for when, number in ((0.0, signal.SIGINT), (0.5, signal.SIGINT), (2.0, signal.SIGTERM), (3.0, signal.SIGINT)):
        now[0] = when
        forwarder.stop(number, None)
    assert sent == [signal.SIGTERM] * 3 + [signal.SIGKILL]
    assert forwarder.killed
