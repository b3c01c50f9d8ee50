"""Checkpoints: atomic, verified, named when damaged, and pruned to the latest and the best."""

import pytest
import torch
from safetensors.torch import save_file

from lockstep.errors import DATA, LockstepError
from lockstep.runs import checkpoint, statefile


def save(folder, step, **facts):
    tensors = {"step": torch.tensor(step), "parameter/w": torch.arange(100.0) + step}
    return checkpoint.save(folder, tensors, {"recipe_digest": "d", "data_sha256": {"train": "s"}, **facts})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_read_as_saved_and_equal_states_have_equal_bytes(tmp_path):
    paths = [save(tmp_path / run, 7) for run in ("a", "b")]
    newest = checkpoint.latest(tmp_path / "a")
    assert torch.equal(newest.tensors["parameter/w"], torch.arange(100.0) + 7)
    assert newest.step == 7
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert names(tmp_path / "a") == ["step-000000007.safetensors"]
    assert newest.facts.keys() == {"step", "recipe_digest", "data_sha256", "contents_sha256"}
    assert checkpoint.latest(tmp_path) is None


def test_tensors_with_gaps_or_in_others_memory_are_written(tmp_path):
    table = torch.rand(3, 4)
    views = {"turned": table.t(), "row": table[1], "repeated": torch.ones(1).expand(5)}
    statefile.write(tmp_path / "m.safetensors", views, {})
    assert all(tensor.equal(views[name]) for name, tensor in statefile.read(tmp_path / "m.safetensors").tensors.items())


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


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
    ids=["bit flip", "truncated", "changed fact", "empty", "foreign", "other program's", "folder", "link to nowhere"],
)
def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(tmp_path, caplog, damage):
    save(tmp_path, 1)
    damage(save(tmp_path, 2))
    assert checkpoint.latest(tmp_path).step == 1
    assert len(caplog.messages) == 1
    assert "step-000000002.safetensors is damaged" in caplog.messages[0]
    damage(tmp_path / "step-000000001.safetensors")
    with pytest.raises(LockstepError, match=r"every checkpoint in .* is damaged") as error:
        checkpoint.latest(tmp_path)
    assert error.value.code == DATA


@pytest.mark.parametrize("reader", ["facts_of", "read_tensors"])
def test_a_checkpoint_pruned_while_it_is_read_is_not_called_damaged(tmp_path, monkeypatch, caplog, reader):
    """Another program trains, saves a new checkpoint and deletes the old ones. The new one is returned."""
    save(tmp_path, 1)
    save(tmp_path, 2)
    read = getattr(statefile, reader)

    def slowly(path):
        monkeypatch.undo()
        save(tmp_path, 3)
        checkpoint.prune(tmp_path, 1)
        return read(path)

    monkeypatch.setattr(statefile, reader, slowly)
    assert checkpoint.latest(tmp_path).step == 3
    assert (names(tmp_path), caplog.messages) == (["step-000000003.safetensors"], [])
    with pytest.raises(FileNotFoundError):
        statefile.read(tmp_path / "step-000000002.safetensors")


def test_a_damaged_checkpoint_is_named_once_in_a_repeated_search(tmp_path, monkeypatch, caplog):
    save(tmp_path, 1)
    save(tmp_path, 2)
    flip(save(tmp_path, 3))
    calls, load = [], statefile.read_tensors

    def slowly(path):
        calls.append(path)
        if len(calls) == 2:
            path.unlink()
        return load(path)

    monkeypatch.setattr(statefile, "read_tensors", slowly)
    assert checkpoint.latest(tmp_path).step == 1
    assert len(caplog.messages) == 1
    assert checkpoint.steps(tmp_path) == [3, 1]


def test_prune_keeps_the_latest_and_the_best(tmp_path):
    for step in range(8):
        save(tmp_path, step)
    checkpoint.prune(tmp_path, 3, best=1)
    assert names(tmp_path) == [f"step-{s:09d}.safetensors" for s in (1, 5, 6, 7)]
    for step in range(4):
        save(tmp_path / "never evaluated", step)
    checkpoint.prune(tmp_path / "never evaluated", 2)
    assert names(tmp_path / "never evaluated") == [f"step-{s:09d}.safetensors" for s in (2, 3)]


def test_a_failed_save_leaves_no_files(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(statefile, "flush", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 1)
    assert names(tmp_path) == []


def test_clear_ahead_renames_later_checkpoints_and_deletes_unfinished_ones(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / ".step-000000003.safetensors-99").touch()
    checkpoint.clear_ahead(tmp_path, 1)
    assert names(tmp_path) == ["damaged-step-000000002.safetensors", "step-000000001.safetensors"]
    save(tmp_path, 2)
    assert checkpoint.latest(tmp_path).step == 2
