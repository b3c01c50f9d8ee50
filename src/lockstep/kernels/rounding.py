"""Elementary functions of Python floats with the same bits on every machine: computed with 34
digits, and rounded.

Those of the math module are the system library's, whose last bit may differ.
"""

from decimal import Decimal, localcontext

# Twice as many as a float has, so that the rounding of a result to a float is the correct one.
_DIGITS = 34


def exp(x: float) -> float:
    """Return e**x."""
    with localcontext(prec=_DIGITS):
        return float(Decimal(x).exp())


def log(x: float) -> float:
    """Return the natural logarithm of `x` > 0."""
    with localcontext(prec=_DIGITS):
        return float(Decimal(x).ln())


def power(x: float, exponent: float) -> float:
    """Return x**exponent of `x` >= 0."""
    with localcontext(prec=_DIGITS):
        return float(Decimal(x) ** Decimal(exponent)) if x or exponent else 1.0


def cos(x: float) -> float:
    """Return the cosine of `x` radians, in [-7, 7]."""
    with localcontext(prec=_DIGITS):
        square = Decimal(x) ** 2
        term = total = Decimal(1)
        n = 0
        while abs(term) > Decimal(10) ** -_DIGITS:
            n += 2
            term *= -square / (n * (n - 1))
            total += term
        return float(total)
