"""Checkpoints: atomic, verified, named when damaged, and pruned to the latest and the best."""

import shutil

import pytest
import torch

from lockstep.errors import DATA, LockstepError
from lockstep.runs import checkpoint, manifest


def save(folder, step, **facts):
    tensors = {"step": torch.tensor(step), "parameter/w": torch.arange(100.0) + step}
    return checkpoint.save(folder, tensors, {"recipe_digest": "d", "data_sha256": {"train": "s"}, **facts})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_read_as_saved_and_equal_states_have_equal_bytes(tmp_path):
    paths = [save(tmp_path / run, 7, accuracy=0.5) for run in ("a", "b")]
    newest = checkpoint.latest(tmp_path / "a")
    assert torch.equal(newest.tensors["parameter/w"], torch.arange(100.0) + 7)
    assert newest.manifest["step"] == 7
    for name in ("state.safetensors", "manifest.json"):
        assert (paths[0] / name).read_bytes() == (paths[1] / name).read_bytes()
    assert names(tmp_path / "a") == ["step-000000007"]
    assert newest.manifest.keys() == {"step", "recipe_digest", "data_sha256", "files", "accuracy"}
    assert newest.manifest["files"]["state.safetensors"].keys() == {"bytes", "sha256"}
    assert checkpoint.latest(tmp_path) is None


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: flip(path / "state.safetensors"),
        lambda path: (path / "state.safetensors").write_bytes((path / "state.safetensors").read_bytes()[:-4]),
        lambda path: (path / "state.safetensors").unlink(),
        lambda path: (path / "manifest.json").unlink(),
        lambda path: (path / "manifest.json").write_text("{"),
        lambda path: (path / "manifest.json").write_text("[]"),
        lambda path: [shutil.rmtree(path), path.symlink_to(path / "nowhere")],
    ],
    ids=["bit flip", "truncated", "no state", "no manifest", "half a manifest", "foreign manifest", "link to nowhere"],
)
def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(tmp_path, caplog, damage):
    save(tmp_path, 1)
    damage(save(tmp_path, 2))
    assert checkpoint.latest(tmp_path).manifest["step"] == 1
    assert len(caplog.messages) == 1
    assert "step-000000002 is damaged" in caplog.messages[0]
    damage(tmp_path / "step-000000001")
    with pytest.raises(LockstepError, match=r"every checkpoint in .* is damaged") as error:
        checkpoint.latest(tmp_path)
    assert error.value.code == DATA


@pytest.mark.parametrize("reader", ["sha256", "read_safetensors"])
def test_a_checkpoint_pruned_while_it_is_read_is_not_called_damaged(tmp_path, monkeypatch, caplog, reader):
    """Another program trains, saves a new checkpoint and deletes the old ones. The new one is returned."""
    save(tmp_path, 1)
    save(tmp_path, 2)
    module = manifest if reader == "sha256" else checkpoint
    read = getattr(module, reader)

    def slowly(path):
        monkeypatch.undo()
        save(tmp_path, 3)
        checkpoint.prune(tmp_path, 1)
        return read(path)

    monkeypatch.setattr(module, reader, slowly)
    assert checkpoint.latest(tmp_path).manifest["step"] == 3
    assert (names(tmp_path), caplog.messages) == (["step-000000003"], [])
    with pytest.raises(FileNotFoundError):
        checkpoint.read(tmp_path / "step-000000002")


def test_a_damaged_checkpoint_is_named_once_in_a_repeated_search(tmp_path, monkeypatch, caplog):
    save(tmp_path, 1)
    save(tmp_path, 2)
    flip(save(tmp_path, 3) / "state.safetensors")
    load = checkpoint.read_safetensors

    def slowly(path):
        monkeypatch.undo()
        shutil.rmtree(path.parent)
        return load(path)

    monkeypatch.setattr(checkpoint, "read_safetensors", slowly)
    assert checkpoint.latest(tmp_path).manifest["step"] == 1
    assert len(caplog.messages) == 1
    assert checkpoint.steps(tmp_path) == [3, 1]


def test_prune_renames_before_it_deletes(tmp_path, monkeypatch):
    """So a reader finds a complete checkpoint or none. A resume deletes what a killed program left."""
    for step in (1, 2):
        save(tmp_path, step)
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
    checkpoint.prune(tmp_path, 1)
    assert names(tmp_path) == [".deleting-step-000000001", "step-000000002"]
    monkeypatch.undo()
    checkpoint.clear_ahead(tmp_path, 2)
    assert names(tmp_path) == ["step-000000002"]


def test_prune_keeps_the_latest_and_the_best(tmp_path):
    for step in range(8):
        save(tmp_path, step)
    checkpoint.prune(tmp_path, 3, best=1)
    assert names(tmp_path) == [f"step-{s:09d}" for s in (1, 5, 6, 7)]
    for step in range(4):
        save(tmp_path / "never evaluated", step)
    checkpoint.prune(tmp_path / "never evaluated", 2)
    assert names(tmp_path / "never evaluated") == ["step-000000002", "step-000000003"]


def test_a_failed_save_leaves_no_files(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "flush", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 1)
    assert names(tmp_path) == []


def test_clear_ahead_renames_later_checkpoints_and_deletes_unfinished_ones(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / ".writing-000000003-99").mkdir()
    checkpoint.clear_ahead(tmp_path, 1)
    assert names(tmp_path) == ["damaged-step-000000002", "step-000000001"]
    save(tmp_path, 2)
    assert checkpoint.latest(tmp_path).manifest["step"] == 2
