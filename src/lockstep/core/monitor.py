"""Monitor: how far this process is, for its launcher to see, and how long each activity in a
step takes.

One context manager does both: `monitor.doing("compute", step)` writes the heartbeat, and adds the
seconds within it to an activity. Needs no torch at import time.
"""

import mmap
import time
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    import torch

Activity = Literal["data", "compute", "communication", "report", "update"]
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)

# times the timeout: for the first step, a part of an evaluation, and a stopped process outside of
# steps
SLOW = 10
# The first steps of a session are slow, as they touch their memory for the first time.
_WARM_STEPS = 5
_TICKS, _MOVES, _SLOW, _STEP = range(4)  # the fields of Beat


class Beat(NamedTuple):
    """A heartbeat: 32 bytes of memory. Writing it takes a microsecond.

    ticks: how often the watching thread has reported work without a time limit. moves: how often
    the main thread has made progress. slow: how many timeouts the present work may take, 1 or SLOW.
    step: the present step, or -1 before the first one.
    """

    ticks: int = 0
    moves: int = 0
    slow: int = SLOW
    step: int = -1

    @property
    def where(self) -> str:
        """Return the step, in words."""
        return "before any step" if self.step < 0 else f"in step {self.step}"


class HeartbeatFile:
    """A heartbeat in the file `path`, which a process and its launcher map. Without a path it is in
    memory only.

    Both keep the file mapped, so the launcher can read it after the process was killed.
    """

    def __init__(self, path: Path | None = None) -> None:
        content: bytearray | mmap.mmap = bytearray(array("q", Beat()).tobytes())
        if path is not None:
            if not path.exists():
                path.write_bytes(content)
            with path.open("r+b") as file:
                content = mmap.mmap(file.fileno(), len(content))
        self._fields = memoryview(content).cast("q")

    @property
    def beat(self) -> Beat:
        """The heartbeat as it is now."""
        return Beat(*self._fields)


class Mark(NamedTuple):
    """A reading of the clock."""

    seconds: float = 0.0  # time trained
    steps: int = 0  # steps done
    spent: tuple[float, ...] = (0.0,) * len(ACTIVITIES)  # seconds on each of ACTIVITIES
    measured: int = 0  # steps that `spent` covers


class Monitor(HeartbeatFile):
    """How far this process is, and the time that a session spends on training.

    A GPU computes asynchronously. There the activities are measured only if `begin_step` asks for
    it, by events in the GPU's own stream, for which nobody waits: a mark has what is computed by
    then. The training time itself is right in any case.

    Attributes:
        warming_up: True while a step may take long, because it is the first one.
    """

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self._activity: Activity | None = None  # what the present seconds count as
        # whether the present work has no time limit; this is so unless stated otherwise
        self._endless = True
        self._on_gpu = False
        self._edge: torch.cuda.Event | None = None  # the last one of a step that is measured
        # Edges that the GPU has not reached yet: activity, its start and end.
        self._ahead: deque[tuple[Activity, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._last = time.perf_counter()
        self._seconds, self._steps, self._measured = 0.0, 0, 0
        self._spent: dict[Activity, float] = dict.fromkeys(ACTIVITIES, 0.0)
        self._warm = Mark()
        self.warming_up = False
        self._move()

    def use(self, device: "torch.device") -> None:
        """Measure steps that are computed on `device`."""
        self._on_gpu = device.type == "cuda"

    def training(self) -> AbstractContextManager[None]:
        """Count the seconds within the context as training time: those of no other
        activity as "update".
        """
        return self._entered("update")

    def doing(self, activity: Activity, step: int | None = None) -> AbstractContextManager[None]:
        """Move on, in `step` (None: the same as before). Within training, count the seconds as
        `activity`.

        "report" has no time limit, because the reader of a terminal or a pipe may stop its writer.
        """
        if step is not None:
            self._fields[_STEP] = step
        return self._entered(activity if self._activity else None, endless=activity == "report")

    def pausing(self, *, endless: bool = True) -> AbstractContextManager[None]:
        """Do work that is not training. It has no time limit unless `endless` is false."""
        return self._entered(None, endless=endless)

    @contextmanager
    def _entered(self, activity: Activity | None, *, endless: bool = False) -> Iterator[None]:
        before = self._activity, self._endless
        self._move_to(activity, endless)
        try:
            yield
        finally:
            self._move_to(*before)

    def _move_to(self, activity: Activity | None, endless: bool) -> None:
        self._count()
        self._activity, self._endless = activity, endless
        self._move()

    def _count(self) -> None:
        """Count the seconds since the last call."""
        now = time.perf_counter()
        if self._activity is not None:
            self._seconds += now - self._last
            if not self._on_gpu:
                self._spent[self._activity] += now - self._last
        self._last = now
        if self._edge is not None:
            before, self._edge = self._edge, _event()
            if self._activity is not None:
                self._ahead.append((self._activity, before, self._edge))

    def _move(self) -> None:
        self._fields[_MOVES] += 1
        self._fields[_SLOW] = SLOW if self.warming_up or self._activity is None else 1

    def tick(self) -> None:
        """Report that this process runs, if its work has no time limit. The watching thread calls
        this.
        """
        if self._endless:
            # The threads write different fields, so none needs a lock.
            self._fields[_TICKS] += 1

    def begin_step(self, measure: bool) -> None:
        """Begin a step. On a GPU, measure its activities only if `measure` is true."""
        self._count()
        self._measured += measure or not self._on_gpu
        self._edge = _event() if measure and self._on_gpu else None

    def end_step(self) -> None:
        """Count a computed step."""
        self._count()
        self._steps += 1
        if self._steps == _WARM_STEPS:
            self._warm = self.mark

    @property
    def mark(self) -> Mark:
        """The reading at the last change."""
        while self._ahead and self._ahead[0][2].query():  # type: ignore[no-untyped-call]
            activity, start, end = self._ahead.popleft()
            self._spent[activity] += start.elapsed_time(end) / 1000
        return Mark(self._seconds, self._steps, tuple(self._spent.values()), self._measured)

    def steps_per_s(self) -> float:
        """Return the mean over this session, without its first five steps unless there are no
        others.
        """
        since = self._warm if self._steps > self._warm.steps else Mark()
        seconds = self._seconds - since.seconds
        return (self._steps - since.steps) / seconds if seconds else 0.0


def mean_seconds(since: Mark, now: Mark) -> dict[str, float]:
    """Return the mean seconds per step of each activity between two readings, or nothing if no
    step was measured.
    """
    steps = now.measured - since.measured
    return (
        {
            activity: (after - before) / steps
            for activity, before, after in zip(ACTIVITIES, since.spent, now.spent, strict=True)
        }
        if steps
        else {}
    )


def _event() -> "torch.cuda.Event":
    """Return the present end of what the GPU is to compute."""
    import torch

    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
