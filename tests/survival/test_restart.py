"""Processes that die, crash or stand still: the run goes on, and has the sha256 of an undisturbed run."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from tests.cli.test_survival import (  # noqa: F401
    STEPS,
    begin,
    end,
    gone,
    model_that_crashes_in_process_1,
    resume,
    undisturbed,
    workers_among,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUN = "runs/x"


def sha256(out):
    return re.search(r"sha256 +([0-9a-f]{64})", out)[1]


def failing_model(folder, action):
    """Write failing.py with a `build` whose network does `action` once training has moved its weights by some steps."""
    (folder / "failing.py").write_text(
        "import os, pathlib, signal, time\n"
        "from lockstep.models.digits import Digits\n"
        "class Failing(Digits):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__(shape, classes)\n"
        "        self.start = self.logits.bias.detach().clone()\n"
        "    def forward(self, images):\n"
        "        if self.training and float((self.logits.bias.detach() - self.start).abs().max()) > 0.01:\n"
        f"            {action}\n"
        "        return super().forward(images)\n"
        "def build(shape, classes):\n"
        "    return Failing(shape, classes)\n"
    )


@pytest.mark.parametrize("victim", [0, 2])
def test_kill_9_of_one_process_restarts_all(started, tmp_path, undisturbed, victim):  # noqa: F811
    (tmp_path / "temporary").mkdir()
    process, children = begin(started, 3, TMPDIR=str(tmp_path / "temporary"))
    workers_among(children)[victim].kill()
    out, err = end(process)
    assert process.returncode == 0, err
    assert sha256(out) == undisturbed
    assert f"process {victim} of 3 (tower" in out
    assert "was killed by SIGKILL in step " in out
    assert "restart 1 of 3" in out
    assert re.search(r"restarted +1 of at most 3; continues after step [1-9]", out)
    assert gone(children)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert "restart 1 of 3" in (tmp_path / RUN / "log.txt").read_text()


def test_a_killed_launcher_leaves_no_process_and_no_folder(started, tmp_path):
    (tmp_path / "temporary").mkdir()
    process, children = begin(started, 2, TMPDIR=str(tmp_path / "temporary"))
    process.kill()
    assert gone(children)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_step_that_always_fails_ends_the_run_with_a_diagnosis(program, tmp_path):
    failing_model(tmp_path, "raise RuntimeError('no such weights')")
    done = program("train", "--model", "failing:build", "--steps", 30, "--processes", 2, "--name", "x")
    assert done.returncode == 1
    assert re.search(r"step \d+ has failed 3 times in a row, so a restart does not help", done.stderr)
    assert done.stderr.count("RuntimeError: no such weights") == 1
    assert "lockstep train runs/x --resume" in done.stderr
    assert done.stdout.count("restarted") == 2


def test_the_number_of_restarts_is_limited(program, tmp_path):
    failing_model(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    done = program(
        "train", "--model", "failing:build", "--steps", 30, "--processes", 2, "--name", "x", "--max-restarts", 1
    )
    assert done.returncode == 4
    assert "was killed by SIGKILL" in done.stderr
    assert "--max-restarts 1 allows no further restart" in done.stderr


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_process_is_named_and_replaced(started, undisturbed, victim):  # noqa: F811
    process, children = begin(started, 2, "--timeout", 5)
    stopped = workers_among(children)[victim]
    stopped.suspend()
    out, err = end(process)
    assert process.returncode == 0, err
    assert f"process {victim} of 2 (towers" in out
    assert "gives no sign: it is stopped, frozen or cut off" in out
    assert sha256(out) == undisturbed
    assert gone(children)


def test_a_stuck_process_is_named_and_the_run_ends_after_the_third_time(program, tmp_path):
    failing_model(tmp_path, "time.sleep(600) if os.environ['RANK'] == '1' else None")
    done = program("train", "--model", "failing:build", "--steps", 30, "--processes", 2, "--name", "x", "--timeout", 3)
    assert done.returncode == 4
    assert "process 1 of 2 (towers 2 to 3) makes no progress" in done.stderr
    assert "has failed 3 times in a row" in done.stderr


@pytest.mark.parametrize("victim", [0, 1])
def test_sigterm_while_a_process_is_stopped_saves_in_time(started, program, tmp_path, undisturbed, victim):  # noqa: F811
    process, children = begin(started, 3)
    workers_among(children)[victim].suspend()
    time.sleep(1)  # so that the others wait for it
    begun = time.monotonic()
    process.terminate()
    _, err = end(process)
    assert time.monotonic() - begun < 90  # 10 to 15 s on a quiet machine
    assert process.returncode == 143
    assert f"process {victim} of 3" in err
    assert "the state after the last update was saved without it" in err
    assert "lockstep train runs/x --resume" in err
    assert gone(children)
    steps = [int(path.name.removeprefix("step-")) for path in (tmp_path / RUN / "checkpoints").iterdir()]
    assert max(steps) >= 8  # 7 was printed, and 5 and 10 are due by the number of steps
    assert resume(program, 2) == undisturbed


def torchrun(folder, *options):
    """Start `torchrun` with two processes that train, in `folder`."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--monitor-interval", "0.2",
        "-m", "lockstep", "train", "--steps", str(STEPS), "--log-every", "1", "--save-every", "5", *options,
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=folder, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ranks(process):
    """The processes that torchrun has started, in order of number."""
    found = [child for child in psutil.Process(process.pid).children(recursive=True) if "RANK" in child.environ()]
    return sorted(found, key=lambda child: int(child.environ()["RANK"]))


def until_step(process, step):
    for line in process.stdout:
        if f": step {step}," in line:
            return
    pytest.fail("the run has ended")


def test_torchrun_restarts_a_run_without_a_name_and_without_resume(tmp_path, undisturbed):  # noqa: F811
    process = torchrun(tmp_path)
    until_step(process, 7)
    ranks(process)[1].kill()
    until_step(process, 20)
    ranks(process)[0].kill()
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert sha256(out) == undisturbed
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits-1"]


def test_processes_do_not_outlive_a_killed_torchrun(tmp_path):
    process = torchrun(tmp_path)
    until_step(process, 7)
    children = ranks(process)
    process.kill()
    process.wait()
    assert gone(children)
    process.communicate()


def test_torchrun_finds_the_first_cause_in_its_error_file(tmp_path):
    model_that_crashes_in_process_1(tmp_path)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--log-dir", "logs", "--redirects", "3",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
        "-m", "lockstep", "train", "--model", "mine:build", "--name", "x",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    errors = [json.loads(path.read_text()) for path in tmp_path.glob("logs/**/error.json")]
    assert any("no such weights" in json.dumps(error) for error in errors)


def test_a_process_that_stands_still_under_torchrun_is_named_by_the_others(tmp_path):
    process = torchrun(tmp_path, "--timeout", "5")
    until_step(process, 7)
    victim = ranks(process)[1]
    victim.suspend()
    begun = time.monotonic()
    for line in process.stdout:
        if "gives no sign" in line:
            break
    assert "process 1 on host" in line
    assert time.monotonic() - begun < 90  # the timeout is 5 s
    victim.send_signal(signal.SIGKILL)
    process.kill()
    process.communicate()
