"""Monitors: what a process writes its launcher reads, how seconds are counted, and when workers hang."""

import math

import pytest

from lockstep.config.placement import Placement
from lockstep.core.monitor import SLOW, Beat, Memory, Monitor
from lockstep.jobs.specs import TrainSpec
from lockstep.launch.supervisor import Idle, Supervisor
from lockstep.launch.workers import Workers
from lockstep.launch.world import World
from lockstep.recipes import get_recipe


def test_the_launcher_reads_what_a_process_does_also_after_the_file_is_gone(tmp_path):
    path = tmp_path / "heartbeat-0"
    memory = Memory(path)
    assert memory.beat == Beat()  # before the process has begun
    monitor = Monitor(path)
    path.unlink()
    with monitor.training(), monitor.doing("compute", 12):
        assert memory.beat == monitor.beat == Beat(0, 3, 1, waits=0, step=12)
        with monitor.doing("communication"):
            assert memory.beat == Beat(0, 4, 1, waits=1, step=12)
        assert memory.beat == Beat(0, 5, 1, waits=0, step=12)
    assert memory.beat.step == 12


def test_a_monitor_without_a_file_works_alike():
    monitor = Monitor()
    with monitor.pausing():
        assert monitor.beat == Beat(0, 2, SLOW)


def test_the_first_step_may_be_slow_and_so_may_all_that_is_no_step():
    monitor = Monitor()
    with monitor.doing("communication"):  # before training
        assert monitor.beat.slow == SLOW
    with monitor.training():
        for monitor.warming_up, slow in ((True, SLOW), (False, 1)):
            with monitor.doing("compute", 0):
                assert monitor.beat.slow == slow
        with monitor.pausing(), monitor.doing("communication"):
            assert monitor.beat.slow == SLOW


def test_only_work_that_may_take_any_time_ticks():
    """Reading a dataset, and output that a terminal or a pipe stops. The watching thread calls `tick`."""
    monitor, ticks = Monitor(), 0
    with monitor.training():
        for work, endless in (
            (monitor.doing("compute", 0), False),
            (monitor.doing("communication"), False),
            (monitor.doing("report"), True),
            (monitor.pausing(), False),
            (monitor.pausing(endless=True), True),
        ):
            with work:
                monitor.tick()
                ticks += endless
                assert monitor.beat.ticks == ticks


def test_seconds_count_for_the_innermost_part_and_not_within_an_evaluation(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monitor = Monitor()

    def passing(seconds):
        now[0] += seconds

    passing(1)
    with monitor.doing("communication"):  # before training
        passing(1)
    with monitor.training():
        passing(2)
        with monitor.doing("compute", 0):
            passing(4)
        with monitor.pausing():
            passing(100)
            with monitor.doing("communication"):
                passing(100)
        passing(8)
    passing(100)
    assert monitor.mark.seconds == 14
    assert monitor.mark.parts == (0.0, 4.0, 0.0, 0.0, 10.0)


def test_a_heartbeat_in_words():
    assert Beat().where == "before any step"
    assert Beat(step=3).where == "in step 3"


def idle_s(rows, look_s=0.5):
    """How long no process has moved on, after `rows` of heartbeats by process, `look_s` apart."""
    idle = Idle()
    return [idle(dict(enumerate(beats)), 100 + number * look_s) for number, beats in enumerate(rows)][-1]


STILL = [Beat(step=7)] * 21  # 10 seconds


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        (zip(STILL, STILL, strict=True), 10),
        (zip(STILL, [Beat(moves=i) for i in range(21)], strict=True), 0),  # the others wait for one that computes
        (zip(STILL, [Beat(ticks=i) for i in range(21)], strict=True), 0),  # or that reads
        ([*([one, one] for one in STILL), STILL[:1]], 0),  # one has ended
        ([*([one, one] for one in STILL[:11]), *([one] for one in STILL[:11])], 5),
    ],
)
def test_a_run_is_idle_while_no_process_moves_on(rows, seconds):
    assert idle_s(rows) == seconds


def test_time_in_which_the_launcher_was_stopped_does_not_count():
    assert idle_s([STILL[:1]] * 3, look_s=1000.0) == 2


def supervisor(tmp_path, outer=None):
    spec = TrainSpec(recipe=get_recipe("digits"), placement=Placement(timeout=9), path=tmp_path / "x", started=0.0)
    return Supervisor(spec, 2, tmp_path, lambda record: None, start=lambda workers: None, pause=lambda: None,
                      outer=outer)  # fmt: skip


@pytest.mark.parametrize(
    ("beats", "words"),
    [
        ([Beat(waits=1, step=7), Beat(step=7)], "process 1 of 2 (towers 2 to 3) hangs: no process has moved on"),
        ([Beat(waits=1, step=7), Beat(waits=1, step=7)], "one of 2 processes hangs: no process has moved on"),
    ],
)
def test_who_hangs_is_one_that_does_not_wait(tmp_path, beats, words):
    failure = Workers(supervisor(tmp_path)._spec, 2, tmp_path).hang(dict(enumerate(beats)), 9.4)
    assert failure.message == f"{words} for 9 s, in step 7"
    assert failure.restartable
    assert failure.step == 7


class Killed:
    """Stand-in for worker processes whose heartbeats are always the same."""

    def __init__(self, slow):
        self.beat, self.killed = Beat(slow=slow), []
        self.run_folder = lambda: None
        self.mailbox = self
        self.take = self.failed = lambda: None
        self.kill = self.killed.append

    def beats(self):
        return {0: self.beat, 1: Beat(slow=1)}

    def hang(self, beats, seconds):
        return seconds


@pytest.mark.parametrize("slow", [1, SLOW])
def test_workers_that_hang_are_all_killed_and_slow_ones_after_ten_times_as_long(tmp_path, monkeypatch, slow):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now.append(now[-1] + 0.5) or now[-1])
    workers = Killed(slow)
    assert supervisor(tmp_path)._wait(workers) == 9 * slow
    assert workers.killed == [0, 1]


def test_in_an_outer_launch_the_one_worker_may_wait_for_other_hosts(tmp_path):
    assert supervisor(tmp_path, World("caller", 0, 2))._limit_s == math.inf
