"""How many wrong bits `--check-products` finds: `python -m benchmarks.flips`.

Single bits are flipped in the factors of products, after their checksum was computed, and in sums.
A flip that changes no sum, such as that of a factor whose partners are all 0, counts as harmless.
Correct products are checked, too, and none may be reported.
"""

import argparse
import logging
import random
from collections import Counter
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.common import warn
from lockstep.errors import LockstepError
from lockstep.kernels.portable import checks, products
from lockstep.kernels.portable.backends import Backend, Geometry, Sums, Watch, backend
from lockstep.kernels.portable.integers import Slices
from lockstep.messages import logger

PLACES = ("first factor", "second factor", "sums")
_MATRICES = ((16, 64, 24), (96, 40, 8), (5, 300, 65))  # M, K, N
# images, channels, side of an image, filters, side of a filter, stride
_CONVOLUTIONS = ((8, 16, 8, 16, 3, 1), (4, 3, 12, 24, 5, 1), (6, 8, 9, 8, 3, 2))
_SUMMED = 5  # products of which the checksum of a product of matrices consists


class Faulty:
    """A backend in which one bit flips, once the checksum is computed: in the factor 0 or 1, or in
    the sums, 2.
    """

    def __init__(self, real: Backend, place: int, chosen: random.Random) -> None:
        self.real, self.place, self.chosen = real, place, chosen
        self.factors: list[Tensor] = []
        self.calls = 0
        self.at = chosen.randrange(3)  # of the three products of slices

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a product of int8 matrices, as the real backend does."""
        self.calls += 1
        if self.calls != _SUMMED + 1 + self.at:
            return self.real.product(a, b)
        if self.place < len(self.factors):
            flip(self.factors[self.place], self.chosen)
        result = self.real.product(a, b)
        if self.place == len(self.factors):
            flip(result, self.chosen)
        return result

    def convolution(
        self, x: Slices, weight: Slices, at: Geometry, power: int, watch: Watch
    ) -> Tensor:
        """Return a convolution, as the real backend does."""

        def seen(sums: Sums) -> None:
            if self.calls == 2 and self.place == 2:
                flip(self.chosen.choice(sums.parts), self.chosen)
            watch(sums)

        self.calls += 1
        if self.calls == 2 and self.place < 2:
            flip(self.factors[self.place], self.chosen)
        return self.real.convolution(x, weight, at, power, seen)


def flip(x: Tensor, chosen: random.Random) -> None:
    """Flip a random bit of a random element of `x`."""
    bits = {1: torch.int8, 4: torch.int32, 8: torch.int64}[x.element_size()]
    element = x.view(bits)[tuple(chosen.randrange(n) for n in x.shape)]
    element.bitwise_xor_(
        torch.tensor(1 << chosen.randrange(7)).to(bits)
        if bits == torch.int8
        else torch.tensor(1 << chosen.randrange(8 * x.element_size() - 1)).to(bits)
    )


def trial(chosen: random.Random, place: int, convolves: bool) -> str:
    """Return what comes of a flip in a random product: "found", "harmless" or "missed"."""
    generator = torch.Generator().manual_seed(chosen.randrange(1 << 30))

    def slices(*shape: int) -> Tensor:
        # as those of normal numbers are: most are small
        numbers = torch.randn(shape, generator=generator).mul_(2000).clamp_(-8000, 8000).int()
        low = ((numbers + 64) & 127) - 64
        return torch.stack(((numbers - low) >> 7, low)).to(torch.int8)

    if convolves:
        images, channels, side, filters, size, stride = chosen.choice(_CONVOLUTIONS)
        at = Geometry((stride, stride), (1, 1), (1, 1))
        x, weight = (
            Slices(slices(*shape).permute(0, 1, 4, 2, 3), 0, 0)
            for shape in ((images, side, side, channels), (filters, size, size, channels))
        )
        x = Slices((x.parts + 64).view(torch.uint8), 0, 64)
        faulty = Faulty(backend(at), place, chosen)
        faulty.factors = [x.parts, weight.parts]
        exact = faulty.real.convolution(x, Slices(weight.parts.clone(), 0, 0), at, 0)
        compute: Any = lambda: checks.convolution(faulty, x, weight, at, 0)  # type: ignore[arg-type]  # noqa: E731
    else:
        rows, terms, columns = chosen.choice(_MATRICES)
        a, b = slices(rows, terms), slices(terms, columns)
        faulty = Faulty(backend(), place, chosen)
        faulty.factors = [a, b]
        exact = torch.stack(products._product(a.clone(), b.clone()))
        compute = lambda: torch.stack(products._product(a, b))  # noqa: E731
    with ExitStack() as stack:
        stack.enter_context(checks.checked(True))
        stack.enter_context(mock.patch.object(products, "multiplier", return_value=faulty))
        warned = stack.enter_context(mock.patch.object(logger, "warning"))
        try:
            result = compute()
        except LockstepError:
            return "found"
    if warned.called:
        return "found"
    return "harmless" if torch.equal(result, exact) else "missed"


def clean(chosen: random.Random, count: int) -> int:
    """Return how many of `count` correct products are reported."""
    reported = 0
    with mock.patch.object(logger, "warning") as warned, checks.checked(True):
        for _ in range(count):
            a, b = (torch.randn(shape) for shape in ((8, 24), (24, 6)))
            products.matmul(a, b)
            reported += warned.called
            warned.reset_mock()
    return reported


def main() -> None:
    warn()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=10000)
    options = parser.parse_args()
    chosen = random.Random(0)
    logger.setLevel(logging.ERROR)
    print(
        {
            (p, c): Counter(trial(chosen, p, c) for _ in range(options.flips // 6))
            for p in range(3)
            for c in (False, True)
        }
    )


if __name__ == "__main__":
    main()
