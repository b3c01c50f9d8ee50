"""The files in examples/clusters are valid, and their commands are ones that Lockstep takes."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests import commands, documents

FOLDER = Path(__file__).parents[2] / "examples/clusters"


def test_the_batch_script_has_a_valid_command_and_the_directives_that_several_hosts_need():
    """Slurm reads the lines that begin with #SBATCH, up to the first command."""
    script = (FOLDER / "slurm.sbatch").read_text()
    subprocess.run(["bash", "-n", FOLDER / "slurm.sbatch"], check=True)
    lines = documents.lines(documents.Block("", "sh", script))
    (command,) = (part for line in lines for part in documents.parts(line))
    commands.check(command)
    assert "--name" in command
    given = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", script.split("\nset ")[0], re.M))
    assert set(given) >= {"nodes", "ntasks-per-node", "cpus-per-task", "time", "requeue", "signal", "output"}
    towers = int(re.search(r"--towers (\d+)", command)[1])
    assert towers >= int(given["nodes"]) * int(given["ntasks-per-node"])


def test_the_ssh_script_starts_torchrun_on_every_host(tmp_path):
    """A stand-in for ssh writes what it is to start to a file."""
    (tmp_path / "ssh").write_text(f'#!/bin/bash\nprintf "%s\\n" "$2 $3" >> {tmp_path}/started\n')
    (tmp_path / "ssh").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "PROCESSES": "4"}
    subprocess.run([FOLDER / "ssh_torchrun.sh", "a1", "a2"], env=environment, check=True)
    started = [shlex.split(line) for line in (tmp_path / "started").read_text().splitlines()]
    assert {host for host, *_ in started} == {"a1", "a2"}
    for host, *words in started:
        line = shlex.join(words)
        assert "--nnodes 2 --nproc-per-node 4" in line
        assert f"--local-addr {host}" in line
        assert "--towers 8" in documents.parts(line)[-1]
        commands.check(documents.parts(line)[-1])


def test_only_the_master_has_the_volume_of_the_runs_and_all_start_one_command():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    objects = {each["kind"]: each for each in yaml.safe_load_all((FOLDER / "pytorchjob.yaml").read_text())}
    replicas = objects["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]
    master, worker = (replicas[name]["template"]["spec"]["containers"][0] for name in ("Master", "Worker"))
    assert master["command"] == worker["command"]
    commands.check(shlex.join(master["command"]))
    paths = [{mount["mountPath"] for mount in container["volumeMounts"]} for container in (master, worker)]
    assert paths == [{"/runs", "/data"}, {"/data"}]
