"""A digest changes with every bit, for every size, memory position and dtype of a tensor."""

import pytest
import torch

from lockstep.core.digest import digest


@pytest.mark.parametrize("size", [0, 1, 1023, 2048, 2049, 100_003])
def test_one_changed_bit_changes_the_digest(size):
    tensor = torch.randn(size)
    same = digest([tensor.clone()])
    assert digest([tensor]) == same
    for index in {0, size // 2, size - 1} if size else ():
        other = tensor.clone()
        other.view(torch.int32)[index] ^= 1
        assert digest([other]) != same


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_the_digest_covers_values_and_shape_in_every_dtype(dtype):
    tensor = (torch.randn(3, 70, 50) > 0).to(dtype)
    others = [1 - tensor.to(torch.int8), tensor.flatten(), tensor.to(torch.int16)]
    assert digest([tensor]) not in [digest([others[0].to(dtype)]), digest([others[1]]), digest([others[2]])]


def test_the_digest_does_not_depend_on_the_position_in_memory():
    whole = torch.randn(50_001)
    part = whole[1:]  # its address is not a multiple of 8
    assert digest([part]) == digest([part.clone()])
    transposed = torch.randn(200, 300).t()
    assert digest([transposed]) == digest([transposed.contiguous()])
