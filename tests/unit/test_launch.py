"""The launcher: number of processes, choice of GPUs, signals, hangs, and the first cause of a failure."""

import signal
import subprocess
import sys
import time

import pytest

from lockstep import hardware
from lockstep.config.placement import Placement
from lockstep.core.monitor import SLOW, Beat
from lockstep.errors import CRASH, ENVIRONMENT, LockstepError
from lockstep.jobs.specs import Output, TrainSpec
from lockstep.launch import supervisor
from lockstep.launch.signals import StopRequest, handled_by, leave
from lockstep.launch.submit import capacity
from lockstep.launch.supervisor import End, Supervisor
from lockstep.launch.world import World
from lockstep.recipes import get_recipe
from lockstep.settings import validated


@pytest.mark.parametrize(
    ("gpus", "cores", "placement", "most", "of_a_head"),
    [
        (0, 2, {}, 2, 1),
        (0, 2, {"processes": 3}, 2, 1),
        (2, 16, {}, 2, 2),  # one for each GPU
        (2, 16, {"device": "cpu"}, 16, 1),
        (4, 16, {"device": "cuda:0,2"}, 2, 2),
    ],
)
def test_the_number_of_processes_follows_from_devices(monkeypatch, gpus, cores, placement, most, of_a_head):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    monkeypatch.setattr(hardware, "cores", lambda: cores)
    assert capacity(get_recipe("digits"), Placement(**placement)) == most
    head = get_recipe("photos")
    assert capacity(head, Placement(**placement)) == of_a_head
    assert capacity(head.replace(arithmetic="portable", precision="float32"), Placement(**placement)) == most


@pytest.mark.parametrize(
    ("gpus", "placement", "message"),
    [
        (0, {"device": "cuda"}, "sees no CUDA GPU"),
        (1, {"processes": 2}, "2 processes need as many GPUs, and there is 1: choose --processes 1 to 1"),
        (2, {"device": "cuda:0,2"}, "there is no GPU 2: choose from 0 to 1"),
    ],
)
def test_a_gpu_that_does_not_exist_is_an_error(monkeypatch, gpus, placement, message):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    with pytest.raises(LockstepError, match=message) as error:
        capacity(get_recipe("digits"), Placement(**placement))
    assert error.value.code == ENVIRONMENT


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:0,", "cpu:0", "cuda:1,0,1"])
def test_a_malformed_device_is_rejected(text):
    with pytest.raises(LockstepError, match=r"as in cuda:0 or cuda:0,2|name it once"):
        validated(Placement, {"device": text})


SPEC = TrainSpec(recipe=get_recipe("digits"), placement=Placement(timeout=9), started=0.0, path="x")
SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def started(tmp_path, monkeypatch):
    """started(*codes) -> a supervisor of processes that run Python code in place of a job, and write how they ended."""
    jobs = []

    def start(*codes):
        real, number = subprocess.Popen, iter(codes)
        monkeypatch.setattr(
            subprocess, "Popen", lambda command, **_: real([sys.executable, "-S", "-c", next(number)], cwd=command[4])
        )
        jobs.append(Supervisor(SPEC, Output(), World(), len(codes), tmp_path, {}))
        jobs[0]._start()
        monkeypatch.undo()
        return jobs[0]

    yield start
    for job in jobs:
        job._kill()


def test_when_a_worker_fails_the_others_are_ended_and_no_other_child(started):
    other = subprocess.Popen([sys.executable, "-S", "-c", SLEEP])
    job = started("import sys; sys.exit(3)", SLEEP)
    assert job._wait() == ""
    assert job._failures() == {0: End(3), 1: End(-signal.SIGTERM)}
    assert other.poll() is None
    other.kill()
    other.wait()


