"""Hosts that die, are cut off, leave and join: the others end or continue in time, and nothing is
lost.

The oracle is the weights_sha256 of an undisturbed run on one process. Bounds are generous: the
machine may be busy.
"""

import json
import os
import re
import shutil
import signal
import sys
import time

import pytest
from tests.disturbed import resume
from tests.helpers import read_json
from tests.hosts.conftest import TRAIN, of_mpich
from tests.namespaces import INTERFACE

from lockstep.errors import ENVIRONMENT

TIMEOUT_S = 1  # processes wait ten times as long for each other
END_S = 90  # for processes to notice a fault, after the timeout
RUN_S = 400  # for a run that is disturbed, on two cores
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def begun(hosts, folders, undisturbed):
    """Four processes on two hosts that have trained some steps, with plain variables: two for each
    host.
    """
    programs = []
    for process in range(4):
        host = process // 2
        variables = {
            "RANK": process,
            "WORLD_SIZE": 4,
            "LOCAL_RANK": process % 2,
            "MASTER_ADDR": hosts.addresses[0],
            "MASTER_PORT": 29500,
        }
        text = {name: str(value) for name, value in variables.items()}
        programs.append(
            hosts.lockstep(host, *TRAIN, "--timeout", TIMEOUT_S, cwd=folders[host], **text)
        )
    wait_for(folders[0], ": step 7,", programs[:1])
    return programs


def wait_for(folder, pattern, programs, seconds=RUN_S):
    """Wait until the log of the run in `folder` contains `pattern` while the programs run, and
    return the log.
    """
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
    until = time.monotonic() + 10 * TIMEOUT_S + END_S
    errors = [
        program.communicate(timeout=max(1, until - time.monotonic()))[1] for program in programs
    ]
    assert [program.returncode for program in programs] == [ENVIRONMENT] * len(programs), errors
    assert not any("Traceback" in error for error in errors), errors
    return errors


def checkpoints(folder):
    return sorted(path.name for path in (folder / "runs/x/checkpoints").iterdir())


def test_a_host_that_is_cut_off_ends_itself_and_so_does_the_rest(
    hosts, begun, here, folders, slow, undisturbed
):
    hosts.cut_off(1)
    errors = ended(begun)
    for half in (errors[:2], errors[2:]):
        assert any(
            "no answer from the other processes within ten times --timeout" in error
            for error in half
        ), errors
    before = checkpoints(folders[0])
    hosts.connect(1)
    assert hosts.processes(0) == hosts.processes(1) == []
    assert checkpoints(folders[0]) == before
    assert not (folders[1] / "runs").exists()
    slow.unlink()
    assert resume(lambda *words: here(*words, "--trust-code", cwd=folders[0]), 1) == undisturbed


def test_torchrun_goes_on_with_the_hosts_that_are_there(
    hosts, torchrun, folders, slow, undisturbed
):
    """Host 1 dies, and comes back. Host 0 has the rendezvous and, as the first one, process 0."""
    train = (*TRAIN, "--timeout", TIMEOUT_S, "--json")

    def joined(host):
        return torchrun(host, *train, cwd=folders[host], nnodes="1:2", max_restarts=3)

    first, second = joined(0), joined(1)
    wait_for(folders[0], r"on 4 processes.*: step \d+,", [first])
    hosts.kill(1)
    second.communicate()
    wait_for(folders[0], r"on 4 processes.*on 2 processes.*: step \d+,", [first])
    hosts.connect(1)
    third = joined(1)
    wait_for(folders[0], r"on 2 processes.*on 4 processes.*: step \d+,", [first, third])
    slow.unlink()
    out, err = first.communicate(timeout=RUN_S)
    assert first.returncode == 0, err
    third.communicate(timeout=RUN_S)
    assert json.loads(out.splitlines()[-1])["weights_sha256"] == undisturbed
    assert not (folders[1] / "runs").exists()


