"""Comparison of two states: which tensors differ, in how many elements, and by how many units in the last place."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element


@dataclass(frozen=True)
class TensorDifference:
    """How one tensor differs between two states."""

    name: str  # the tensor's name in a checkpoint, as in parameter/conv1.weight
    # elements, differing: how many elements it has, and how many of them do not have the same bits
    elements: int
    differing: int
    # the largest difference in units in the last place: how many numbers of the type lie between two elements, plus
    # one. 0 if only the sign of a zero differs. None for integers and where one is not a number.
    max_ulp: int | None = None
    max_abs: float | None = None  # the largest absolute difference, or None where it is not finite
    problem: str | None = None  # why the elements cannot be compared, as only one state has the tensor, or None


def differences(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> list[TensorDifference]:
    """Return how each tensor that does not have the same bits in both states differs, by name in the order of names."""
    found = (_difference(name, first.get(name), second.get(name)) for name in sorted({*first, *second}))
    return [difference for difference in found if difference is not None]


def max_ulp(first: Tensor, second: Tensor) -> int | None:
    """Return the largest difference of two floating-point tensors of one type and shape, in units in the last place.

    None if they have integers, no element, or an element that is not a number.
    """
    if not first.is_floating_point() or first.numel() == 0:
        return None
    if bool((first.double().isnan() | second.double().isnan()).any()):
        return None
    own, other = _ordered(first), _ordered(second)
    if first.element_size() == 8:  # A difference of 64-bit integers may exceed 64 bits, and Python's does not overflow.
        return max(abs(int(a) - int(b)) for a, b in zip(own.tolist(), other.tolist(), strict=True))
    return int((own - other).abs().max())


def _difference(name: str, first: Tensor | None, second: Tensor | None) -> TensorDifference | None:
    problem, size = None, max(tensor.numel() for tensor in (first, second) if tensor is not None)
    if first is None or second is None:
        problem = f"only the {'second' if first is None else 'first'} has it"
    elif (first.dtype, first.shape) != (second.dtype, second.shape):
        kinds = " and ".join(f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in (first, second))
        problem = f"{kinds} do not compare"
    elif first.is_complex():  # Lockstep writes none, but the folder may be somebody else's.
        if torch.equal(first, second):
            return None
        problem = "complex numbers are not compared"
    if first is None or second is None or problem:
        return TensorDifference(name, size, size, problem=problem)
    first, second = (tensor.detach().cpu().reshape(-1) for tensor in (first, second))
    differs = _words(first) != _words(second)
    first, second = first[differs], second[differs]
    if not len(first):
        return None
    distance = float((first.double() - second.double()).abs().max())
    finite = distance if math.isfinite(distance) else None
    return TensorDifference(name, size, len(first), max_ulp(first, second), finite)


def _words(tensor: Tensor) -> Tensor:
    """Return the bits of each element of `tensor` [n] as an integer [n]."""
    return tensor.contiguous().view(_WORDS[tensor.element_size()])


def _ordered(tensor: Tensor) -> Tensor:
    """Return integers, int64 [n], that are ordered as the floating-point numbers, with neighbours 1 apart."""
    bits = _words(tensor)
    words = bits.long()
    # A negative number is a sign bit and a magnitude; its integer must fall as the magnitude rises. -0 becomes 0.
    return torch.where(words < 0, torch.iinfo(bits.dtype).min - words, words)
