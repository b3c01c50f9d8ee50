"""Where a step's time goes, by leaving parts out; and what that means, in one line."""

from typing import NamedTuple

_MUCH = 0.2  # the share of a step from which input or exchange is what holds it up
_NEAR = 0.4  # the share of the peak from which a network is held up by arithmetic; real ones reach 0.4 to 0.8


class Parts(NamedTuple):
    """Seconds of a step; their sum is the step."""

    data: float
    communication: float
    compute: float

    @property
    def step(self) -> float:
        """Seconds a step."""
        return sum(self)


def parts(whole: float, without_data: float, alone: float) -> Parts:
    """What a step of `whole` seconds is made of.

    `without_data`: a step on constant input; `alone`: that without exchange as well. A part that noise makes negative
    is nothing. compute is the rest: forward, backward, update and the loop.
    """
    data = max(0.0, whole - without_data)
    communication = min(max(0.0, without_data - alone), whole - data)
    return Parts(data, communication, whole - data - communication)


def verdict(parts: Parts, flops: int, peak: float) -> str:
    """What holds a step up: "NAME-bound: numbers". `flops` a step, `peak` in FLOP/s, both of one process."""
    shares = {name: seconds / parts.step for name, seconds in parts._asdict().items()}
    used = flops / parts.compute / peak if parts.compute else 0.0
    rate = f"{flops / parts.compute / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s" if parts.compute else "nothing"
    if shares["data"] >= max(_MUCH, shares["communication"]):
        return (
            f"loader-bound: input is {_of(parts.data, shares['data'])}; "
            f"without it a step takes {1e3 * (parts.step - parts.data):.1f} ms"
        )
    if shares["communication"] >= _MUCH:
        return (
            f"communication-bound: exchange is {_of(parts.communication, shares['communication'])}; larger towers "
            f"would spread it over more images"
        )
    rest = f"computing is {_of(parts.compute, shares['compute'])}, at {rate}, {used:.0%} of the peak"
    if used >= _NEAR:
        return f"compute-bound: {rest}"
    return f"memory-bound, or bound by overhead: {rest}; the rest of it moves memory or starts operators"


def _of(seconds: float, share: float) -> str:
    return f"{seconds * 1e3:.1f} ms of a step ({share:.0%})"
