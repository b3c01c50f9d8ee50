"""What the start-up block and the log say when asked, through the real program."""

import json
import re

import pytest


@pytest.mark.slow
def test_log_placement_says_what_is_where(program, tmp_path):
    (tmp_path / "a b é").mkdir()
    silent = program("train", "--steps", 2, "--processes", 2, TMPDIR=str(tmp_path / "a b é"))  # where processes meet
    assert "process 0" not in silent.stdout
    done = program("train", "--steps", 2, "--processes", 2, "--log-placement", "--reduction", "central")
    assert done.returncode == 0, done.stderr
    where = r"\S+, pid (\d+), CPU \(\d+ cores?, 1 used\), [\d.]+ GiB"
    places = re.findall(rf"^  process (\d) +{where}: towers (\d) to (\d)$", done.stdout, re.M)
    assert [(process, first, last) for process, _, first, last in places] == [("0", "0", "1"), ("1", "2", "3")]
    assert places[0][1] != places[1][1]
    assert re.search(r"in each +parameters, float32 0.2 MiB, their average 0.2 MiB, .*data 0.1 MiB", done.stdout)
    assert re.search(r"reduction +58,829 float32 values a step, 0.2 MiB; process 0 adds all vectors", done.stdout)


def test_the_last_towers_loss_in_the_log_changes_no_bit(here, tmp_path):
    rows, hashes = {}, set()
    for name in ("mean", "last"):
        done = here("train", "--steps", 4, "--log-every", 1, "--log-loss", name, "--name", name, "--json")
        hashes.add(json.loads(done.stdout)["weights_sha256"])
        every = map(json.loads, (tmp_path / f"runs/{name}/metrics.jsonl").read_text().splitlines())
        rows[name] = [row for row in every if row["kind"] == "step"]
    assert len(hashes) == 1
    assert [row["loss"] for row in rows["mean"]] == [row["loss"] for row in rows["last"]]
    assert [row["logged_loss"] for row in rows["mean"]] != [row["logged_loss"] for row in rows["last"]]


@pytest.mark.slow
def test_profile_of_a_run_on_two_processes(program, tmp_path):
    done = program("train", "--steps", 8, "--processes", 2, "--profile", "steps=3:5", "--name", "p")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "profile of steps 3 to 4: runs/p/profile" in done.stdout
    trace = json.loads((tmp_path / "runs/p/profile/trace-3-5.pt.trace.json").read_text())
    assert any("send" in str(event.get("name")) for event in trace["traceEvents"])
