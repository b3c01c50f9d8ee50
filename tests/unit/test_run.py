"""The run folder: who may make it, who may write there, and damaged lines of metrics.jsonl."""

import errno
import fcntl
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.helpers import lockstep_error, recipe_with

from lockstep.errors import ENVIRONMENT, LockstepError, printable
from lockstep.recipes import get_recipe
from lockstep.runs import saver, statefile
from lockstep.runs.run import Run, is_held
from lockstep.runs.run_folder import RunFolder, refuse_existing

RECIPE = get_recipe("digits")


@pytest.fixture
def stopped(tmp_path):
    """A run that was killed before its first step."""
    run = RunFolder.create(tmp_path / "a", RECIPE)
    run.close()
    return run.path


def contents(folder):
    """Return every file but the lock, whose token names the last program that held it."""
    paths = [path for path in folder.rglob("*") if path.name != ".lock"]
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize(
    "change",
    [
        lambda path: None,
        lambda path: [path.rename(path.with_name("b")), path.symlink_to(path.with_name("b"))],
        lambda path: [path.rename(path.with_name("b")), path.symlink_to(path.with_name("nowhere"))],
        lambda path: [path.rename(path.with_name("b")), path.touch()],
        lambda path: [path.rename(path.with_name("b")), path.mkdir(), (path / "notes.txt").touch()],
    ],
    ids=["a run", "a link", "a link to nowhere", "a file", "any other folder"],
)
def test_what_is_there_is_never_overwritten(stopped, change):
    change(stopped)
    before = contents(stopped)
    for make in (refuse_existing, lambda path: RunFolder.create(path, RECIPE)):
        with lockstep_error("exists, and a run is never overwritten"):
            make(stopped)
    assert contents(stopped) == before


def test_a_kill_before_the_recipe_is_written_blocks_no_name(tmp_path):
    (tmp_path / "a").mkdir()
    for name in (".lock", ".recipe.json-77"):
        (tmp_path / "a" / name).touch()
    folder = RunFolder.create(tmp_path / "a", RECIPE)
    folder.begin(0, {}, evaluation=False)
    names = [".lock", "checkpoints", "environment.json", "recipe.json"]
    assert sorted(path.name for path in folder.path.iterdir()) == names
    folder.close()


def test_a_number_that_a_link_to_nothing_has_is_not_free(tmp_path):
    (tmp_path / "a-1").symlink_to(tmp_path / "unmounted")
    folder = RunFolder.create(tmp_path / "a-1", RECIPE, numbered=True)
    assert folder.path == tmp_path / "a-2"
    folder.close()


def test_a_run_without_its_folder_of_checkpoints_starts_again(tmp_path, caplog):
    """It was deleted, or the program was killed before it made it. A head writes there at once."""
    RunFolder.create(tmp_path / "a", RECIPE).close()
    (tmp_path / "a/checkpoints").rmdir()
    folder = RunFolder.resume(tmp_path / "a", frozen={"frozen/conv": torch.ones(1)})
    assert folder.checkpoint is None
    assert [path.name for path in folder.checkpoints.iterdir()] == ["frozen.safetensors"]
    assert caplog.messages == [
        f"{tmp_path / 'a'} has no checkpoint, so it starts again at its first step"
    ]
    folder.close()


def test_only_one_of_many_programs_makes_the_run(tmp_path, monkeypatch):
    """All have found that no run is there. Every thread opens the lock itself, so it works as
    between programs.
    """
    monkeypatch.setattr("lockstep.runs.run_folder.refuse_existing", lambda path: None)
    runs, errors = [], []

    def program():
        try:
            runs.append(RunFolder.create(tmp_path / "a", RECIPE))
        except LockstepError as error:
            errors.append(str(error))

    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(program)
    assert (len(runs), len(errors)) == (1, 7), errors
    assert all("another program is training in" in error for error in errors)
    runs[0].close()
    with lockstep_error("never overwritten"):
        RunFolder.create(tmp_path / "a", RECIPE)


