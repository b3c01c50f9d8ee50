"""lockstep runs: every run in a folder, damaged ones too."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from lockstep.runs.folder import Run
from lockstep.runs.listing import runs_in

OPTIONS = ("digits", "--steps", 30, "--processes", 2)


@pytest.fixture
def folder(tmp_path, trained_once):
    """Return a folder of runs: complete, stopped, training, without a recipe, and with a damaged result."""
    run, _ = trained_once(*OPTIONS)
    runs = tmp_path / "runs"
    for number, name in enumerate(("done", "stopped", "busy", "norecipe", "cut", "cleared")):
        shutil.copytree(run, runs / name)
        os.utime(runs / name / "recipe.json", (1e9 + number, 1e9 + number))
    for name in ("stopped", "busy"):
        (runs / name / "result.json").unlink()
    (runs / "norecipe/recipe.json").unlink()
    (runs / "cut/result.json").write_text('{"steps": 30')
    (runs / "cleared/result.json").write_text("[]")
    (runs / "notes").mkdir()
    (runs / "file").touch()
    return runs


def test_every_run_is_listed_in_order_of_its_start(folder, program, trained_once):
    held = Run(folder / "busy")
    held.lock()
    done = program("runs", "--json")
    held.unlock()
    assert (done.returncode, done.stderr) == (0, "")
    listed = json.loads(done.stdout)["runs"]
    assert [(run["name"], run["state"]) for run in listed] == [
        ("done", "complete"), ("stopped", "stopped"), ("busy", "training"), ("cut", "damaged"), ("cleared", "damaged"),
        ("norecipe", "damaged"),
    ]  # fmt: skip
    _, record = trained_once(*OPTIONS)
    first = listed[0]
    assert first["recipe"] == "digits"
    assert first["accuracy"] == record["accuracy"]["ema"]
    assert first["total_s"] == record["total_s"]
    assert first["steps"] == 30
    assert first["started"] == 1e9
    assert first["size_bytes"] == sum(path.stat().st_size for path in (folder / "done").rglob("*") if path.is_file())
    assert listed[1]["accuracy"] is None
    assert listed[1]["steps"] == 30
    assert ["recipe.json" in (run["problem"] or "") for run in listed] == [False] * 5 + [True]
    assert "result.json" in listed[3]["problem"]
    assert "result.json" in listed[4]["problem"]


def test_the_table_names_problems_below_their_runs(folder, program):
    done = program("runs")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["name", "recipe", "accuracy", "started", "time", "state", "size"]
    assert lines[1].split()[:2] == ["done", "digits"]
    assert "complete" in lines[1]
    assert "stopped, 30 steps" in lines[2]
    assert [line for line in lines if "no recipe.json" in line] == [lines[-1]]


def test_an_empty_or_missing_folder_is_no_error(program, tmp_path):
    for _ in range(2):
        done = program("runs")
        assert (done.returncode, done.stdout) == (0, "no runs in runs: lockstep train starts one\n")
        (tmp_path / "runs").mkdir(exist_ok=True)
    assert json.loads(program("runs", "--json").stdout) == {"runs": []}
    assert program("runs", "--runs", __file__).returncode == 2


def test_listing_needs_no_torch(folder):
    code = "import sys; from lockstep.cli import app; app(['runs'], standalone_mode=False); assert not "
    code += "{'torch', 'PIL'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder.parent, stdout=subprocess.DEVNULL)


def test_a_name_with_control_codes_is_escaped(program, tmp_path):
    (tmp_path / "runs/a\x1b[31m").mkdir(parents=True)
    (tmp_path / "runs/a\x1b[31m/recipe.json").write_text("{")
    assert [run.state for run in runs_in(tmp_path / "runs")] == ["damaged"]
    assert "\x1b" not in program("runs").stdout
