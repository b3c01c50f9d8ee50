"""Several hosts train one run: the weights of one process, whatever started the processes, without
shared files.

Hosts are network namespaces (tests/namespaces.py). torchrun, mpirun and mpiexec are the real ones.
In place of other launchers, the tests start the processes themselves, with the variables that these
set.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.conftest import _outside
from tests.documents import ROOT
from tests.helpers import NEWER_CPU, OLDER, as_stopped, succeeded
from tests.namespaces import INTERFACE

STEPS = 12  # of the run `alone`
SCRIPT = ROOT / "examples/clusters/ssh_torchrun.sh"
TRAIN = ("train", "digits", "--steps", STEPS, "--name", "x", "--json")
PORT = 29500
SECONDS = 240  # for programs that share two cores with other tests


def plain(process):
    return {"RANK": str(process), "WORLD_SIZE": "4", "LOCAL_RANK": str(process % 2)}


def kubernetes(process):
    """One process in each pod, so the operator sets no number on the host."""
    return {"RANK": str(process), "WORLD_SIZE": "2", "PET_NNODES": "2"}


def launched(hosts, tmp_path, variables, processes, **of_host_1):
    """Return what the programs of a launcher print, the first half of them on host 0: (stdout,
    stderr) of each.
    """
    programs = []
    for process in range(processes):
        host = process * 2 // processes
        environment = variables(process) | {
            "MASTER_ADDR": hosts.addresses[0],
            "MASTER_PORT": str(PORT),
        }
        environment |= of_host_1 if host else {}
        programs.append(hosts.lockstep(host, *TRAIN, cwd=tmp_path / f"h{host}", **environment))
    printed = [program.communicate(timeout=SECONDS) for program in programs]
    assert [program.returncode for program in programs] == [0] * processes, printed
    return printed


def require_one_result(tmp_path, printed, alone):
    """Raise unless the first program alone printed the result, and only host 0 has a run."""
    result = json.loads(printed[0][0].splitlines()[-1])
    assert (result["processes"], result["weights_sha256"]) == (len(printed), alone)
    assert [out for out, _ in printed[1:]] == [""] * (len(printed) - 1)
    assert [path.name for path in (tmp_path / "h0/runs").iterdir()] == ["x"]
    assert not (tmp_path / "h1/runs").exists()


@NEWER_CPU
def test_hosts_of_different_kinds_train_one_portable_network(hosts, tmp_path, alone):
    """Host 1 computes as an older CPU does."""
    require_one_result(tmp_path, launched(hosts, tmp_path, kubernetes, 2, **OLDER), alone)


def test_host_1_needs_no_run_folder_to_resume(hosts, here, tmp_path, alone):
    """The first part is trained on host 0 alone, so only host 0 has the run."""
    (tmp_path / "h0").mkdir()
    succeeded(here(*TRAIN, "--save-every", 4, cwd=tmp_path / "h0"))
    as_stopped(tmp_path / "h0/runs/x")
    printed = launched(hosts, tmp_path, plain, 4)
    require_one_result(tmp_path, printed, alone)
    assert "4 of them done" in printed[0][1]


def test_the_script_for_ssh_and_torchrun(hosts, tmp_path, alone):
    """A stand-in for ssh runs the command for a host in the host's namespace."""
    (tmp_path / "ssh").write_text(
        f"#!/bin/bash\n[ $2 = {hosts.addresses[0]} ] && name={hosts.names[0]} || "
        f"name={hosts.names[1]}\n"
        'exec ip netns exec $name bash -c "$3"\n'
    )
    (tmp_path / "ssh").chmod(0o755)
    settings = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "FOLDER": str(tmp_path / "lockstep"),
        "PYTHON": sys.executable,
        "RECIPE": "digits",
        "NAME": "x",
        "PROCESSES": "2",
        "INTERFACE": INTERFACE,
        "OPTIONS": f"--steps {STEPS} --json",
    }
    done = succeeded(
        subprocess.run(
            [SCRIPT, *hosts.addresses],
            cwd=tmp_path,
            env={**_outside(), **settings},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    )
    result = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert (result["processes"], result["weights_sha256"]) == (4, alone)


def of_open_mpi(agent, variables):
    own = {"plm_rsh_agent": agent, "oob_tcp_if_include": INTERFACE}
    words = ["-n", 4, "--map-by", "ppr:2:node", "--host", "h0:2,h1:2"]
    words += ["--allow-run-as-root", "--oversubscribe"]
    words += [word for pair in own.items() for word in ("--mca", *pair)]
    return [
        "mpirun",
        *words,
        *(word for pair in variables.items() for word in ("-x", "=".join(pair))),
    ]


def of_mpich(agent, variables):
    words = ["-n", 4, "-ppn", 2, "-hosts", "h0,h1", "-launcher", "ssh", "-launcher-exec", agent]
    words += [word for pair in variables.items() for word in ("-genv", *pair)]
    return ["mpiexec.hydra", *words]


@pytest.mark.parametrize(
    ("command", "program"), [(of_open_mpi, "ompi_info"), (of_mpich, "mpiexec.hydra")]
)
def test_mpi_starts_the_processes(hosts, tmp_path, alone, command, program):
    """A stand-in for ssh starts the program of Open MPI or MPICH for a host in the host's
    namespace.
    """
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    agent = tmp_path / "agent"
    agent.write_text(
        '#!/bin/bash\n[ "$1" = -x ] && shift\n'
        f"[ $1 = h1 ] || exit 1\nshift\nexec ip netns exec {hosts.names[1]} unshare "
        '--uts bash -c \'hostname h1 && exec bash -c "$*"\' bash "$@"\n'
    )
    agent.chmod(0o755)
    variables = {"MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": str(PORT)}
    variables["GLOO_SOCKET_IFNAME"] = INTERFACE
    lockstep = (sys.executable, "-m", "lockstep", *TRAIN, "--towers", 4)
    started = hosts.start(0, *command(agent, variables), *lockstep, cwd=tmp_path / "h0")
    printed, errors = started.communicate(timeout=SECONDS)
    assert started.returncode == 0, errors
    result = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    assert (result["processes"], result["weights_sha256"]) == (4, alone)
    assert "  hosts    2; each step exchanges " in errors
