"""Time spent on training, and its split into the parts of a step."""

import time
from typing import NamedTuple

import torch

PARTS = ("data", "compute", "communication", "report", "update")
_WARM_STEPS = 5  # the first steps of a session are slow, as they touch their memory for the first time


class Mark(NamedTuple):
    """A reading of the clock.

    seconds: time trained. steps: steps done. parts: seconds spent on each of PARTS. measured: steps that `parts` cover.
    """

    seconds: float = 0.0
    steps: int = 0
    parts: tuple[float, ...] = (0.0,) * len(PARTS)
    measured: int = 0


class Clock:
    """Time of a session spent on training, without evaluation and saving (`pause`), and its split by part.

    A GPU computes asynchronously. There the parts of a step are measured only if `begin` asks for it, as each
    measurement waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._gpu = device if device.type == "cuda" else None
        self._mark = Mark()
        self._warm = Mark()
        self._parts = [0.0] * len(PARTS)
        self._measured = 0
        self._measuring = True
        self._last_lap = 0.0
        self._started: float | None = None

    def begin(self, measure: bool) -> None:
        """Begin a step. On a GPU, measure its parts only if `measure` is true."""
        self._measuring = measure or self._gpu is None
        self._measured += self._measuring
        self._last_lap = time.perf_counter()

    def lap(self, part: str) -> None:
        """Count the time since the previous lap as `part`."""
        if not self._measuring:
            return
        if self._gpu is not None:
            torch.cuda.synchronize(self._gpu)
        now = time.perf_counter()
        self._parts[PARTS.index(part)] += now - self._last_lap
        self._last_lap = now

    def step(self) -> None:
        """Count a computed step."""
        self._advance()
        self._mark = self._mark._replace(steps=self._mark.steps + 1)
        if self._mark.steps == _WARM_STEPS:
            self._warm = self._mark

    def start(self) -> None:
        """Start to count time, or continue after `pause`."""
        self._started = time.perf_counter()

    def pause(self) -> None:
        """Stop counting time until `start`."""
        self._advance()
        self._started = None

    @property
    def running(self) -> bool:
        """True while time is counted."""
        return self._started is not None

    @property
    def mark(self) -> Mark:
        """The current reading."""
        return self._mark._replace(parts=tuple(self._parts), measured=self._measured)

    def steps_per_s(self) -> float:
        """Return the mean over this session, without its first five steps unless there are no others."""
        seconds, steps = self._mark.seconds - self._warm.seconds, self._mark.steps - self._warm.steps
        if steps == 0:
            seconds, steps = self._mark.seconds, self._mark.steps
        return steps / seconds if seconds else 0.0

    def _advance(self) -> None:
        if self._started is not None:
            now = time.perf_counter()
            self._mark = self._mark._replace(seconds=self._mark.seconds + now - self._started)
            self._started = now


def mean_parts(since: Mark, now: Mark) -> dict[str, float]:
    """Return the mean seconds per step of each part between two readings, or nothing if no step was measured."""
    steps = now.measured - since.measured
    return {part: (b - a) / steps for part, a, b in zip(PARTS, since.parts, now.parts, strict=True)} if steps else {}