@pytest.mark.skipif(not shutil.which("mpiexec.hydra"), reason="mpiexec.hydra is not installed")
def test_the_command_of_mpich_resumes_on_other_hosts(hosts, agent, folders, slow, undisturbed):
    """Host 1 dies in a run of two hosts. The same command continues on host 0, then on both."""
    variables = {"MASTER_ADDR": hosts.addresses[0], "GLOO_SOCKET_IFNAME": INTERFACE}
    variables["MASTER_PORT"] = "29500"
    train = (sys.executable, "-m", "lockstep", *TRAIN, "--timeout", TIMEOUT_S, "--towers", 4)

    def started(*names):
        words = of_mpich(agent, variables, ",".join(names))
        return hosts.start(0, *words, *train, "--json", cwd=folders[0])

    first = started("h0", "h1")
    wait_for(folders[0], r"on 4 processes.*: step 7,", [first])
    hosts.kill(1)
    until = time.monotonic() + 10 * TIMEOUT_S + END_S
    while hosts.processes(0) != [first.pid]:  # mpiexec waits for the host that is gone
        assert time.monotonic() < until
        time.sleep(0.3)
    first.kill()
    first.communicate()
    second = started("h0")
    wait_for(folders[0], r"on 4 processes.*on 2 processes.*: step \d+,", [second])
    second.send_signal(signal.SIGTERM)
    second.communicate(timeout=RUN_S)
    hosts.connect(1)
    third = started("h0", "h1")
    wait_for(folders[0], r"on 2 processes.*on 4 processes.*: step \d+,", [third])
    slow.unlink()
    out, err = third.communicate(timeout=RUN_S)
    assert third.returncode == 0, err
    result = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    assert result["weights_sha256"] == undisturbed


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_third_host_joins_late_and_two_leave(hosts, torchrun, folders, slow, undisturbed):
    """Hosts 1 and 2 have one core each. The processes of host 1 are killed, and host 2 is cut off."""
    train = (*TRAIN, "--timeout", TIMEOUT_S, "--json")

    def joined(host):
        where = {"cwd": folders[min(host, 1)], "processes": 1 if host else 2}
        return torchrun(host, *train, nnodes="1:3", max_restarts=3, **where)

    first, _ = joined(0), joined(1)
    one_core = r", pid \d+, CPU \(1 core,.*: step \d+,"
    wait_for(folders[0], r"on 3 processes.*hosts +2;.*h1" + one_core, [first])
    joined(2)
    wait_for(folders[0], r"on 4 processes.*hosts +3;.*h2" + one_core, [first])
    for process in hosts.processes(1):
        os.kill(process, signal.SIGKILL)
    wait_for(folders[0], r"on 4 processes.*on 3 processes.*: step \d+,", [first])
    hosts.cut_off(2)
    wait_for(folders[0], r"on 3 processes.*on 2 processes.*: step \d+,", [first])
    slow.unlink()
    out, err = first.communicate(timeout=RUN_S)
    assert first.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["weights_sha256"] == undisturbed


def test_process_0_that_is_cut_off_writes_nothing_more(hosts, torchrun, folders, slow, undisturbed):
    """The other processes continue: both hosts share the folder of the run, and host 1 has the
    rendezvous.
    """
    shared = (*TRAIN, "--timeout", TIMEOUT_S, "--json", "--runs", folders[0] / "runs")
    first, second = (
        torchrun(host, *shared, cwd=folders[host], nnodes="1:2", store=1, max_restarts=3)
        for host in (0, 1)
    )
    wait_for(folders[0], r"on 4 processes.*: step 5,", [first, second])
    hosts.cut_off(0)
    slow.unlink()
    out, err = second.communicate(timeout=RUN_S)
    assert second.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["weights_sha256"] == undisturbed
    workers = [process for process in hosts.processes(0) if process != first.pid]
    assert workers == []
    sessions = read_json(folders[0] / "runs/x/environment.json")
    assert sessions[-1]["processes"] == 2
