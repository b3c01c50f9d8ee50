"""The examples: the loop in one file has the bits of `lockstep train`; photos go in and answers come out."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests import commands, synthetic
from tests.replicas import on_replicas

from lockstep.commands.to_spec import subject_of
from lockstep.config import overrides
from lockstep.recipes import get_recipe

SCRIPT = Path(__file__).parents[2] / "examples/classify_your_photos.py"
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
    assert re.search(r"% of the test images are classified correctly\. The classifier is in \S*runs/a\.", out)
    answers = [line for line in out.splitlines() if line.startswith(("new.jpg", "more/"))]
    assert [re.sub(r" \d+%", "", line) for line in answers] == [
        "new.jpg: dog, cat", "more/0.png: cat, dog", "more/1.png: dog, cat",
    ]  # fmt: skip
    assert "more/broken.jpg: empty" in err


def test_the_recipe_in_examples_is_one():
    recipe = subject_of(str(SCRIPT.with_name("cifar10-record.toml")), {}).recipe
    assert (recipe.name, recipe.towers) == ("cifar10-record", 1)


ONE_STEP = SCRIPT.with_name("one_step.py")


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
@pytest.mark.parametrize("options", [("digits", "--steps", 12), ("cifar10-tutorial", "--steps", 3, "--towers", 4)])
def test_other_numbers_of_processes_and_the_tutorial_too(options, trained_once, synthetic_data):
    data = () if options[0] == "digits" else ("--data", synthetic_data("cifar10"))
    _, result = trained_once(*options, *data)
    for processes in (2, 3, 4):
        assert one_step(*options, *data, "--processes", processes) == [f"weights {result['weights_sha256']}"]


def one_step(*words):
    """Return the last line that the example prints."""
    command = [sys.executable, str(ONE_STEP), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1:]


def test_the_loop_in_one_file_is_short():
    assert len(ONE_STEP.read_text().splitlines()) <= 100
    assert not re.search(r"lockstep\.(jobs|launch|runs|commands)", ONE_STEP.read_text())


def test_the_networks_of_the_example_take_images_and_its_command_trains_the_last_layer(capsys):
    example = runpy.run_path(str(SCRIPT.with_name("own_model.py")), run_name="__main__")
    command = " ".join(capsys.readouterr().out.split())
    commands.check(command)
    assert Path(re.search(r"--init (\S+)", command)[1]).is_file()
    small = example["small"]((1, 8, 8), 7)
    assert small(torch.rand(2, 1, 8, 8)).shape == small(torch.rand(2, 1, 33, 5)).shape == (2, 7)
    large = example["efficientnet"]((3, 32, 32), 10)
    layers = {name for name, layer in large.named_children() if [*layer.parameters()]}
    assert layers - {*re.findall(r"lr_factors\.(\w+)=0", command)} == {"_fc"}
