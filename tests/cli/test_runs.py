"""lockstep runs: every run in a folder, damaged ones too."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.unit.test_replay import OPTIONS

from lockstep.commands.runs import runs
from lockstep.errors import LockstepError
from lockstep.runs.folder import Folder


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


def test_every_run_is_listed_in_order_of_its_start(folder, capsys, trained_once):
    held = Folder(folder / "busy")
    held.lock()
    runs(folder, json_output=True)
    held.close()
    listed = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["name"], run["state"]) for run in listed] == [
        ("done", "complete"), ("stopped", "stopped"), ("busy", "training"), ("cut", "damaged"), ("cleared", "damaged"),
        ("norecipe", "damaged"),
    ]  # fmt: skip
    _, record = trained_once(*OPTIONS)
    assert listed[0] == {
        "name": "done", "recipe": "digits", "accuracy": record["accuracy"]["ema"], "total_s": record["total_s"],
        "steps": 30, "started": 1e9, "state": "complete", "problem": None,
    }  # fmt: skip
    assert (listed[1]["accuracy"], listed[1]["steps"]) == (None, 30)
    named = [
        next((name for name in ("recipe.json", "result.json") if name in (run["problem"] or "")), None)
        for run in listed
    ]
    assert named == [None, None, None, "result.json", "result.json", "recipe.json"]


def test_the_table_names_problems_below_their_runs(folder, capsys):
    runs(folder)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "recipe", "accuracy", "started", "time", "state"]
    assert lines[1].split()[:2] == ["done", "digits"]
    assert "complete" in lines[1]
    assert "stopped, 30 steps" in lines[2]
    assert [line for line in lines if "no recipe.json" in line] == [lines[-1]]


def test_an_empty_or_missing_folder_is_no_error_and_a_name_is_escaped(tmp_path, capsys):
    for _ in range(2):
        runs(tmp_path / "runs")
        assert capsys.readouterr().out.startswith(f"no runs in {tmp_path}/runs: `")
        (tmp_path / "runs").mkdir(exist_ok=True)
    (tmp_path / "runs/a\x1b[31m").mkdir()
    (tmp_path / "runs/a\x1b[31m/recipe.json").write_text("{")
    runs(tmp_path / "runs")
    out = capsys.readouterr().out
    assert "damaged" in out
    assert "\x1b" not in out
    with pytest.raises(LockstepError, match="cannot be read"):
        runs(tmp_path / "runs/a\x1b[31m/recipe.json")


def test_the_program_lists_without_torch(folder):
    code = "import sys; from lockstep.commands.program import app; app(['runs'], standalone_mode=False); assert not "
    code += "{'torch', 'PIL'} & sys.modules.keys()"
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=folder.parent, capture_output=True, text=True)
    assert len(done.stdout.splitlines()) == 10
