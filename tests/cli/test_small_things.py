"""Small things of the command line, through the real program."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_mistakes import DATA, USAGE, contents, refused
from tests.cli.test_survival import slow_model

from lockstep.runs import checkpoint

ROOT = Path(__file__).parents[2]
NEVER_BEGAN = "runs/a was stopped before its first step: starting again"


@pytest.fixture
def never_began(started, program, tmp_path):
    """runs/a, killed before its first step; without be-slow its model trains."""
    (tmp_path / "be-slow").touch()
    # Not before the run has begun: the arithmetic probe computes the model, too.
    slow = "while self.training and all(map(os.path.exists, ('be-slow', 'runs/a/log.txt'))):"
    slow_model(tmp_path, slow, "time.sleep(0.1)")
    process = started("train", "--model", "slow:build", "--steps", 2, "--processes", 1, "--name", "a")
    for line in process.stdout:
        if " run " in line:
            break
    while not (tmp_path / "runs/a/checkpoints/step-000000000").exists():
        assert process.poll() is None
    refused(program("train", "--name", "a"), USAGE, "runs/a exists")  # it is training
    process.send_signal(signal.SIGKILL)
    process.wait()
    (tmp_path / "be-slow").unlink()
    return tmp_path / "runs/a"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_failed_before_its_first_step_does_not_block_its_name(program, never_began, processes):
    done = program("train", "--name", "a", "--steps", 3, "--processes", processes)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(NEVER_BEGAN) == 1
    assert (never_began / "log.txt").read_text() == done.stdout
    before = contents(never_began)
    refused(program("train", "--name", "a"), USAGE, "runs/a exists", "--resume", "--name")
    assert contents(never_began) == before


@pytest.mark.slow
def test_it_can_be_resumed_all_the_same(program, never_began):
    done = program("train", never_began, "--resume", "--processes", 1, "--model", "slow:build")
    assert (done.returncode, done.stderr) == (0, "")
    assert NEVER_BEGAN not in done.stdout
    assert len((never_began / "environment.json").read_text().split('"step"')) == 3  # both sessions


CLEAR = "\x1b[2J"  # what clears the screen


@pytest.mark.slow
def test_what_is_printed_from_files_does_not_reach_the_terminal_as_control_codes(program, refused_here, tmp_path):
    done = program("train", "--steps", 2, "--processes", 1, "--name", "a")
    assert done.returncode == 0, done.stderr
    record = tmp_path / "runs/a/recipe.json"
    whole = record.read_text()
    named = json.loads(whole) | {"name": f"digits{CLEAR}"}
    record.write_text(json.dumps(named))
    for command in (("eval", "runs/a"), ("show", "runs/a"), ("train", "runs/a", "--resume")):
        done = refused_here(*command)
        refused(done, USAGE, "recipe setting name: got 'digits\\x1b[2J'")
        assert CLEAR not in done.stderr
    record.write_text(whole[:9] + CLEAR)
    assert CLEAR not in refused_here("eval", "runs/a").stderr
    record.write_text(json.dumps(json.loads(whole) | {"model_options": {"\x9b2J": CLEAR}}))
    shown = program("show", "runs/a").stdout
    assert {"\x1b", "\x9b"}.isdisjoint(shown)
    assert "\\U0000009b2J" in shown
    (tmp_path / "mine.py").write_text(f"def build(shape, classes):\n    raise ValueError({CLEAR!r})\n")
    for command in (("train", f"{CLEAR}.toml"), ("train", "--model", "mine:build", "--processes", 2)):
        done = program(*command)
        assert done.returncode > 0
        assert CLEAR not in done.stderr
        assert "\\x1b[2J" in done.stderr


@pytest.mark.slow
def test_damaged_metrics_do_not_keep_a_run_from_going_on(program, tmp_path):
    options = ("--steps", 8, "--save-every", 4, "--eval-every", 2, "--processes", 1, "--digest-every", 0)
    whole = json.loads(program("train", *options, "--name", "a", "--log-every", 1, "--json").stdout)
    run = tmp_path / "runs/a"
    for name in ("result.json", "checkpoints/step-000000008/manifest.json"):
        (run / name).unlink()
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(
        b"\xff\xfe\n" + b"".join(lines[:4]) + lines[4][:9] + b"\n" + b"".join(lines[5:])
    )
    done = program("train", run, "--resume", *options[2:], "--log-every", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{run}/metrics.jsonl: lines 1, 6 were damaged and deleted\n" in done.stdout
    assert json.loads((run / "result.json").read_text())["weights_sha256"] == whole["weights_sha256"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "evaluation"] == [2, 2, 4, 4, 6, 6, 8, 8]
    assert len(rows) == len(lines) - 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&- <&-"])
def test_no_file_gets_the_descriptor_of_a_closed_stream(tmp_path, closed):
    code = (
        "import sys; from lockstep.files import reserve_standard_streams\n"
        "reserve_standard_streams(); file = open('file', 'w')\n"
        "print('lost'); print('lost', file=sys.stderr); assert sys.stdin.read() == ''\n"
        "file.write(str(file.fileno() > 2))"
    )
    command = ["bash", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code]
    done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    shown = ["" if mark in closed.split() else "lost\n" for mark in (">&-", "2>&-")]
    assert (done.returncode, done.stdout, done.stderr) == (0, *shown)
    assert (tmp_path / "file").read_text() == "True"


@pytest.mark.slow
@pytest.mark.parametrize("closed", [pytest.param(">&-", marks=pytest.mark.slow), ">&- 2>&- <&-"])
def test_closed_streams_are_no_fault_of_a_run(tmp_path, closed):
    command = f"{sys.executable} -m lockstep train --steps 3 --processes 2 --name a {closed}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    run = tmp_path / "runs/a"
    log = (run / "log.txt").read_text()
    assert done.stdout == ""
    assert log.count("sec/batch)") == 2  # steps 0 and 2
    assert all(json.loads(line)["step"] <= 3 for line in (run / "metrics.jsonl").read_text().splitlines())
    assert checkpoint.latest(run / "checkpoints").manifest["step"] == 3


@pytest.mark.slow
def test_a_checkpoint_of_a_network_with_other_shapes_is_refused(program, tmp_path):
    model = (
        "from torch import nn\n"
        "def build(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, {}), nn.ReLU(), nn.Linear({}, classes))\n"
    )
    (tmp_path / "mine.py").write_text(model.format(8, 8))
    options = ("--model", "mine:build", "--set", "weight_decay={}", "--steps", 2, "--processes", 1, "--name", "a")
    done = program("train", *options)
    assert done.returncode == 0, done.stderr
    (tmp_path / "mine.py").write_text(model.format(1, 1))
    for processes in (1, 2):
        done = program("eval", "runs/a", "--processes", processes, "--model", "mine:build")
        done.stderr = "".join(line for line in done.stderr.splitlines(True) if "source of model" not in line)
        refused(done, DATA, "parameter/1.weight has shape [8, 64] in the checkpoint and [1, 64] in model mine:build")


@pytest.mark.parametrize("name", ["../x", "a b", ".a", CLEAR])
def test_a_runs_name_is_plain(program, tmp_path, name):
    done = program("train", "--name", name)
    refused(done, USAGE, f"--name {name!r} is not allowed", "give letters, digits")
    assert CLEAR not in done.stderr
    (tmp_path / "mine.toml").write_text(f'recipe = "digits"\nname = {json.dumps(name)}\n')
    refused(program("train", "mine.toml"), USAGE, f"name: got {name!r}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_says_what_it_sets_up_before_it_does():
    command = ["make", "--dry-run", "--always-make", "VENV=elsewhere", "train"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    where = [next(i for i, line in enumerate(lines) if words in line) for words in (
        f"Setting up {ROOT}/elsewhere: PyTorch and the rest, about ", "-m venv", "pip install",
        f"{ROOT}/elsewhere is ready", "lockstep train",
    )]  # fmt: skip
    assert where == sorted(where)
    assert " GB on disk" in lines[where[0]]
