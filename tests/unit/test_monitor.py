"""Monitors: what a process writes its launcher reads, and how seconds are counted."""

import pytest
import torch

from lockstep.core.monitor import SLOW, Beat, HeartbeatFile, Mark, Monitor, mean_seconds


def test_the_launcher_reads_what_a_process_does(tmp_path):
    heartbeat = HeartbeatFile(tmp_path / "heartbeat-0")
    assert heartbeat.beat == Beat()  # before the process has begun
    monitor = Monitor(tmp_path / "heartbeat-0")
    with monitor.training(), monitor.doing("compute", 12):
        assert heartbeat.beat == monitor.beat == Beat(0, 3, 1, step=12)


def test_the_first_step_and_all_that_is_no_step_may_be_slow():
    monitor = Monitor()
    with monitor.doing("communication"):  # before training
        assert monitor.beat.slow == SLOW
    with monitor.training():
        for monitor.warming_up, slow in ((True, SLOW), (False, 1)):
            with monitor.doing("compute", 0):
                assert monitor.beat.slow == slow
        with monitor.pausing(), monitor.doing("communication"):
            assert monitor.beat.slow == SLOW


def test_only_a_step_a_wait_and_an_evaluations_part_have_limits():
    """Imports, reading, saving, output that a terminal stops, the end of a run. The watching thread
    calls `tick`.
    """
    monitor, ticks = Monitor(), 0

    def ticking():
        nonlocal ticks
        before, ticks = ticks, monitor.tick() or monitor.beat.ticks
        return ticks > before

    assert ticking()
    with monitor.doing("communication"):
        assert not ticking()
    with monitor.training():
        assert not ticking()
        for work, endless in (
            (monitor.doing("compute", 0), False),
            (monitor.doing("communication"), False),
            (monitor.doing("report"), True),
            (monitor.pausing(endless=False), False),
            (monitor.pausing(), True),
        ):
            with work:
                assert ticking() == endless
    assert ticking()


def test_seconds_count_for_the_innermost_part_not_in_evaluations(monkeypatch):
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
    assert monitor.mark.spent == (0.0, 4.0, 0.0, 0.0, 10.0)


class Event:
    """A stand-in for an event in the stream of a GPU to which work of `queued` seconds was given,
    of which it has computed `done`.
    """

    queued = done = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = Event.queued

    def query(self):
        return self.at <= Event.done

    def elapsed_time(self, end):
        assert end.query()
        return 1000 * (end.at - self.at)


def test_a_gpus_steps_are_measured_by_its_own_events_without_a_wait(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("the host waits"))
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    monitor = Monitor()
    monitor.use(torch.device("cuda"))
    marks, queued = [Mark()], 0.0
    with monitor.training():
        for step in range(4):
            monitor.begin_step(measure=step % 2 == 0)
            with monitor.doing("compute", step):
                Event.queued += 1 + step
            with monitor.pausing():
                Event.queued += 100
            Event.queued += 0.5
            monitor.end_step()
            Event.done, queued = queued, Event.queued  # It is a step behind the host.
            marks.append(monitor.mark)
    assert [mark.measured for mark in marks] == [0, 1, 1, 2, 2]
    assert marks[1].spent == Mark().spent
    assert mean_seconds(marks[1], marks[2]) == {}
    for pair, (compute, update) in (((0, 2), (1, 0.5)), ((2, 4), (3, 0.5))):
        split = mean_seconds(*(marks[number] for number in pair))
        assert (split["compute"], split["update"]) == (compute, update)