KNOWN, CRASHED = End(2, "unknown model", known=True, time=2.0), End(CRASH, "process 1 crashed:", time=2.0)
LOST, OTHER = End(4, "lost the other processes", lost=True, time=1.0), End(CRASH, "process 2 crashed:", time=3.0)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([LOST, KNOWN], KNOWN.message),
        ([LOST, End(-9)], "process 1 of 2 (towers 2 to 3) was killed by SIGKILL before any step. Often this means"),
        ([LOST], LOST.message),
        ([End(7)], "process 0 of 1 (towers 0 to 3) ended with exit code 7"),
        ([End(143), LOST, CRASHED, OTHER], CRASHED.message),
    ],
    ids=["known", "killed", "lost", "silent", "ended"],
)
def test_the_first_cause_of_a_failure_is_told(started, ends, message):
    job = started(*["pass"] * len(ends))
    assert job._first_cause(dict(enumerate(ends))).message.startswith(message)


def test_a_second_ctrl_c_kills_the_workers_and_other_signals_do_not(started, monkeypatch):
    job, sent, now = started("pass"), [], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(job, "_send", sent.append)
    for when, number in ((0.0, signal.SIGINT), (0.5, signal.SIGINT), (2.0, signal.SIGTERM), (3.0, signal.SIGINT)):
        now[0] = when
        job.stop(number, None)
    monkeypatch.undo()
    assert sent == [signal.SIGTERM] * 3 + [signal.SIGKILL]
    assert job.killed


@pytest.mark.parametrize("begun", [False, True])
def test_a_signal_ends_the_preparation_of_the_data_and_says_so(caplog, begun):
    request, prepared = StopRequest(), []
    if begun:
        request.handle(signal.SIGTERM, None)

    def prepare():
        with request.ending_at_once():
            prepared.append("a part")
            request.handle(signal.SIGTERM, None)

    with pytest.raises(SystemExit) as end:
        prepare()
    assert bool(prepared) == (not begun)
    assert end.value.code == 128 + signal.SIGTERM
    assert "start again with the same command" in caplog.text
    assert not request.at_once


class Still(Supervisor):
    """Of worker processes with these heartbeats, one row at each look; the last row stays."""

    def __init__(self, *rows, world):
        super().__init__(SPEC, Output(), world, 2, SPEC.path, {})
        self.rows, self.looks = list(rows), 0

    def _running(self):
        self.looks += 1
        assert self.looks < 1000
        row = self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]
        self._heartbeats = {number: type("Memory", (), {"beat": beat}) for number, beat in enumerate(row)}
        return [*self._heartbeats]


ROW = [Beat(slow=1, step=7), Beat(slow=1, step=7)]


@pytest.mark.parametrize(
    ("seconds", "rows", "looks"),
    [
        (0.5, [ROW], 19),  # 9 seconds in which no process has moved on, after the first look
        (0.5, [[ROW[0], Beat(slow=SLOW, step=7)]], 181),  # one does what may take ten times as long
        (0.5, [*([ROW[0], Beat(moves=i, slow=1, step=7)] for i in range(30))], 48),  # one computes, and the other waits
        (0.5, [*([ROW[0], Beat(ticks=i, slow=1, step=7)] for i in range(30))], 48),  # or it reads
        (0.5, [*[ROW] * 10, ROW[:1]], 29),  # one has ended meanwhile
        (1000.0, [ROW], 10),  # The launcher itself was stopped.
    ],
    ids=["hang", "slow", "moves", "ticks", "ended", "stopped"],
)
def test_workers_of_which_none_moves_on_hang(monkeypatch, seconds, rows, looks):
    now = [0.0]
    monkeypatch.setattr(supervisor, "_POLL_S", 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.append(now[-1] + seconds) or now[-1])
    job = Still(*rows, world=World())
    hang = job._wait()
    assert job.looks == looks
    assert hang.startswith("the run hangs: no process has moved on for 9")  # or 90
    assert hang.endswith("in step 7")
    with pytest.raises(AssertionError, match="1000"):  # In an outer launch, the one worker may wait for other hosts.
        Still(*rows, world=World("Slurm", 0, 2))._wait()


def test_a_signal_that_nohup_ignores_stays_ignored():
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGTERM)}
    with handled_by(leave):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is leave
    for number, handler in before.items():
        signal.signal(number, handler)


def test_ctrl_c_in_a_command_says_how_to_go_on(here, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("lockstep.commands.train.train_spec", interrupted)
    done = here("train", "digits")
    assert (done.returncode, done.stderr) == (130, "stopped by Ctrl-C: start again with the same command\n")
