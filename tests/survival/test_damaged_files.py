"""Damage to every file of a run: training resumes from what is valid and says so, or stops with one
clear message.

It never ends with other bits, and never with a traceback.
"""

import json
import os
import re
import shutil
from functools import partial
from pathlib import Path
from signal import SIGTERM

import pytest
from PIL import Image
from tests.helpers import DATA, recipe_with
from tests.runs import fit_here, state_path

from lockstep.config.placement import Placement
from lockstep.runs.run import Run

STEPS = 6
SMALL = {"steps": STEPS, "arithmetic": "native", "towers": 2, "batch": 16}
RECIPE = recipe_with("digits", SMALL)
PLACE = Placement(processes=1, save_every=1, keep=2, eval_every=2, log_every=1, summary_every=0)
NEWEST = "checkpoints/step-000000004.safetensors"
RESUMED = ("train", "runs/x", "--resume", "--processes", "1", "--summary-every", "0", "--json")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped after four of its six steps, and the SHA-256 that it ends with."""
    folder = tmp_path_factory.mktemp("stopped")
    calls = iter(range(1000))
    outcome = fit_here(
        RECIPE,
        folder / "x",
        PLACE,
        stop_requested=lambda: SIGTERM if next(calls) >= 4 * RECIPE.towers - 1 else None,
    )
    assert outcome.stopped_by == SIGTERM
    whole = fit_here(RECIPE, folder / "whole", PLACE).result
    return folder / "x", whole["weights_sha256"]


@pytest.fixture
def resumed(here, stopped, tmp_path):
    """Return resumed(damage) -> (exit code, messages) of a copy of the run after damage(folder)."""

    def resume(damage):
        run = tmp_path / "runs/x"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(stopped[0], run)
        (run / PRECIOUS).write_text("precious")
        damage(run)
        done = here(*RESUMED)
        assert (run / PRECIOUS).read_text() == "precious"
        code, err = done.returncode, done.stderr
        assert "Traceback" not in err, err
        if code == 0:  # never silently other bits
            assert json.loads(done.stdout.splitlines()[-1])["weights_sha256"] == stopped[1], err
        else:
            assert code in (2, 3, 4), err
            assert len(err[err.index("lockstep: ") :].strip().splitlines()) == 1, err
        return code, err

    return resume


def flipped(name, share, bit=0):
    """Flip a bit of the byte at `share` of the file."""

    def damage(run):
        data = bytearray((run / name).read_bytes())
        data[min(int(share * len(data)), len(data) - 1)] ^= 1 << bit
        (run / name).write_bytes(data)

    return damage


def cut(name, share):
    def damage(run):
        os.truncate(run / name, int(share * (run / name).stat().st_size))

    return damage


def replaced(name, make):
    """Put what `make` makes in the place of the file `name`."""
    return lambda run: [(run / name).unlink(), make(run / name)]


PRECIOUS = "../precious"  # from a run's folder
JUNK = ["[" * 100_000, "{}", '[{"model_source": 3}]', "\0"]
BEFORE = r"step-00000000[49].safetensors is damaged.*: trying the one before it"
NAMED = r"recipe.json|setting"  # in a message about a damaged recipe
# What is damaged -> the exit codes that are allowed, and what the messages then say.
DAMAGES = {
    "nothing": (lambda run: None, {0}, ""),
    **{f"flip {share}": (flipped(NEWEST, share), {0}, BEFORE) for share in (0, 0.01, 1)},
    "a pipe": (replaced(NEWEST, os.mkfifo), {0}, BEFORE),
    "another step": (
        lambda run: state_path(run, 3).rename(state_path(run, 5)),
        {0},
        "step-000000005.safetensors is damaged.*: trying the one before it",
    ),
    "a step beyond the end": (
        lambda run: state_path(run, 3).rename(state_path(run, 9)),
        {0},
        "checkpoints: ignored step-000000009.safetensors: .* up to its last step",
    ),
    "no states": (
        lambda run: shutil.rmtree(run / "checkpoints"),
        {0},
        "runs/x has no checkpoint, so it starts again",
    ),
    "metrics": (cut("metrics.jsonl", 0.8), {0}, r"metrics.jsonl: damaged and deleted: line \d+"),
    **{
        f"recipe: {junk[:9]}": (
            replaced("recipe.json", partial(Path.write_text, data=junk)),
            {2, 3},
            NAMED,
        )
        for junk in JUNK
    },
    **{
        f"environment: {junk[:9]}": (
            replaced("environment.json", partial(Path.write_text, data=junk)),
            {0, 2, 3, 4},
            "environment.json|^(?!.*lockstep: )",
        )
        for junk in JUNK
    },
    **{
        f"bit of recipe {share}": (flipped("recipe.json", share, 4), {0, 2, 3}, "")
        for share in (0.13, 0.5)
    },
    **{
        f"a folder as {name}": (replaced(name, Path.mkdir), {2, 3, 4}, "runs/x")
        for name in ("log.txt", "environment.json", "recipe.json", ".lock")
    },
    "a folder as metrics.jsonl": (replaced("metrics.jsonl", Path.mkdir), {0}, "rows are lost"),
    **{
        f"{name} is a {kind}": (replaced(name, make), codes, words)
        for name, codes, words in (
            (".lock", {4}, "lock is a link"),
            ("log.txt", {4}, "log.txt is a link"),
            ("metrics.jsonl", {0}, ""),
        )
        for kind, make in (
            ("link", lambda path: path.symlink_to(PRECIOUS)),
            ("second name", lambda path: path.hardlink_to(path.parent / PRECIOUS)),
        )
    },
    "a link as checkpoints": (
        lambda run: [
            (run / "checkpoints").rename(run / "../elsewhere"),
            (run / "checkpoints").symlink_to("../elsewhere"),
        ],
        {4},
        "checkpoints is a link",
    ),
    "checkpoints is a file": (
        lambda run: [shutil.rmtree(run / "checkpoints"), (run / "checkpoints").touch()],
        {4},
        "runs/x",
    ),
}


# The fast tests: some damage that a resume mends, and some that it refuses.
FAST = {
    "nothing",
    "flip 0.01",
    "no states",
    "metrics",
    "recipe: {}",
    "bit of recipe 0.5",
    "environment: {}",
    "a folder as metrics.jsonl",
    "a folder as .lock",
    ".lock is a link",
    "log.txt is a second name",
    "metrics.jsonl is a link",
    "a link as checkpoints",
}


@pytest.mark.parametrize(
    "damage",
    [pytest.param(damage, marks=() if damage in FAST else pytest.mark.slow) for damage in DAMAGES],
)
def test_a_resumed_run_ends_with_the_known_bits_or_one_message(resumed, damage):
    change, codes, words = DAMAGES[damage]
    code, err = resumed(change)
    assert code in codes
    assert re.search(words, err, re.S), err


def test_foreign_files_stay_and_temporary_ones_are_swept(resumed, tmp_path):
    copies = ("step-².safetensors", "step-5.safetensors", "step-new.safetensors", "step-")
    empty = (
        "notes.txt",
        "step-000000004",
        ".step-000000009.safetensors-99",
        "../.metrics.jsonl-12",
    )

    def damage(run):
        for name in copies:
            shutil.copy(run / NEWEST, run / "checkpoints" / name)
        for name in empty:
            (run / "checkpoints" / name).touch()

    assert resumed(damage)[0] == 0
    assert {*copies, *empty[:2]} <= {
        path.name for path in (tmp_path / "runs/x/checkpoints").iterdir()
    }
    assert Run(tmp_path / "runs/x").complete
    assert not list(Path(tmp_path / "runs/x").rglob(".*-*"))


def test_a_checkpoint_of_another_run_is_refused(resumed, stopped, tmp_path):
    other = fit_here(RECIPE.replace(seed=1), tmp_path / "other", PLACE)
    assert other.result["weights_sha256"] != stopped[1]
    code, err = resumed(
        lambda run: shutil.copy(state_path(tmp_path / "other", 5), state_path(run, 5))
    )
    assert code == 2
    assert "step-000000005.safetensors was trained by another recipe than recipe.json states" in err


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("result.json", "recipe.json")),
    ],
)
def test_a_complete_run_is_read_as_it_was_written_or_not_at_all(stopped, here, tmp_path, name):
    run, answers = tmp_path / "runs/x", set()
    Image.new("L", (8, 8), 200).save(tmp_path / "image.png")
    for share in (None, 0, 0.003, 0.2, 0.5, 0.99):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(stopped[0].parent / "whole", run)
        if share is not None:
            flipped(name, share)(run)
        for words in (("predict", "runs/x", tmp_path / "image.png", "--json"), RESUMED):
            done = here(*words)
            assert "Traceback" not in done.stderr
            assert done.returncode in (0, 2, 3, 4)
            if words[0] == "predict" and name == "model.safetensors":
                assert done.returncode == (DATA if share is not None else 0)
            if words[0] == "predict" and done.returncode == 0:
                answers.add(done.stdout)
    assert len(answers) == 1  # a damaged model gives an error, and no other probabilities
