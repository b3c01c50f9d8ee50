"""Heartbeats: what one process writes another one reads, and who stands still."""

import pytest

from lockstep.core.heartbeat import Beat, Heartbeat, Observer, Phase, ask_to_save, read


def test_the_launcher_reads_what_a_process_does(tmp_path):
    path = tmp_path / "heartbeat-0"
    assert read(path) == Beat()  # before the process has begun
    heartbeat = Heartbeat(path)
    heartbeat.tick()
    heartbeat.at(Phase.COMPUTING, 12, 3)
    assert read(path) == heartbeat.beat == Beat(1, 1, Phase.COMPUTING, 12, 3)
    with heartbeat.during(Phase.WAITING):
        assert read(path).where == "in step 12, tower 3, waiting for the other processes"
    assert read(path).where == "in step 12, tower 3"
    assert Beat.of(read(path).pack()) == read(path)


def test_a_heartbeat_without_a_file_works_alike():
    heartbeat = Heartbeat()
    heartbeat.at(Phase.EVALUATING, 7)
    assert heartbeat.beat == Beat(0, 1, Phase.EVALUATING, 7, -1)
    assert not heartbeat.must_save


def test_the_launcher_asks_a_process_to_save(tmp_path):
    path = tmp_path / "heartbeat-0"
    heartbeat = Heartbeat(path)
    heartbeat.at(Phase.WAITING, 5)
    assert not heartbeat.must_save
    ask_to_save(path)
    assert heartbeat.must_save
    assert read(path).step == 5


@pytest.mark.parametrize(
    ("beat", "words"),
    [
        (Beat(), "before its first step"),
        (Beat(phase=Phase.READING), "while it read the dataset"),
        (Beat(phase=Phase.STARTING, step=3, tower=1), "in step 3, tower 1"),
        (Beat(phase=Phase.SAVING, step=3), "in step 3, saving"),
    ],
)
def test_a_heartbeat_in_words(beat, words):
    assert beat.where == words


def watched(rows, *, timeout_s, stopped_s=None, look_s=0.5):
    """The processes that stand still after `rows` of heartbeats by process, `look_s` apart."""
    observer = Observer()
    for number, beats in enumerate(rows):
        observer.look(dict(enumerate(beats)), number * look_s)
    return [(stalled.process, stalled.runs) for stalled in observer.stalled(timeout_s, stopped_s)]


def beats(phase, looks, *, ticks=True, moves=True):
    return [Beat(i if ticks else 0, i if moves else 0, phase) for i in range(looks)]


WAITING = beats(Phase.WAITING, 21, moves=False)  # 10 seconds


@pytest.mark.parametrize(
    ("rows", "stalled"),
    [
        (beats(Phase.COMPUTING, 21), []),
        (beats(Phase.COMPUTING, 21, moves=False), [(1, True)]),
        (beats(Phase.COMPUTING, 21, ticks=False), [(1, False)]),  # the main thread cannot move in a stopped process
        (beats(Phase.WAITING, 21, ticks=False, moves=False), [(1, False)]),
        (beats(Phase.STARTING, 21, moves=False), []),
        (beats(Phase.READING, 21, moves=False), []),
        (beats(Phase.READING, 21, ticks=False, moves=False), []),  # a reader may keep other threads from running
        (beats(Phase.SAVING, 21, moves=False), []),
        (beats(Phase.SAVING, 21, ticks=False, moves=False), [(1, False)]),
        (beats(Phase.REPORTING, 21, moves=False), []),
        (WAITING, [(0, True), (1, True)]),  # all wait for each other
    ],
)
def test_who_stands_still_while_process_0_waits(rows, stalled):
    assert watched(zip(WAITING, rows, strict=True), timeout_s=9) == stalled
    assert watched(zip(WAITING, rows, strict=True), timeout_s=11) == []


def test_the_start_may_take_ten_times_as_long():
    starting = beats(Phase.STARTING, 201, moves=False)
    assert watched(zip(starting, strict=True), timeout_s=9) == [(0, True)]
    assert watched(zip(starting, strict=True), timeout_s=11) == []


def test_a_process_that_has_ended_does_not_stand_still():
    rows = [[one, Beat(i)] for i, one in enumerate(beats(Phase.COMPUTING, 20, ticks=False))]
    assert watched([*rows, [Beat(1, 1, Phase.COMPUTING)]], timeout_s=9) == []
    assert watched(rows, timeout_s=9) == [(0, False)]


def test_a_stopped_process_may_be_noticed_sooner():
    rows = list(zip(WAITING, beats(Phase.COMPUTING, 21, ticks=False), strict=True))
    assert watched(rows, timeout_s=100, stopped_s=3) == [(1, False)]


def test_time_in_which_the_observer_was_stopped_does_not_count():
    frozen = [Beat(phase=Phase.COMPUTING)] * 3
    assert watched(zip(frozen, strict=True), timeout_s=10, look_s=1000.0) == []
