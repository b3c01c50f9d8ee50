"""The road of a job, from the caller to its worker processes and back: what on it may not change a
run or hide its end.

One start of the real program for each kind of thing; the rest is in this process.
"""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.conftest import _outside
from tests.disturbed import STEPS, begin, end, sha256, workers, write_model
from tests.helpers import replica, succeeded
from tests.replicas import MemoryGroup, on_replicas

from lockstep.config.placement import Placement
from lockstep.jobs import agreement
from lockstep.jobs.agreement import require_agreement

ALONE = ("--steps", STEPS, "--processes", 1)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_failure_has_its_cause_once_though_sigchld_is_ignored(tmp_path, processes):
    """exec inherits that SIGCHLD is ignored. The system then forgets exit codes, and Python takes
    them for 0.
    """
    crash = f"if os.environ.get('RANK') == '{processes - 1}': raise RuntimeError('no such weights')"
    write_model(tmp_path, "mine", at_build=crash)
    line = (
        f"trap '' CHLD; exec {sys.executable} -m lockstep train --model mine:build --processes "
        f"{processes} -q"
    )
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env=_outside(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: no such weights") == 1
    assert f"process {processes - 1} crashed" in done.stderr


@pytest.mark.slow
def test_a_restart_continues_the_run_without_the_launchers_files(started, tmp_path, trained_once):
    """Programs that clean a temporary folder remove them in a long run: heartbeats, rendezvous, the
    run's path.
    """
    (tmp_path / "temporary").mkdir()
    process, children = begin(started, 2, TMPDIR=str(tmp_path / "temporary"))
    for path in (tmp_path / "temporary").iterdir():
        shutil.rmtree(path)
    workers(children)[1].kill()
    out, err = end(process)
    assert (process.returncode, err) == (0, "")
    assert "restart 1 of 3" in out
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["x"]
    assert sha256(out) == trained_once(*ALONE)[1]["weights_sha256"]


@pytest.mark.slow
def test_flags_that_a_module_sets_on_import_do_not_last(here, tmp_path):
    write_model(
        tmp_path,
        "mine",
        "self.training",
        "pathlib.Path('flags').write_text(f'{torch.get_num_threads()} "
        "{torch.are_deterministic_algorithms_enabled()}')",
    )
    model = tmp_path / "mine.py"
    head = "import torch\ntorch.set_num_threads(7)\ntorch.use_deterministic_algorithms(False)\n"
    model.write_text(head + model.read_text())
    succeeded(here("train", "--no-portable", "--model", "mine:build", "--steps", 1))
    assert (tmp_path / "flags").read_text() == "1 True"


def test_hosts_with_other_intervals_are_told_the_options():
    def agree(group: MemoryGroup) -> None:
        built = replica({})
        built.group, built.placement = group, Placement(eval_every=1 + group.process)
        require_agreement(built)

    for ended in on_replicas(2, agree):
        assert "do not have the same --eval-every (1 and 2), so" in str(ended)


def test_hosts_that_compute_differently_end_before_they_train(monkeypatch):
    this = threading.local()
    monkeypatch.setattr(agreement, "probe", lambda *_: f"on CPU {this.process}")

    def agree(group: MemoryGroup) -> None:
        this.process = group.process
        built = replica({})
        built.group = group
        require_agreement(built)

    for ended in on_replicas(2, agree):
        assert "do not have the same arithmetic" in str(ended)


def test_inline_computes_in_the_caller(here, tmp_path):
    write_model(tmp_path, "mine", at_build="pathlib.Path('pid').write_text(str(os.getpid()))")
    assert here("train", "--model", "mine:build", "--steps", 1, "--inline").returncode == 0
    assert Path(tmp_path / "pid").read_text() == str(os.getpid())
