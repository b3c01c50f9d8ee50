"""Monitors: what one process writes another one reads, how its seconds are counted, and which processes hang."""

import pytest

from lockstep.core.monitor import Beat, Memory, Monitor, Stage
from lockstep.launch.liveness import Observer


def test_the_launcher_reads_what_a_process_does_also_after_the_file_is_gone(tmp_path):
    path = tmp_path / "heartbeat-0"
    memory = Memory(path)
    assert memory.beat == Beat()  # before the process has begun
    monitor = Monitor(path)
    path.unlink()
    monitor.tick()
    with monitor.doing(Stage.COMPUTE, 12, 3):
        assert memory.beat == monitor.beat == Beat(1, 2, Stage.COMPUTE, 12, 3)
        with monitor.doing(Stage.EXCHANGE):
            assert memory.beat.where == "in step 12, waiting for the other processes"
        assert memory.beat.where == "in step 12, tower 3"
    assert Beat.of(memory.beat.pack()) == memory.beat
    assert memory.beat.step == 12


def test_a_monitor_without_a_file_works_alike():
    monitor = Monitor()
    with monitor.doing(Stage.EVALUATE, 7):
        assert monitor.beat == Beat(0, 2, Stage.EVALUATE, 7, -1)


def test_the_first_step_has_the_limits_of_a_warm_up():
    monitor = Monitor()
    monitor.warming_up = True
    for stage, shown in ((Stage.COMPUTE, Stage.WARM_UP), (Stage.EXCHANGE, Stage.EXCHANGE), (Stage.SAVE, Stage.SAVE)):
        with monitor.doing(stage, 0):
            assert monitor.beat.stage == shown


def test_seconds_count_for_the_innermost_part_and_not_within_an_evaluation(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monitor = Monitor()

    def passing(seconds):
        now[0] += seconds

    passing(1)
    with monitor.doing(Stage.EXCHANGE):  # before training
        passing(1)
    with monitor.doing(Stage.UPDATE):
        passing(2)
        with monitor.doing(Stage.COMPUTE, 0, 1):
            passing(4)
        with monitor.doing(Stage.EVALUATE):
            passing(100)
            with monitor.doing(Stage.EXCHANGE):
                passing(100)
        passing(8)
    passing(100)
    assert monitor.mark.seconds == 14
    assert monitor.mark.parts == (0.0, 4.0, 0.0, 0.0, 10.0)


@pytest.mark.parametrize(
    ("beat", "words"),
    [
        (Beat(), "before its first step"),
        (Beat(stage=Stage.READ), "while it read the dataset"),
        (Beat(stage=Stage.START, step=3, tower=1), "in step 3, tower 1"),
        (Beat(stage=Stage.SAVE, step=3), "in step 3, saving"),
    ],
)
def test_a_heartbeat_in_words(beat, words):
    assert beat.where == words


def watched(rows, *, timeout_s, sign_s=None, look_s=0.5):
    """The processes that hang after `rows` of heartbeats by process, `look_s` apart."""
    observer = Observer()
    for number, beats in enumerate(rows):
        observer.look(dict(enumerate(beats)), number * look_s)
    return [(stalled.process, stalled.runs) for stalled in observer.stalled(timeout_s, sign_s)]


def beats(stage, looks, *, ticks=True, moves=True):
    return [Beat(i if ticks else 0, i if moves else 0, stage) for i in range(looks)]


WAITING = beats(Stage.EXCHANGE, 21, moves=False)  # 10 seconds


@pytest.mark.parametrize(
    ("rows", "stalled"),
    [
        (beats(Stage.COMPUTE, 21), []),
        (beats(Stage.COMPUTE, 21, moves=False), [(1, True)]),
        (beats(Stage.COMPUTE, 21, ticks=False), [(1, False)]),  # the main thread cannot move in a stopped process
        (beats(Stage.EXCHANGE, 21, ticks=False, moves=False), [(1, False)]),
        (beats(Stage.START, 21, moves=False), []),
        (beats(Stage.READ, 21, moves=False), []),
        (beats(Stage.READ, 21, ticks=False, moves=False), []),  # a reader may keep other threads from running
        (beats(Stage.SAVE, 21, moves=False), []),
        (beats(Stage.SAVE, 21, ticks=False, moves=False), [(1, False)]),
        (beats(Stage.REPORT, 21, moves=False), []),
        (WAITING, [(0, True), (1, True)]),  # all wait for each other
    ],
)
def test_who_hangs_while_process_0_waits(rows, stalled):
    assert watched(zip(WAITING, rows, strict=True), timeout_s=9) == stalled
    assert watched(zip(WAITING, rows, strict=True), timeout_s=11) == []


def test_the_start_may_take_ten_times_as_long():
    starting = beats(Stage.START, 201, moves=False)
    assert watched(zip(starting, strict=True), timeout_s=9) == [(0, True)]
    assert watched(zip(starting, strict=True), timeout_s=11) == []


def test_a_process_that_has_ended_does_not_hang():
    rows = [[one, Beat(i)] for i, one in enumerate(beats(Stage.COMPUTE, 20, ticks=False))]
    assert watched([*rows, [Beat(1, 1, Stage.COMPUTE)]], timeout_s=9) == []
    assert watched(rows, timeout_s=9) == [(0, False)]


def test_a_suspended_process_may_be_noticed_sooner():
    rows = list(zip(WAITING, beats(Stage.COMPUTE, 21, ticks=False), strict=True))
    assert watched(rows, timeout_s=100, sign_s=3) == [(1, False)]


def test_time_in_which_the_observer_was_stopped_does_not_count():
    frozen = [Beat(stage=Stage.COMPUTE)] * 3
    assert watched(zip(frozen, strict=True), timeout_s=10, look_s=1000.0) == []
