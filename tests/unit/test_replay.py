"""The verify job: which steps are computed again, what is compared, and what makes a comparison
impossible.
"""

import fcntl
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from tests.conftest import NATIVE
from tests.helpers import flip, lockstep_error, read_json, recipe_with, refused
from tests.runs import change_checkpoint, change_state, fit_here

from lockstep import files
from lockstep.commands.verify import lines_of
from lockstep.config.placement import Placement
from lockstep.errors import DATA, USAGE, LockstepError
from lockstep.jobs.agreement import restore
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.result import STATED
from lockstep.jobs.specs import VerifySpec
from lockstep.jobs.verify import _of_checkpoint, _of_result, different, replayed, verify
from lockstep.runs import statefile
from lockstep.runs.run import Run
from lockstep.runs.run_folder import RunFolder
from lockstep.runs.statefile import SHA256


@pytest.fixture
def run(tmp_path, trained_once) -> Path:
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
        with lockstep_error("no state after step 30") as raised:
            ranges(start)
        assert raised.value.code == DATA
    flip(run / "checkpoints/step-000000020.safetensors")
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
    assert "  tensors   1 differ after 20 steps: parameter/conv1.weight" in list(lines_of(record))


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


def test_a_checkpoint_with_other_class_names_is_a_difference(run):
    change_state(
        run / "checkpoints/step-000000020.safetensors",
        lambda metadata, _: metadata["classes"].reverse(),
    )
    assert differences(record_of(run, start=10)) == [("checkpoints", 20, [])]


def test_a_changed_result_is_a_difference(run):
    result = read_json(run / "result.json")
    (run / "result.json").write_text(json.dumps(result | {"weights_sha256": "0" * 64}))
    (row,) = record_of(run)["differences"]
    assert (row["what"], row["recorded"]) == ("result.json", {"weights_sha256": "0" * 64})
    assert row["replayed"] == {"weights_sha256": result["weights_sha256"]}


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


@pytest.mark.parametrize("stated_by", ["checkpoints", "environment.json"])
def test_other_data_is_refused(run, stated_by):
    if stated_by == "environment.json":
        (entry,) = read_json(run / "environment.json")
        entry["data_sha256"]["train"] = "0" * 64
        (run / "environment.json").write_text(json.dumps([entry]))
    else:
        for path in run.glob("checkpoints/*"):
            change_state(path, lambda metadata, _: metadata["data_sha256"].update(train="0" * 64))
    with lockstep_error("the training data is not what") as raised:
        record_of(run)
    assert raised.value.code == DATA


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
    flip(run / "checkpoints/step-000000020.safetensors")
    with lockstep_error("after 20 steps cannot be read, so") as raised:
        record_of(run, start=10)
    assert raised.value.code == DATA
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
