"""Damage to every file of a run: training resumes from what is valid and says so, or stops with one clear message.

It never ends with other bits, and never with a traceback.
"""

import json
import os
import re
import shutil
from pathlib import Path
from signal import SIGTERM

import pytest
from tests.runs import fit_here, state_path

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.recipes import get_recipe
from lockstep.runs.folder import Run

STEPS = 6
RECIPE = make(get_recipe("digits").model_dump(mode="json"), {"steps": STEPS, "arithmetic": "native"})
PLACE = Placement(processes=1, save_every=1, keep=2, eval_every=2, log_every=1, summary_every=0)
NEWEST = "checkpoints/step-000000004.safetensors"
RESUMED = ("train", "runs/x", "--resume", "--processes", "1", "--summary-every", "0", "--json")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped after four of its six steps, and the SHA-256 that it ends with."""
    folder = tmp_path_factory.mktemp("stopped")
    calls = iter(range(1000))
    outcome = fit_here(
        RECIPE, folder / "x", PLACE, stop_requested=lambda: SIGTERM if next(calls) >= 4 * RECIPE.towers - 1 else None
    )
    assert outcome.stopped_by == SIGTERM
    whole = fit_here(RECIPE, folder / "whole", PLACE).result
    return folder / "x", whole["weights_sha256"]


@pytest.fixture
def resumed(here, stopped, tmp_path):
    """Return resumed(damage) -> (exit code, SHA-256 or None, messages) of a copy of the run after damage(folder)."""

    def resume(damage):
        run = tmp_path / "runs/x"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(stopped[0], run)
        damage(run)
        done = here(*RESUMED)
        code, out, err = done.returncode, done.stdout, done.stderr
        assert "Traceback" not in err, err
        sha256 = json.loads(out.splitlines()[-1])["weights_sha256"] if code == 0 else None
        assert sha256 in (None, stopped[1]), err  # never silently other bits
        if code:
            message = err[err.index("lockstep: ") :].strip()
            assert code in (2, 3, 4), err
            assert len(message.splitlines()) == 1, err
        return code, sha256, err

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


def test_without_damage_it_ends_with_the_known_bits(resumed):
    assert resumed(lambda run: None)[0] == 0


@pytest.mark.parametrize(
    "damage",
    [
        *[flipped(NEWEST, share) for share in (0, 0.001, 0.01, 0.5, 1)],
        *[cut(NEWEST, share) for share in (0, 0.5)],
        lambda run: [(run / NEWEST).unlink(), (run / NEWEST).mkdir()],
        lambda run: [(run / NEWEST).unlink(), os.mkfifo(run / NEWEST)],
        lambda run: state_path(run, 3).rename(state_path(run, 9)),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(resumed, damage):
    code, _, err = resumed(damage)
    assert code == 0
    assert re.search(r"step-00000000[49].safetensors is damaged.*: trying the one before it", err)


@pytest.mark.slow
def test_every_fact_of_a_state_is_covered(resumed, stopped):
    """Also the evaluations, which choose the best step, and the digests of recipe and data."""
    content = (stopped[0] / NEWEST).read_bytes()
    for word in ("evaluations", "step", "recipe_digest", "data_sha256", "contents_sha256", "classes"):
        code, _, err = resumed(flipped(NEWEST, (content.index(word.encode()) + 3) / len(content)))
        assert (code, "is damaged" in err) == (0, True), word


def test_without_a_valid_checkpoint_it_stops(resumed):
    def damage(run):
        for state in run.glob("checkpoints/step-*"):
            cut(state.relative_to(run), 0.9)(run)

    code, _, err = resumed(damage)
    assert code == 3
    assert "every checkpoint in" in err


def test_foreign_files_among_the_checkpoints_are_left_alone(resumed, tmp_path):
    names = ("step-².safetensors", "step-5.safetensors", "step-new.safetensors", "step-", "notes.txt", "step-000000004")

    def damage(run):
        for name in names[:4]:
            shutil.copy(run / NEWEST, run / "checkpoints" / name)
        for name in names[4:]:
            (run / "checkpoints" / name).touch()

    assert resumed(damage)[0] == 0
    assert {*names} <= {path.name for path in (tmp_path / "runs/x/checkpoints").iterdir()}


def test_a_checkpoint_of_another_run_is_refused(resumed, tmp_path):
    fit_here(RECIPE.replace(seed=1), tmp_path / "other", PLACE)

    def damage(run):
        shutil.copy(state_path(tmp_path / "other", 5), state_path(run, 5))

    code, _, err = resumed(damage)
    assert code == 2
    assert "step-000000005.safetensors was trained by another recipe than recipe.json states" in err


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("environment.json", "metrics.jsonl", "log.txt")]


@pytest.mark.parametrize("name", ["recipe.json", *SLOW, ".lock"])
def test_a_changed_bit_in_any_other_file(resumed, name):
    for share in (0, 0.13, 0.5, 0.93) if name != ".lock" else ():
        for bit in (0, 4, 7):
            code, _, err = resumed(flipped(name, share, bit))
            if name == "log.txt":
                assert code == 0, err
    for share in (0, 0.5):
        code, _, err = resumed(cut(name, share))
        assert code == 0 or name in err


def test_a_damaged_line_of_the_metrics_is_noted(resumed):
    code, _, err = resumed(cut("metrics.jsonl", 0.8))
    assert code == 0
    assert re.search(r"metrics.jsonl: line \d+ was damaged and deleted", err)


@pytest.mark.parametrize("junk", ["[" * 100_000, "[]", "{}", "3", '"a"', "null", "[3]", '[{"model_source": 3}]', "\0"])
@pytest.mark.parametrize("name", ["recipe.json", "environment.json"])
def test_other_json(resumed, name, junk):
    code, _, err = resumed(lambda run: (run / name).write_text(junk))
    assert code == 0 or name in err or "setting" in err
    assert name == "environment.json" or code


@pytest.mark.parametrize(
    "name", ["checkpoints", "metrics.jsonl", "log.txt", "environment.json", "recipe.json", ".lock"]
)
def test_a_file_where_a_folder_is_expected_and_the_reverse(resumed, name):
    def damage(run):
        path = run / name
        if path.is_dir():
            shutil.rmtree(path)
            path.touch()
        else:
            path.unlink()
            path.mkdir()

    code, _, err = resumed(damage)
    assert code or "rows, and lines of log.txt, are lost" in err
    assert name in err or "runs/x" in err


def test_a_run_whose_checkpoints_are_gone_says_that_it_starts_again(resumed):
    code, _, err = resumed(lambda run: shutil.rmtree(run / "checkpoints"))
    assert code == 0
    assert "runs/x has no checkpoint: it starts again before its first step" in err


@pytest.mark.parametrize("name", ["result.json", "model.safetensors", "recipe.json"])
def test_a_complete_run_is_read_as_it_was_written_or_not_at_all(stopped, here, tmp_path, name):
    images = tmp_path / "image.png"
    from PIL import Image

    Image.new("L", (8, 8), 200).save(images)
    run = tmp_path / "runs/x"
    answers = set()
    for share in (None, 0, 0.003, 0.2, 0.5, 0.8, 0.99):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(stopped[0].parent / "whole", run)
        if share is not None:
            flipped(name, share)(run)
        for command in (("runs",), ("predict", "runs/x", str(images), "--json"), ("train", "runs/x", "--resume")):
            done = here(*command)
            assert "Traceback" not in done.stderr
            assert done.returncode in (0, 2, 3, 4)
            if command[0] == "predict" and done.returncode == 0:
                answers.add(done.stdout)
    assert len(answers) == 1  # a damaged model gives an error, and no other probabilities


def test_a_copy_of_the_temporary_files_of_a_killed_run_is_swept(resumed, tmp_path):
    names = [".metrics.jsonl-12", ".model.safetensors-7", "checkpoints/.step-000000009.safetensors-99"]
    assert resumed(lambda run: [(run / name).touch() for name in names])[0] == 0
    assert not any((tmp_path / "runs/x" / name).exists() for name in names)
    assert Run(tmp_path / "runs/x").complete
    assert not list(Path(tmp_path / "runs/x").glob(".*-*"))
