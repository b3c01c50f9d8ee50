"""The chain of a run: each link vouches for those before it, and what does not fit is named."""

import hashlib
import itertools
import json
import shutil
from pathlib import Path
from signal import SIGTERM
from unittest import mock

import pytest
import torch
from tests.conftest import NATIVE
from tests.documents import ROOT
from tests.helpers import (
    DATA,
    USAGE,
    Weights,
    flip,
    lockstep_error,
    read_json,
    recipe_with,
    refused,
    save,
    steps,
)
from tests.runs import change_checkpoint, change_state, fit_here, state_path

from lockstep import files
from lockstep.commands import shell
from lockstep.config.placement import Placement
from lockstep.data import readers
from lockstep.models import MODELS
from lockstep.runs import saver, statefile
from lockstep.runs.chain import Link, chain_of, drawn
from lockstep.runs.run import Run
from lockstep.runs.saver import Saver

EXAMPLE = ROOT / "examples/verified-digits"


@pytest.fixture
def run(tmp_path, trained_once) -> Path:
    """Return a copy of a run of 30 steps with the links after 0, 10, 20 and 30."""
    shutil.copytree(trained_once(*NATIVE)[0], tmp_path / "a")
    return tmp_path / "a"


@pytest.fixture
def other(tmp_path, run) -> Path:
    """Return a run with other weights after 20 steps, sealed as if it had been trained so."""
    shutil.copytree(run, tmp_path / "other")
    change_checkpoint(tmp_path / "other", 20, "parameter/conv1.weight", 0)
    return tmp_path / "other"


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def change_json(path, **changes):
    path.write_text(json.dumps(read_json(path) | changes))


def reseal(run, after):
    """Let all links after step `after`, and the result, name those before them as they are now."""
    last = Link.of(statefile.metadata_of(state_path(run, after)))
    for step in range(after + 10, 40, 10):
        named = last._asdict()
        change_state(
            state_path(run, step), lambda found, _, named=named: found.update(previous=named)
        )
        last = Link.of(statefile.metadata_of(state_path(run, step)))
    change_json(run / "result.json", link=last.sha256)


def test_a_link_states_its_contents_and_the_link_before_it(run):
    before, links = "", chain_of(Run(run))
    for step in (0, 10, 20, 30):
        found = statefile.read(state_path(run, step)).metadata
        assert found["previous"] == ({"step": step - 10, "sha256": before} if step else None)
        before = sha256(f"{before} {step} {found['contents_sha256']}".strip())
        assert Link(step, before) in links
    assert len(links) == 4
    assert read_json(run / "result.json")["link"] == before


def test_links_are_drawn_by_the_text_and_the_last_link(run, here):
    links = [Link(step, f"{step:064x}") for step in range(0, 70, 10)]
    order = sorted(range(1, 7), key=lambda number: sha256(f"rain {links[-1].sha256} {number}"))
    assert [drawn(links, count, "rain") for count in (2, 6)] == [sorted(order[:2]), [*range(1, 7)]]
    done = here("verify", "a", "--seed", "rain", "--json")
    chain = json.loads(done.stdout)["chain"]
    assert chain["steps"] == [0, 10, 20, 30]
    assert chain["replayed"] == drawn(chain_of(Run(run)), 1, "rain")


def test_all_links_are_replayed(run, here):
    done = here("verify", "a", "--all")
    last = chain_of(Run(run))[-1].sha256
    assert (done.returncode, done.stderr) == (0, "")
    first, compared, _, chain = done.stdout.splitlines()
    assert compared.startswith("  compared  4 checkpoints,")
    assert first == "3 links of 3 (1, 2, 3), 30 of 30 steps, replayed: the same bits"
    assert chain == f"  chain     {last} is its last link, after 30 steps"


