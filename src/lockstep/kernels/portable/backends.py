"""Backends: the libraries that multiply and add slices.

Why: exact products cost three products of slices for one. Each kind of CPU does these fastest
elsewhere: with VNNI in 8-bit integers, which make a portable convolution about as fast as a native
one; without, in float32 (docs/portable.md has the measurements).
Exact: all sums are integers below the limit of their type, so all backends give the same bits. Each
is checked on the largest slices before its first use, and the fastest exact one is chosen.

A convolution is (128 * high + mixed) * 2**power in float32, where `high` is the product of the high
slices and `mixed` the sum of both products of a high and a low slice. Both are exact integers, each
rounded once to float32, and so is their sum. The products of a convolution are short enough for
float32 sums, in which oneDNN adds on CPUs with AMX.
"""

import math
import timeit
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.backends import mkldnn
from torch.nn import functional

from lockstep.errors import ENVIRONMENT, LockstepError, option
from lockstep.kernels.portable.integers import (
    MOST_INT32_TERMS,
    MOST_TERMS,
    OFFSET,
    Slices,
    assembled,
    scaled,
)

# of products of at most 127 * 64, where one slice has its offset: below 2**24
MOST_CONVOLUTION_TERMS = 1 << 11
# of a high slice with a whole filter (63 * 8028) and of a low with a high one: below 2**24
_MOST_JOINED_TERMS = 1 << 5
# powers of two by which no sum of an int32 product leaves the range of float32
_INSIDE = range(-64, 65)
_HIGH = attrgetter("high")
_LOW = attrgetter("low")
# of a matrix product that takes less time as a convolution
_LEAST_FILTERS = 1 << 7
_LEAST_MULTIPLICATIONS = 1 << 26
_ZERO = torch.zeros((), dtype=torch.float64)
_CPU = torch.device("cpu")


class Geometry(NamedTuple):
    """The numbers of a two-dimensional convolution: stride, padding and dilation along (rows,
    columns), and groups.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @staticmethod
    def of(x: Tensor, *numbers: Any) -> "Geometry":
        """Return the geometry of a convolution of `x` from the numbers that torch gives, of which
        one may stand for both directions.
        """
        stride, padding, dilation, transposed, _, groups = numbers
        if transposed or x.ndim != 4:
            raise NotImplementedError
        stride, padding, dilation = (
            tuple([*pair, *pair][:2]) for pair in (stride, padding, dilation)
        )
        return Geometry(stride, padding, dilation, groups)

    def convolved(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return torch's convolution."""
        return functional.conv2d(
            x, weight, None, self.stride, self.padding, self.dilation, self.groups
        )

    def output_size(
        self,
        images: Sequence[int],
        weight: Sequence[int],
    ) -> list[int]:
        """Return (rows, columns) of the output for `images` [b, C, H, W] and a `weight` [K, C /
        groups, h, w].
        """
        numbers = zip(images[2:], weight[2:], self.stride, self.padding, self.dilation, strict=True)
        return [
            (n + 2 * pad - step * (side - 1) - 1) // stride + 1
            for n, side, stride, pad, step in numbers
        ]


class Sums(NamedTuple):
    """The exact sums of a convolution, float32 [b, K, h, w]: integers times `scales`, which are
    powers of two.

    `parts` are the products of the high slices and the mixed ones, or all of them as one.
    """

    parts: tuple[Tensor, ...]
    scales: tuple[float, ...]


Watch = Callable[[Sums], None]  # sees the sums before they are added


class Multiplier:
    """A backend for products of matrices.

    name: for messages.
    few_outputs: a convolution of at most so many takes less time as a product of matrices.
    """

    name: str
    few_outputs = 3 << 17

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the product of the int8 matrices `a` [M, K] and `b` [K, N], as exact integers."""
        raise NotImplementedError

    def products(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return a[0] b[0] and a[0] b[1] + a[1] b[0] of int8 `a` [2, M, K] and `b` [2, K, N], as
        exact integers.
        """
        high = self.product(a[0], b[0])
        mixed = self.product(a[0], b[1])
        return high, mixed + self.product(a[1], b[0])


