"""A stdout or stderr that takes no more, as on a full disk, ends no run and hides no exit code; what
else ends a program.
"""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import _outside
from tests.helpers import lockstep_error, read_json, refused

import lockstep
from lockstep.errors import CRASH, ENVIRONMENT, USAGE


def on_full_disk(stream, *words, cwd):
    """Run the program with a `stream` on a full disk."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "lockstep", *map(str, words)]
        return subprocess.run(
            command, cwd=cwd, env=_outside(), text=True, check=False, **pipes | {stream: full}
        )


@pytest.mark.slow
def test_a_run_whose_lines_are_lost_is_complete(tmp_path):
    done = on_full_disk("stdout", "train", "digits", "--steps", 2, "--name", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_json(tmp_path / "runs/a/result.json")["steps"] == 2
    assert "again" not in done.stderr


@pytest.mark.parametrize(
    ("stream", "words", "code", "said"),
    [
        ("stderr", ("train", "digit"), USAGE, ""),
        ("stdout", ("recipes",), ENVIRONMENT, "stdout cannot be written: No space left on device"),
    ],
)
def test_an_exit_code_is_kept(tmp_path, stream, words, code, said):
    done = on_full_disk(stream, *words, cwd=tmp_path)
    assert done.returncode == code
    assert said in (done.stdout or "") + (done.stderr or "")
    assert "Traceback" not in (done.stderr or "")


@pytest.mark.slow
def test_a_model_that_ends_the_program_is_named(tmp_path, program, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("import sys\n\n\ndef net(shape, classes):\n    sys.exit('bye')\n")
    done = program("train", "digits", "--model", "net:net", "--steps", 2)
    assert done.returncode == CRASH
    sentence = "the model or dataset called sys.exit('bye')"
    assert sentence in done.stderr
    with lockstep_error(re.escape(sentence)):
        lockstep.train("digits", model="net:net", steps=2, inline=True, quiet=True)


def test_a_system_that_opens_no_more_files_is_named(here, monkeypatch):
    def app(prog_name):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a.png")

    monkeypatch.setattr("lockstep.commands.program.app", app)
    refused(here("recipes"), ENVIRONMENT, "a.png: the system refuses it", "Too many open files")
