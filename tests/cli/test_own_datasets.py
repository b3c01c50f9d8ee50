"""The user's datasets in the real program: arrays and sequences give the same bits."""

import json

import pytest
from tests.helpers import succeeded

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

"""
OPTIONS = ("--steps", 6, "--set", "eval_batch=20", "--summary-every", 0)


@pytest.mark.slow
def test_a_dataset_of_ones_own_is_one_on_any_number_of_processes(program, here, tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    results = []
    for name, function, processes in (("own", "arrays", 1), ("other", "pairs", 2)):
        options = (
            *OPTIONS,
            "--dataset",
            f"mine:{function}",
            "--processes",
            processes,
            "--name",
            name,
        )
        done = succeeded(program("train", "digits", *options, "--json"))
        results.append(json.loads(done.stdout.splitlines()[-1]))
    one, two = results
    assert (one["weights_sha256"], one["accuracy"]) == (two["weights_sha256"], two["accuracy"])
    assert list(one["model_source"]) == ["mine.py"]
    assert len(list((tmp_path / "cache/lockstep/pixels").glob("*.json"))) == 1

    (tmp_path / "mine.py").write_text(MODULE.replace("default_rng(5)", "default_rng()"))
    done = program("train", "digits", "--dataset", "mine:arrays", *OPTIONS, "--processes", 2)
    assert done.returncode == 4
    assert "do not have the same train images (" in done.stderr
    (tmp_path / "runs/own/result.json").unlink()
    assert here("train", "runs/own", "--resume").returncode == 2  # without --trust-code
    done = here("train", "runs/own", "--resume", "--trust-code")
    assert done.returncode == 3
    assert "the training data is not what runs/own was trained on" in done.stderr
    done = here("eval", "runs/own", "--trust-code")
    assert "the source of dataset mine:arrays has changed since training (mine.py: " in done.stderr
