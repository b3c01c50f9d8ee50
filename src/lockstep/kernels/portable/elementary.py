"""Elementary functions with the same bits everywhere.

Why: IEEE 754 fixes the bits of one addition, product or division, and of a conversion. It does not
fix those of `exp`, and libraries differ. So the functions here consist of single operations on
float64 tensors, and round once to float32.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.kernels.portable.integers import memory_order

_LOG2_HIGH = 0.693147180369123816490  # of the natural logarithm of 2
_LOG2_LOW = 1.90821492927058770002e-10
_LOG2_E = 1.4426950408889634  # A constant, as a library's logarithm may differ in its last bit.
_TABLE_SIZE = 1 << 14  # values of a table on each side of 0
_TABLE_STEPS = 1 << 10  # of them from 0 to 1
_SERIES = 120  # terms of the series of erf, which ends below 2**-53 there
_SWEEPS = 30  # of Jacobi's rotations; they converge in fewer than 10


def divided(x: Tensor, divisor: Any) -> Tensor:
    """Return `x` / `divisor`. A GPU multiplies by 1 / number in place of a division by a number."""
    return x / (on_device(divisor, x) if x.is_cuda and not isinstance(divisor, Tensor) else divisor)


def on_device(number: Any, x: Tensor) -> Tensor:
    """Return `number` as a tensor [] beside `x`, in the dtype that the quotient of both has."""
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    return x.new_full((), float(number), dtype=dtype)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root of `x`, correctly rounded: by numpy, as torch's own is not on every
    CPU, or by a GPU.
    """
    if x.is_cuda:
        # A root of 24 bits is never so near the middle of two that this errs.
        return x.double().sqrt().to(x.dtype)
    with np.errstate(invalid="ignore"):
        return torch.as_tensor(np.sqrt(x.numpy(force=True)))


def exp(x: Tensor) -> Tensor:
    """Return e**x of float64 `x`, with an error below 2**-50 of it."""
    count = (x * _LOG2_E).round_().clamp_(-1020.0, 1020.0)
    rest = (x - count * _LOG2_HIGH) - count * _LOG2_LOW
    terms = [1.0 / math.factorial(n) for n in range(15)]
    power = count.long().add_(1023).bitwise_left_shift_(52).view(torch.float64)
    result = _polynomial(rest.clamp(-1.0, 1.0), terms) * power
    return (
        result.masked_fill_(x < -708.0, 0.0)
        .masked_fill_(x > 709.0, torch.inf)
        .masked_fill_(x.isnan(), torch.nan)
    )


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of float64 `x`, with an error below 2**-50 of it or of 1."""
    mantissa, power = torch.frexp(x)
    small = mantissa < math.sqrt(0.5)
    mantissa = torch.where(small, mantissa + mantissa, mantissa)
    count = (power - small.to(power.dtype)).double()
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = _polynomial(s * s, [2.0 / (2 * n + 1) for n in range(14)])
    result = count * _LOG2_HIGH + (count * _LOG2_LOW + s * series)
    return (
        result.masked_fill_(x == 0.0, -torch.inf)
        .masked_fill_((x < 0.0) | x.isnan(), torch.nan)
        .masked_fill_(x == torch.inf, torch.inf)
    )


def log1p(x: Tensor) -> Tensor:
    """Return the natural logarithm of 1 + float64 `x`, `x` in [0, 1], with an error below 2**-48 of
    it.
    """
    # The sum loses bits of a small x. The quotient gives them back, as both logarithms have the
    # same slope there. Source: Kahan; Higham, Accuracy and stability, section 1.14.1.
    rounded = x + 1.0
    added = rounded - 1.0
    return torch.where(added == 0.0, x, log(rounded) * (x / added))


def power(x: Tensor, exponent: float) -> Tensor:
    """Return x**exponent of `x` in its dtype; NaN for negative values if the exponent is not an
    integer.
    """
    wide = x.double()
    result = exp(log(wide.abs() if exponent % 1 == 0 else wide) * exponent)
    return (result.copysign(wide) if exponent % 2 == 1 else result).to(x.dtype)


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + e**-x) of float64 `x`."""
    return 1.0 / (exp(-x) + 1.0)


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of float64 `x`."""
    small = exp(x.abs() * -2.0)
    far = (1.0 - small) / (small + 1.0)
    square = x * x
    # where 1 - e**-2x loses bits
    near = x * _polynomial(square, [1.0, -1.0 / 3.0, 2.0 / 15.0, -17.0 / 315.0])
    return torch.where(x.abs() < 0.01, near, torch.copysign(far, x))


def gaussian(x: Tensor) -> Tensor:
    """Return the distribution function of the standard normal distribution at float64 `x`."""
    x = x.clamp(-8.0, 8.0)  # Outside, it differs from 0 or 1 by less than 2**-50.
    term = total = x.abs()
    square = x * x
    for n in range(1, _SERIES):
        term = divided(term * square, 2 * n + 1.0)
        total = total + term
    return 0.5 + torch.copysign(total * density(x), x)


def density(x: Tensor) -> Tensor:
    """Return the density of the standard normal distribution at float64 `x`."""
    return exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))


def normal(uniform: Tensor) -> Tensor:
    """Return the standard normal values with the distribution function `uniform`, float64 in (0,
    1).

    The relative error is about 2**-20. Source: Giles, 2010, Approximating the erfinv function.
    """
    x = uniform * 2.0 - 1.0
    w = -log((1.0 - x) * (1.0 + x))
    centre = _polynomial(
        w - 2.5,
        [
            1.50140941,
            0.246640727,
            -0.00417768164,
            -0.00125372503,
            0.00021858087,
            -4.39150654e-06,
            -3.5233877e-06,
            3.43273939e-07,
            2.81022636e-08,
        ],
    )
    tail = _polynomial(
        sqrt(w) - 3.0,
        [
            2.83297682,
            1.00167406,
            0.00943887047,
            -0.0076224613,
            0.00573950773,
            -0.00367342844,
            0.00134934322,
            0.000100950558,
            -0.000200214257,
        ],
    )
    return torch.where(w < 5.0, centre, tail) * x * math.sqrt(2.0)


def looked_up(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `function` of float32 `x` from a table: its value at the nearest multiple of 2**-10 in
    [-16, 16).

    It is 0 below.
    """
    index = (
        (x * _TABLE_STEPS)
        .clamp_(-_TABLE_SIZE, _TABLE_SIZE - 1)
        .round_()
        .nan_to_num_()
        .add_(_TABLE_SIZE)
        .int()
    )
    order = memory_order(x)
    places = index.permute(order)
    values = _table(function, x.device).index_select(0, places.reshape(-1)).view(places.shape)
    values = values.permute([order.index(d) for d in range(x.ndim)])
    return values.masked_fill(x.isnan(), torch.nan)


