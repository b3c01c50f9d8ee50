"""The launcher: number of processes, choice of GPUs, signals, hangs, and the first cause of a failure."""

import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep import hardware
from lockstep.config.placement import Placement
from lockstep.core.monitor import SLOW, Beat
from lockstep.errors import CRASH, ENVIRONMENT, LockstepError
from lockstep.jobs.context import Output
from lockstep.jobs.specs import TrainSpec
from lockstep.launch import submit as launch
from lockstep.launch import worker
from lockstep.launch.signals import StopRequests
from lockstep.launch.submit import Supervisor
from lockstep.launch.workers import End, Workers
from lockstep.launch.world import World
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


SPEC = TrainSpec(recipe=get_recipe("digits"), placement=Placement(timeout=9), path=Path("x"), started=0.0)
SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Return started(*codes): workers that run Python code in place of a job, and write how they ended."""

    def start(*codes):
        real = subprocess.Popen
        number = iter(codes)
        monkeypatch.setattr(
            subprocess, "Popen", lambda command, **_: real([sys.executable, "-S", "-c", next(number)], cwd=command[4])
        )
        workers = Workers(len(codes), tmp_path, Output(), {})
        workers.start(SPEC, 0)
        monkeypatch.undo()
        return workers

    return start


def ended(workers):
    while (ends := workers.ends()) is None:
        time.sleep(0.01)
    return ends


def test_the_first_failure_is_found_and_the_other_workers_are_ended(started):
    well = "import os; open('ended-0', 'w').write('[0]')"
    workers = started(well, "import sys; sys.exit(3)", SLEEP)
    ends = ended(workers)
    assert ends[1] == End(3)
    workers.end(1.0)
    assert workers.ends()[2].code == -signal.SIGTERM


def test_signals_reach_the_workers_and_no_other_child(started):
    other = subprocess.Popen([sys.executable, "-S", "-c", SLEEP])
    workers = started(SLEEP)
    Supervisor(SPEC, workers).stop(signal.SIGINT, None)
    assert ended(workers) == {0: End(-signal.SIGTERM)}
    assert other.poll() is None
    other.kill()
    other.wait()


KNOWN, CRASHED = End(2, "unknown model", known=True, time=2.0), End(CRASH, "process 1 crashed:", time=2.0)
LOST, OTHER = End(4, "lost the other processes", lost=True, time=1.0), End(CRASH, "process 2 crashed:", time=3.0)


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ([LOST, KNOWN], KNOWN),
        ([LOST, CRASHED, OTHER], CRASHED),
        ([LOST, End(-9)], End(ENVIRONMENT, "process 1 of 2 (towers 2 to 3) was killed by SIGKILL before any step. "
                                           "Often this means that the system ran out of memory")),
        ([LOST], LOST),
        ([End(7)], End(CRASH, "process 0 of 1 (towers 0 to 3) ended with exit code 7 and without a message",
                       known=True)),
    ],
    ids=["known", "crashed", "killed", "lost", "silent"],
)  # fmt: skip
def test_the_first_cause_of_a_failure_is_told(started, ends, cause):
    workers = started(*["pass"] * len(ends))
    assert workers.first_cause(dict(enumerate(ends))) == cause
    workers.end(1.0)


def test_a_second_ctrl_c_kills_the_workers_and_other_signals_do_not(started, monkeypatch):
    workers, sent, now = started("pass"), [], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(workers, "send", sent.append)
    job = Supervisor(SPEC, workers)
    for when, number in ((0.0, signal.SIGINT), (0.5, signal.SIGINT), (2.0, signal.SIGTERM), (3.0, signal.SIGINT)):
        now[0] = when
        job.stop(number, None)
    monkeypatch.undo()
    workers.end(1.0)
    assert sent == [signal.SIGTERM] * 3 + [signal.SIGKILL]
    assert job.killed


@pytest.mark.parametrize("begun", [False, True])
def test_a_signal_ends_the_preparation_of_the_data_and_says_so(caplog, begun):
    requests = StopRequests()
    if begun:
        requests.handle(signal.SIGTERM, None)
    prepared = []

    def prepare():
        with worker._loading(requests):
            prepared.append("a part")
            requests.handle(signal.SIGTERM, None)

    with pytest.raises(SystemExit) as end:
        prepare()
    assert bool(prepared) == (not begun)
    assert end.value.code == 128 + signal.SIGTERM
    assert "start again with the same command" in caplog.text
    assert not requests.at_once


class Still:
    """Stand-in for worker processes with these heartbeats, one row at each look; the last row stays."""

    def __init__(self, *rows, outer=None):
        self.rows, self.outer, self.killed, self.looks = list(rows), outer, False, 0
        self.told, self.ends = lambda kind: None, lambda: None

    def beats(self):
        self.looks += 1
        return dict(enumerate(self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]))

    def kill(self):
        self.killed = True


@pytest.fixture
def clock(monkeypatch):
    """Return clock(seconds): so long is it from one look at the workers to the next."""

    def set_to(seconds):
        now = [0.0]
        monkeypatch.setattr(launch, "_POLL_S", 0.0)
        monkeypatch.setattr(time, "monotonic", lambda: now.append(now[-1] + seconds) or now[-1])

    return set_to


ROW = [Beat(slow=1, step=7), Beat(slow=1, step=7)]


@pytest.mark.parametrize(
    ("rows", "looks"),
    [
        ([ROW], 19),  # 9 seconds in which no process has moved on, after the first look
        ([[ROW[0], Beat(slow=SLOW, step=7)]], 181),  # one does what may take ten times as long
        ([*([ROW[0], Beat(moves=i, slow=1, step=7)] for i in range(30))], 48),  # one computes, and the other waits
        ([*([ROW[0], Beat(ticks=i, slow=1, step=7)] for i in range(30))], 48),  # or it reads
        ([*[ROW] * 10, ROW[:1]], 29),  # one has ended meanwhile
    ],
    ids=["hang", "slow", "moves", "ticks", "ended"],
)
def test_workers_of_which_none_moves_on_are_all_killed(clock, rows, looks):
    clock(0.5)
    workers = Still(*rows)
    failure = Supervisor(SPEC, workers)._wait()
    assert (workers.looks, workers.killed) == (looks, True)
    assert failure.message.startswith("the run hangs: no process has moved on for 9")  # or 90
    assert failure.message.endswith("in step 7")
    assert (failure.step, failure.known) == (7, False)


def test_time_in_which_the_launcher_itself_was_stopped_does_not_count(clock):
    clock(1000.0)
    workers = Still(ROW)
    Supervisor(SPEC, workers)._wait()
    assert workers.looks == 10


@pytest.mark.parametrize(
    ("outer", "received", "limit_s"),
    [
        (None, None, 9), (None, signal.SIGINT, 9), (World("Slurm", 0, 2), None, math.inf),
        (World("Slurm", 0, 2), signal.SIGTERM, 15), (None, signal.SIGTERM, 9),
    ],
)  # fmt: skip
def test_in_an_outer_launch_the_one_worker_may_wait_for_other_hosts_until_it_is_to_stop(outer, received, limit_s):
    job = Supervisor(SPEC, Still(ROW, outer=outer))
    job.received = received
    assert job._limit_s == limit_s


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

    monkeypatch.setattr("lockstep.commands.train.train_spec", interrupted)
    done = here("train", "digits")
    assert (done.returncode, done.stderr) == (130, "stopped by Ctrl-C: start again with the same command\n")
