"""Signals, kills and crowds, with the real program and real processes; the oracle is an undisturbed run's sha256."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

STEPS = 60


@pytest.fixture
def undisturbed(trained_once):
    """The sha256 of the run the tests below disturb."""
    _, record = trained_once("--steps", STEPS, "--processes", 1)
    return record["weights_sha256"]


def begin(started, processes, *options, steps=STEPS, **environment):
    """A run that has trained a few steps, and its launcher's children."""
    process = started(
        "train", "--steps", steps, "--processes", processes, "--name", "x", "--log-every", 1, "--save-every", 5,
        *options, **environment,
    )  # fmt: skip
    for line in process.stdout:
        if ": step 7," in line:
            break
    else:
        pytest.fail(process.stderr.read())
    return process, psutil.Process(process.pid).children(recursive=True)


def end(process):
    out, err = process.communicate(timeout=240)
    assert "Traceback" not in err
    return out, err


def slow_model(folder, condition, action):
    """Write slow.py with a `build` whose network does `action` before a forward pass under `condition`."""
    (folder / "slow.py").write_text(
        "import os, pathlib, time\n"
        "from lockstep.models.digits import Digits\n"
        "class Slow(Digits):\n"
        "    def forward(self, images):\n"
        f"        {condition}\n"
        f"            {action}\n"
        "        return super().forward(images)\n"
        "def build(shape, classes):\n"
        "    return Slow(shape, classes)\n"
    )


def model_that_crashes_in_process_1(folder):
    """Write mine.py with a `build` that raises an error in process 1."""
    (folder / "mine.py").write_text(
        "import os\n"
        "from lockstep.models.digits import build as digits\n"
        "def build(shape, classes):\n"
        "    if os.environ.get('RANK') == '1':\n"
        "        raise RuntimeError('no such weights')\n"
        "    return digits(shape, classes)\n"
    )


def resume(program, processes):
    done = program("train", "runs/x", "--resume", "--processes", processes, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["weights_sha256"]


def workers_among(children):
    """The worker processes, in order of number."""
    workers = [child for child in children if "lockstep.launch.worker" in " ".join(child.cmdline())]
    return sorted(workers, key=lambda worker: int(worker.environ()["RANK"]))


def gone(children):
    _, alive = psutil.wait_procs(children, timeout=20)
    return not alive


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "processes"),
    [
        pytest.param(signal.SIGINT, 130, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, 2, marks=pytest.mark.slow),
        (signal.SIGTERM, 143, 2),
    ],
)
def test_a_signal_saves_at_one_step_and_another_count_goes_on(
    started, program, tmp_path, undisturbed, number, code, processes
):
    process, children = begin(started, processes)
    process.send_signal(number)
    out, err = end(process)
    assert process.returncode == code
    assert err == ""
    step = int(out.split("after ")[-1].split()[0])
    assert f"after {step} steps, saved" in out
    assert "lockstep train runs/x --resume" in out
    assert (tmp_path / f"runs/x/checkpoints/step-{step:09d}/manifest.json").exists()
    assert gone(children)
    assert resume(program, 3 - processes) == undisturbed


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(started, tmp_path):
    slow_model(tmp_path, "if self.training and pathlib.Path('be-slow').exists():", "time.sleep(30)")
    for processes in (1, 2):
        (tmp_path / "be-slow").unlink(missing_ok=True)  # the probe computes the model before the run begins
        process = started(
            "train", "--model", "slow:build", "--processes", processes, "--name", f"x{processes}", "--steps", 100_000
        )
        for line in process.stdout:
            if " run " in line:
                break
        (tmp_path / "be-slow").touch()
        time.sleep(1)  # into a step that takes minutes
        process.send_signal(signal.SIGINT)
        time.sleep(1.5)
        assert process.poll() is None
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=10)
        assert process.returncode == 130
        assert gone(children)
        assert process.stderr.read() == ""


def test_processes_that_do_not_agree_are_refused(program, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import random, torch\n"
        "from lockstep.models.digits import build as digits\n"
        "def build(shape, classes):\n"
        "    model = digits(shape, classes)\n"
        "    torch.nn.init.constant_(model.logits.bias, random.random())\n"
        "    return model\n"
    )
    done = program("train", "--model", "mine:build", "--processes", 2)
    assert done.returncode == 4
    assert done.stderr.startswith("lockstep: process 0 (host ")
    assert "and process 1 (host " in done.stderr
    assert "do not have the same weights" in done.stderr


@pytest.mark.slow
def test_sigterm_to_one_process_stops_all(started, tmp_path):
    process, children = begin(started, 3, steps=5000)
    workers = workers_among(children)
    assert len(workers) == 3
    workers[2].terminate()
    out, _ = end(process)
    assert process.returncode == 143
    assert "saved" in out
    assert gone(children)


@pytest.mark.slow
def test_kill_9_of_one_process_without_restarts_ends_all_and_nothing_is_lost(started, program, undisturbed):
    process, children = begin(started, 3, "--max-restarts", 0)
    workers = workers_among(children)
    start = time.monotonic()
    workers[1].kill()
    _, err = end(process)
    assert time.monotonic() - start < 20
    assert process.returncode == 4
    assert err.startswith("lockstep: process 1 of 3 (tower 1) was killed by SIGKILL in step ")
    assert "lockstep train runs/x --resume" in err
    assert len(err.strip().splitlines()) == 1
    assert gone(children)
    assert resume(program, 2) == undisturbed


@pytest.mark.slow
def test_kill_9_of_everything_and_resume(started, program, undisturbed):
    process, children = begin(started, 2)
    for victim in [psutil.Process(process.pid), *children]:
        victim.kill()
    process.communicate()
    assert gone(children)
    assert resume(program, 3) == undisturbed


@pytest.mark.slow
def test_processes_do_not_outlive_a_killed_launcher(started):
    process, children = begin(started, 2)
    process.kill()
    assert gone(children)


@pytest.mark.slow
def test_two_programs_cannot_train_in_one_folder(started, program):
    process, _ = begin(started, 1, steps=5000)
    second = program("train", "runs/x", "--resume", "--processes", 1)
    assert second.returncode == 4
    assert "another program is training in runs/x" in second.stderr
    process.send_signal(signal.SIGINT)
    end(process)
    assert process.returncode == 130


def test_a_crash_in_one_process_is_told_once_with_its_cause(program, tmp_path):
    model_that_crashes_in_process_1(tmp_path)
    done = program("train", "--model", "mine:build", "--processes", 3)
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: no such weights") == 1
    assert "process 1 crashed" in done.stderr


@pytest.mark.slow
def test_under_torchrun(tmp_path, undisturbed):
    """The same entry point joins an outer launch."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
        "-m", "lockstep", "train", "--steps", str(STEPS), "--name", "outer", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["processes"] == 2
    assert result["weights_sha256"] == undisturbed


@pytest.mark.slow
def test_ctrl_c_ends_an_evaluation_without_a_traceback(started, program, tmp_path):
    slow_model(tmp_path, "if pathlib.Path('be-slow').exists():", "pathlib.Path('evaluating').touch(); time.sleep(60)")
    program("train", "--model", "slow:build", "--steps", 2, "--processes", 1, "--name", "x")
    (tmp_path / "be-slow").touch()
    for processes in (1, 2):
        process = started("eval", "runs/x", "--model", "slow:build", "--processes", processes)
        while not (tmp_path / "evaluating").exists():
            time.sleep(0.1)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, err = end(process)
        assert process.returncode == 130
        assert err == ""
        assert gone(children)
        (tmp_path / "evaluating").unlink()
