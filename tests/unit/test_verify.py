"""A run is verified: which steps are computed again and what is compared, and its chain, in which
each link vouches for those before it.
"""

import fcntl
import hashlib
import itertools
import json
import math
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
from lockstep.commands.verify import lines_of
from lockstep.config.placement import Placement
from lockstep.data import readers
from lockstep.errors import LockstepError
from lockstep.jobs.agreement import restore
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.result import STATED
from lockstep.jobs.specs import VerifySpec
from lockstep.jobs.verify import _of_checkpoint, _of_result, different, replayed, verify
from lockstep.models import MODELS
from lockstep.runs import saver, statefile
from lockstep.runs.chain import Link, chain_of, drawn
from lockstep.runs.run import Run
from lockstep.runs.run_folder import RunFolder
from lockstep.runs.saver import Saver
from lockstep.runs.statefile import SHA256

EXAMPLE = ROOT / "examples/verified-digits"


@pytest.fixture
def run(tmp_path, trained_once) -> Path:
    """Return a copy of a run of 30 steps with the links after 0, 10, 20 and 30."""
    shutil.copytree(trained_once(*NATIVE)[0], tmp_path / "a")
    return tmp_path / "a"


def record_of(path: Path, start=None, placement=None):
    placement = placement or Placement(device="cpu")
    return verify(
        VerifySpec(recipe=Run.open(path).recipe(), placement=placement, path=path, start=start),
        Context(),
    )


def kept(run: Path, *steps: int) -> None:
    for step, path in statefile.checkpoints_in(run / "checkpoints").items():
        if step not in steps:
            path.unlink()


def test_which_steps_are_replayed(run, caplog):
    def ranges(start=None):
        return replayed(Run(run), start)

    assert [ranges(start) for start in (None, 0, 10, 15)] == [(20, 30), (0, 10), (10, 20), (10, 20)]
    assert caplog.messages == [
        "there is no valid checkpoint after 15 steps: the replay starts from step 10"
    ]
    for start in (30, 2000):
        with lockstep_error("no state after step 30", DATA):
            ranges(start)
    flip(state_path(run, 20))
    assert ranges() == (10, 30)
    assert "step-000000020.safetensors is damaged" in caplog.text
    kept(run, 30)
    assert ranges() == (0, 30)
    kept(run)
    assert ranges() == (0, 30)  # the SHA-256 of the result