def test_a_program_that_lost_the_folder_may_not_write(tmp_path):
    """On a network file system, a lock may not keep out other hosts: here another host writes its
    own token.
    """
    run = RunFolder.create(tmp_path / "a", RECIPE)
    saver.save(run.checkpoints, {"step": torch.tensor(1)}, {}, run.fence)
    (run.path / ".lock").write_text("the token of another host")
    for write in (
        lambda: saver.save(run.checkpoints, {"step": torch.tensor(2)}, {}, run.fence),
        lambda: run.finish({}, {"w": torch.zeros(1)}, {}),
    ):
        with lockstep_error("another program has continued"):
            write()
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000001.safetensors"]
    assert not run.complete
    assert not run.model.exists()
    run.close()


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
def test_a_file_that_is_a_pipe_or_a_device_is_an_error(stopped, make):
    for name in (".lock", "model.safetensors"):
        (stopped / name).unlink(missing_ok=True)
        make(stopped / name)
    with lockstep_error(r"\.lock cannot be read \(not a regular file\)"):
        print(Run(stopped).state)
    with lockstep_error(r"cannot write the run folder|cannot be read"):
        RunFolder.resume(stopped)
    with lockstep_error("not a regular file"):
        print(Run(stopped).classes)


@pytest.mark.parametrize("name", [".lock", "checkpoints"])
def test_a_link_in_a_run_is_never_written_through(stopped, tmp_path, name):
    path = stopped / name
    (stopped / "checkpoints/precious").touch()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with lockstep_error(rf"cannot write the run folder .*{name} is a link", ENVIRONMENT):
        RunFolder.resume(stopped)
    if name == ".lock":
        assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    else:
        assert [*(tmp_path / "elsewhere").iterdir()]


def denied(*_):
    raise PermissionError(errno.EACCES, "Permission denied")


def forbid(monkeypatch, path):
    """Let the system say that this user may not open the file `path`. Root may read all files."""
    real = os.open
    monkeypatch.setattr(
        os,
        "open",
        lambda name, *rest, **own: denied() if str(name) == str(path) else real(name, *rest, **own),
    )


@pytest.mark.parametrize(
    "name", ["model.safetensors", "recipe.json", "environment.json", "metrics.jsonl", ".lock"]
)
def test_a_file_that_this_user_may_not_read_is_not_damaged(stopped, monkeypatch, name):
    for each in ("model.safetensors", "environment.json", "metrics.jsonl"):
        (stopped / each).touch()
    forbid(monkeypatch, stopped / name)
    run = Run(stopped)
    read = {
        "model.safetensors": lambda: run.classes,
        "recipe.json": run.recipe,
        "environment.json": run.sessions,
        "metrics.jsonl": run.metrics,
        ".lock": lambda: is_held(run.path),
    }
    with lockstep_error(f"this user may not read .*{name}: ask its owner", ENVIRONMENT):
        read[name]()


def test_an_unreadable_checkpoint_is_not_passed_over_nor_renamed(stopped, monkeypatch):
    folder = stopped / "checkpoints"
    for step in (1, 2):
        saver.save(folder, {"step": torch.tensor(step)}, {})
    before = sorted(folder.iterdir())
    forbid(monkeypatch, before[-1])
    for read in (
        lambda: RunFolder.resume(stopped),
        Run(stopped).read_checkpoint,
        Run(stopped).metadata,
    ):
        with lockstep_error(r"this user may not read .*step-000000002", ENVIRONMENT):
            read()
    saver.prune(folder, 5, None, set())
    assert sorted(folder.iterdir()) == before
    monkeypatch.setattr(type(folder), "iterdir", denied)
    with lockstep_error(r"this user may not read .*checkpoints:"):
        print(Run(stopped).steps)


NOT_NAMES = (
    "step-0000000007.safetensors",
    "step-07.safetensors",
    "step-7.safetensors",
    "Step-000000007.safetensors",
    "step-000000007.SAFETENSORS",
    "step-00000000\N{FULLWIDTH DIGIT SEVEN}.safetensors",
    "step-\N{ARABIC-INDIC DIGIT ZERO}00000007.safetensors",
    "step-+00000007.safetensors",
    "step-00000000_7.safetensors",
    " step-000000007.safetensors",
    "step-000000007.safetensors\n",
    "step-000000007.safetensors~",
    "step--00000007.safetensors",
)


