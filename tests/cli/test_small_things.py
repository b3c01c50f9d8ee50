"""Small things of the command line, through the real program."""

import signal

import pytest
from tests.cli.test_mistakes import USAGE, contents, refused
from tests.cli.test_survival import slow_model

NEVER_BEGAN = "runs/a was stopped before its first step: started anew"


@pytest.fixture
def never_began(started, program, tmp_path):
    """runs/a, killed before its first step; without be-slow its model trains."""
    (tmp_path / "be-slow").touch()
    slow_model(tmp_path, "while self.training and pathlib.Path('be-slow').exists():", "time.sleep(0.1)")
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


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_failed_before_its_first_step_does_not_block_its_name(program, never_began, processes):
    done = program("train", "--name", "a", "--steps", 3, "--processes", processes)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(NEVER_BEGAN) == 1
    assert (never_began / "log.txt").read_text() == done.stdout
    before = contents(never_began)
    refused(program("train", "--name", "a"), USAGE, "runs/a exists", "--resume", "--name")
    assert contents(never_began) == before


def test_it_can_be_resumed_all_the_same(program, never_began):
    done = program("train", never_began, "--resume", "--processes", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert NEVER_BEGAN not in done.stdout
    assert len((never_began / "environment.json").read_text().split('"step"')) == 3  # both sessions
