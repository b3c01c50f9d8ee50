"""lockstep.train and lockstep.evaluate: in a script, a thread and a notebook, with the command
line's weights.

They start worker processes, so there is one start for each kind of use. Their arguments are tested
without a start.
"""

import json
import logging
import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from tests.conftest import NATIVE, SHORT, finished, popen
from tests.helpers import lockstep_error, succeeded

import lockstep
from lockstep.data.readers import load_digits as load
from lockstep.errors import DATA, LockstepError
from lockstep.launch.supervisor import Supervisor
from lockstep.recipes import get_recipe
from lockstep.runs.run_folder import RunFolder

STEPS = 12  # of SHORT
LONG = 100  # steps of a run that is interrupted before its end
ALONE = SHORT

MODEL = """
from torch import nn


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
"""


def script(folder: Path, code: str, **environment: str) -> subprocess.Popen:
    """Start a program of a user: `code`, in a folder that is not the current one."""
    (folder / "scripts").mkdir(exist_ok=True)
    path = folder / "scripts/go.py"
    path.write_text(code)
    return popen(path, cwd=folder, **environment)


@pytest.mark.slow
def test_a_script_trains_in_a_thread_to_the_shells_weights(tmp_path, trained_once):
    """Without `if __name__`, with torch on other threads, and with a child process of its own that
    stays.
    """
    code = f"""
import os, subprocess, sys, threading
import torch
torch.set_num_threads(3)
torch.ones(100, 100) @ torch.ones(100, 100)
import lockstep

before = dict(os.environ)
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
thread = threading.Thread(target=lambda: runs.append(lockstep.train("digits", steps={STEPS}, processes=2)))
runs = []
thread.start()
thread.join()
assert child.poll() is None
child.communicate(b"\\n")
assert torch.get_num_threads() == 3
assert dict(os.environ) == before
run = runs[0]
record = lockstep.evaluate(run, processes=1, quiet=True)
print("sha", run.result()["weights_sha256"], run.state, record.accuracy == run.accuracy)
"""
    out = finished(script(tmp_path, code, OMP_NUM_THREADS="2", MKL_NUM_THREADS="3"))
    _, record = trained_once(*ALONE)
    assert f"sha {record['weights_sha256']} complete True" in out
    assert "\r" not in out
    assert "step 0, loss" in out


class Kept(logging.Handler):
    """A handler that keeps (level, text) of each message."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        self.seen.append((record.levelname, record.getMessage()))


def messages_of_a_run(tmp_path, **options):
    """Return what the logger has of a run, with a handler on it as users add one."""
    handler, logger = Kept(), logging.getLogger("lockstep")
    logger.addHandler(handler)
    try:
        lockstep.train("digits", steps=3, eval_every=2, processes=1, runs=tmp_path, **options)
    finally:
        logger.removeHandler(handler)
    return handler.seen


def test_a_handler_gets_start_steps_evaluations_and_end(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a notebook
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    seen = messages_of_a_run(tmp_path)
    texts = [text for level, text in seen if level == "INFO"]
    assert texts[0].startswith("  data     digits: 1442 training")
    parts = ("step 0, loss", "after 2 steps, accuracy", "step 2, loss", "  accuracy", "  next")
    places = [[part in text for text in texts].index(True) for part in parts]
    assert places == sorted(places)
    assert not any("\x1b" in text or "\r" in text for text in texts)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_notes_are_warnings_and_a_level_leaves_only_these(tmp_path, monkeypatch, capfd, request):
    (tmp_path / "mynet.py").write_text(
        "import logging\n"
        + MODEL.replace(
            "    return", '    logging.getLogger("lockstep").warning("a note")\n    return'
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    logger = logging.getLogger("lockstep")
    request.addfinalizer(lambda: logger.setLevel(logging.INFO))
    logger.setLevel(logging.WARNING)
    own = {"model": "mynet:build", "settings": {"weight_decay": {}}, "trust_code": True}
    seen = messages_of_a_run(tmp_path, **own)
    assert ("WARNING", "a note") in seen
    assert {level for level, _ in seen} == {"WARNING"}
    assert any(text.startswith("  warning   this accuracy may be chance") for _, text in seen)
    assert messages_of_a_run(tmp_path, quiet=True) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_model_beside_the_script_trains_as_in_the_shell(tmp_path, here):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/mynet.py").write_text(MODEL)
    code = """
