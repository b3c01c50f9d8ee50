"""The saver writes checkpoints while training continues."""

import threading

import pytest
import torch

from lockstep.runs import checkpoint, saver
from lockstep.runs.saver import Saver


class Weights:
    """A stand-in for a `State`, with the members that a Saver uses."""

    def __init__(self):
        self.update_lock = threading.Lock()
        self.step, self.weight = 0, torch.zeros(1000)

    def named(self):
        return {"step": torch.tensor(self.step), "parameter/w": self.weight}

    def update(self):
        with self.update_lock:
            self.step += 1
            self.weight.add_(1.0)


def save(saves, state, **facts):
    saves.save(state.named(), facts, state.update_lock)


@pytest.fixture
def gate(monkeypatch):
    """Return an event: checkpoints are written only after it is set."""
    opened = threading.Event()
    written = checkpoint.save

    def slowly(*arguments):
        assert opened.wait(20)
        return written(*arguments)

    monkeypatch.setattr(saver.checkpoint, "save", slowly)
    yield opened
    opened.set()


def saved_weights(folder):
    """Return the one value of the weights in each checkpoint of `folder`, oldest first."""
    return [checkpoint.read_step(folder, step).tensors["parameter/w"].unique().item() for step in steps(folder)]


def steps(folder):
    return sorted(checkpoint.steps(folder))


def test_training_continues_during_a_save_and_the_checkpoint_has_the_bits_of_its_step(tmp_path, gate):
    state, saves = Weights(), Saver(tmp_path, keep=5, every_s=0)
    state.update()
    save(saves, state)
    for _ in range(3):
        state.update()
    assert saves.busy
    assert steps(tmp_path) == []
    gate.set()
    saves.wait()
    assert steps(tmp_path) == [1]
    assert saved_weights(tmp_path) == [1.0]


def test_an_update_waits_for_the_copy(tmp_path):
    state, saves = Weights(), Saver(tmp_path, keep=5, every_s=0)
    copying, go_on = threading.Event(), threading.Event()

    class Slow(dict):
        def items(self):
            copying.set()
            assert go_on.wait(20)
            return super().items()

    saves.save(Slow(state.named()), {}, state.update_lock)
    assert copying.wait(20)
    updates = threading.Thread(target=state.update)
    updates.start()
    updates.join(0.2)
    assert updates.is_alive()  # otherwise the checkpoint could mix two steps
    go_on.set()
    updates.join(20)
    saves.wait()
    assert saved_weights(tmp_path) == [0.0]
    assert state.step == 1


def test_checkpoints_are_written_one_at_a_time(tmp_path, gate):
    state, saves = Weights(), Saver(tmp_path, keep=5, every_s=0)
    save(saves, state)
    state.update()
    second = threading.Thread(target=save, args=(saves, state))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    gate.set()
    second.join(20)
    saves.wait()
    assert steps(tmp_path) == [0, 1]
    assert saved_weights(tmp_path) == [0.0, 1.0]


@pytest.mark.parametrize(("failing", "error"), [("save", OSError(28, "No space left")), ("prune", ZeroDivisionError())])
def test_an_error_is_returned_once_and_the_next_save_is_tried(tmp_path, monkeypatch, failing, error):
    state, saves = Weights(), Saver(tmp_path, keep=5, every_s=0)

    def fails(*_):
        raise error

    monkeypatch.setattr(saver.checkpoint, failing, fails)
    save(saves, state)
    saves.wait()
    assert saves.take_error() is error
    assert saves.take_error() is None
    monkeypatch.undo()
    save(saves, state)
    saves.wait()
    assert saves.take_error() is None
    assert steps(tmp_path) == [0]


def test_a_crash_costs_at_most_the_chosen_seconds(tmp_path, monkeypatch):
    """Steps take 4 s and writes 3 s, on the test's own clock. The newest state on the disk is never older than 30 s."""
    now = [100.0]
    monkeypatch.setattr(saver.time, "monotonic", lambda: now[0])
    state, saves = Weights(), Saver(tmp_path, keep=5, every_s=30.0)
    monkeypatch.setattr(saver.checkpoint, "save", lambda *_: now.__setitem__(0, now[0] + 3.0))
    save(saves, state)  # as at the start of every session
    saves.wait()
    saved_at, worst = now[0], 0.0
    for _ in range(40):
        due = saves.due()
        now[0] += 4.0
        saves.stepped()
        if due:
            began = now[0]
            save(saves, state)
            saves.wait()
            worst, saved_at = max(worst, now[0] - saved_at), began
    assert 12.0 < worst <= 30.0


def test_with_zero_seconds_no_save_is_due_by_time(tmp_path, monkeypatch):
    saves = Saver(tmp_path, keep=5, every_s=0)
    monkeypatch.setattr(saver.time, "monotonic", lambda: 1e9)
    assert not saves.due()


def test_the_best_checkpoint_is_kept(tmp_path):
    state, saves = Weights(), Saver(tmp_path, keep=1, every_s=0)
    for best in (None, 1, 2, 2):
        state.update()
        saves.best_step = best
        save(saves, state)
    saves.wait()
    assert steps(tmp_path) == [2, 4]


def test_a_damaged_checkpoint_does_not_count_as_kept(tmp_path):
    state, saves = Weights(), Saver(tmp_path, keep=2, every_s=0)
    for _ in range(2):
        state.update()
        save(saves, state)
    saves.wait()
    again = Saver(tmp_path, keep=2, every_s=0)  # of a resumed run, which has verified no checkpoint yet
    damaged = tmp_path / "step-000000002.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    state.update()
    save(again, state)
    again.wait()
    assert steps(tmp_path) == [1, 3]
    assert (tmp_path / "damaged-step-000000002.safetensors").is_file()


def test_the_next_checkpoint_reuses_the_memory_of_the_previous_one(tmp_path, monkeypatch):
    state, saves = Weights(), Saver(tmp_path, keep=5, every_s=0)
    for _ in range(2):
        save(saves, state)
        state.update()
        saves.wait()
        assert saves.take_error() is None
        monkeypatch.setattr(saver.torch, "empty", lambda *_, **__: 1 / 0)
    assert saved_weights(tmp_path) == [0.0, 1.0]
