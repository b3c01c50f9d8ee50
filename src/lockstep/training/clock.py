"""Clock: the time spent training, and what it was spent on."""

import time
from typing import NamedTuple

import torch

PARTS = ("data", "compute", "communication", "report", "update")
_WARM_STEPS = 5  # the first steps of a session, left out of its mean rate: they touch memory for the first time


class Mark(NamedTuple):
    """A moment of a session: seconds trained, steps done, and seconds and steps measured by part."""

    seconds: float = 0.0
    steps: int = 0
    parts: tuple[float, ...] = (0.0,) * len(PARTS)
    measured: int = 0


class Clock:
    """Time spent training, without what is not (`pause`), and its split by part.

    A GPU computes behind the program's back: there the parts of a step are measured only if `begin` was told so, by
    waiting for the device after each.
    """

    def __init__(self, device: torch.device) -> None:
        self._gpu = device if device.type == "cuda" else None
        self._mark = Mark()
        self._warm = Mark()
        self._parts = [0.0] * len(PARTS)
        self._measured = 0
        self._measuring = True
        self._last = 0.0  # when the latest lap ended
        self._started: float | None = None

    def begin(self, measure: bool) -> None:
        """A step begins."""
        self._measuring = measure or self._gpu is None
        self._measured += self._measuring
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """What was done since the lap before this one was `part`."""
        if not self._measuring:
            return
        if self._gpu is not None:
            torch.cuda.synchronize(self._gpu)
        now = time.perf_counter()
        self._parts[PARTS.index(part)] += now - self._last
        self._last = now

    def step(self) -> None:
        """A step was computed."""
        self._advance()
        self._mark = self._mark._replace(steps=self._mark.steps + 1)
        if self._mark.steps == _WARM_STEPS:
            self._warm = self._mark

    def start(self) -> None:
        """Training starts, or goes on after `pause`."""
        self._started = time.perf_counter()

    def pause(self) -> None:
        """What follows is not training."""
        self._advance()
        self._started = None

    @property
    def running(self) -> bool:
        """Whether training time is being counted."""
        return self._started is not None

    @property
    def mark(self) -> Mark:
        """Now."""
        return self._mark._replace(parts=tuple(self._parts), measured=self._measured)

    def steps_per_s(self) -> float:
        """Mean rate of this session, its first steps left out if there were more."""
        seconds, steps = self._mark.seconds - self._warm.seconds, self._mark.steps - self._warm.steps
        if steps == 0:
            seconds, steps = self._mark.seconds, self._mark.steps
        return steps / seconds if seconds else 0.0

    def _advance(self) -> None:
        if self._started is not None:
            now = time.perf_counter()
            self._mark = self._mark._replace(seconds=self._mark.seconds + now - self._started)
            self._started = now


def split(since: Mark, now: Mark) -> dict[str, float]:
    """Seconds a step spent on each part, between two marks."""
    steps = now.measured - since.measured
    return {part: (b - a) / steps for part, a, b in zip(PARTS, since.parts, now.parts, strict=True)} if steps else {}
