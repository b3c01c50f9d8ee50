"""A program of a user, as a type checker sees it."""

import subprocess
import sys

import pytest
from tests.conftest import popen
from tests.documents import ROOT

PROGRAM = ROOT / "examples/from_python.py"


@pytest.mark.slow
def test_a_program_of_a_user_has_no_expression_of_any_type(tmp_path):
    words = ["--strict", "--disallow-any-expr", "--config-file=", f"--cache-dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, str(PROGRAM)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_program_runs(tmp_path):
    out, err = popen(str(PROGRAM), cwd=tmp_path).communicate()
    assert "of 200 images are right" in out, err
    assert (tmp_path / "runs/stripes/report.html").is_file()
    assert (tmp_path / "stripes.onnx").is_file()
