"""The differences between two runs, from their folders alone, and between two states, in units in the last place."""

import json
import math
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.runs import change_checkpoint
from tests.unit.test_saver import flip

from lockstep.errors import LockstepError
from lockstep.runs.compare import differences, max_ulp
from lockstep.runs.diff import difference

OPTIONS = ("digits", "--steps", 30, "--digest-every", 10, "--save-every", 10)


@pytest.fixture
def runs(tmp_path, trained_once):
    """Return copies of a run on one process and of the same on two."""
    for processes in (1, 2):
        shutil.copytree(trained_once(*OPTIONS, "--processes", processes)[0], tmp_path / f"on{processes}")
    return tmp_path / "on1", tmp_path / "on2"


def compared(first, second):
    record = difference(first, second)
    json.dumps(record)
    return record


def test_runs_on_one_and_two_processes_are_the_same(runs):
    record = compared(*runs)
    assert record["same"] is True
    assert record["recipe"]["differences"] == record["code"] == []
    assert record["environment"] == ["processes: 1 -> 2"]
    assert record["data"]["same"] is True
    assert record["digests"] == {
        "common": 3, "last_equal_step": 20, "first_different_step": None, "digests": None,
    }  # fmt: skip
    assert record["tensors"] == {"step": 30, "count": 43, "differing": []}
    first, second = record["results"]
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["accuracy"] == second["accuracy"]


def test_runs_of_two_seeds_differ_from_the_start(runs, trained_once):
    other, _ = trained_once(*OPTIONS, "--processes", 1, "--seed", 1)
    record = compared(runs[0], other)
    assert record["same"] is False
    assert record["recipe"]["differences"] == ["seed: 0 -> 1"]
    assert record["environment"] == []  # The arithmetic probes of two recipes do not compare.
    assert (record["digests"]["last_equal_step"], record["digests"]["first_different_step"]) == (None, 0)
    assert record["tensors"]["step"] == 0
    assert {one["name"].partition("/")[0] for one in record["tensors"]["differing"]} == {"parameter", "ema"}
    assert record["results"][0]["weights_sha256"] != record["results"][1]["weights_sha256"]


def test_probes_of_other_images_are_not_compared(runs):
    """The probe is a fact of the machine and the training images."""
    file = runs[1] / "environment.json"
    (entry,) = json.loads(file.read_text())
    file.write_text(json.dumps([entry | {"probe": "0" * 64}]))
    assert any(text.startswith("probe: ") for text in compared(*runs)["environment"])
    other = entry["data_sha256"] | {"train": "0" * 64}
    file.write_text(json.dumps([entry | {"probe": "0" * 64, "data_sha256": other}]))
    assert compared(*runs)["environment"] == ["processes: 1 -> 2"]


@pytest.mark.slow
def test_a_later_difference_is_found_at_the_next_common_checkpoint(runs, trained_once):
    other, _ = trained_once(*OPTIONS, "--processes", 1, "--set", "clip=0.5")
    record = compared(runs[0], other)
    assert (record["digests"]["last_equal_step"], record["digests"]["first_different_step"]) == (0, 10)
    assert record["tensors"]["step"] == 10
    (runs[0] / "checkpoints/step-000000010.safetensors").unlink()
    assert compared(runs[0], other)["tensors"]["step"] == 20


def test_one_bit_of_one_checkpoint_is_found(runs):
    change_checkpoint(runs[0], 20, "ema/conv1.weight", 3)
    record = compared(*runs)
    assert record["same"] is False
    assert record["digests"]["first_different_step"] is None
    assert record["tensors"]["step"] == 20
    assert [(one["name"], one["max_ulp"]) for one in record["tensors"]["differing"]] == [("ema/conv1.weight", 1)]


def test_damaged_checkpoints_are_named_and_left_out(runs, caplog):
    flip(runs[1] / "checkpoints/step-000000030.safetensors")
    record = compared(*runs)
    assert record["tensors"] is None
    assert record["same"] is True  # The digests and the results are equal.
    assert "step-000000030.safetensors is damaged" in caplog.messages[0]


def test_runs_without_anything_in_common_are_neither_equal_nor_different(runs):
    for run in runs:
        shutil.rmtree(run / "checkpoints")
        (run / "metrics.jsonl").unlink()
    (runs[1] / "result.json").unlink()
    (runs[1] / "environment.json").unlink()
    record = compared(*runs)
    assert record["same"] is None
    assert record["code"] is record["environment"] is record["tensors"] is record["data"]["same"] is None