@pytest.mark.parametrize("name", [*NOT_NAMES, statefile.file_name(249)])
@pytest.mark.parametrize("make", ["file", "link", "folder"])
def test_only_files_that_training_writes_are_checkpoints(tmp_path, caplog, name, make):
    """Every command reads the newest of the same files, and each other file is named."""
    recipe = recipe_with("digits", {"steps": 248})
    RunFolder.create(tmp_path / "a", recipe).close()
    run = Run(tmp_path / "a")
    metadata = {"recipe_digest": recipe.digest(), "classes": ["x"]}
    first = saver.save(run.checkpoints, {"step": torch.tensor(3)}, metadata)
    if make == "file":
        saver.save(tmp_path, {"step": torch.tensor(249)}, metadata)
        (tmp_path / statefile.file_name(249)).rename(run.checkpoints / name)
    elif make == "link":
        (run.checkpoints / name).symlink_to(first)
    else:
        (run.checkpoints / name).mkdir()
    (run.checkpoints / ".step-000000008.safetensors-99").touch()
    assert run.steps == [3]
    assert run.metadata()["step"] == 3
    assert caplog.messages == []
    assert run.read_checkpoint().path == first
    resumed = RunFolder.resume(run.path)
    assert resumed.checkpoint.path == first
    assert len(caplog.messages) == 2
    for message in caplog.messages:
        assert f"checkpoints: ignored {printable(name)}: " in message
        assert "names like step-000000248.safetensors, up to its last step" in message
    with lockstep_error("has no such checkpoint: its checkpoints are those after 3 steps"):
        run.read_checkpoint(249)
    resumed.begin(3, {}, evaluation=False)
    resumed.close()


def test_the_names_of_checkpoints_are_those_that_are_given():
    for step in (0, 7, 10**9 - 1, 10**9, 10**12):
        assert statefile.step_of(Path(statefile.file_name(step))) == step
    assert [name for name in NOT_NAMES if statefile.step_of(Path(name)) is not None] == []


@pytest.mark.parametrize("steps", [5, None])
def test_the_result_then_the_recipe_state_the_last_step(tmp_path, steps):
    length = {"steps": steps} if steps else {"epochs": 1}
    RunFolder.create(tmp_path / "a", recipe_with("digits", length)).close()
    run = Run(tmp_path / "a")
    for step in (2, 4, 6):
        saver.save(run.checkpoints, {"step": torch.tensor(step)}, {})
    assert run.steps == ([4, 2] if steps else [6, 4, 2])
    result = {"steps": 3, "accuracy": {}, "accuracy_interval": [0, 1], "train_s": 1}
    (run.path / "result.json").write_text(json.dumps(result | {"weights_sha256": ""}))
    assert run.steps == [2]


def test_the_folder_of_a_new_run_is_flushed_with_those_above_it(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr("lockstep.runs.run_folder.flush", flushed.append)
    RunFolder.create(tmp_path / "new/runs/a", RECIPE).close()
    assert flushed == [tmp_path / "new/runs", tmp_path / "new", tmp_path]


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
    row = {
        "kind": "evaluation",
        "step": number,
        "split": "test",
        "weights": "raw",
        "accuracy": 0.5,
        "loss": 0.25,
    }
    return json.dumps(row | fields).encode()


DAMAGED = [
    b"\xff\xfe\x00",
    b"[]",
    b"7",
    b"",
    step(1)[:-7],
    b'{"kind": "step"}',
    b'{"step": 1}',
    step("1"),
    step(True),
    step(1, loss="0.5"),
    step(1, loss=float("nan")),
    b'{"kind": [], "step": 1}',
    b'{"kind": "other", "step": 1}',
    b'{"kind": "evaluation", "step": 1}',
    evaluation(1, split=5),
    evaluation(1, accuracy="1"),
    evaluation(1).replace(b"raw", b"r\xe4w"),
]


def test_damaged_lines_of_the_metrics_are_dropped_and_named(stopped, caplog):
    folder, intact = (
        RunFolder(stopped),
        [step(0), evaluation(1, loss=None), step(1), step(2), evaluation(2)],
    )
    folder.metrics_path.write_bytes(b"\n".join([intact[0], *DAMAGED, *intact[1:]]))
    assert folder.metrics() == [json.loads(line) for line in intact]
    for _ in range(2):
        folder.begin(1, {}, evaluation=False)
    numbers = ", ".join(map(str, range(2, 2 + len(DAMAGED))))
    assert caplog.messages == [f"{folder.metrics_path}: damaged and deleted: line {numbers}"]
    assert folder.metrics_path.read_bytes() == b"\n".join(intact[:2]) + b"\n"


@pytest.mark.parametrize(
    "damaged", ["[]", '{"accuracy": {"a": "x"}}', '{"train_s": "abc"}', '{"steps": [1]}', "{"]
)
def test_a_damaged_result_is_one_clear_error(stopped, damaged):
    (stopped / "result.json").write_text(damaged)
    run = Run(stopped)
    for look in (run.result, lambda: run.accuracy):
        with lockstep_error(r"result\.json cannot be read \(.*\): remove it"):
            look()
