"""Which checkpoint `lockstep eval` takes, what it saves of it, and a watcher that comes before the run."""

import json
import shutil
import signal
import time

import pytest
from tests.cli.test_mistakes import DATA, ENVIRONMENT, USAGE, contents, refused
from tests.unit.test_checkpoint import flip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run with an evaluated checkpoint every 2 of its 10 steps, and its record."""
    from tests.conftest import start

    folder = tmp_path_factory.mktemp("checkpoints")
    process = start(
        "train", "--steps", 10, "--save-every", 2, "--eval-every", 2, "--keep", 9, "--processes", 1, "--name", "a",
        "--json", cwd=folder,
    )  # fmt: skip
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return folder / "runs/a", json.loads(out)


@pytest.fixture
def run(trained, tmp_path):
    """A copy of its own for each test."""
    shutil.copytree(trained[0], tmp_path / "runs/a")
    return tmp_path / "runs/a"


def manifest(run, step):
    return run / f"checkpoints/step-{step:09d}/manifest.json"


def state_accuracy(run, step, accuracy):
    path = manifest(run, step)
    facts = {key: value for key, value in json.loads(path.read_text()).items() if key != "accuracy"}
    path.write_text(json.dumps(facts if accuracy is None else facts | {"accuracy": accuracy}))


def test_best_a_step_and_the_newest(program, run):
    accuracies = {step: json.loads(manifest(run, step).read_text())["accuracy"] for step in (2, 4, 6, 8, 10)}
    for which in (4, 10):
        record = json.loads(program("eval", run, "--checkpoint", which, "--json").stdout)
        assert (record["step"], record["accuracy"]) == (which, accuracies[which])
    assert json.loads(program("eval", run, "--json").stdout)["step"] == 10
    for step, accuracy in ((2, 0.5), (4, 0.75), (6, 0.75), (8, None), (10, 0.25)):
        state_accuracy(run, step, accuracy)
    for processes in (1, 2):
        done = program("eval", run, "--checkpoint", "best", "--json", "--processes", processes)
        record = json.loads(done.stdout)
        assert (record["step"], record["accuracy"]) == (4, accuracies[4])  # of equals the earliest


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["5"], "--checkpoint 5: runs/a has no such checkpoint: there are those after 0, 2, 4, 6, 8, 10 steps"),
        (["last"], "--checkpoint 'last': give best, or the number of steps"),
        (["-4"], "--checkpoint '-4': give best, or the number of steps"),
        (["best", "--watch"], "--checkpoint is for one checkpoint, and --watch evaluates each"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_one_that_is_not(program, run, args, words):
    refused(program("eval", "runs/a", "--checkpoint", *args), USAGE, words)


def test_without_an_evaluation_none_is_the_best(program, run):
    for step in (0, 2, 4, 6, 8, 10):
        state_accuracy(run, step, None)
    refused(program("eval", run, "--checkpoint", "best"), USAGE, "was evaluated in training", "--eval-every N")
    shutil.rmtree(run / "checkpoints")
    refused(program("eval", run, "--checkpoint", "best"), DATA, "no checkpoint yet")


def test_a_damaged_one_is_an_error_and_not_passed_over(program, run):
    flip(run / "checkpoints/step-000000004/state.safetensors")
    refused(program("eval", run, "--checkpoint", 4), DATA, "step-000000004 is damaged")
    state_accuracy(run, 4, 1.0)
    refused(program("eval", run, "--checkpoint", "best"), DATA, "step-000000004 is damaged")
    for damage in ("{", "[]", '{"accuracy": []}'):
        manifest(run, 6).write_text(damage)
        refused(program("eval", run, "--checkpoint", "best"), DATA, "step-000000006 is damaged")
    assert program("eval", run, "--checkpoint", 8, "-q").returncode == 0


def test_a_stopped_run_gets_the_model_that_a_finished_one_has(program, run, tmp_path):
    whole = (run / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "result.json"):
        (run / name).unlink()
    before = contents(run)
    done = program("eval", run, "--save-model", "mine.safetensors", "--processes", 2)
    assert done.returncode == 0
    assert done.stderr == "the model after 10 steps, ema weights, is saved in mine.safetensors\n"
    assert (tmp_path / "mine.safetensors").read_bytes() == whole
    assert contents(run) == before
    refused(program("eval", run, "--save-model", "mine.safetensors"), USAGE, "there is something already")
    assert (tmp_path / "mine.safetensors").read_bytes() == whole
    refused(program("eval", run, "--save-model", "none/x"), ENVIRONMENT, "there is no folder none")
    refused(program("eval", run, "--save-model", "x", "--watch"), USAGE, "--save-model is for one checkpoint")


def test_the_model_of_another_checkpoint_and_of_the_raw_weights(program, run, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file

    done = program("eval", run, "--checkpoint", 4, "--weights", "raw", "--save-model", "raw", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with safe_open(tmp_path / "raw", "pt") as file:
        facts = json.loads(file.metadata()["lockstep"])
    with safe_open(run / "model.safetensors", "pt") as file:
        assert facts == json.loads(file.metadata()["lockstep"]) | {"weights": "raw"}
    saved = load_file(run / "checkpoints/step-000000004/state.safetensors")
    for name, tensor in load_file(tmp_path / "raw").items():
        assert tensor.equal(saved[f"buffer/{name}" if "running" in name or "num_" in name else f"parameter/{name}"])


def test_quiet_is_nothing_but_errors(program, run, tmp_path):
    flip(run / "checkpoints/step-000000010/state.safetensors")
    assert program("eval", run).stderr != ""
    done = program("eval", run, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = program("eval", run, "-q", "--json")
    assert (json.loads(done.stdout)["step"], done.stderr) == (8, "")
    done = program("eval", run, "-q", "--watch", "--once")
    assert (done.returncode, done.stdout) == (0, "")
    assert json.loads((run / "eval/metrics.jsonl").read_text())["step"] == 8
    refused(program("eval", "runs/none", "-q"), USAGE, "runs/none is no folder")
    for processes in (1, 2):
        options = ("--steps", 3, "--processes", processes, "-q", "--name")
        done = program("train", *options, f"q{processes}")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        done = program("train", *options, f"j{processes}", "--json")
        assert (json.loads(done.stdout)["steps"], done.stderr) == (3, "")
        for command in (("train", f"runs/q{processes}", "--resume", "-q"),):
            done = program(*command)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        log = (tmp_path / f"runs/q{processes}/log.txt").read_text()
        assert log.count("sec/batch)") == 2
        assert "lockstep eval" in log
    refused(program("train", *options, "q1"), USAGE, "runs/q1 exists")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_watcher_may_come_before_the_run(started, program, tmp_path, processes):
    watcher = started("eval", "runs/b", "--watch", "--interval", 0.05, "--processes", processes, "--json")
    assert watcher.stderr.readline() == "runs/b has not begun, as it has no recipe.json: waiting\n"
    (tmp_path / "runs/b").mkdir(parents=True)
    (tmp_path / "runs/b/.lock").touch()  # as of a run that is about to begin
    time.sleep(0.5)
    done = program("train", "--steps", 2, "--processes", 1, "--name", "b", "--json")
    assert done.returncode == 0, done.stderr
    out, err = watcher.communicate(timeout=120)
    assert watcher.returncode == 0, err
    assert "has not begun" not in err  # said once
    assert json.loads(out.splitlines()[-1])["accuracy"] == json.loads(done.stdout)["accuracy"]["ema"]


def test_ctrl_c_ends_the_wait_and_a_file_is_not_waited_for(started, program, tmp_path):
    watcher = started("eval", "runs/b", "--watch", "--interval", 3600)
    assert "waiting" in watcher.stderr.readline()
    watcher.send_signal(signal.SIGINT)
    out, err = watcher.communicate(timeout=60)
    assert (watcher.returncode, out, err) == (130, "", "")
    (tmp_path / "file").touch()
    refused(program("eval", "file", "--watch"), USAGE, "file is no folder")


def test_a_copied_run_without_its_lock_can_be_watched(started, run):
    for name in (".lock", "result.json"):
        (run / name).unlink()
    watcher = started("eval", run, "--watch", "--interval", 0.05, "--json")
    words = "waiting; --once does not"
    while words not in watcher.stderr.readline():
        assert watcher.poll() is None
    (run / "result.json").write_text("{}")
    out, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, err
    assert [json.loads(line)["step"] for line in out.splitlines()] == [0, 2, 4, 6, 8, 10]
