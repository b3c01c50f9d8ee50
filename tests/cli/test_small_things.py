"""Small things of the command line."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_mistakes import DATA, USAGE, refused
from tests.conftest import SHORT

ROOT = Path(__file__).parents[2]
CLEAR = "\x1b[2J"  # what clears the screen


@pytest.fixture
def finished(trained_once, tmp_path):
    """runs/a, a copy of a finished run, and its record."""
    path, record = trained_once(*SHORT)
    shutil.copytree(path, tmp_path / "runs/a")
    return tmp_path / "runs/a", record


def test_what_is_printed_from_files_does_not_reach_the_terminal_as_control_codes(here, finished, tmp_path):
    record = finished[0] / "recipe.json"
    whole = record.read_text()
    record.write_text(json.dumps(json.loads(whole) | {"name": f"digits{CLEAR}"}))
    for command in (("eval", "runs/a"), ("show", "runs/a"), ("train", "runs/a", "--resume")):
        done = here(*command)
        refused(done, USAGE, "recipe setting name: got 'digits\\x1b[2J'")
        assert CLEAR not in done.stderr
    record.write_text(whole[:9] + CLEAR)
    assert CLEAR not in here("eval", "runs/a").stderr
    record.write_text(json.dumps(json.loads(whole) | {"model_options": {"\x9b2J": CLEAR}}))
    shown = here("show", "runs/a").stdout
    assert {"\x1b", "\x9b"}.isdisjoint(shown)
    assert "\\U0000009b2J" in shown


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&- <&-"])
def test_no_file_gets_the_descriptor_of_a_closed_stream(tmp_path, closed):
    code = (
        "import sys; from lockstep.files import reserve_standard_streams\n"
        "reserve_standard_streams(); file = open('file', 'w')\n"
        "print('lost'); print('lost', file=sys.stderr)\n"
        "file.write(str(file.fileno() > 2))"
    )
    command = ["bash", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code]
    done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    shown = ["" if mark in closed.split() else "lost\n" for mark in (">&-", "2>&-")]
    assert (done.returncode, done.stdout, done.stderr) == (0, *shown)
    assert (tmp_path / "file").read_text() == "True"


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_checkpoint_of_a_network_with_other_shapes_is_refused(here, tmp_path, processes):
    model = (
        "from torch import nn\n"
        "def build(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, {0}), nn.ReLU(), nn.Linear({0}, classes))\n"
    )
    own = ("--model", "mine:build")
    (tmp_path / "mine.py").write_text(model.format(8))
    done = here("train", *own, "--set", "weight_decay={}", "--steps", 1, "--name", "a")
    assert done.returncode == 0, done.stderr
    (tmp_path / "mine.py").write_text(model.format(1))
    done = here("eval", "runs/a", "--processes", processes, "--trust-code")
    done.stderr = "".join(line for line in done.stderr.splitlines(True) if "source of model" not in line)
    refused(done, DATA, "ema/1.bias is [8, torch.float32] in the checkpoint and [1, torch.float32] in model mine:build")
