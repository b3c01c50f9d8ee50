"""Checkpoints: written while training continues, atomic, verified, named when damaged, and
pruned.
"""

import threading

import pytest
import torch
from safetensors.torch import save_file
from tests.helpers import Weights, flip, lockstep_error, save, steps

from lockstep.errors import DATA, ENVIRONMENT
from lockstep.runs import saver, statefile
from lockstep.runs.saver import Saver


def saved(folder, step):
    """Write a small checkpoint, and return its path."""
    tensors = {"step": torch.tensor(step), "parameter/w": torch.arange(100.0) + step}
    return saver.save(folder, tensors, {"recipe_digest": "d", "data_sha256": {"train": "s"}})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_as_saved_and_equal_states_equal_bytes(tmp_path):
    paths = [saved(tmp_path / run, 7) for run in ("a", "b")]
    newest = statefile.newest_verified(tmp_path / "a")
    assert torch.equal(newest.tensors["parameter/w"], torch.arange(100.0) + 7)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert names(tmp_path / "a") == ["step-000000007.safetensors"]
    assert newest.metadata.keys() == {"step", "recipe_digest", "data_sha256", "contents_sha256"}
    assert statefile.newest_verified(tmp_path) is None


def test_tensors_with_gaps_or_in_others_memory_are_written(tmp_path):
    table = torch.rand(3, 4)
    views = {"turned": table.t(), "row": table[1], "repeated": torch.ones(1).expand(5)}
    statefile.write(tmp_path / "m.safetensors", statefile.copied(views), {})
    assert all(
        tensor.equal(views[name])
        for name, tensor in statefile.read(tmp_path / "m.safetensors").tensors.items()
    )


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: path.write_bytes(path.read_bytes()[:-4]),
        lambda path: path.write_bytes(path.read_bytes().replace(b'\\"s\\"', b'\\"t\\"')),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("[]"),
        lambda path: save_file({"step": torch.tensor(2)}, path),
        lambda path: [path.unlink(), path.mkdir()],
        lambda path: [path.unlink(), path.symlink_to(path.parent / "nowhere")],
    ],
    ids=[
        "bit flip",
        "truncated",
        "changed fact",
        "empty",
        "foreign",
        "other program's",
        "folder",
        "link to nowhere",
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_previous_used(tmp_path, caplog, damage):
    saved(tmp_path, 1)
    damage(saved(tmp_path, 2))
    assert statefile.newest_verified(tmp_path).step == 1
    assert len(caplog.messages) == 1
    assert "step-000000002.safetensors is damaged" in caplog.messages[0]
    damage(tmp_path / "step-000000001.safetensors")
    with lockstep_error(r"every checkpoint in .* is damaged", DATA):
        statefile.newest_verified(tmp_path)


@pytest.mark.parametrize("reader", ["open_to_read", "read_tensors"])
def test_a_checkpoint_pruned_while_it_is_read_is_not_damaged(tmp_path, monkeypatch, caplog, reader):
    """Another program trains, saves a new checkpoint and deletes the old ones. The new one is
    returned.
    """
    saved(tmp_path, 1)
    saved(tmp_path, 2)
    read = getattr(statefile, reader)

    def slowly(path):
        monkeypatch.undo()
        saved(tmp_path, 3)
        saver.prune(tmp_path, 1, None, set())
        return read(path)

    monkeypatch.setattr(statefile, reader, slowly)
    assert statefile.newest_verified(tmp_path).step == 3
    assert (names(tmp_path), caplog.messages) == (["step-000000003.safetensors"], [])
    with pytest.raises(FileNotFoundError):
        statefile.read(tmp_path / "step-000000002.safetensors")


def test_clear_ahead_renames_later_and_deletes_unfinished_ones(tmp_path):
    for step in (1, 2):
        saved(tmp_path, step)
    (tmp_path / ".step-000000003.safetensors-99").touch()
    saver.clear_ahead(tmp_path, 1)
    assert names(tmp_path) == ["damaged-step-000000002.safetensors", "step-000000001.safetensors"]
    saved(tmp_path, 2)
    assert statefile.newest_verified(tmp_path).step == 2


def saved_weights(folder):
    """Return the one value of the weights in each checkpoint of `folder`, oldest first."""
    files = (statefile.read(path) for path in statefile.checkpoints_in(folder).values())
    return [file.tensors["parameter/w"].unique().item() for file in files]


def test_training_continues_during_saves_one_at_a_time(tmp_path, monkeypatch):
    opened, written = threading.Event(), saver.save

    def slowly(*arguments):
        assert opened.wait(20)
        return written(*arguments)

    monkeypatch.setattr(saver, "save", slowly)
    state, saves = Weights(), Saver(tmp_path, keep=5, every_s=0)
    save(saves, state)
    for _ in range(3):
        state.update()
    assert steps(tmp_path) == []
    second = threading.Thread(target=save, args=(saves, state))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    opened.set()
    second.join(20)
    saves.wait()
    assert steps(tmp_path) == [0, 3]
    assert saved_weights(tmp_path) == [0.0, 3.0]


def test_an_update_waits_for_the_copy(tmp_path):
    state, saves = Weights(), Saver(tmp_path, keep=5, every_s=0)
    copying, go_on = threading.Event(), threading.Event()

    class Slow(dict):
        def items(self):
            copying.set()
            assert go_on.wait(20)
            return super().items()

    saves.save(Slow(state.state_dict()), {}, state.update_lock)
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


@pytest.mark.parametrize("failing", ["save", "prune"])
def test_an_error_is_reported_once_and_the_next_save_is_tried(
    tmp_path, monkeypatch, caplog, failing
):
    state, saves = Weights(), Saver(tmp_path, keep=5, every_s=0)

    def fails(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(saver, failing, fails)
    save(saves, state)
    saves.wait()
    for _ in range(2):
        saves.stepped()
    (message,) = caplog.messages
    assert message.startswith(
        f"could not save a checkpoint in {tmp_path}: Read-only file system. Training continues"
    )
    save(saves, state)
    with lockstep_error("could not save", ENVIRONMENT):
        saves.require_saved()
    monkeypatch.undo()
    save(saves, state)
    saves.require_saved()
    assert steps(tmp_path) == [0]


def test_an_error_of_another_kind_ends_the_run(tmp_path, monkeypatch):
    """As that of a program which has lost the folder to another one."""
    state, saves = Weights(), Saver(tmp_path, keep=5, every_s=0)
    monkeypatch.setattr(saver, "save", lambda *_: 1 / 0)
    save(saves, state)
    saves.wait()
    with pytest.raises(ZeroDivisionError):
        saves.stepped()


def test_a_crash_costs_at_most_the_chosen_seconds(tmp_path, monkeypatch):
    """Steps take 4 s and writes 3 s, on the test's own clock. The newest state on the disk is never
    older than 30 s.
    """
    now = [100.0]
    monkeypatch.setattr(saver.time, "monotonic", lambda: now[0])
    state, saves = Weights(), Saver(tmp_path, keep=5, every_s=30.0)
    written = saver.save

    def slowly(*arguments):
        now[0] += 3.0
        return written(*arguments)

    monkeypatch.setattr(saver, "save", slowly)
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
    assert not Saver(tmp_path, keep=5, every_s=0).due()


def test_the_newest_checkpoints_and_the_best_are_kept(tmp_path):
    state, saves = Weights(), Saver(tmp_path, keep=2, every_s=0)
    for best in (None, 1, 2, 2, 2):
        state.update()
        save(saves, state, best)
    saves.wait()
    assert steps(tmp_path) == [2, 4, 5]


def test_a_damaged_checkpoint_does_not_count_as_kept(tmp_path):
    for step in (1, 2):
        saved(tmp_path, step)
    flip(tmp_path / "step-000000002.safetensors")
    # of a resumed run, which has verified none yet
    state, saves = (Weights(), Saver(tmp_path, keep=2, every_s=0))
    state.step = 3
    save(saves, state)
    saves.wait()
    assert steps(tmp_path) == [1, 3]
    assert (tmp_path / "damaged-step-000000002.safetensors").is_file()
