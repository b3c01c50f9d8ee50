"""The files in examples/clusters are valid, and their commands are ones that Lockstep takes."""

import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests import commands, documents

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/clusters"


def text(name):
    return (FOLDER / name).read_text()


def shell_commands(script):
    """The commands of Lockstep in a shell script, as written: joined lines, without comments."""
    return [part for line in documents.lines(documents.Block("", "sh", script)) for part in documents.parts(line)]


def objects():
    """The Kubernetes objects in pytorchjob.yaml, by kind."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return {each["kind"]: each for each in yaml.safe_load_all(text("pytorchjob.yaml"))}


def replicas():
    return objects()["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]


def test_the_guide_names_every_file_and_no_other():
    named = re.findall(r"\]\(\.\./examples/clusters/([\w.]+)\)", (ROOT / "docs/clusters.md").read_text())
    assert sorted(named) == sorted(path.name for path in FOLDER.iterdir())


def test_the_batch_script_has_a_valid_command_and_the_directives_that_several_hosts_need():
    """Slurm reads the lines that begin with #SBATCH, up to the first command."""
    subprocess.run(["bash", "-n", FOLDER / "slurm.sbatch"], check=True)
    (command,) = shell_commands(text("slurm.sbatch"))
    commands.check(command)
    assert "--name" in command
    head = text("slurm.sbatch").split("\nset ")[0]
    given = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", head, re.M))
    assert len(given) == head.count("\n#SBATCH")
    assert set(given) >= {"nodes", "ntasks-per-node", "cpus-per-task", "time", "requeue", "signal", "output"}
    towers = int(re.search(r"--towers (\d+)", command)[1])
    assert towers >= int(given["nodes"]) * int(given["ntasks-per-node"])


def launched(tmp_path, *hosts, **settings):
    """The commands that ssh_torchrun.sh starts with ssh: {host: words}. A stand-in for ssh writes them to a file."""
    (tmp_path / "ssh").write_text(f'#!/bin/bash\nprintf "%s\\n" "$2 $3" >> {tmp_path}/started\n')
    (tmp_path / "ssh").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), **settings}
    done = subprocess.run(
        [FOLDER / "ssh_torchrun.sh", *hosts], env=environment, capture_output=True, text=True, check=False
    )
    started = (tmp_path / "started").read_text().splitlines() if (tmp_path / "started").exists() else []
    return done, {line.split()[0]: shlex.split(line)[1:] for line in started}


def test_the_ssh_script_starts_torchrun_on_every_host(tmp_path):
    done, started = launched(tmp_path, "a1", "a2", PROCESSES="4")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(started) == {"a1", "a2"}
    for host, words in started.items():
        line = shlex.join(words)
        for wanted in (
            "--nnodes 2", "--nproc-per-node 4", "--rdzv-endpoint a1:29500", f"--local-addr {host}",
            f"is_host={int(host == 'a1')}",
        ):  # fmt: skip
            assert wanted in line
        command = documents.parts(line)[-1]
        assert "--towers 8" in command
        commands.check(command)


def test_only_the_master_has_the_volume_of_the_runs_and_all_start_one_command():
    (master,), (worker,) = (
        replicas()[name]["template"]["spec"]["containers"] for name in ("Master", "Worker")
    )  # fmt: skip
    assert master["command"] == worker["command"]
    commands.check(shlex.join(master["command"]))
    paths = [{mount["mountPath"] for mount in container["volumeMounts"]} for container in (master, worker)]
    assert paths == [{"/runs", "/data"}, {"/data"}]
    assert {"--runs=/runs", "--data=/data"} <= set(master["command"])
    towers = next(int(word.removeprefix("--towers=")) for word in master["command"] if word.startswith("--towers="))
    assert towers >= sum(replica["replicas"] for replica in replicas().values())


def test_the_program_for_ray_can_be_parsed_and_passes_what_train_takes():
    """tests/api/test_ray.py runs it, where Ray is installed."""
    import inspect

    import lockstep

    tree = ast.parse(text("ray_train.py"))
    options = {
        call.args[0].value.removeprefix("--")
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument"
    }
    taken = {*inspect.signature(lockstep.train).parameters, *commands.Recipe.options}
    assert options - {"recipe", "workers", "gpu"} <= taken
