"""`lockstep train --init`: runs that start from the weights of a file or of another run."""

import json
import re
import shutil

import pytest
from tests.conftest import NATIVE, SHORT
from tests.helpers import read_json, refused, succeeded

from lockstep.errors import USAGE


@pytest.fixture
def parent(trained_once, tmp_path):
    """A copy of a finished run."""
    path, record = trained_once(*SHORT)
    shutil.copytree(path, tmp_path / "runs/parent")
    return record


@pytest.mark.slow
def test_a_new_run_starts_from_final_weights_on_any_processes(program, parent, tmp_path):
    hashes = set()
    for processes in (1, 2):
        done = succeeded(
            program(
                "train",
                "--init",
                "runs/parent",
                "--processes",
                processes,
                "--epochs",
                0.5,
                "--json",
            )
        )
        record = json.loads(done.stdout)
        assert (record["recipe"], record["run"]) == ("digits", f"runs/digits-{processes}")
        assert "network  digits: 58,474 parameters, from the weights " in done.stderr
        assert (
            ": 17 of 17 tensors are loaded\n" in (tmp_path / record["run"] / "log.txt").read_text()
        )
        hashes.add(record["weights_sha256"])
    assert len(hashes - {parent["weights_sha256"]}) == 1
    shown = program("show", "runs/digits-1").stdout
    assert re.search(r'^init_sha256 = "[0-9a-f]{64}"$', shown, re.M)
    assert re.search(r"^epochs = 0\.5$", shown, re.M)

    (tmp_path / "runs/digits-2/result.json").unlink()
    shutil.rmtree(tmp_path / "runs/parent")
    done = program("train", "runs/digits-2", "--resume", "--processes", 1, "--json")
    assert json.loads(done.stdout)["weights_sha256"] in hashes


def test_a_run_of_an_own_model_needs_trust(here, trained_once, tmp_path):
    shutil.copytree(trained_once(*NATIVE)[0], tmp_path / "runs/parent")
    recipe = tmp_path / "runs/parent/recipe.json"
    recipe.write_text(json.dumps(read_json(recipe) | {"model": "netfile:Net"}))
    refused(here("train", "--init", "runs/parent"), USAGE, "executes its code", "--trust-code")