def test_the_initial_state_is_compared_while_a_program_trains(run):
    with (run / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = record_of(run, start=0)
    assert (record["same"], record["compared"]) == (True, {"checkpoints": 2})


def differences(record):
    return [(one["what"], one["step"], one.get("tensors", [])) for one in record["differences"]]


def test_what_was_changed_differs_from_the_replay(run):
    change_checkpoint(run, 30, "parameter/conv2.weight", 5)
    record = record_of(run)
    # Of the result, only the link names the checkpoint.
    assert differences(record) == [
        ("checkpoints", 30, ["parameter/conv2.weight"]),
        ("result.json", 30, []),
    ]
    assert [*record["differences"][1]["recorded"]] == ["link"]
    change_checkpoint(run, 20, "parameter/conv1.weight", 0)
    record = record_of(run)
    assert len(record["differences"][0]["tensors"]) > 10
    record = record_of(run, start=10)
    assert differences(record) == [("checkpoints", 20, ["parameter/conv1.weight"])]


@pytest.mark.parametrize(
    "exchange", ["weights", pytest.param("names of classes", marks=pytest.mark.slow)]
)
def test_a_model_file_exchanged_and_sealed_again_is_a_difference(run, exchange):
    def change(metadata, tensors):
        if exchange == "weights":
            tensors["logits.bias"] = tensors["logits.bias"].flip(0)
        else:
            metadata["classes"].reverse()

    assert record_of(run)["compared"] == {
        "checkpoints": 1,
        "result.json": 1,
        "model.safetensors": 1,
    }
    change_state(run / "model.safetensors", change)
    record = record_of(run)
    assert differences(record) == [
        ("model.safetensors", 30, ["logits.bias"] if exchange == "weights" else [])
    ]
    lines = [*lines_of(record)]
    assert "  first     model.safetensors, of the weights after 30 steps, differs" in lines
    names = "tensors   1 differ after 30 steps: logits.bias"
    if exchange != "weights":
        names = "metadata  1 differ after 30 steps: classes"
    assert f"  {names}" in lines


@pytest.fixture
def end(run):
    """Return the state at the end of the run, and its evaluations. No step is replayed."""
    replica = Replica(Run(run).recipe(), Placement(device="cpu"), Context())
    restore(replica, Run(run).read_checkpoint(30))
    return replica, replica.evaluate_all()


def forgeries(entries, *more):
    """Yield every JSON object with one of its entries, or one in it, changed or added: its name,
    and the object.
    """
    for name in (*entries, *more):
        value = entries.get(name)
        if isinstance(value, dict):
            for part in (*value, "nonce"):
                yield f"{name}.{part}", {**entries, name: {**value, part: 0.125}}
        elif isinstance(value, list):
            yield name, {**entries, name: [*value, *value, "x"]}
        else:
            yield name, {**entries, name: f"{value}x" if isinstance(value, str) else 0.125}
        yield name, {key: part for key, part in entries.items() if key != name}
        yield name, {**entries, name: None}


def test_each_field_of_a_result_is_compared_or_named(run, end):
    result, named = read_json(run / "result.json"), set()
    more = (
        "confident",
        "nonce",
        "accuracy_without_augmentation",
        "f1",
        "classes",
        "gpu_utilization",
    )
    for name, forged in forgeries(result, *more):
        if forged == result:
            continue
        (run / "result.json").write_text(json.dumps(forged))
        try:
            row, _ = _of_result(Run(run), *end)
        except LockstepError:  # The file is refused.
            named.add(name)
            continue
        first = name.partition(".")[0]
        if row["recorded"] == row["replayed"]:
            assert {name, first} & {"loss.train", *STATED.split()}, name
            assert first not in forged or {name, first} & {*row["stated"]}, name
        else:
            assert {*row["recorded"], *row["replayed"]} == {first}
            named.add(name)
    assert {"link", "loss.raw", "warnings", "recipe", "left_out", "confident", "nonce"} <= named


@pytest.mark.parametrize(
    ("name", "loaded"),
    [
        ("model.safetensors", None),
        ("checkpoints/step-000000030.safetensors", None),
        ("checkpoints/step-000000030.safetensors", 30),
    ],
)
def test_each_field_of_metadata_is_compared_or_named(run, end, name, loaded):
    """Also of a checkpoint that the replay only starts from, where its tensors prove nothing."""
    path, named = run / name, set()
    found = statefile.read(path)
    more = ("nonce", "frozen", "recipe", "weights_sha256", "step", "previous", "evaluations")
    for field, forged in forgeries({**found.metadata}, *more):
        if forged == found.metadata or field == SHA256:
            continue
        statefile.write(path, statefile.copied(found.tensors), forged)
        try:
            statefile.read(path)
        except LockstepError:  # The file is refused.
            named.add(field)
            continue
        if loaded is None:
            of_file = _of_result if name == "model.safetensors" else _of_checkpoint
            row = [*of_file(Run(run), *(end if of_file is _of_result else (end[0], None)))][-1]
        else:
            rows = [*_of_checkpoint(Run(run), end[0], loaded)]
            row = rows[0] if rows else {"metadata": [], "stated": ["previous", "evaluations"]}
        first = field.partition(".")[0]
        assert row["metadata"] == [first] or first in row["stated"], field
        named |= {*row["metadata"]}
    assert {"nonce", "model_source", "recipe_digest", "classes", "image_shape"} <= named


def test_another_machine_is_described(run):
    sessions = read_json(run / "environment.json")
    sessions[0]["probe"] = "0" * 64
    (run / "environment.json").write_text(
        json.dumps([*sessions, {**sessions[0], "step": 25, "cpu_capability": "X"}])
    )
    machine = record_of(run)["machine"]
    assert machine["probe_equal"] is False
    assert any(text.startswith("cpu_capability: X -> ") for text in machine["changes"])
    assert not any(
        "cpu_capability" in text for text in record_of(run, start=0)["machine"]["changes"]
    )


@pytest.mark.parametrize("stated_by", ["checkpoints", "environment.json", "the images"])
def test_other_data_is_refused(run, here, monkeypatch, stated_by):
    if stated_by == "the images":
        splits = readers.load_digits(None)
        other = {"train": splits["test"], "test": splits["train"]}
        monkeypatch.setattr(readers, "load_digits", lambda folder: other)
    elif stated_by == "environment.json":
        (entry,) = read_json(run / "environment.json")
        entry["data_sha256"]["train"] = "0" * 64
        (run / "environment.json").write_text(json.dumps([entry]))
    else:
        for path in run.glob("checkpoints/*"):
            change_state(path, lambda metadata, _: metadata["data_sha256"].update(train="0" * 64))
    refused(here("verify", "a"), DATA, "the training data is not what a was trained on")


def test_what_vanishes_while_the_replay_runs_is_not_compared(run, monkeypatch):
    read = statefile.read

    def read_until_deleted(path):
        found = read(path)
        kept(run, 10, 30)
        return found

    monkeypatch.setattr("lockstep.runs.statefile.read", read_until_deleted)
    with lockstep_error("after 20 steps cannot be read, so"):
        record_of(run, start=10)


def test_where_nothing_is_compared_nothing_is_claimed(run):
    flip(state_path(run, 20))
    with lockstep_error("after 20 steps cannot be read, so", DATA):
        record_of(run, start=10)
    assert not list(run.glob("checkpoints/damaged-*"))


def test_a_run_that_is_not_exact_is_refused(tmp_path, here):
    recipe = recipe_with("digits", {"exact": False})
    RunFolder.create(tmp_path / "a", recipe).close()
    refused(here("verify", "a"), USAGE, "only exact runs can be verified")


def test_a_run_from_a_file_needs_it_only_for_its_first_state(run):
    init, tuned = run / "model.safetensors", run.with_name("b")
    recipe = Run(run).recipe().replace(steps=2, init_sha256=files.sha256(init))
    fit_here(recipe, tuned, Placement(init=init, summary_every=0, save_every=1))
    assert record_of(tuned)["same"]
    # from the checkpoint of step 0
    record = record_of(tuned, start=0)
    assert (record["initial_weights"], record["compared"]) == ("not compared", {"checkpoints": 1})
    assert any(line.startswith("  initial   not compared") for line in lines_of(record))
    record = record_of(tuned, start=0, placement=Placement(device="cpu", init=init))
    assert (record["initial_weights"], record["compared"]) == ("known", {"checkpoints": 2})


def test_an_incomplete_run_says_what_is_missing(run, here):
    for name in ("result.json", "model.safetensors", "checkpoints/step-000000030.safetensors"):
        (run / name).unlink()
    for words in ([], ["--all"]):
        done = here("verify", "a", *words)
        missing = "  missing   result.json and model.safetensors: 30 steps complete this run"
        assert missing in done.stdout.splitlines()
    assert "2 links of 2 (1, 2), 20 of 30 steps, replayed: the same bits" in done.stdout


def test_without_its_last_checkpoint_the_result_is_replayed(run):
    kept(run, 0, 10, 20)
    record = record_of(run)
    assert (record["parts"], record["compared"]) == (
        [[20, 30]],
        {"result.json": 1, "model.safetensors": 1},
    )
    assert "link" in record["stated"]["result.json"]
    change_state(run / "model.safetensors", lambda _, tensors: tensors.pop("logits.bias"))
    assert differences(record_of(run)) == [("model.safetensors", 30, ["logits.bias"])]


def test_what_the_replay_does_not_reach_is_named(run):
    lines = [*lines_of(record_of(run, start=0))]
    assert (
        "  stated    and not compared: previous and evaluations of checkpoints; result.json; "
        "model.safetensors; all other files"
    ) in lines


def test_tensors_that_differ_in_type_shape_or_a_bit_are_listed():
    nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    first = {
        "b": torch.arange(6.0).view(2, 3),
        "only": torch.ones(3),
        "same": torch.zeros(2),
        "n": torch.tensor([1, 2]),
        "zero": torch.zeros(2),
        "nan": nan[:1],
        "inf": torch.tensor([math.inf]),
        "type": torch.zeros(3),
        "e": nan[:0],
    }
    assert different(first, {name: tensor.clone() for name, tensor in first.items()}) == []
    second = {name: tensor.clone() for name, tensor in first.items() if name != "only"}
    second["b"][1, 2], second["b"][0, 1] = 5.5, 1.25
    second["n"][1] = 7
    second |= {
        "zero": -torch.zeros(2),
        "nan": nan[1:],
        "inf": torch.ones(1),
        "type": torch.zeros(3).bfloat16(),
    }
    assert different(first, second) == ["b", "inf", "n", "nan", "only", "type", "zero"]


# ---- the chain


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


def reseal(run, first, *later):
    """Let the links after `first`, and the result, name those before them as they are now."""
    last = Link.of(statefile.metadata_of(state_path(run, first)))
    for step in later:
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
    reseal(run, 20, 30)
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
                reseal(run, 10, 20, 30),
            ],
            "step-000000010.safetensors names no link before it",
        ),
    ],
)
def test_a_chain_that_does_not_fit_is_refused(run, other, change, words):
    change(run, other)
    with lockstep_error(words, DATA):
        chain_of(Run(run))


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
    assert changed[0]["replayed"].keys() == forged.keys()


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
        reseal(tmp_path / "a", 0, 1, 2)
        refused(
            here("verify", "a", "--link", 2, "--init", init), DATA, "other layers before its head"
        )