def test_the_first_link_with_other_bits_is_named_if_sealed_again(run, here):
    change_checkpoint(run, 20, "parameter/conv2.weight", 5)
    reseal(run, 20)
    done = here("verify", "a", "--all")
    assert done.returncode == 1
    assert "  first     link 2, the checkpoint after 20 steps, differs" in done.stdout
    assert "  tensors   1 differ after 20 steps: parameter/conv2.weight" in done.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run, _: state_path(run, 10).unlink(), "000010.safetensors is missing, the link"),
        (
            lambda run, other: shutil.copy(state_path(other, 20), state_path(run, 20)),
            "step-000000020.safetensors is not the link that step-000000030.safetensors names",
        ),
        (
            lambda run, _: state_path(run, 10).rename(state_path(run, 20)),
            "it is the state after 10 steps",
        ),
        (lambda run, _: change_json(run / "recipe.json", lr=0.3), "recipe.json is not the recipe"),
        (lambda run, _: change_json(run / "result.json", link="0" * 64), "that result.json names"),
        (lambda run, _: change_json(run / "result.json", steps=20), "that result.json names"),
        (
            lambda run, _: change_json(run / "result.json", steps=40),
            "000040.safetensors is missing",
        ),
        (
            lambda run, _: [
                change_state(state_path(run, 10), lambda found, _: found.update(previous=None)),
                reseal(run, 10),
            ],
            "step-000000010.safetensors names no link before it",
        ),
    ],
)
def test_a_chain_that_does_not_fit_is_refused(run, other, change, words):
    change(run, other)
    with lockstep_error(words) as raised:
        chain_of(Run(run))
    assert raised.value.code == DATA


@pytest.mark.parametrize("part", ["", "previous", "evaluations"])
def test_a_link_has_no_room_for_a_number_that_is_tried(run, here, part):
    """Else whoever guesses TEXT tries numbers until the draw misses a forged link."""

    def add(metadata, _):
        (metadata[part] if part else metadata)["nonce"] = 5

    change_state(state_path(run, 30), add)
    for words in (("verify", "a", "--all"), ("eval", "a", "--checkpoint", 30)):
        refused(here(*words), DATA, "nonce: Extra inputs are not permitted")


def test_a_link_that_is_not_as_it_was_written_is_refused(run, here):
    flip(state_path(run, 10))
    refused(here("verify", "a", "--link", 2), DATA, "the sha256 of its contents differs")


def test_a_changed_result_is_named_by_any_link(run, here):
    change_json(run / "result.json", weights_sha256="0" * 64, accuracy_interval=[0.9, 1.0])
    done = here("verify", "a", "--link", 1, "--json")
    assert done.returncode == 1
    changed = json.loads(done.stdout)["differences"]
    assert [one["what"] for one in changed] == ["result.json"]
    forged = {"accuracy_interval": [0.9, 1.0], "weights_sha256": "0" * 64}
    assert changed[0]["recorded"] == forged


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run: (run / "result.json").unlink(), "only one of result.json and model.safetens"),
        (lambda run: (run / "model.safetensors").unlink(), "only one of result.json and model"),
        (lambda run: flip(run / "model.safetensors"), "model.safetensors is damaged"),
        (lambda run: flip(state_path(run, 0)), "the recorded state after 0 steps cannot be read"),
        (
            lambda run: change_json(
                run / "result.json", steps=20, link=chain_of(Run(run))[2].sha256
            ),
            "a is of another number of steps than its recipe, which has 30",
        ),
    ],
)
def test_what_could_not_be_compared_is_refused(run, here, change, words):
    change(run)
    done = here("verify", "a", "--link", 1)
    assert (done.returncode, done.stdout) == (DATA, "")
    assert words in done.stderr


