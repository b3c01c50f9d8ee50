"""Comparison of states: elements that differ, and units in the last place."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstep.runs.compare import differences, max_ulp

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
