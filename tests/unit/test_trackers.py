"""`--log-to`: what the real libraries have of a run, and what a run loses by them: nothing."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from signal import SIGTERM

import pytest
from tests.conftest import NATIVE
from tests.helpers import ENVIRONMENT, read_json, recipe_with, refused, succeeded
from tests.runs import fit_here

import lockstep
from lockstep import messages
from lockstep.config.placement import Placement
from lockstep.errors import LockstepError
from lockstep.listeners import trackers
from lockstep.schema import validated

STEPS = 12
RECIPE = recipe_with("digits", {"portable": False, "towers": 2, "batch": 48, "steps": STEPS})
# Libraries warn of their own future, and leave files to the end of the program.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def local(tmp_path, monkeypatch):
    """Let each library write in the test's folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("WANDB_MODE", "offline")
    if "wandb" in sys.modules:  # It keeps the folder of the first test.
        sys.modules["wandb"].teardown()
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))


def placed(*log_to, **options):
    own = {"summary_every": 0, "log_every": 2, "log_to": log_to}
    return validated(Placement, own | options)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The result of the run that is logged nowhere."""
    return fit_here(RECIPE, tmp_path_factory.mktemp("plain") / "a", placed()).result


def in_two_parts(path, placement):
    """Train the run at `path`, with a stop in the middle. Return its result."""
    polls = iter(range(100))
    stop = lambda: SIGTERM if next(polls) == STEPS // 2 else None  # noqa: E731
    assert fit_here(RECIPE, path, placement, stop_requested=stop).stopped_by == SIGTERM
    return fit_here(RECIPE, path, placement, resume=True).result


@pytest.mark.slow  # Its libraries take seconds to import.
def test_mlflow_has_one_run_with_recipe_metrics_and_result(tmp_path, expected, capfd):
    mlflow = pytest.importorskip("mlflow", reason='needs the extra "mlflow"')
    result = in_two_parts(tmp_path / "mine", placed("mlflow"))
    assert result["weights_sha256"] == expected["weights_sha256"]
    client = mlflow.MlflowClient("mlruns")
    experiment = client.get_experiment_by_name("lockstep").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.run_name == read_json(tmp_path / "mine/environment.json")[1]["log_id"]
    assert run.info.run_name.startswith("mine-")
    assert run.info.status == "FINISHED"
    params = run.data.params
    assert (params["batch"], params["optimizer.kind"]) == ("48", RECIPE.optimizer.kind)
    metrics = run.data.metrics
    low, high = expected["accuracy_interval"]
    assert metrics["test/accuracy"] == expected["accuracy"][RECIPE.own_weights]
    assert (metrics["test/accuracy_low"], metrics["test/accuracy_high"]) == (low, high)
    rows = [row for row in lockstep.Run.open(tmp_path / "mine").metrics() if row["kind"] == "step"]
    logged = {
        one.step: one.value for one in client.get_metric_history(run.info.run_id, "train/loss")
    }
    assert logged == {row["step"]: row["loss"] for row in rows}
    assert run.data.tags["link"] == result["link"]
    assert run.data.tags["weights_sha256"] == result["weights_sha256"]
    assert "the run goes on" not in capfd.readouterr().err


@pytest.mark.slow  # Its libraries take seconds to import.
def test_wandb_gets_the_same_offline_and_says_that_it_has_two_parts(tmp_path, expected, capfd):
    wandb = pytest.importorskip("wandb", reason='needs the extra "wandb"')
    result = in_two_parts(tmp_path / "mine", placed("wandb"))
    assert result["weights_sha256"] == expected["weights_sha256"]
    wandb.teardown()  # Its service writes the files.
    name = read_json(tmp_path / "mine/environment.json")[0]["log_id"]
    # wandb names a folder by the second of its start, and adds -1 for another in the same second.
    first, second = sorted((tmp_path / "wandb").glob(f"offline-run-*-{name}*/run-*.wandb"))
    assert first.name == second.name == f"run-{name}.wandb"  # `wandb sync` joins them
    for file, words in (
        (first, (b"train/loss", b"optimizer")),
        (second, (b"test/accuracy_low", result["link"].encode())),
    ):
        content = file.read_bytes()
        assert [word for word in words if word not in content] == []
    assert capfd.readouterr().err.count("wandb does not find the run's beginning") == 1


def test_trackio_has_one_run_in_its_database(tmp_path, expected, capfd):
    pytest.importorskip("trackio", reason='needs the extra "trackio", whose pillow is older')
    result = in_two_parts(tmp_path / "mine", placed("trackio"))
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert_logged_by_trackio(tmp_path, read_json(tmp_path / "mine/environment.json"), result)
    printed = "".join(capfd.readouterr())
    assert [word for word in ("Trackio", "the run goes on", "beginning") if word in printed] == []


def assert_logged_by_trackio(folder, sessions, result):
    database = sqlite3.connect(folder / "trackio/lockstep.db")
    rows = database.execute("select run_name, step, metrics from metrics").fetchall()
    assert {name for name, _, _ in rows} == {sessions[0]["log_id"]}
    values = [(step, json.loads(metrics)) for _, step, metrics in rows]
    losses = {step: each["train/loss"] for step, each in values if "train/loss" in each}
    assert max(losses) == STEPS - 1
    (tested,) = (each for _, each in values if "test/accuracy" in each)
    assert [tested["test/accuracy_low"], tested["test/accuracy_high"]] == result[
        "accuracy_interval"
    ]
    assert [each["link"] for _, each in values if "link" in each] == [result["link"]]


@pytest.mark.slow  # Its libraries take seconds to import.
def test_several_at_once_and_a_lost_server_costs_one_note(tmp_path, expected, capfd, monkeypatch):
    pytest.importorskip("mlflow", reason='needs the extra "mlflow"')
    pytest.importorskip("wandb", reason='needs the extra "wandb"')
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    result = fit_here(RECIPE, tmp_path / "mine", placed("mlflow", "wandb")).result
    assert result["weights_sha256"] == expected["weights_sha256"]
    notes = capfd.readouterr().err
    assert notes.count("mlflow has failed (MlflowException): the run goes on") == 1
    assert "secret" not in notes + (tmp_path / "mine/log.txt").read_text()
    assert [*(tmp_path / "wandb").glob("offline-run-*")]


@pytest.fixture
def openers(monkeypatch):
    """Replaces what opens a library."""

    def replace(opener):
        monkeypatch.setattr(trackers, "_OPENERS", {"wandb": opener})
        monkeypatch.setattr(trackers, "import_module", lambda name: None)

    return replace


def test_a_server_that_does_not_answer_costs_one_note(tmp_path, expected, capfd, openers):
    answered = threading.Event()
    openers(lambda run, recipe: answered.wait())
    placement = placed("wandb", timeout=1)
    result = fit_here(RECIPE, tmp_path / "mine", placement).result
    answered.set()
    assert result["weights_sha256"] == expected["weights_sha256"]
    notes = capfd.readouterr().err
    assert notes.count("wandb has not taken everything in time: the run goes on, and metrics.") == 1
    assert len((tmp_path / "mine/metrics.jsonl").read_text().splitlines()) > STEPS // 2


def test_what_fails_in_the_middle_or_is_too_slow_is_said_once(capfd, openers, caplog):
    def log(step, values):
        raise OSError("gone")

    openers(lambda run, recipe: (False, log, lambda: None))
    tracker = trackers.Tracker("wandb", "a", {}, 1, begun=False, wait_s=10)
    tracker.result({"steps": 1, "weights_sha256": "a", "link": "b"})
    tracker.close()
    answered = threading.Event()
    openers(lambda run, recipe: answered.wait())
    slow = trackers.Tracker("wandb", "a", {}, 1, begun=False, wait_s=0)
    for step in range(trackers._ROOM + 2):
        slow.result({"steps": step, "weights_sha256": "a", "link": "b"})
    slow.close()
    answered.set()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "wandb has failed (OSError)",
        "wandb is too slow",
    ]


def test_a_missing_library_is_said_before_the_run_starts(here, tmp_path, monkeypatch):
    monkeypatch.setattr(messages, "find_spec", lambda name: None)
    for name in ("mlflow", "wandb", "trackio"):
        done = here("train", *NATIVE, "--log-to", name)
        refused(done, ENVIRONMENT, f"{name} needs {name}: pip install 'lockstep-images[{name}]'")
    assert not (tmp_path / "runs").exists()


def test_log_to_takes_one_name_or_several_and_no_other():
    assert validated(Placement, {"log_to": "wandb"}).log_to == ("wandb",)
    assert placed("wandb", "mlflow", "wandb").log_to == ("wandb", "mlflow")
    with pytest.raises(LockstepError, match=r"log-to.0 neptune: it must be 'mlflow', 'wandb' or"):
        placed("neptune")


@pytest.mark.slow
def test_only_process_0_logs(program, tmp_path):
    pytest.importorskip("mlflow", reason='needs the extra "mlflow"')
    words = ("digits", "--towers", 2, "--batch", 48, "--no-portable", "--steps", STEPS)
    done = program("train", *words, "--processes", 2, "--log-to", "mlflow", "--json")
    assert json.loads(succeeded(done).stdout)["processes"] == 2
    assert len([*(tmp_path / "mlruns").glob("*/*/params")]) == 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_real_trackio_in_an_environment_of_its_own(program, tmp_path):
    """It is in no environment of ours, because it needs an older pillow."""
    target = tmp_path / "packages"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", target]
    if subprocess.run([*install, "trackio==0.43.0"], capture_output=True).returncode:
        pytest.skip("trackio cannot be installed: no package index")
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(target)]))
    variables = {"PYTHONPATH": path, "TRACKIO_DIR": str(tmp_path / "trackio")}
    words = ("digits", "--towers", 2, "--batch", 48, "--no-portable", "--steps", STEPS)
    words += ("--processes", 1, "--name", "a", "--json")
    done = succeeded(program("train", *words, "--log-to", "trackio", **variables))
    sessions = read_json(tmp_path / "runs/a/environment.json")
    assert_logged_by_trackio(tmp_path, sessions, json.loads(done.stdout))
    shutil.rmtree(target)