def test_other_layers_before_a_head_are_refused(tmp_path, here):
    """Each checkpoint is sealed again, so that only the file that the run started from can tell."""
    small = {"arithmetic": "native", "steps": 2, "towers": 1, "weight_decay": {}, "ema": None}
    with mock.patch.dict(MODELS, digits="tests.helpers:smooth"):
        fit_here(recipe_with("digits", small), tmp_path / "first")
        init = tmp_path / "first/model.safetensors"
        head = {"head": "3", "augmentation": "plain", "init_sha256": files.sha256(init)}
        fit_here(
            recipe_with("digits", small | head),
            tmp_path / "a",
            Placement(init=init, save_every=1, keep="all"),
        )
        done = here("verify", "a", "--link", 2, "--init", init)
        assert done.returncode == 0, done.stderr
        frozen = statefile.read(state_path(tmp_path / "a", 0).with_name(statefile.FROZEN_FILE))
        changed = {name: tensor + 1 for name, tensor in frozen.tensors.items()}
        statefile.write(frozen.path, changed, {})
        for step in range(3):
            path = state_path(tmp_path / "a", step)
            metadata = statefile.metadata_of(path)
            tensors = statefile.read_tensors(path)
            full = tensors | {f"{statefile.FROZEN}{name}": each for name, each in changed.items()}
            statefile.write(path, full, metadata)
        last = Link.of(statefile.metadata_of(state_path(tmp_path / "a", 0)))
        for step in (1, 2):
            named = last._asdict()
            change_state(
                state_path(tmp_path / "a", step),
                lambda found, _, named=named: found.update(previous=named),
            )
            last = Link.of(statefile.metadata_of(state_path(tmp_path / "a", step)))
        change_json(tmp_path / "a/result.json", link=last.sha256)
        refused(
            here("verify", "a", "--link", 2, "--init", init), DATA, "other layers before its head"
        )


@pytest.mark.parametrize(("step", "name"), [(30, "step-0000000030.safetensors"), (38, None)])
@pytest.mark.parametrize("complete", [True, False])
def test_verify_and_eval_take_the_same_files(run, here, step, name, complete):
    """Of another name, or beyond the last step, a file is used by neither, and named by both."""
    sound = here("eval", "a", "--json").stdout
    found = statefile.read(state_path(run, 30))
    tensors = {key: torch.zeros_like(tensor) for key, tensor in found.tensors.items()}
    tensors["step"] = torch.tensor(step)
    forged = run / "checkpoints" / (name or statefile.file_name(step))
    statefile.write(forged, tensors, {**found.metadata, "step": step})
    if not complete:
        for each in ("result.json", "model.safetensors"):
            (run / each).unlink()
    for words in (("verify", "a", "--all"), ("eval", "a", "--json")):
        done = here(*words)
        assert done.returncode == 0
        assert f"checkpoints: ignored {forged.name}: checkpoints of" in done.stderr
    assert json.loads(done.stdout) == json.loads(sound)
    refused(here("eval", "a", "--checkpoint", 38), USAGE, "those after 0, 10, 20, 30 steps")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify", "RUN", "--from", 0], "is of another number of steps than its recipe, which"),
        (["verify", "RUN"], "is of another number of steps than its recipe, which has 1"),
        (["eval", "RUN"], "is beyond the end of its run, which has 1 steps: remove the file"),
        (["train", "RUN", "--resume"], "is beyond the end of its run, which has 1 steps"),
    ],
)
def test_a_link_beyond_the_end_is_refused_by_all(tmp_path, here, words, said):
    """The recipe counts epochs, so only the data can tell how many steps there are."""
    recipe = recipe_with("digits", {"epochs": 0.05, "portable": False})
    b = tmp_path / "b"
    assert fit_here(recipe, b, Placement(summary_every=0)).result["steps"] == 1
    for name in ("result.json", "model.safetensors"):
        (b / name).unlink()
    found = statefile.read(state_path(b, 1))
    forged = found.tensors | {"step": torch.tensor(4)}
    statefile.write(state_path(b, 4), forged, {**found.metadata, "step": 4})
    done = here(*(b if word == "RUN" else word for word in words), "--processes", 1)
    refused(done, DATA, said)
    assert not (b / "result.json").exists()