def tree_sum(x: Tensor) -> Tensor:
    """Return the sum of `x` [..., n] over n, as [..., 1], added in pairs in a fixed order."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        added = x[..., :half] + x[..., half : 2 * half]
        x = torch.cat((added, x[..., 2 * half :]), -1)
    return x


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues, ascending, and the eigenvectors of a symmetric `matrix` [n, n], by
    Jacobi's rotations.

    The largest component of each eigenvector is positive. Source: Golub and Van Loan, section 8.5.
    """
    a = matrix.double().numpy(force=True)
    a = (a + a.T) / 2.0
    n = len(a)
    vectors = np.eye(n)
    for _ in range(_SWEEPS):
        off = np.abs(a[~np.eye(n, dtype=bool)]).max(initial=0.0)
        if off <= np.abs(a).max() * 2.0**-50:
            break
        for p in range(n - 1):
            for q in range(p + 1, n):
                if a[p, q] == 0.0:
                    continue
                theta = float((a[q, q] - a[p, p]) / (2.0 * a[p, q]))
                t = math.copysign(1.0, theta) / (abs(theta) + math.sqrt(theta * theta + 1.0))
                c = 1.0 / math.sqrt(t * t + 1.0)
                s = t * c
                for rows in (a.T, a, vectors.T):
                    rows[p], rows[q] = c * rows[p] - s * rows[q], s * rows[p] + c * rows[q]
    values = np.diag(a)
    order = np.argsort(values, kind="stable")
    vectors = vectors[:, order]
    signs = np.sign(vectors[np.abs(vectors).argmax(0), np.arange(n)])
    return torch.from_numpy(values[order]).to(matrix), torch.from_numpy(vectors * signs).to(matrix)


@cache
def _table(function: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
    table = function(torch.arange(-_TABLE_SIZE, _TABLE_SIZE).double() / _TABLE_STEPS).float()
    # A function here tends to 0 at the left and to 0 or 1 at the right, and is multiplied by
    # numbers of any size.
    table[0] = 0.0
    table[-1].round_()
    return table.to(device)


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Return sum of coefficients[n] * x**n, by Horner's rule with a rounding after each
    operation.
    """
    result = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result.mul_(x).add_(coefficient)
    return result
