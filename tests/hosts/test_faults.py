"""Hosts that die, are cut off, leave and join: the others end or continue in time, and nothing is lost.

The oracle is the weights_sha256 of an undisturbed run on one process. Bounds are generous: the machine may be busy.
"""

import json
import re
import time

import pytest
from tests.conftest import start

from lockstep.errors import ENVIRONMENT

STEPS = 60
TIMEOUT_S = 5
END_S = 90  # for processes to notice a fault, after the timeout
RUN_S = 400  # for a run that is disturbed, on two cores
TRAIN = (
    "train", "digits", "--model", "slow:build", "--set", "weight_decay={}", "--steps", STEPS, "--name", "x",
    "--log-every", 1, "--save-every", 5,
)  # fmt: skip
# It takes 0.2 s for a forward pass, so that a run lasts long enough for faults. Without the variable it is fast.
SLOW = """
import os, time
from lockstep.models.digits import Digits

class Slow(Digits):
    def forward(self, images):
        time.sleep(float(os.environ.get("SLOW_S", "0")))
        return super().forward(images)

def build(shape, classes):
    return Slow(shape, classes)
"""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """One folder for each host, with the model."""
    monkeypatch.setenv("SLOW_S", "0.2")
    made = [tmp_path / "h0", tmp_path / "h1"]
    for folder in made:
        folder.mkdir()
        (folder / "slow.py").write_text(SLOW)
    return made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The sha256 of the run on one process."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "slow.py").write_text(SLOW)
    process = start(*TRAIN, "--processes", 1, "--json", cwd=folder)
    out, err = process.communicate(timeout=RUN_S)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])["weights_sha256"]


@pytest.fixture
def begun(hosts, folders, undisturbed):
    """Four processes on two hosts that have trained some steps, with plain variables: two for each host."""
    programs = []
    for process in range(4):
        host = process // 2
        variables = {
            "RANK": process, "WORLD_SIZE": 4, "LOCAL_RANK": process % 2, "LOCAL_WORLD_SIZE": 2,
            "MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": 29500,
        }  # fmt: skip
        text = {name: str(value) for name, value in variables.items()}
        programs.append(hosts.lockstep(host, *TRAIN, "--timeout", TIMEOUT_S, cwd=folders[host], **text))
    wait_for(folders[0], ": step 12,", programs[:1])
    return programs


def wait_for(folder, pattern, programs, seconds=RUN_S):
    """Wait until the log of the run in `folder` contains `pattern` while the programs run, and return the log."""
    log, until = folder / "runs/x/log.txt", time.monotonic() + seconds
    while True:
        text = log.read_text() if log.exists() else ""
        if re.search(pattern, text, re.S):
            return text
        ended = [program for program in programs if program.poll() is not None]
        assert not ended, [program.communicate() for program in ended]
        assert time.monotonic() < until, text
        time.sleep(0.1)


def ended(programs):
    """The stderr of programs that must end by themselves after a fault, with the code for it."""
    until = time.monotonic() + TIMEOUT_S + END_S
    errors = [program.communicate(timeout=max(1, until - time.monotonic()))[1] for program in programs]
    assert [program.returncode for program in programs] == [ENVIRONMENT] * len(programs), errors
    assert not any("Traceback" in error for error in errors), errors
    return errors


def checkpoints(folder):
    return sorted(path.name for path in (folder / "runs/x/checkpoints").iterdir())


def resumed(program, folder):
    done = program(
        "train", "runs/x", "--resume", "--model", "slow:build", "--processes", 2, "--json", cwd=folder, SLOW_S="0"
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["weights_sha256"]


def test_a_host_dies_and_the_other_one_ends_and_names_it(hosts, begun, folders, program, undisturbed):
    hosts.kill(1)
    errors = ended(begun[:2])
    assert any(re.search(r"process [23] on host h1 gives no sign", error) for error in errors), errors
    assert hosts.processes(0) == []
    assert resumed(program, folders[0]) == undisturbed


def test_the_host_of_process_0_dies_and_the_other_one_ends(hosts, begun, folders, program, undisturbed):
    hosts.kill(0)
    errors = ended(begun[2:])
    assert any("lost the connection to process 0's host" in error for error in errors), errors
    assert hosts.processes(1) == []
    assert resumed(program, folders[0]) == undisturbed


def test_a_host_that_is_cut_off_ends_itself_and_so_does_the_rest(hosts, begun, folders, program, undisturbed):
    hosts.cut_off(1)
    errors = ended(begun)
    assert any(re.search(r"process [23] on host h1 gives no sign", error) for error in errors[:2]), errors
    assert any("lost the connection to process 0's host" in error for error in errors[2:]), errors
    before = checkpoints(folders[0])
    hosts.connect(1)
    assert hosts.processes(0) == hosts.processes(1) == []
    assert checkpoints(folders[0]) == before
    assert not (folders[1] / "runs").exists()
    assert resumed(program, folders[0]) == undisturbed


def test_torchrun_goes_on_with_the_hosts_that_are_there(hosts, torchrun, folders, undisturbed):
    """Host 1 dies, and comes back. Host 0 has the rendezvous and, as the first one, process 0."""
    train = (*TRAIN, "--timeout", TIMEOUT_S, "--json")

    def joined(host):
        return torchrun(host, *train, cwd=folders[host], nnodes="1:2", max_restarts=3)

    first, second = joined(0), joined(1)
    wait_for(folders[0], r"processes +4 on CPU.*: step \d+,", [first])
    hosts.kill(1)
    second.communicate()
    wait_for(folders[0], r"processes +4 on CPU.*processes +2 on CPU.*: step \d+,", [first])
    hosts.connect(1)
    third = joined(1)
    wait_for(folders[0], r"processes +2 on CPU.*processes +4 on CPU.*: step \d+,", [first, third])
    out, err = first.communicate(timeout=RUN_S)
    assert first.returncode == 0, err
    third.communicate(timeout=RUN_S)
    assert json.loads(out.splitlines()[-1])["weights_sha256"] == undisturbed
    assert not (folders[1] / "runs").exists()


def test_process_0_that_is_cut_off_writes_nothing_more_while_the_rest_goes_on(hosts, torchrun, folders, undisturbed):
    """Both hosts share the run's folder. Host 1 has the rendezvous, so it can go on without host 0."""
    shared = (*TRAIN, "--timeout", TIMEOUT_S, "--json", "--runs", folders[0] / "runs")
    first, second = (
        torchrun(host, *shared, cwd=folders[host], nnodes="1:2", store=1, max_restarts=3) for host in (0, 1)
    )
    wait_for(folders[0], r"processes +4 on CPU.*: step \d+,", [first, second])
    hosts.cut_off(0)
    out, err = second.communicate(timeout=RUN_S)
    assert second.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["weights_sha256"] == undisturbed
    workers = [process for process in hosts.processes(0) if process != first.pid]
    assert workers == []
    sessions = json.loads((folders[0] / "runs/x/environment.json").read_text())
    assert sessions[-1]["processes"] == 2
