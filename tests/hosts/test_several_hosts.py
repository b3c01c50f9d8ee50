"""Several hosts train one run: the weights of one process, whatever started the processes, without
shared files.

Hosts are network namespaces (tests/namespaces.py). torchrun, mpirun and mpiexec are the real ones.
In place of other launchers, the tests start the commands of their files, with the variables that
these set.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import _outside
from tests.documents import ROOT
from tests.helpers import NEWER_CPU, OLDER, as_stopped, succeeded
from tests.hosts.conftest import of_mpich
from tests.namespaces import INTERFACE

STEPS = 12  # of the run `alone`
SCRIPT = ROOT / "examples/clusters/ssh_torchrun.sh"
TRAIN = ("train", "digits", "--steps", STEPS, "--name", "x", "--json")
PORT = 29500
SECONDS = 240  # for programs that share two cores with other tests


def plain(process):
    return {"RANK": str(process), "WORLD_SIZE": "4", "LOCAL_RANK": str(process % 2)}


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


def one_on_each(process):
    """No number on the host."""
    return {"RANK": str(process), "WORLD_SIZE": "2"}


@NEWER_CPU
def test_hosts_of_different_kinds_train_one_portable_network(hosts, tmp_path, alone):
    """Host 1 computes as an older CPU does."""
    require_one_result(tmp_path, launched(hosts, tmp_path, one_on_each, 2, **OLDER), alone)


def of_kubeflow(file, addresses, host):
    """Return the command of each pod, and what Kubeflow's trainer sets for torchrun."""
    trainer = next(file)["spec"]["trainer"]
    variables = {"NNODES": 2, "NPROC_PER_NODE": trainer["numProcPerNode"], "NODE_RANK": host}
    variables |= {"MASTER_ADDR": addresses[0], "MASTER_PORT": PORT}
    own = {f"PET_{name}": str(value) for name, value in variables.items()}
    return shlex.join(trainer["command"]), own


def of_skypilot(file, addresses, host):
    return next(file)["run"], {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": str(host),
        "SKYPILOT_NODE_IPS": "\n".join(addresses),
    }


def of_dstack(file, addresses, host):
    (command,) = next(file)["commands"]
    variables = {"NODES_NUM": "2", "NODE_RANK": str(host), "MASTER_NODE_IP": addresses[0]}
    return command, {f"DSTACK_{name}": value for name, value in variables.items()}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("trainjob.yaml", of_kubeflow),
        ("skypilot.yaml", of_skypilot),
        ("lockstep.dstack.yml", of_dstack),
    ],
)
def test_the_file_for_a_cluster_starts_one_run(hosts, tmp_path, alone, name, read):
    """Each host runs the command of the file, with another recipe and one process."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    text, programs = (ROOT / "examples/clusters" / name).read_text(), []
    for host in range(2):
        command, variables = read(yaml.safe_load_all(text), hosts.addresses, host)
        printed = command.rstrip().replace("--nproc-per-node 8", "--nproc-per-node 1")
        shell = re.sub("(?<=-m lockstep ).*", shlex.join(map(str, TRAIN)), printed)
        variables |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        programs.append(
            hosts.start(host, "bash", "-ec", shell, cwd=tmp_path / f"h{host}", **variables)
        )
    printed = [program.communicate(timeout=SECONDS) for program in programs]
    assert [program.returncode for program in programs] == [0, 0], printed
    require_one_result(tmp_path, printed, alone)


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


@pytest.mark.parametrize(
    ("command", "program"), [(of_open_mpi, "ompi_info"), (of_mpich, "mpiexec.hydra")]
)
def test_mpi_starts_the_processes(hosts, tmp_path, agent, alone, command, program):
    """A stand-in for ssh starts the program of Open MPI or MPICH for a host in the host's
    namespace.
    """
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    variables = {"MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": str(PORT)}
    variables["GLOO_SOCKET_IFNAME"] = INTERFACE
    lockstep = (sys.executable, "-m", "lockstep", *TRAIN, "--towers", 4)
    started = hosts.start(0, *command(agent, variables), *lockstep, cwd=tmp_path / "h0")
    printed, errors = started.communicate(timeout=SECONDS)
    assert started.returncode == 0, errors
    result = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    assert (result["processes"], result["weights_sha256"]) == (4, alone)
    assert "  hosts    2; each step exchanges " in errors
