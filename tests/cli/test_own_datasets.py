"""Datasets of the user's own in the real program: the same bits from arrays and sequences, and code that is allowed."""

import json

import pytest

MODULE = """
import numpy as np
from PIL import Image

def pixels():
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 3, 240)
    images = generator.integers(0, 100, (240, 8, 8), dtype=np.uint8) + 60 * labels.astype(np.uint8)[:, None, None]
    return images, labels

def arrays():
    images, labels = pixels()
    return {"train": (images[:200], labels[:200]), "test": (images[200:], labels[200:])}

def pairs():
    pairs = [(Image.fromarray(image), int(label)) for image, label in zip(*pixels())]
    return {"train": pairs[:200], "test": pairs[200:]}

def without_test():
    images, labels = pixels()
    return {"train": (images, labels)}
"""
OPTIONS = ("--steps", 6, "--set", "eval_batch=20", "--summary-every", 0)


@pytest.fixture
def module(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)


def record(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_arrays_and_sequences_train_to_the_same_bits_on_any_number_of_processes(module, program, tmp_path):
    def train(function, processes):
        options = (*OPTIONS, "--processes", processes, "--json")
        return record(program("train", "digits", "--dataset", f"mine:{function}", *options))

    one, two = train("arrays", 1), train("pairs", 2)
    assert (one["weights_sha256"], one["accuracy"]) == (two["weights_sha256"], two["accuracy"])
    assert list(one["model_source"]) == ["mine.py"]
    assert len(list((tmp_path / "cache/lockstep/pixels").glob("*.npy"))) == 1


@pytest.mark.slow
def test_the_code_of_a_dataset_runs_only_if_it_is_trusted(module, program, here, tmp_path):
    done = program("train", "digits", "--dataset", "mine:arrays", *OPTIONS, "--name", "own", "--processes", 1)
    assert done.returncode == 0, done.stderr
    assert "lockstep eval runs/own --trust-code" in done.stdout
    (tmp_path / "mine.py").write_text("open('executed', 'w')\n" + MODULE)
    for command in (("eval", "runs/own"), ("train", "runs/own", "--resume")):
        refused = here(*command)
        assert refused.returncode == 2
        assert "uses a dataset that is not built in, mine:arrays, and loading it executes its code" in refused.stderr
        assert "--trust-code" in refused.stderr
    assert here("show", "runs/own").returncode == 0
    assert not (tmp_path / "executed").exists()
    done = program("eval", "runs/own", "--trust-code", "--processes", 1)
    assert done.returncode == 0, done.stderr
    assert "the source of dataset mine:arrays is not the one it was trained with (mine.py: " in done.stderr
    assert (tmp_path / "executed").exists()
    (tmp_path / "runs/own/result.json").unlink()
    (tmp_path / "mine.py").write_text(MODULE.replace("default_rng(5)", "default_rng(6)"))
    done = program("train", "runs/own", "--resume", "--trust-code", "--processes", 1)
    assert done.returncode == 3
    assert "the training data is not what runs/own was trained on" in done.stderr


@pytest.mark.slow
def test_processes_that_get_different_data_are_refused(program, tmp_path):
    drawn = MODULE.replace("default_rng(5)", "default_rng()")
    (tmp_path / "mine.py").write_text(drawn)
    done = program("train", "digits", "--dataset", "mine:arrays", *OPTIONS, "--processes", 2)
    assert done.returncode == 4
    assert "do not have the same training data" in done.stderr
