"""The examples: the loop in one file has the bits of `lockstep train`, photos give answers,
clusters start runs.
"""

import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests import commands, documents, synthetic
from tests.documents import ROOT
from tests.replicas import on_replicas

from lockstep.commands.plan import drafted
from lockstep.config import overrides
from lockstep.recipes import get_recipe

SCRIPT = ROOT / "examples/classify_your_photos.py"
SHORT = {
    "steps": 20,
    "batch": 16,
    "towers": 1,
    "processes": 1,
    "settings": {"image_px": 32, "eval_batch": 20},
    "quiet": True,
}


def classify(folder, *pictures):
    return runpy.run_path(str(SCRIPT))["classify"]("photos/", list(pictures), name="a", **SHORT)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with photos and new pictures, which is the current one."""
    synthetic.photos(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_folder_goes_in_and_answers_come_out(folder, capsys):
    (folder / "more/broken.jpg").write_bytes(b"")
    classify(folder, "new.jpg", "more/")
    out, err = capsys.readouterr()
    assert re.search(
        r"% of the test images are classified correctly\. The classifier is in \S*runs/a\.", out
    )
    answers = [line for line in out.splitlines() if line.startswith(("new.jpg", "more/"))]
    assert [re.sub(r" \d+%", "", line) for line in answers] == [
        "new.jpg: dog, cat",
        "more/0.png: cat, dog",
        "more/1.png: dog, cat",
    ]
    assert "more/broken.jpg: empty" in err


def test_the_recipe_in_examples_is_one():
    recipe = drafted(str(SCRIPT.with_name("cifar10-record.toml")), {}).recipe
    assert (recipe.name, recipe.towers) == ("cifar10-record", 1)


ONE_STEP = SCRIPT.with_name("one_step.py")
CLUSTERS = SCRIPT.with_name("clusters")


def test_the_loop_in_one_file_has_the_bits_of_train(trained_once, capsys, tmp_path, monkeypatch):
    recipe = overrides.make(get_recipe("digits").model_dump(), {"steps": 4, "portable": False})
    weights = [f"weights {trained_once('--no-portable', '--steps', 4)[1]['weights_sha256']}"]
    train = runpy.run_path(str(ONE_STEP))["train"]
    for processes in (1, 3):  # which are threads

        def work(group, processes=processes):
            monkeypatch.setitem(train.__globals__, "connect", lambda *_: group)
            train(group.process, processes, recipe, None, str(tmp_path / f"store-{processes}"))

        assert on_replicas(processes, work) == [None] * processes
        assert capsys.readouterr().out.splitlines()[-1:] == weights


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("digits", "--steps", 12), ("cifar10-tutorial", "--steps", 3, "--towers", 4)]
)
def test_other_numbers_of_processes_and_the_tutorial_too(options, trained_once, synthetic_data):
    data = () if options[0] == "digits" else ("--data", synthetic_data("cifar10"))
    _, result = trained_once(*options, *data)
    for processes in (2, 3, 4):
        assert one_step(*options, *data, "--processes", processes) == [
            f"weights {result['weights_sha256']}"
        ]


def one_step(*words):
    """Return the last line that the example prints."""
    command = [sys.executable, str(ONE_STEP), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[
        -1:
    ]


def test_the_loop_in_one_file_is_short():
    assert len(ONE_STEP.read_text().splitlines()) <= 100
    assert not re.search(r"lockstep\.(jobs|launch|runs|commands)", ONE_STEP.read_text())


def test_the_examples_networks_train_their_last_layer(capsys):
    example = runpy.run_path(str(SCRIPT.with_name("own_model.py")), run_name="__main__")
    command = capsys.readouterr().out.replace(" \\\n", "")
    commands.check(command.strip())
    assert Path(re.search(r"--init (\S+)", command)[1]).is_file()
    small = example["small"]((1, 8, 8), 7)
    assert small(torch.rand(2, 1, 8, 8)).shape == small(torch.rand(2, 1, 33, 5)).shape == (2, 7)
    large = example["efficientnet"]((3, 32, 32), 10)
    layers = {name for name, layer in large.named_children() if [*layer.parameters()]}
    assert layers - {*re.findall(r"lr_factors\.(\w+)=0", command)} == {"_fc"}


def test_the_batch_script_has_a_valid_command_for_several_hosts():
    """Slurm reads the lines that begin with #SBATCH, up to the first command."""
    script = (CLUSTERS / "slurm.sbatch").read_text()
    subprocess.run(["bash", "-n", CLUSTERS / "slurm.sbatch"], check=True)
    lines = documents.lines(documents.Block("", "sh", script))
    (command,) = (part for line in lines for part in documents.parts(line))
    commands.check(command)
    assert "--name" in command
    given = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", script.split("\nset ")[0], re.M))
    assert set(given) >= {
        "nodes",
        "ntasks-per-node",
        "cpus-per-task",
        "time",
        "requeue",
        "signal",
        "output",
    }
    towers = int(re.search(r"--towers (\d+)", command)[1])
    assert towers >= int(given["nodes"]) * int(given["ntasks-per-node"])


def test_the_ssh_script_starts_torchrun_on_every_host(tmp_path):
    """A stand-in for ssh writes what it is to start to a file."""
    (tmp_path / "ssh").write_text(f'#!/bin/bash\nprintf "%s\\n" "$2 $3" >> {tmp_path}/started\n')
    (tmp_path / "ssh").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "PROCESSES": "4"}
    subprocess.run([CLUSTERS / "ssh_torchrun.sh", "a1", "a2"], env=environment, check=True)
    started = [shlex.split(line) for line in (tmp_path / "started").read_text().splitlines()]
    assert {host for host, *_ in started} == {"a1", "a2"}
    for host, *words in started:
        line = shlex.join(words)
        assert "--nnodes 2 --nproc-per-node 4" in line
        assert f"--local-addr {host}" in line
        assert "--towers 8" in documents.parts(line)[-1]
        commands.check(documents.parts(line)[-1])


def command_of(name):
    """Return the command that a file for a cluster starts, from `lockstep` on."""
    text = re.sub(r"#.*|\\\n", "", (CLUSTERS / name).read_text())
    return re.search(r"\blockstep train [^\n)]*", text)[0]


@pytest.mark.parametrize("name", ["grid_engine.sh", "skypilot.yaml", "lockstep.dstack.yml"])
def test_a_file_for_a_cluster_has_a_valid_command_with_a_name_and_enough_towers(name):
    command = command_of(name)
    commands.check(command)
    assert "--name big" in command
    assert int(re.search(r"--towers (\d+)", command)[1]) >= 16  # two hosts of eight


def test_kubeflow_knows_all_fields_of_the_trainjob():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    kubeflow = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed"
    )
    job, runtime, policy = yaml.safe_load_all((CLUSTERS / "trainjob.yaml").read_text())
    for each in (job, runtime):
        model = getattr(kubeflow, f"TrainerV1alpha1{each['kind']}")
        assert json.loads(model.from_dict(each).to_json()) == each
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    # The JobSet has the name of the TrainJob, and labels its pods with it.
    (name,) = policy["spec"]["podSelector"]["matchLabels"].values()
    assert name == job["metadata"]["name"]
    torchrun, command = job["spec"]["trainer"]["command"][:3], job["spec"]["trainer"]["command"][2:]
    assert torchrun == ["torchrun", "-m", "lockstep"]
    commands.check(shlex.join(command))
    assert f"--towers={job['spec']['trainer']['numNodes']}" in command
