"""Monitor: what this process is doing now, for the others to see, and how long each part of its work takes.

One context manager does both: `monitor.doing(Stage.COMPUTE, step, tower)` writes the heartbeat, and adds the seconds
within it to a part of the step. The heartbeat is 40 bytes of memory; writing it takes a microsecond. If the memory is a
file's, the launcher reads it from there, also after the process was killed. Needs no torch at import time.
"""

import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

_FORMAT = struct.Struct("<5q")  # the fields of Beat, in order
HEARTBEAT_BYTES = _FORMAT.size
_LONG = 10.0  # times the timeout, for work that may take long
_WARM_STEPS = 5  # the first steps of a session are slow, as they touch their memory for the first time


class Stage(IntEnum):
    """What the main thread of a process does."""

    START = 0  # importing, connecting, the arithmetic probe
    READ = 1  # the dataset, which is decoded once
    WARM_UP = 2  # in a heartbeat: any part of the first step of a session, or with `compile` of every step
    DATA = 3
    COMPUTE = 4
    EXCHANGE = 5
    REPORT = 6
    UPDATE = 7
    EVALUATE = 8
    SAVE = 9
    OTHER = 10  # the work of a job that is not training


@dataclass(frozen=True)
class _Limits:
    """The limits of a stage, in timeouts, and what its seconds count as."""

    progress: float | None  # how long it may last without progress; None for no limit
    sign: float  # how long it may last without a sign that the process runs at all
    part: str | None  # the part of a step that its seconds belong to; None if they are no training time


# Imports and readers of data may keep Python's other threads from running, so `sign` is long there. A terminal or a
# pipe may stop its writer for as long as its reader likes. Waiting has no limit of its own: the others have one.
LIMITS = {
    Stage.START: _Limits(_LONG, _LONG, None),
    Stage.READ: _Limits(None, _LONG, None),
    Stage.WARM_UP: _Limits(_LONG, _LONG, None),
    Stage.DATA: _Limits(1, 1, "data"),
    Stage.COMPUTE: _Limits(1, 1, "compute"),
    Stage.EXCHANGE: _Limits(None, 1, "communication"),
    Stage.REPORT: _Limits(None, 1, "report"),
    Stage.UPDATE: _Limits(1, 1, "update"),
    Stage.EVALUATE: _Limits(_LONG, 1, None),
    Stage.SAVE: _Limits(_LONG, 1, None),
    Stage.OTHER: _Limits(None, _LONG, None),
}
PARTS = tuple(limits.part for limits in LIMITS.values() if limits.part is not None)

_IN_WORDS = {
    Stage.EXCHANGE: ", waiting for the other processes", Stage.EVALUATE: ", in an evaluation",
    Stage.SAVE: ", saving", Stage.REPORT: ", reporting",
}  # fmt: skip


@dataclass(frozen=True)
class Beat:
    """A heartbeat."""

    ticks: int = 0  # how often the process's watching thread has run. It does not rise in a process that was suspended.
    moves: int = 0  # how often the main thread has reported progress
    stage: Stage = Stage.START  # what the main thread does
    step: int = -1  # the step that it computes, or -1 before the first one
    tower: int = -1  # the tower that it computes, or -1

    def pack(self) -> bytes:
        """Return the heartbeat as bytes."""
        return _FORMAT.pack(self.ticks, self.moves, self.stage, self.step, self.tower)

    @staticmethod
    def of(data: bytes) -> "Beat":
        """Return the heartbeat in `data`."""
        ticks, moves, stage, step, tower = _FORMAT.unpack(data[: _FORMAT.size])
        return Beat(ticks, moves, Stage(stage), step, tower)

    @property
    def where(self) -> str:
        """Return the step and the tower, in words."""
        if self.stage == Stage.OTHER:
            return "at its work"
        if self.step < 0:
            return "before its first step" if self.stage != Stage.READ else "while it read the dataset"
        tower = f", tower {self.tower}" if self.tower >= 0 else ""
        return f"in step {self.step}{tower}{_IN_WORDS.get(self.stage, '')}"


