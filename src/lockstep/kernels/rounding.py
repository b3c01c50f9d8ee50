"""Elementary functions of Python floats with the same bits on every machine: computed with 34
digits, and rounded.

Those of the math module are the system library's, whose last bit may differ.
"""

from decimal import Context, Decimal, localcontext

# Twice as many as a float has, so that the rounding of a result to a float is the correct one.
_DIGITS = 34
_CONTEXT = Context(prec=_DIGITS)


def exp(x: float) -> float:
    """Return e**x."""
    return float(_CONTEXT.exp(Decimal(x)))


def log(x: float) -> float:
    """Return the natural logarithm of `x` > 0."""
    return float(_CONTEXT.ln(Decimal(x)))


def power(x: float, exponent: float) -> float:
    """Return x**exponent of `x` >= 0."""
    return float(_CONTEXT.power(Decimal(x), Decimal(exponent))) if x or exponent else 1.0


def cos(x: float) -> float:
    """Return the cosine of `x` radians, in [-7, 7]."""
    with localcontext(_CONTEXT):
        square = Decimal(x) ** 2
        term = total = Decimal(1)
        n = 0
        while abs(term) > Decimal(10) ** -_DIGITS:
            n += 2
            term *= -square / (n * (n - 1))
            total += term
        return float(total)
