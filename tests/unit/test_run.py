"""The run folder: when a new run may use an existing one, who may write there, and damaged lines of metrics.jsonl."""

import fcntl
import json
import os
import shutil
import threading

import pytest
import torch

from lockstep.errors import ENVIRONMENT, USAGE, LockstepError
from lockstep.recipes import get_recipe
from lockstep.runs import saver
from lockstep.runs.folder import Folder, Run, refuse_existing

RECIPE = get_recipe("digits")


@pytest.fixture
def stopped(tmp_path):
    """A run that was killed before its first step, with every file that it may have written by then."""
    run = Folder.create(tmp_path / "a", RECIPE)
    run.write("environment.json", [])
    run.log.write_text("  recipe  digits\n")
    run.metrics_path.touch()
    run.summaries.mkdir()
    (run.summaries / "events.out.tfevents.1700000000.host.1.000000").touch()
    for name in ("step-000000000.safetensors", ".step-000000000.safetensors-77"):
        (run.checkpoints / name).touch()
    (run.path / ".environment.json-77").touch()
    run.close()
    return run.path


def contents(folder):
    """Return every file but the lock, whose token names the last program that held it."""
    paths = [path for path in folder.rglob("*") if path.name != ".lock"]
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


def refused(path, code=USAGE, message="exists, and a run is never overwritten"):
    """Assert that `refuse_existing` and `Folder.create` reject the folder `path` and change nothing in it."""
    before = contents(path)
    if code == USAGE:
        with pytest.raises(LockstepError, match=message):
            refuse_existing(path)
    with pytest.raises(LockstepError, match=message) as error:
        Folder.create(path, RECIPE)
    assert error.value.code == code
    assert contents(path) == before


def test_a_run_that_never_made_a_step_does_not_block_its_name(stopped, caplog):
    (stopped / "metrics.jsonl").write_text('{"kind": "step", "step": 0}\n')
    refuse_existing(stopped)
    run = Folder.create(stopped, get_recipe("mnist"))
    assert caplog.messages == [f"{stopped} has no checkpoint of a step: starting again"]
    assert run.recipe() == get_recipe("mnist")
    assert sorted(path.name for path in stopped.rglob("*")) == [".lock", "checkpoints", "recipe.json"]
    refused(stopped)  # This program starts in it.
    run.close()


def test_a_run_that_was_killed_before_it_wrote_its_recipe_does_not_block_its_name(tmp_path, caplog):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/.lock").touch()
    Folder.create(tmp_path / "a", RECIPE).close()
    assert not caplog.messages


@pytest.mark.parametrize(
    "name",
    [
        "result.json", "model.safetensors", "notes.txt", "checkpoints/notes.txt", "eval/metrics.jsonl",
        "checkpoints/step-000000001.safetensors", "checkpoints/mine/x", "sub/recipe.json",
        "checkpoints/damaged-step-000000000.safetensors",
    ],
)  # fmt: skip
def test_a_folder_with_any_other_file_is_rejected(stopped, name):
    (stopped / name).parent.mkdir(exist_ok=True)
    (stopped / name).write_text("mine")
    refused(stopped)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "mine").mkdir(),
        lambda path: [path.rename(path.with_name("b")), path.symlink_to(path.with_name("b"))],
        lambda path: [path.rename(path.with_name("b")), path.symlink_to(path.with_name("nowhere"))],
        lambda path: [path.rename(path.with_name("b")), path.mkdir()],
        lambda path: [path.rename(path.with_name("b")), path.touch()],
    ],
    ids=["a folder in it", "a link", "a link to nowhere", "an empty folder", "a file"],
)
def test_any_other_path_is_rejected(stopped, change):
    change(stopped)
    refused(stopped)


def test_a_program_that_starts_in_between_keeps_the_folder(stopped, monkeypatch):
    """A program that checked the folder before the other one began is stopped by the lock and changes nothing."""
    monkeypatch.setattr("lockstep.runs.folder.refuse_existing", lambda path: None)
    first = Folder.create(stopped, RECIPE)
    refused(stopped, ENVIRONMENT, "another program is training in")
    saver.save(first.checkpoints, {"step": torch.tensor(1)}, {})
    first.close()
    before = contents(stopped)
    with pytest.raises(LockstepError, match="never overwritten"):
        Folder.create(stopped, RECIPE)
    assert contents(stopped) == before


def test_only_one_of_many_programs_starts_the_run_again(stopped):
    """Every thread opens the lock file itself, so the lock works between threads as between programs."""
    barrier, runs, errors = threading.Barrier(8), [], []

    def program():
        barrier.wait()
        try:
            runs.append(Folder.create(stopped, RECIPE))
        except LockstepError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=program) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(runs), len(errors)) == (1, 7), errors
    assert runs[0].recipe() == RECIPE
    runs[0].close()