import lockstep, mynet
run = lockstep.train("digits", steps=3, processes=1, model=mynet.build, settings={"weight_decay": {}}, quiet=True)
print(run.recipe().model, run.result()["weights_sha256"])
again = lockstep.train(run, resume=True, trust_code=True)
"""
    out = finished(script(tmp_path, code))
    options = ("--steps", 3, "--model", "mynet:build", "--set", "weight_decay={}", "--json")
    done = succeeded(here("train", "digits", *options, cwd=tmp_path / "scripts"))
    sha = json.loads(done.stdout)["weights_sha256"]
    assert out.splitlines() == [f"mynet:build {sha}"]


@pytest.mark.slow
def test_ctrl_c_saves_a_run_that_resumes_to_the_same_weights(tmp_path, trained_once):
    code = f"""
import lockstep
run = lockstep.train("digits", steps={LONG}, processes=2, name="long", log_every=1)
print("returned", run.state, run.accuracy, run.result(), flush=True)
run = lockstep.train("runs/long", resume=True, processes=1, quiet=True)
print("sha", run.result()["weights_sha256"])
"""
    process = script(tmp_path, code)
    printed = []
    for line in process.stdout:
        printed.append(line)
        if "step 1, loss" in line:
            process.send_signal(signal.SIGINT)
            break
    printed.append(finished(process))
    out = "".join(printed)
    assert "returned stopped None None" in out
    _, record = trained_once("--steps", LONG, "--processes", 1)
    assert f"sha {record['weights_sha256']}" in out


@pytest.mark.slow
def test_sigterm_saves_and_then_ends_the_program_as_usual(tmp_path):
    (tmp_path / "temporary").mkdir()
    code = "import lockstep\nlockstep.train('digits', processes=1, name='long', log_every=1)\n"
    process = script(tmp_path, code, TMPDIR=str(tmp_path / "temporary"))
    while "step 1, loss" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert "saved" in out
    # that of the start, and the last
    assert len(list((tmp_path / "runs/long/checkpoints").glob("step-*"))) == 2
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_signal_that_comes_before_an_error_is_not_lost(tmp_path, monkeypatch):
    def run(supervisor):
        os.kill(os.getpid(), signal.SIGTERM)
        raise LockstepError("no room")

    raised = []
    monkeypatch.setattr(Supervisor, "run", run)
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    with lockstep_error("no room"):
        lockstep.train("digits", name="x", runs=tmp_path, quiet=True)
    assert raised == [signal.SIGTERM]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"what": "digit"}, "unknown recipe 'digit': did you mean digits"),
        ({"what": 3}, "what: got a int"),
        ({"epoch": 3}, "unknown option 'epoch': did you mean epochs"),
        ({"label_smoothing": 0.1}, r"give settings=\{'label_smoothing': ...\}"),
        ({"settings": {"optimiser.momentum": 1}}, "unknown recipe setting 'optimiser'"),
        ({"settings": {"lr": 0.1}, "lr": 0.2}, "set the same setting: give one"),
        ({"device": "gpu"}, "give auto, cpu, cuda"),
        ({"resume": True}, "resume=True continues a run"),
        (
            {"model": "__main__:build"},
            "put it in a file, for example mynet.py, and give model='mynet:build'",
        ),
        ({"model": lambda shape, classes: None}, "cannot be imported by its name"),
    ],
)
def test_a_mistake_is_one_lockstep_error_before_anything_starts(
    tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)
    with lockstep_error(message):
        lockstep.train(**arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_quiet_prints_nothing_and_a_workers_error_is_raised(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with lockstep_error("mnist", DATA):
        lockstep.train("mnist", data=tmp_path / "nowhere", processes=1, quiet=True)
    assert capfd.readouterr() == ("", "")


def test_a_worker_process_is_refused(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_RENDEZVOUS", "x")
    with lockstep_error("Move the model into a file of its own"):
        lockstep.train()


@pytest.mark.slow
def test_output_of_a_run_with_init_goes_to_the_callers_stdout(
    tmp_path, monkeypatch, capsys, trained_once
):
    """capsys replaces sys.stdout, not the descriptor."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of pytest
    first = lockstep.Run.open(trained_once(*ALONE)[0])
    run = lockstep.train(
        init=first, steps=1, processes=1, settings={"optimizer.momentum": 0.5}, seed=None, lr=1e-9
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("step 0, loss") == 1
    assert run.path == tmp_path / "runs/digits-1"
    assert run.recipe().optimizer.momentum == 0.5
    assert run.recipe().init_sha256
    assert repr(run) == f"<Run {run.path}: complete, accuracy {run.accuracy:.2%}>"
    images = load(None)["test"].images[:50].numpy()
    labels = [[p.label for p in lockstep.load(each).predict(images)] for each in (first, run)]
    # A step moves the running averages of the norms. Without the initial weights, 5 of 50 labels
    # would agree.
    assert sum(map(str.__eq__, *labels)) >= 30


def test_data_in_memory_trains_as_the_dataset_it_came_from(tmp_path, monkeypatch, trained_once):
    monkeypatch.chdir(tmp_path)
    digits = {name: (part.images.numpy(), part.labels.numpy()) for name, part in load(None).items()}
    digits["classes"] = list("abcdefghij")
    small = {"portable": False, "towers": 2, "batch": 48, "steps": 30}  # as NATIVE
    # The program's modes of torch do not count.
    with torch.inference_mode(), torch.autocast("cpu"), torch.no_grad():
        own = lockstep.train("digits", data=digits, name="memory", inline=True, quiet=True, **small)
    assert own.classes == tuple("abcdefghij")
    assert own.recipe().dataset == "memory"
    _, record = trained_once(*NATIVE)
    assert own.result()["weights_sha256"] == record["weights_sha256"]
    assert own.accuracy == record["accuracy"]["ema"]
    with lockstep_error("give one of them"):
        lockstep.train("digits", data=digits, dataset="mnist")


@pytest.mark.parametrize(("what", "px"), [({}, 48), ({"what": "digits"}, None)])
def test_data_in_memory_has_the_image_size_of_the_run_in_init(tmp_path, monkeypatch, what, px):
    def stored(data, image_px):
        raise LockstepError(f"stored at {image_px}")

    monkeypatch.setattr("lockstep.data.arrays.store", stored)
    run = RunFolder.create(tmp_path / "photos", get_recipe("folder").replace(image_px=48))
    run.close()
    run.model.write_bytes(b"weights")
    with lockstep_error(f"stored at {px}"):
        lockstep.train(data={"train": [], "test": []}, quiet=True, init=run.path, **what)


def test_evaluate_refuses_what_the_command_line_refuses(trained_once):
    path, _ = trained_once(*NATIVE)
    for arguments, message in (
        ({"checkpoint": True}, "give best"),
        ({"weights": "zz"}, "weights: got 'zz'"),
    ):
        with lockstep_error(message):
            lockstep.evaluate(path, quiet=True, **arguments)


def test_every_public_name_exists_and_has_a_docstring():
    assert {"train", "evaluate", "load", "Run", "Classifier", "Recipe", "RECIPES"} <= set(
        lockstep.__all__
    )
    for name in lockstep.__all__:
        assert getattr(lockstep, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        lockstep.trian  # noqa: B018