class Int8(Multiplier):
    """8-bit integers with 32-bit or float32 sums, by oneDNN. Slices of 7 bits never saturate, also
    without VNNI.

    The operators are torch's, for quantised networks: with a scale of 1 they compute integers.
    """

    name = "8-bit integers"

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the product of the int8 matrices `a` [M, K] and `b` [K, N], as exact integers."""
        _require(a.shape[1], MOST_INT32_TERMS)
        return torch._int_mm(_dense(a), _dense(b))

    def convolution(
        self,
        x: Slices,
        weight: Slices,
        at: Geometry,
        power: int,
        watch: Watch | None = None,
    ) -> Tensor:
        """Return the convolution of `x` [b, C, H, W] by `weight` [K, C / groups, h, w], times
        2**power.
        """
        terms = math.prod(weight.parts.shape[2:])
        _require(terms, MOST_CONVOLUTION_TERMS)
        inside = power if power in _INSIDE else 0
        # It serves all products, and keeps what is made of it.
        weight = weight.once("int8", lambda signed: signed)
        if max(at.padding):
            # The border is made here: oneDNN's own is wrong for some grouped convolutions with an
            # offset.
            rows, columns = at.padding
            values = x.parts.permute(0, 1, 3, 4, 2)
            padded = functional.pad(values, (0, 0, columns, columns, rows, rows), value=x.offset)
            x = replace(x, parts=padded.permute(0, 1, 4, 2, 3))
            at = at._replace(padding=(0, 0))
        if at.groups == 1 and 2 * terms <= MOST_CONVOLUTION_TERMS:
            both = torch.cat((x.high, x.low), 1)
            mixed = self._convolved(both, x.offset, weight, _crossed, at, inside)
        else:  # Each product is exact in float32, so their sum is rounded once.
            mixed = self._convolved(x.high, x.offset, weight, _LOW, at, inside)
            mixed.add_(self._convolved(x.low, x.offset, weight, _HIGH, at, inside))
        high = self._convolved(x.high, x.offset, weight, _HIGH, at, inside + 7)
        if watch:
            watch(Sums((high, mixed), (2.0 ** (inside + 7), 2.0**inside)))
        return scaled(high.add_(mixed), power - inside)

    def _convolved(
        self,
        x: Tensor,
        offset: int,
        weight: Slices,
        part: Callable[[Slices], Tensor],
        at: Geometry,
        power: int,
    ) -> Tensor:
        """Return the convolution of uint8 `x` with an `offset` by one `part` of the int8 `weight`,
        times 2**power.
        """
        numbers = at.stride, at.padding, at.dilation, at.groups
        prepack = torch.ops.onednn.qconv_prepack
        packed = weight.once(
            (part, at, offset, x.shape[1:]),
            lambda signed: prepack(
                part(signed), torch.ones(1), 1.0, offset, *numbers, list(x.shape)
            ),
        )
        scale = torch.tensor([2.0**power], dtype=torch.float32)
        zero = torch.zeros(1, dtype=torch.int32)
        inputs = x, 1.0, offset, packed, scale, zero, None
        return torch.ops.onednn.qconv2d_pointwise(  # type: ignore[no-any-return]
            *inputs, *numbers, 1.0, 0, torch.float32, "none", [], ""
        )


class Int8OnGpu(Multiplier):
    """8-bit integers with 32-bit sums, by cuBLAS. It has matrix products only: convolutions are
    made of them.
    """

    name = "8-bit integers of a GPU"

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the product of the int8 matrices `a` [M, K] and `b` [K, N], as exact integers.

        cuBLAS takes more than 16 rows, and multiples of 8 for K and N; zeros are added. Every GPU
        has a kernel for `a` by rows and `b` by columns.
        """
        rows, terms = a.shape
        columns = b.shape[1]
        _require(terms, MOST_INT32_TERMS)
        a = functional.pad(a, (0, -terms % 8, 0, max(0, _LEAST_ROWS - rows)))
        b = functional.pad(b.mT, (0, -terms % 8, 0, -columns % 8)).mT
        return torch._int_mm(a.contiguous(), b.mT.contiguous().mT)[:rows, :columns]


def _require(terms: int, most: int) -> None:
    """Raise a NotImplementedError if a sum of so many `terms` could overflow its integers."""
    if terms > most:
        raise NotImplementedError