def test_a_folder_that_is_no_run_is_refused(runs, tmp_path):
    with pytest.raises(LockstepError, match="is not a folder"):
        compared(runs[0], tmp_path / "none")


TYPES = torch.float32, torch.bfloat16, torch.float16, torch.float64


def neighbour(value: float, dtype: torch.dtype, steps: int) -> float:
    """Return the number that is `steps` numbers of `dtype` above `value`."""
    tensor, upwards = torch.tensor([value], dtype=dtype), torch.tensor([math.inf], dtype=dtype)
    for _ in range(steps):
        tensor = torch.nextafter(tensor, upwards)
    return float(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [1.0, -1.0, 0.1, 1e-40, -1e-45, 0.0, 2.0**-126, 65504.0])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_an_ulp_is_the_distance_to_the_next_number(dtype, value, steps):
    value = float(torch.tensor(value, dtype=dtype))
    pair = torch.tensor([value], dtype=dtype), torch.tensor([neighbour(value, dtype, steps)], dtype=dtype)
    assert max_ulp(*pair) == max_ulp(*reversed(pair)) == steps


@pytest.mark.parametrize("dtype", TYPES)
def test_signs_and_zeros(dtype):
    def ulps(a, b):
        return max_ulp(torch.tensor([a], dtype=dtype), torch.tensor([b], dtype=dtype))

    assert ulps(0.0, -0.0) == 0
    assert ulps(1.0, 1.0) == 0
    assert ulps(1.0, -1.0) == 2 * ulps(1.0, 0.0)
    assert ulps(math.nan, 1.0) is None
    assert ulps(-math.inf, math.inf) == 2 * ulps(0.0, math.inf)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_distances_add_up(a, b, c):
    """Of three numbers, the distance between the outer two is the sum of the other distances."""
    bits = sorted((torch.tensor([x], dtype=torch.int32).view(torch.float32) for x in (a, b, c)), key=float)
    if any(bool(x.isnan()) for x in bits):
        return
    low, middle, high = bits
    assert max_ulp(low, high) == max_ulp(low, middle) + max_ulp(middle, high)


def test_only_tensors_that_differ_are_listed_by_name():
    first = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(3), "same": torch.zeros(2), "n": torch.tensor([1, 2])}
    second = {name: tensor.clone() for name, tensor in first.items()}
    assert differences(first, second) == []
    second["b"][1, 2] = neighbour(5.0, torch.float32, 3)
    second["b"][0, 1] = neighbour(1.0, torch.float32, 1)
    second["n"][1] = 7
    found = differences(first, second)
    assert [(one.name, one.elements, one.differing, one.max_ulp) for one in found] == [
        ("b", 6, 2, 3),
        ("n", 2, 1, None),
    ]
    assert found[0].max_abs == neighbour(5.0, torch.float32, 3) - 5.0
    assert found[1].max_abs == 5.0


def test_a_sign_of_zero_and_the_bits_of_a_nan_count():
    nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    found = differences({"x": torch.zeros(2), "y": nan[:1]}, {"x": -torch.zeros(2), "y": nan[1:]})
    assert [(one.differing, one.max_ulp, one.max_abs) for one in found] == [(2, 0, 0.0), (1, None, None)]
    assert differences({"y": nan[:1]}, {"y": nan[:1].clone()}) == []
    (found,) = differences({"x": torch.tensor([math.inf])}, {"x": torch.tensor([1.0])})
    assert (found.max_ulp, found.max_abs) == (0x7F800000 - 0x3F800000, None)  # JSON has no infinity.


def test_other_types_of_numbers():
    first = {"b": torch.tensor([True]), "c": torch.tensor([1j]), "f": torch.tensor([1.0]).to(torch.float8_e4m3fn)}
    assert differences(first, {name: tensor.clone() for name, tensor in first.items()}) == []
    second = {"b": torch.tensor([False]), "c": torch.tensor([2j]), "f": torch.tensor([1.125]).to(torch.float8_e4m3fn)}
    found = differences(first, second)
    assert [(one.differing, one.max_ulp) for one in found] == [(1, None), (1, None), (1, 1)]
    assert found[1].problem == "complex numbers are not compared"


def test_tensors_of_two_models_are_problems():
    first = {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(3)}
    second = {"b": torch.zeros(3), "c": torch.zeros(3, dtype=torch.bfloat16), "d": torch.zeros(1)}
    assert [(one.name, one.problem) for one in differences(first, second)] == [
        ("a", "only the first has it"),
        ("b", "float32 [2] and float32 [3] do not compare"),
        ("c", "float32 [3] and bfloat16 [3] do not compare"),
        ("d", "only the second has it"),
    ]