def test_the_exit_code_stays_if_the_reader_has_gone(run, here, monkeypatch):
    """As in `lockstep verify RUN | head -0`."""
    change_checkpoint(run, 30, "parameter/conv2.weight", 5)
    reseal(run, 30)

    def gone(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr(shell, "print", gone, raising=False)
    monkeypatch.setattr(shell, "discard", lambda _: None)
    assert here("verify", "a", "--link", 3).returncode == 1


def test_other_data_is_refused(run, here, monkeypatch):
    splits = readers.load_digits(None)
    other = {"train": splits["test"], "test": splits["train"]}
    monkeypatch.setattr(readers, "load_digits", lambda folder: other)
    refused(here("verify", "a", "--all"), DATA, "the training data is not what a was trained on")


def test_a_resumed_run_continues_the_chain(run, tmp_path):
    """It is stopped between two links, and begun again at an older one whose successor is
    damaged.
    """
    recipe, whole = Run(run).recipe(), chain_of(Run(run))
    place = Placement(save_every=10, save_every_s=0, summary_every=0, keep="all")
    updates = itertools.count()
    stop = lambda: SIGTERM if next(updates) == 2 * 15 - 1 else None  # noqa: E731
    b = tmp_path / "b"
    assert fit_here(recipe, b, place, stop_requested=stop).stopped_by == SIGTERM
    assert steps(b / "checkpoints") == [0, 10, 15]
    assert [link.step for link in chain_of(Run(b))] == [0, 10, 15]
    for step in (15, 10):
        flip(state_path(b, step))
        result = fit_here(recipe, b, place, resume=True).result
        assert result["link"] == whole[-1].sha256
        assert chain_of(Run(b)) == whole
        (b / "result.json").unlink()
        for later in (20, 30):
            state_path(b, later).unlink()
    assert fit_here(recipe, b, place, resume=True).result["link"] == whole[-1].sha256


@pytest.mark.parametrize("keep", [2, "all"])
def test_a_chain_needs_every_checkpoint(tmp_path, monkeypatch, keep):
    state, saves = Weights(), Saver(tmp_path, keep=keep, every_s=0, link_every=2)
    for _ in range(7):
        save(saves, state)
        state.update()
    saves.wait()
    assert steps(tmp_path) == ([*range(7)] if keep == "all" else [5, 6])
    found = statefile.metadata_of(tmp_path / statefile.file_name(6))
    assert found["previous"]["step"] == 4
    # A loss that is not finite saves the state once more.
    state.step = 6
    save(saves, state)
    saves.wait()
    assert statefile.metadata_of(tmp_path / statefile.file_name(6))["previous"] == found["previous"]
    # A full disk takes no link either.
    monkeypatch.setattr(saver, "save", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    save(saves, state)
    saves.wait()
    assert len(steps(tmp_path)) == (7 if keep == "all" else 1)


def test_which_links_is_one_question(run, here):
    refused(here("verify", "a", "--all", "--link", 1), USAGE, "--all and --link choose")
    refused(here("verify", "a", "--all", "--seed", "x"), USAGE, "--all and --seed choose")
    refused(here("verify", "a", "--seed", ""), USAGE, "--seed is an empty text")
    refused(here("verify", "a", "--link", 4), DATA, "a has 3 links after its initial state")
    with lockstep_error("give a number from 1 on, or all"):
        Placement().replace(keep="every")


def test_the_public_run_is_small_and_a_link_has_its_bits(here):
    assert sum(path.stat().st_size for path in EXAMPLE.rglob("*")) <= 300_000
    done = here("verify", EXAMPLE, "--link", 5)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_public_run_has_its_bits_on_two_processes(program):
    done = program("verify", EXAMPLE, "--all", "--processes", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 links of 5" in done.stdout