class Memory:
    """The bytes of a heartbeat, shared between a process and its launcher through the file `path`.

    Both keep the file mapped, so it may be deleted meanwhile. Without a path the memory is this process's own.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._bytes: mmap.mmap | bytearray = bytearray(Beat().pack())
        if path is not None:
            if not path.exists():
                path.write_bytes(self._bytes)
            with path.open("r+b") as file:
                self._bytes = mmap.mmap(file.fileno(), HEARTBEAT_BYTES)

    @property
    def beat(self) -> Beat:
        """Return the heartbeat as it is now."""
        return Beat.of(bytes(self._bytes[: _FORMAT.size]))

    def write_ticks(self, ticks: int) -> None:
        """Write the one field that belongs to the watching thread."""
        struct.pack_into("<q", self._bytes, 0, ticks)

    def write(self, moves: int, stage: Stage, step: int, tower: int) -> None:
        """Write the fields that belong to the main thread. The threads write different fields, so none needs a lock."""
        struct.pack_into("<4q", self._bytes, 8, moves, stage, step, tower)


class Mark(NamedTuple):
    """A reading of the clock."""

    seconds: float = 0.0  # time trained
    steps: int = 0  # steps done
    parts: tuple[float, ...] = (0.0,) * len(PARTS)  # seconds spent on each of PARTS
    measured: int = 0  # steps that `parts` cover


class Monitor(Memory):
    """What this process does, and the time that a session spends on training.

    A GPU computes asynchronously. There the parts of a step are measured only if `begin_step` asks for it, as each
    measurement waits for the device. The training time itself is right in any case.

    Attributes:
        warming_up: True while a step may take long, because it is the first one or compiles the network.
    """

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self._ticks = self._moves = 0
        self._stage, self._step, self._tower = Stage.START, -1, -1
        self._part: int | None = None  # index in PARTS of what the present seconds count as
        self._seconds, self._steps, self._measured = 0.0, 0, 0
        self._parts = [0.0] * len(PARTS)
        self._warm = Mark()
        self._measuring = True
        self._gpu: torch.device | None = None
        self._last = time.perf_counter()
        self.warming_up = False
        self._write()

    def use(self, device: "torch.device") -> None:
        """Measure the parts of steps that are computed on `device`."""
        self._gpu = device if device.type == "cuda" else None

    @contextmanager
    def doing(self, stage: Stage, step: int | None = None, tower: int = -1) -> Iterator[None]:
        """Report `stage`, of `step` (None: as before) and `tower` (-1: of none), within the context.

        Training time begins with UPDATE, the stage in which the loop runs. Within it the seconds of a stage count as
        its part of a step, unless they lie in a stage that is no training time.
        """
        before = self._stage, self._tower, self._part
        begins = stage == Stage.UPDATE and self._stage in (Stage.START, Stage.OTHER)
        part = LIMITS[stage].part if begins or self._part is not None else None
        self._enter(stage, self._step if step is None else step, tower, None if part is None else PARTS.index(part))
        try:
            yield
        finally:
            self._enter(before[0], self._step, before[1], before[2])

    def _enter(self, stage: Stage, step: int, tower: int, part: int | None) -> None:
        self._count()
        self._stage, self._step, self._tower, self._part = stage, step, tower, part
        self._write()

    def _count(self) -> None:
        """Count the seconds since the last call."""
        if self._gpu is not None and self._measuring and self._part is not None:
            import torch

            torch.cuda.synchronize(self._gpu)
        now = time.perf_counter()
        if self._part is not None:
            self._seconds += now - self._last
            if self._measuring:
                self._parts[self._part] += now - self._last
        self._last = now

    def tick(self) -> None:
        """Report that this process runs at all. The watching thread calls this."""
        self._ticks += 1
        self.write_ticks(self._ticks)

    def begin_step(self, measure: bool) -> None:
        """Begin a step. On a GPU, measure its parts only if `measure` is true."""
        self._count()
        self._measuring = measure or self._gpu is None
        self._measured += self._measuring

    def end_step(self) -> None:
        """Count a computed step."""
        self._count()
        self._steps += 1
        if self._steps == _WARM_STEPS:
            self._warm = self.mark

    @property
    def mark(self) -> Mark:
        """The reading at the last change of stage."""
        return Mark(self._seconds, self._steps, tuple(self._parts), self._measured)

    def steps_per_s(self) -> float:
        """Return the mean over this session, without its first five steps unless there are no others."""
        seconds, steps = self._seconds - self._warm.seconds, self._steps - self._warm.steps
        if steps == 0:
            seconds, steps = self._seconds, self._steps
        return steps / seconds if seconds else 0.0

    def _write(self) -> None:
        self._moves += 1
        long = self.warming_up and LIMITS[self._stage].progress == 1
        self.write(self._moves, Stage.WARM_UP if long else self._stage, self._step, self._tower)


def mean_parts(since: Mark, now: Mark) -> dict[str, float]:
    """Return the mean seconds per step of each part between two readings, or nothing if no step was measured."""
    steps = now.measured - since.measured
    return {part: (b - a) / steps for part, a, b in zip(PARTS, since.parts, now.parts, strict=True)} if steps else {}