def _dense(x: Tensor) -> Tensor:
    """Return a matrix by rows or by columns, with the strides of one.

    `_int_mm` returns wrong numbers, without an error, for others: also for those of a dimension of
    size 1.
    """
    rows, columns = x.shape
    if not x.is_contiguous() and x.mT.is_contiguous():
        return x.as_strided((rows, columns), (1, rows))
    return x.contiguous().as_strided((rows, columns), (columns, 1))


class Float32(Multiplier):
    """Products and sums in float32, exact for at most 4096 terms; longer sums are added in
    float64.
    """

    name = "float32"
    few_outputs = 1 << 16

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the product of the int8 matrices `a` [M, K] and `b` [K, N], as exact integers."""
        left = torch.split(a.float(), MOST_TERMS, 1)
        right = torch.split(b.float(), MOST_TERMS)
        return sum((torch.mm(*pair).double() for pair in zip(left, right, strict=True)), _ZERO)

    def products(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """See `Multiplier`."""
        return _in_parts(self._short_products, a, b, MOST_TERMS // 2)

    def _short_products(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        (a_high, a_low), (b_high, b_low) = a.float(), b.float()
        return a_high @ b_high, torch.addmm(a_high @ b_low, a_low, b_high)

    def convolution(
        self,
        x: Slices,
        weight: Slices,
        at: Geometry,
        power: int,
        watch: Watch | None = None,
    ) -> Tensor:
        """Return the convolution of `x` [b, C, H, W] by `weight` [K, C / groups, h, w], times
        2**power.
        """
        terms = math.prod(weight.parts.shape[2:])
        _require(terms, MOST_CONVOLUTION_TERMS)
        x_high, x_low = x.signed().parts.float()
        w_high, w_low = weight.once("float32", lambda signed: signed.parts.float())

        # NNPACK's convolutions are Winograd's, which are not exact.
        with torch.backends.nnpack.flags(enabled=False):
            # The check of a backend computes this for several groups. Without oneDNN, Winograd's
            # scheme may compute it.
            if at.groups > 1 and terms <= _MOST_JOINED_TERMS and mkldnn.is_available():  # type: ignore[no-untyped-call]
                joined = at.convolved(x_high, torch.add(w_low, w_high, alpha=128.0))
                joined.add_(at.convolved(x_low, w_high))
                if watch:
                    watch(Sums((joined,), (1.0,)))
                return scaled(joined.add_(0.0), power)
            mixed = at.convolved(x_high, w_low).add_(at.convolved(x_low, w_high))
            high = at.convolved(x_high, w_high)
        if watch:
            watch(Sums((high, mixed), (1.0, 1.0)))
        return assembled(high, mixed, power)


class Int8Pointwise(Float32):
    """Products of large matrices in 8-bit integers, by convolutions of oneDNN with filters of one
    position, and those of small ones in float32.

    Torch multiplies matrices of int8 by a plain loop on CPUs without VNNI for AVX-512, while
    oneDNN's convolutions are fast there.
    """

    name = "8-bit integers in convolutions"

    def products(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """See `Multiplier`."""
        (_, rows, terms), columns = a.shape, b.shape[2]
        if rows > columns:  # The smaller matrix becomes the filters, which oneDNN reorders.
            high, mixed = self.products(b.mT, a.mT)
            return high.mT, mixed.mT
        if rows < _LEAST_FILTERS or rows * terms * columns < _LEAST_MULTIPLICATIONS:
            return super().products(a, b)
        return _in_parts(self._short_products_by_filters, a, b, MOST_CONVOLUTION_TERMS)

    def _short_products_by_filters(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        # A column of `b` is a position of an image, and a row of `a` is a filter.
        positions = b.mT.contiguous().view(torch.uint8) + OFFSET
        high, low = positions[:, None, None].permute(0, 1, 4, 2, 3)
        filters = Slices(a[..., None, None], 0, 0)
        convolved = partial(
            Int8()._convolved, offset=OFFSET, weight=filters, at=_POINTWISE, power=0
        )
        mixed = convolved(high, part=_LOW).add_(convolved(low, part=_HIGH))
        return convolved(high, part=_HIGH)[0, :, 0], mixed[0, :, 0]


def _in_parts(
    products: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    a: Tensor,
    b: Tensor,
    terms: int,
) -> tuple[Tensor, Tensor]:
    """Return both sums of `Multiplier.products` as int32. The factors are divided, so that
    `products` adds at most `terms` pairs of numbers.
    """
    _require(a.shape[2], MOST_INT32_TERMS)
    pairs = zip(torch.split(a, terms, 2), torch.split(b, terms, 1), strict=True)
    high, mixed = (part.int() for part in products(*next(pairs)))
    for pair in pairs:
        for total, part in zip((high, mixed), products(*pair), strict=True):
            total.add_(part.int())
    return high, mixed


def _crossed(weight: Slices) -> Tensor:
    return torch.cat((weight.low, weight.high), 1)


Backend = Int8 | Float32

_LEAST_ROWS = 32  # of a product by cuBLAS
# (M, K, N): small, tall, long, and those of a convolution and a linear layer
_SHAPES_ON_GPU = (
    (4, 9, 8),
    (1 << 15, 25, 32),
    (64, 1 << 15, 72),
    (1 << 12, 576, 256),
    (64, 3136, 1024),
)

_SIDE = 4  # of the filters that backends are checked with
_OUTPUTS = 24  # of these filters
_MOST_CHANNELS = MOST_CONVOLUTION_TERMS // _SIDE**2
# on both sides of each limit
_CHANNELS = (3, _MOST_CHANNELS // 2, _MOST_CHANNELS // 2 + 1, _MOST_CHANNELS)
_PLAIN = Geometry((1, 1), (1, 1), (1, 1))
_POINTWISE = Geometry((1, 1), (0, 0), (1, 1))
_STRIDED = Geometry((2, 2), (1, 1), (1, 1))
_USES = {
    "matrix products": None,
    "convolutions": _PLAIN,
    "strided convolutions": _STRIDED,
    "grouped convolutions": _PLAIN._replace(groups=2),
    "grouped strided convolutions": _STRIDED._replace(groups=2),
}


def backend(at: Geometry | None = None) -> Backend:
    """Return the backend for matrix products, or for convolutions with the stride, dilation and
    grouping of a geometry.

    It is the fastest one that is exact there. The first call for each of these uses checks it, in
    milliseconds. The choice changes no bit. Raises: LockstepError if no backend is exact.
    """
    if at is None:
        return _backend(None)
    return _backend(at._replace(padding=(1, 1), groups=1 if at.groups == 1 else _OUTPUTS))


def multiplier(device: torch.device) -> Multiplier:
    """Return the backend for matrix products on a device, checked there. Raises: LockstepError if
    it is not exact.
    """
    return _on_gpu(device) if device.type == "cuda" else backend()


@cache
def _on_gpu(device: torch.device) -> Int8OnGpu:
    multiplies = Int8OnGpu()
    for rows, terms, columns in _SHAPES_ON_GPU:
        if not _has_exact_product(multiplies, rows, terms, columns, device):
            raise LockstepError(
                f"portable arithmetic: the {multiplies.name} give wrong products of {rows} x "
                f"{terms} by {terms} x {columns} numbers, so this GPU would train other weights. "
                f"Give {option('device', 'cpu')}",
                ENVIRONMENT,
            )
    return multiplies


def uses_by_backend() -> dict[str, list[str]]:
    """Return what each backend computes on this machine, by the backend's name. That of matrix
    products is the first.
    """
    names = {use: backend(at).name for use, at in _USES.items()}
    return {
        candidate.name: [use for use, name in names.items() if name == candidate.name]
        for candidate in _by_speed(False)
    }


@cache
def _backend(at: Geometry | None) -> Backend:
    candidates = _by_speed(at is not None)
    if at is not None and at.groups > 1:
        # Float32 needs two convolutions there, see `_MOST_JOINED_TERMS`.
        candidates = sorted(candidates, key=lambda candidate: isinstance(candidate, Int8))
    for candidate in candidates:
        with suppress(RuntimeError):  # oneDNN does not compute this use.
            if _is_exact(candidate, at):
                return candidate
    raise LockstepError(
        f"portable arithmetic: neither 8-bit integers nor float32 compute exact products here, so "
        f"this machine would train other weights. Give {option('portable', False)} "
        f"(arithmetic=native)",
        ENVIRONMENT,
    )


@cache
def _by_speed(convolves: bool) -> list[Backend]:
    """Return the backends that work here, the fastest one first, by the time of a convolution or of
    a matrix product.

    Without VNNI, torch multiplies matrices of int8 by a plain loop, while oneDNN's convolutions are
    fast.
    """
    times: dict[Backend, float] = {}
    x = _slices(16, 64, 16, 16)
    weight = _slices(64, 64, 3, 3).signed()
    rows = x.signed().high.reshape(-1, 64)[:256]
    columns = weight.high.reshape(-1, 64).mT
    for candidate in (Int8(), Float32()):
        if convolves:
            compute = partial(candidate.convolution, x, weight, _PLAIN, 0)
        else:
            compute = partial(candidate.product, rows, columns)
        # Torch is built without oneDNN, or this CPU is not one of its.
        with suppress(RuntimeError, AttributeError):
            times[candidate] = min(timeit.repeat(compute, number=1, repeat=3))
    fastest = sorted(times, key=lambda candidate: times[candidate])
    if not convolves and isinstance(fastest[0], Float32) and isinstance(_by_speed(True)[0], Int8):
        fastest.insert(0, Int8Pointwise())
    return fastest


def _is_exact(candidate: Backend, at: Geometry | None) -> bool:
    """Return whether a backend computes products of the largest slices with the bits of float64."""
    if at is None:
        shapes = [(4, 3 * MOST_TERMS, 8)]
        if isinstance(candidate, Int8Pointwise):  # Only large products are convolutions.
            shapes.append((_LEAST_FILTERS, MOST_CONVOLUTION_TERMS + 1, 2 * _LEAST_FILTERS))
        return all(_has_exact_product(candidate, *shape, _CPU) for shape in shapes)
    if at.groups == 1:
        cases = [(channels, _SIDE) for channels in _CHANNELS]
    else:  # Filters of one channel of 16 and of 36 terms: on both sides of `_MOST_JOINED_TERMS`.
        cases = [(at.groups, _SIDE), (at.groups, _SIDE + 2)]
    return all(_has_exact_convolution(candidate, at, *case) for case in cases)


def _has_exact_product(
    candidate: Multiplier,
    rows: int,
    terms: int,
    columns: int,
    device: torch.device,
) -> bool:
    a, b = (_slices(n, terms, 1, 1).signed().parts.flatten(2).to(device) for n in (rows, columns))
    b = b.mT
    found = candidate.product(a[1], b[1]), *candidate.products(a, b)
    high, low = a.double()
    exact = low @ b[1].double(), high @ b[0].double(), high @ b[1].double() + low @ b[0].double()
    return all(torch.equal(one.double(), other) for one, other in zip(found, exact, strict=True))


def _has_exact_convolution(
    candidate: Backend,
    at: Geometry,
    channels: int,
    side: int,
) -> bool:
    height, width = (
        step * (side - 1) + 2 * stride for stride, step in zip(at.stride, at.dilation, strict=True)
    )
    x = _slices(2, channels, height, width)
    weight = _slices(_OUTPUTS, channels // at.groups, side, side)
    x_high, x_low = x.signed().parts.double()
    w_high, w_low = weight.signed().parts.double()

    mixed = at.convolved(x_high, w_low) + at.convolved(x_low, w_high)
    exact = at.convolved(x_high, w_high).float().mul(128.0).add(mixed.float())
    y = candidate.convolution(x, weight, at, 0)
    return torch.equal(y.view(torch.int32), exact.view(torch.int32))


def _slices(
    n: int,
    channels: int,
    height: int,
    width: int,
) -> Slices:
    """Return large slices [2, n, C, H, W], channels last: uint8 with an offset, as those of images
    are.
    """
    values = torch.arange(2 * n * channels * height * width).view(2, n, height, width, channels)
    parts = torch.where(values * 2654435761 % 7 < 5, 127, values * 40503 % 128).to(torch.uint8)
    return Slices(parts.permute(0, 1, 4, 2, 3), 0, OFFSET)
