"""What is printed with --verbose, through the real program."""

import re

import pytest


@pytest.mark.slow
def test_a_verbose_run_says_what_is_where(program, tmp_path):
    (tmp_path / "a b é").mkdir()
    silent = program("train", "--steps", 2, "--processes", 2, TMPDIR=str(tmp_path / "a b é"))  # where processes meet
    assert "process 0" not in silent.stdout
    assert re.search(r"^  process 0 ", (tmp_path / "runs/digits-1/log.txt").read_text(), re.M)
    done = program("train", "--steps", 2, "--processes", 2, "-v", "--reduction", "central")
    assert done.returncode == 0, done.stderr
    where = r"\S+, pid (\d+), CPU \(\d+ cores?, 1 used\)"
    places = re.findall(rf"^  process (\d) +{where}: towers (\d) to (\d)$", done.stdout, re.M)
    assert [(process, first, last) for process, _, first, last in places] == [("0", "0", "1"), ("1", "2", "3")]
    assert places[0][1] != places[1][1]
    assert re.search(r"reduction +58,805 float32 values a step, 0.2 MiB; process 0 adds all vectors", done.stdout)