def test_a_program_that_lost_the_folder_may_not_write(tmp_path):
    """On a network file system, a lock may not keep out other hosts: here another host writes its own token."""
    run = Folder.create(tmp_path / "a", RECIPE)
    saver.save(run.checkpoints, {"step": torch.tensor(1)}, {}, run.require_lock)
    (run.path / ".lock").write_text("the token of another host")
    with pytest.raises(LockstepError, match="another program has continued"):
        saver.save(run.checkpoints, {"step": torch.tensor(2)}, {}, run.require_lock)
    with pytest.raises(LockstepError, match="another program has continued"):
        run.finish({}, {"w": torch.zeros(1)}, {})
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000001.safetensors"]
    assert not run.complete
    assert not run.model.exists()
    run.close()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_a_file_that_is_a_pipe_or_a_device_is_an_error(stopped, make):
    for name in (".lock", "model.safetensors"):
        (stopped / name).unlink(missing_ok=True)
        make(stopped / name)
    with pytest.raises(LockstepError, match=r"\.lock cannot be read \(not a regular file\)"):
        print(Run(stopped).state)
    with pytest.raises(LockstepError, match=r"cannot write the run folder|cannot be read"):
        Folder(stopped).lock()
    with pytest.raises(LockstepError, match="not a regular file"):
        print(Run(stopped).classes)


def test_the_folder_of_a_new_run_is_flushed_with_those_above_it(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr("lockstep.runs.folder.flush", flushed.append)
    Folder.create(tmp_path / "new/runs/a", RECIPE).close()
    assert flushed == [tmp_path / "new/runs", tmp_path / "new", tmp_path]


def test_a_run_is_opened_by_a_path_or_a_string_and_any_other_folder_is_an_error(stopped, tmp_path):
    for path in (stopped, str(stopped)):
        run = Run.open(path)
        assert (run.path, run.recipe()) == (stopped, RECIPE)
    with pytest.raises(LockstepError, match="is not a folder: give the folder of a run"):
        Run.open(str(tmp_path / "none"))
    with pytest.raises(LockstepError, match=r"is not a run: it has no recipe\.json"):
        Run.open(tmp_path)


def test_a_copied_run_without_a_lock_file_is_not_held(stopped):
    with (stopped / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert Run(stopped).state == "training"
    shutil.copytree(stopped, stopped.with_name("copy"), ignore=shutil.ignore_patterns(".lock"))
    assert Run(stopped.with_name("copy")).state == "stopped"
    assert not (stopped.with_name("copy") / ".lock").exists()


def step(number, **fields):
    return json.dumps({"kind": "step", "step": number, "loss": 0.5} | fields).encode()


def evaluation(number, **fields):
    row = {"kind": "evaluation", "step": number, "split": "test", "weights": "raw", "accuracy": 0.5, "loss": 0.25}
    return json.dumps(row | fields).encode()


DAMAGED = [
    b"\xff\xfe\x00", b"[]", b"7", b"", step(1)[:-7], b'{"kind": "step"}', b'{"step": 1}', step("1"), step(True),
    step(1, loss="0.5"), step(1, loss=float("nan")), step(1, split={"forward": "1"}),
    b'{"kind": "digest", "step": 1, "digest": 5}', b'{"kind": "digest", "step": -1, "digest": "5"}',
    b'{"kind": [], "step": 1}', b'{"kind": "other", "step": 1}', b'{"kind": "evaluation", "step": 1}',
    evaluation(1, loss="a"), evaluation(1, split=5), evaluation(1, accuracy="1"),
    evaluation(1).replace(b"raw", b"r\xe4w"),
]  # fmt: skip


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_line_of_the_metrics_is_dropped_and_named(stopped, caplog, damaged):
    folder, intact = Folder(stopped), [step(0), evaluation(1, loss=None), step(1), step(2), evaluation(2)]
    folder.metrics_path.write_bytes(b"\n".join([intact[0], damaged, *intact[1:]]))
    assert folder.metrics() == [json.loads(line) for line in intact]
    for _ in range(2):
        folder.begin(1, {}, evaluation=False)
    assert caplog.messages == [f"{folder.metrics_path}: line 2 was damaged and deleted"]
    assert folder.metrics_path.read_bytes() == b"\n".join(intact[:2]) + b"\n"


def test_rewritten_metrics_are_on_the_disk_before_they_replace_the_old_ones(stopped, monkeypatch):
    folder, synced = Folder(stopped), []
    folder.metrics_path.write_bytes(step(0) + b"\n")
    sync = os.fsync

    def recorded(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append((os.path.basename(path), folder.metrics_path.read_bytes()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    folder.begin(0, {}, evaluation=False)
    assert synced[:2] == [(f".metrics.jsonl-{os.getpid()}", step(0) + b"\n"), ("a", b"")]


def test_a_record_is_strict_json(stopped):
    Folder(stopped).write("result.json", {"loss": {"train": float("nan")}, "seconds": [1.5, float("inf")]})
    record = json.loads((stopped / "result.json").read_text(), parse_constant=pytest.fail)
    assert record == {"loss": {"train": None}, "seconds": [1.5, None]}


@pytest.mark.parametrize(
    "damaged", ["[]", '{"accuracy": {"a": "x"}}', '{"accuracy": 3}', '{"best_step": "abc"}', '{"steps": [1]}', "{"]
)
def test_a_damaged_result_is_one_clear_error(stopped, damaged):
    (stopped / "result.json").write_text(damaged)
    run = Run(stopped)
    for look in (run.result, lambda: run.accuracy, run.load):
        with pytest.raises(LockstepError, match=r"result\.json cannot be read \(.*\): remove it"):
            look()