@pytest.mark.parametrize("complete", [True, False])
def test_verify_and_eval_take_the_same_files(run, here, complete):
    """Of another name, or beyond the last step, a file is used by neither, and named by both."""
    sound = here("eval", "a", "--json").stdout
    found = statefile.read(state_path(run, 30))
    forged = {30: "step-0000000030.safetensors", 38: statefile.file_name(38)}
    for step, name in forged.items():
        tensors = {key: torch.zeros_like(tensor) for key, tensor in found.tensors.items()}
        tensors["step"] = torch.tensor(step)
        statefile.write(run / "checkpoints" / name, tensors, {**found.metadata, "step": step})
    if not complete:
        for each in ("result.json", "model.safetensors"):
            (run / each).unlink()
    for words in (("verify", "a", "--all"), ("eval", "a", "--json")):
        done = here(*words)
        assert done.returncode == 0
        assert f"checkpoints: ignored {', '.join(forged.values())}: checkpoints of" in done.stderr
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


def test_the_public_run_is_small_and_has_its_chain():
    assert sum(path.stat().st_size for path in EXAMPLE.rglob("*")) <= 300_000
    assert [link.step for link in chain_of(Run(EXAMPLE))] == [0, 50, 100, 150, 200, 248]


@pytest.mark.slow
def test_the_public_run_has_its_bits_on_two_processes(program):
    done = program("verify", EXAMPLE, "--all", "--processes", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 links of 5" in done.stdout
