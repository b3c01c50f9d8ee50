"""Bounds of portable arithmetic: each exact sum, with the most and the largest terms that it may have, and
what one more would do. docs/specification.md lists them.
"""

import re
from typing import NamedTuple

import pytest
import torch
from tests.documents import ROOT

from lockstep.kernels.portable import backends, integers, products, sums
from lockstep.kernels.portable.backends import Float32, Geometry, Int8, Int8Pointwise
from lockstep.kernels.portable.integers import Slices, assembled, exponent_for, sliced

FORMATS = {torch.float32: 2**24, torch.int32: 2**31 - 1, torch.float64: 2**53}


def largest(bits):
    """Return the largest integer that a tensor is rounded to."""
    return round(integers._LARGEST * 2**bits)


WHOLE = largest(integers.SLICED_BITS)
HIGH = (WHOLE + 64) // 128
LOW, OFFSET = 64, integers.OFFSET
ELEMENT = largest(sums._BITS)


class Sum(NamedTuple):
    """A sum of at most `terms` numbers of magnitude at most `term`, in a `format` of FORMATS."""

    name: str
    terms: int
    term: int
    format: torch.dtype


SUMS = [
    Sum("matrix product", integers.MOST_TERMS, LOW * LOW, torch.float32),
    Sum(
        "matrix product, mixed sum in float32",
        integers.MOST_TERMS // 2,
        2 * HIGH * LOW,
        torch.float32,
    ),
    Sum("matrix product, mixed sum", integers.MOST_INT32_TERMS, 2 * HIGH * LOW, torch.int32),
    Sum("128 S + T", integers.MOST_TERMS // 2, 128 * HIGH**2 + 2 * HIGH * LOW, torch.int32),
    Sum(
        "convolution, x with its offset",
        backends.MOST_CONVOLUTION_TERMS,
        (HIGH + OFFSET) * LOW,
        torch.float32,
    ),
    Sum(
        "depthwise convolution, x by whole weights",
        backends._MOST_JOINED_TERMS,
        HIGH * WHOLE + LOW * HIGH,
        torch.float32,
    ),
    Sum("group of a sum", sums._GROUP, ELEMENT, torch.int32),
    Sum("sum of groups", sums._MOST // sums._GROUP, sums._GROUP * ELEMENT, torch.float64),
    *(
        Sum(f"small matrix product, L = {n}", 2**n - 1, largest(bits) ** 2, torch.float64)
        for n, bits in ((5, 24), (11, 21), (17, 18))
    ),
    *(
        Sum(f"sum over a window of {n} channels", n, largest(bits), torch.float32)
        for n, bits in ((16, 20), (64, 18))
    ),
]


def is_exact(terms, term, form):
    """Return whether torch adds this many terms exactly. The last one makes the sum odd."""
    last = term - (terms * term + 1) % 2
    values = torch.full((terms,), term, dtype=form)
    values[-1] = last
    return int(values.sum(dtype=form)) == (terms - 1) * term + last


@pytest.mark.parametrize("one", SUMS, ids=lambda one: one.name)
def test_a_sum_is_exact_up_to_its_bound_and_one_more_term_is_not(one):
    assert is_exact(one.terms, one.term, one.format)
    most = FORMATS[one.format] // one.term
    assert one.terms <= most
    assert is_exact(most, one.term, one.format)
    assert not is_exact(most + 1, one.term, one.format)


def test_the_page_states_these_bounds():
    page = (ROOT / "docs/specification.md").read_text()
    rows = re.findall(r"^\| (.+?) \| ([\d,]+) \| ([\d,]+) \| (\w+) \| ([\d.]+) \|$", page, re.M)
    assert rows == [
        (
            one.name,
            f"{one.terms:,}",
            f"{one.term:,}",
            str(one.format).removeprefix("torch."),
            f"{FORMATS[one.format] / (one.terms * one.term):.3f}",
        )
        for one in SUMS
    ]


def test_every_integer_has_two_slices():
    q = torch.arange(-WHOLE, WHOLE + 1)
    found = sliced(q / 2.0**integers.SLICED_BITS).signed()
    high, low = found.parts.int()
    assert found.exponent == integers.SLICED_BITS
    assert torch.equal(128 * high + low, q.int())
    assert (high.abs().amax(), low.amin(), low.amax()) == (HIGH, -LOW, LOW - 1)


def test_a_larger_element_has_another_scale():
    share = torch.tensor([integers._LARGEST, integers._LARGEST + 2.0**-24])
    assert [exponent_for(one, 20) for one in share.tolist()] == [20, 19]
    assert integers.scales_for(share, 20)[0].tolist() == [2.0**20, 2.0**19]


def slices(high, low, *shape):
    """Return slices of equal elements, the last of which is 128 + 1 so that sums are odd."""
    parts = torch.tensor([high, low], dtype=torch.int8).view(2, *[1] * len(shape)).repeat(1, *shape)
    parts.flatten(1)[:, -1] = 1
    return Slices(parts, 0, 0)


def exact(a, b):
    """Return the sums S and T of two slices of one row each."""
    (high, low), (high_b, low_b) = (one.parts.flatten(1).long() for one in (a, b))
    return int((high * high_b).sum()), int((high * low_b + low * high_b).sum())


def with_offset(one):
    return Slices((one.parts.int() + OFFSET).to(torch.uint8), 0, OFFSET)


@pytest.mark.parametrize("backend", [Int8(), Float32(), Int8Pointwise()], ids=lambda one: one.name)
@pytest.mark.parametrize("terms", [integers.MOST_TERMS + 1, integers.MOST_INT32_TERMS])
def test_long_matrix_products_of_the_largest_slices_are_exact(backend, terms, monkeypatch):
    monkeypatch.setattr(products, "multiplier", lambda device: backend)
    a = slices(HIGH, -LOW, 1, terms)
    rows = a.parts.expand(-1, backends._LEAST_FILTERS, -1)
    high, mixed = products._product(rows, rows.mT)
    assert (int(high.amin()), int(mixed.amin())) == exact(a, a)
    assert (int(high.amax()), int(mixed.amax())) == exact(a, a)
    largest_low = slices(-LOW, -LOW, 1, terms).high
    assert int(backend.product(largest_low, largest_low.mT)) == (terms - 1) * LOW**2 + 1
    longer = slices(HIGH, -LOW, 1, integers.MOST_INT32_TERMS + 1).parts
    with pytest.raises(NotImplementedError):
        backend.products(longer, longer.mT)


@pytest.mark.parametrize("terms", [2**n for n in range(11, 19)])
def test_both_sums_together_are_exact(terms):
    high, mixed = torch.tensor([[terms * HIGH**2], [2 * terms * HIGH * LOW]], dtype=torch.int32)
    expected = mixed.float() + high.float() * 128
    assert torch.equal(assembled(high, mixed, 0, terms), expected)


@pytest.mark.parametrize("backend", [Int8(), Float32()], ids=lambda one: one.name)
@pytest.mark.parametrize(
    ("terms", "groups"),
    [
        (backends.MOST_CONVOLUTION_TERMS // 2, 1),
        (backends.MOST_CONVOLUTION_TERMS, 1),
        (backends._MOST_JOINED_TERMS, 2),
        (backends._MOST_JOINED_TERMS + 1, 2),
    ],
)
def test_long_convolutions_of_the_largest_slices_are_exact(backend, terms, groups):
    shape = (1, terms, 1, 1) if groups == 1 else (2, 1, 1, terms)
    x, weight = slices(-HIGH, -LOW, *shape), slices(HIGH, WHOLE - 128 * HIGH, *shape)
    at = Geometry((1, 1), (0, 0), (1, 1), groups)
    images = Slices(with_offset(x).parts.view(2, 1, -1, *shape[2:]), 0, OFFSET)
    high, mixed = exact(
        *(Slices(one.parts[:, -1:], 0, 0) for one in (x, weight))  # of the last group
    )
    y = backend.convolution(images, weight, at, 0).flatten()
    assert float(y[-1]) == torch.tensor(128.0 * high + mixed).float()


def test_longer_convolutions_are_refused():
    x = slices(HIGH, -LOW, 1, backends.MOST_CONVOLUTION_TERMS + 1, 1, 1)
    for backend in (Int8(), Float32()):
        with pytest.raises(NotImplementedError):
            backend.convolution(with_offset(x), x, Geometry((1, 1), (0, 0), (1, 1)), 0)


def test_a_power_of_two_within_a_convolution_leaves_no_sum_without_bits():
    assert 24 + 7 + max(backends._INSIDE) < 128
    assert min(backends._INSIDE) >= -126


def test_a_weight_gradient_of_more_terms_than_int32_holds_is_exact():
    terms = 2 * integers.MOST_INT32_TERMS
    one = -(128 * 62 + LOW) / 2.0**integers.SLICED_BITS
    x = torch.full((2, 1, 1, terms // 2), one)
    at = Geometry((1, 1), (0, 0), (1, 1))
    gradient = products.convolution_backward(x, x, torch.ones(1, 1, 1, 1), at, (False, True, True))
    high, mixed = terms * 62**2, 2 * terms * 62 * LOW
    assert float(gradient[1]) == torch.tensor(128.0 * high + mixed).float() * 2.0**-19
    assert float(gradient[2]) == terms * one


@pytest.mark.parametrize("n", [sums._GROUP - 1, 3 * sums._GROUP - 1])
def test_a_sum_of_the_largest_elements_is_exact(n):
    x = torch.full((n,), ELEMENT / 2.0**sums._BITS)
    x[-1] = 2.0**-sums._BITS
    expected = ((n - 1) * ELEMENT + 1) * 2.0**-sums._BITS
    assert sums.total(x) == sums.column_sums(x[None, :, None]) == expected
    for shape in ((sums._MOST + 1,), (1, sums._MOST + 1, 1)):
        with pytest.raises(NotImplementedError):
            (sums.total if len(shape) == 1 else sums.column_sums)(torch.zeros(()).expand(shape))


def odd(terms, bits, power):
    """Return the largest elements before their scale, and the sum of these powers of their integers. The last
    element makes it odd, and would make that of more bits odd, too.
    """
    q = largest(bits)
    last = q - 1 - terms * q % 2
    x = torch.full((terms,), integers._LARGEST, dtype=torch.float64)
    x[-1] = (last + 0.375) / 2.0**bits
    return x, (terms - 1) * q**power + last**power


@pytest.mark.parametrize("digits", range(1, 19))
def test_a_small_matrix_product_of_the_largest_integers_is_exact(digits):
    bits = min(24, (53 - digits) // 2)
    x, expected = odd(2**digits - 1, bits, 2)
    assert int(products._float64_product(x[None], x[:, None]) * 2.0 ** (2 * bits)) == expected
    assert expected < 2**53


@pytest.mark.parametrize("channels", [1, 9, 16, 17, 64])
def test_a_sum_over_a_window_of_the_largest_elements_is_exact(channels):
    bits = min(20, 24 - (channels - 1).bit_length())
    x, expected = odd(channels, bits, 1)
    y = sums.neighbours(x.float().view(1, -1, 1, 1), torch.ones(channels, channels, 1, 1))
    assert (y * 2.0**bits).unique().tolist() == [expected]
