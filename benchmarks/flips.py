"""How many wrong bits `--check-products` finds: `python -m benchmarks.flips`.

Single bits are flipped in the factors of products, after their checksum was computed, and in sums.
A flip that changes no sum, such as that of a factor whose partners are all 0, counts as harmless.
Correct products are checked, too, and none may be reported.
"""

import argparse
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.common import save, warn
from lockstep.errors import LockstepError
from lockstep.kernels.portable import checks, products
from lockstep.kernels.portable.backends import (
    Backend,
    Geometry,
    Multiplier,
    Sums,
    Watch,
    backend,
)
from lockstep.kernels.portable.integers import Slices, assembled

PLACES = ("first factor", "second factor", "sums")
_MATRICES = ((16, 64, 24), (96, 40, 8), (5, 300, 65))  # M, K, N
# images, channels, side of an image, filters, side of a filter, stride
_CONVOLUTIONS = ((8, 16, 8, 16, 3, 1), (4, 3, 12, 24, 5, 1), (6, 8, 9, 8, 3, 2))


class Faulty(Multiplier):
    """A backend in which one bit flips, once the checksum is computed: in the factor 0 or 1, or in
    the sums, 2.
    """

    def __init__(
        self, real: Backend, place: int, chosen: random.Random, factors: Sequence[Tensor]
    ) -> None:
        self.real, self.place, self.chosen, self.factors = real, place, chosen, factors
        self.calls = 0
        self.at = chosen.randrange(3)  # of the three products of slices
        self.flipped = self.computes = False

    def products(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return the products of slices, as the real backend does."""
        self.computes = True
        return super().products(a, b)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a product of int8 matrices, as the real backend does."""
        self.calls += self.computes
        if self.calls != self.at + 1:
            return self.real.product(a, b)
        self.flipped = True
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
        self.calls += 1
        if self.calls != 2:  # The first one gives the checksum.
            return self.real.convolution(x, weight, at, power, watch)

        def seen(sums: Sums) -> None:
            if self.place == 2:
                flip(self.chosen.choice(sums.parts), self.chosen)
            watch(sums)

        self.flipped = True
        if self.place == 0:
            flip(x.parts, self.chosen)
        if self.place == 1:  # as if in the copy that the library has made
            weight = replace(weight, parts=weight.parts.clone())
            flip(weight.parts, self.chosen)
        return self.real.convolution(x, weight, at, power, seen)


def flip(x: Tensor, chosen: random.Random) -> None:
    """Flip a random bit of a random element of `x`, but for the sign of an integer."""
    whole = {1: torch.int8, 4: torch.int32, 8: torch.int64}[x.element_size()]
    bits = 8 * x.element_size()
    mask = torch.tensor(1 << chosen.randrange(bits - 1)).to(whole)
    x.view(whole)[tuple(chosen.randrange(n) for n in x.shape)].bitwise_xor_(mask)


def trial(chosen: random.Random, place: int, convolves: bool) -> str:
    """Return what comes of a flip in a random product: "found", "harmless" or "missed"."""
    generator = torch.Generator().manual_seed(chosen.randrange(1 << 30))
    compute: Callable[[], Tensor]
    if convolves:
        images, channels, side, filters, size, stride = chosen.choice(_CONVOLUTIONS)
        at = Geometry((stride, stride), (1, 1), (1, 1))
        x = _slices((images, side, side, channels), generator).permute(0, 1, 4, 2, 3)
        filter_ = _slices((filters, size, size, channels), generator).permute(0, 1, 4, 2, 3)
        first, second = Slices((x + 64).view(torch.uint8), 0, 64), Slices(filter_, 0, 0)
        faulty = Faulty(backend(at), place, chosen, [first.parts, second.parts])
        exact = faulty.real.convolution(first, replace(second, parts=filter_.clone()), at, 0)
        compute = partial(checks.convolution, faulty, first, second, at, 0)  # type: ignore[arg-type]
    else:
        rows, terms, columns = chosen.choice(_MATRICES)
        a, b = _slices((rows, terms), generator), _slices((terms, columns), generator)
        faulty = Faulty(backend(), place, chosen, [a, b])
        exact = assembled(*products._product(a.clone(), b.clone()), 0)
        compute = lambda: assembled(*products._product(a, b), 0)  # noqa: E731
    with (
        checks.checked(True),
        patch.object(products, "multiplier", return_value=faulty),
        patch.object(checks, "on_stderr") as warned,
    ):
        try:
            result = compute()
        except LockstepError:
            return "found"
    assert faulty.flipped
    if warned.called:
        return "found"
    return "harmless" if torch.equal(result, exact) else "missed"


def _slices(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return slices of normal numbers, int8 [2, *shape]: most are small."""
    numbers = torch.randn(shape, generator=generator).mul_(2000).clamp_(-8000, 8000).int()
    low = ((numbers + 64) & 127) - 64
    return torch.stack(((numbers - low) >> 7, low)).to(torch.int8)


def reported(count: int) -> int:
    """Return how many of `count` correct products of random small matrices are reported."""
    found = 0
    with patch.object(checks, "on_stderr") as warned, checks.checked(True):
        for _ in range(count):
            a, b = torch.randn(2, 8, 8)
            products.matmul(a, b)
            found += warned.called
    return found


def main() -> None:
    warn()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--clean", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = random.Random(0)
    rows = []
    for convolves, what in enumerate(("product of matrices", "convolution")):
        for place, where in enumerate(PLACES):
            count = options.flips // (2 * len(PLACES))
            found = Counter(trial(chosen, place, bool(convolves)) for _ in range(count))
            share = found["found"] / max(1, count - found["harmless"])
            rows.append([f"{what}, {where}", f"{count:,}", str(found["harmless"]), f"{share:.2%}"])
    wrong = reported(options.clean)
    rows.append(["none", f"{options.clean:,}", f"{options.clean - wrong:,}", f"{wrong} reported"])
    head = ["flipped bits in", "products", "harmless", "found"]
    save("flips", {"table": {"head": head, "rows": rows}})
    for row in rows:
        print(*row, sep="  ")


if __name__ == "__main__":
    main()
