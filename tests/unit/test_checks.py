"""Products with a checksum: correct ones are not reported, and wrong bits are found."""

import random
from functools import partial

import pytest
import torch
from benchmarks.flips import PLACES, reported, trial
from tests.helpers import lockstep_error

from lockstep.kernels.portable import checks, products
from lockstep.kernels.portable.backends import Float32, Geometry, Int8, Int8OnGpu, backend

GEOMETRIES = {
    "plain": ((8, 3, 9, 9), (16, 3, 5, 5), Geometry((1, 1), (2, 2), (1, 1))),
    "strided": ((5, 8, 9, 7), (24, 8, 3, 3), Geometry((2, 2), (1, 1), (1, 1))),
    "grouped": ((6, 8, 6, 6), (12, 4, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 2)),
    "depthwise": ((4, 32, 12, 12), (32, 1, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 32)),
    "by matrix": ((2, 4, 5, 5), (300, 4, 3, 3), Geometry((1, 1), (0, 0), (2, 2))),
}


def both(compute):
    """Return the results without checks and with them."""
    plain = compute()
    with checks.checked(True):
        return plain, compute()


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_correct_convolution_passes_with_the_same_bits(name, capsys):
    shape, of_weight, at = GEOMETRIES[name]
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(one, generator=generator) for one in (shape, of_weight))
    x = x.contiguous(memory_format=torch.channels_last)
    plain, checked = both(lambda: products.convolution(x, weight, at))
    assert torch.equal(plain, checked)
    gradient = torch.randn(plain.shape, generator=generator)
    needed = True, True, True
    for one, other in zip(
        *both(lambda: products.convolution_backward(gradient, x, weight, at, needed)), strict=True
    ):
        assert torch.equal(one, other)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("unit", [Int8(), Float32()])
def test_both_backends_have_the_checksum_of_their_sums(unit, monkeypatch, capsys):
    monkeypatch.setattr(products, "backend", lambda at: unit)
    monkeypatch.setattr(checks, "multiplier", lambda device: unit)
    test_a_correct_convolution_passes_with_the_same_bits("strided", capsys)


@pytest.mark.parametrize("shape", [(3, 5, 4), (300, 500, 40), (8, 4096, 160)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_correct_product_passes_with_the_same_bits(shape, dtype, capsys):
    rows, terms, columns = shape
    a, b = torch.randn(rows, terms, dtype=dtype), torch.randn(terms, columns, dtype=dtype)
    a[0], b[:, 0] = 0, -a.abs().max()
    assert torch.equal(*both(lambda: products.matmul(a, b)))
    batch = a[None].expand(2, -1, -1), b[None].expand(2, -1, -1)
    assert torch.equal(*both(lambda: products.matmul(*batch)))
    assert not capsys.readouterr().err


@pytest.mark.parametrize("value", [-64, 63])
@pytest.mark.parametrize("unit", [Int8(), Float32(), Int8OnGpu()])
def test_sums_beyond_int32_have_checksums(unit, value, capsys):
    a, b = (torch.full(shape, value, dtype=torch.int8) for shape in ((2, 9, 4096), (2, 4096, 200)))
    checked = checks.product(unit, a, b, partial(unit.products, a, b))
    assert all(map(torch.equal, checked, unit.products(a, b)))
    assert int(checked[1].long().sum()) > 1 << 31
    assert not capsys.readouterr().err


@pytest.mark.parametrize("terms", [1, 2, 129, 130, 16_513, 16_514, 2**25])
def test_digits_hold_each_sum_of_slices(terms):
    sums = torch.tensor([-64 * terms, 0, 63 * terms])
    digits = checks._digits(sums, terms)
    assert torch.equal(checks._joined(digits).long(), sums)


@pytest.mark.parametrize("bit", range(31))
def test_a_bit_of_any_column_is_found(bit, capsys):
    a, b = torch.randint(-64, 64, (2, 2, 7, 7), dtype=torch.int8)
    for column in range(7):
        wrong = backend().products(a, b)
        wrong[bit % 2][3, column] ^= 1 << bit
        checks.product(backend(), a, b, iter([wrong, backend().products(a, b)]).__next__)
        assert "right when computed again" in capsys.readouterr().err


@pytest.mark.parametrize("convolves", [False, True])
@pytest.mark.parametrize("place", range(len(PLACES)))
def test_flipped_bits_are_found(place, convolves):
    chosen = random.Random(place)
    outcomes = [trial(chosen, place, convolves) for _ in range(20)]
    assert outcomes.count("found") >= 5
    assert "missed" not in outcomes


def test_small_products_have_checksums_too():
    assert reported(20) == 0
    a, b = torch.randint(-99, 99, (2, 6, 6)).double()
    wrong = [torch.matmul(a, b) for _ in range(3)]
    for one, bit in zip(wrong, (1.0, 2.0, 0.0), strict=True):
        one[2, 3] += bit
    with lockstep_error("was wrong twice"):
        checks.exact((a, b), iter(wrong[:2]).__next__)
    assert torch.equal(checks.exact((a, b), iter([wrong[0], wrong[2]]).__next__), wrong[2])


def test_a_factor_that_changes_ends_the_run():
    torch.manual_seed(0)
    a = torch.randint(-64, 64, (2, 9, 16), dtype=torch.int8)
    b = torch.randint(1, 64, (2, 16, 5), dtype=torch.int8)
    with lockstep_error("its factors have changed in memory"):
        checks.product(
            backend(),
            a,
            b,
            lambda: (a[0].fill_(1).int() @ b[0].int(), a[0].int() @ b[1].int()),
        )
