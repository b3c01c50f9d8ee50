"""Heartbeats: what each process of a run is doing now, so that others notice a process that stands still.

A process writes its heartbeat into 40 bytes of memory, which takes a microsecond. If the memory is a file's, the
launcher reads it from there, also after the process was killed.
"""

import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

_FORMAT = struct.Struct("<5q")  # the fields of Beat, in order
_SAVE = struct.Struct("<q")  # after them: 1 if the launcher asks for a checkpoint
_LONG = 10  # times the timeout, for work that may take long


class Phase(IntEnum):
    """What the main thread of a process does."""

    STARTING = 0  # importing, connecting, the arithmetic probe; the first step, or with `compile` every step
    READING = 1  # the dataset, which is decoded once
    COMPUTING = 2  # a tower, or the update
    WAITING = 3  # for the other processes
    EVALUATING = 4
    SAVING = 5
    REPORTING = 6  # lines and records; a terminal or a pipe may stop its writer for as long as its reader likes
    OTHER_JOB = 7  # anything but training

    @property
    def time_limit(self) -> float | None:
        """Return how many timeouts a phase may last without progress; None if it has no limit."""
        if self in (Phase.READING, Phase.WAITING, Phase.REPORTING, Phase.OTHER_JOB):
            return None
        return 1 if self == Phase.COMPUTING else _LONG

    @property
    def tick_limit(self) -> float:
        """Return how many timeouts a phase may last without a sign that the process runs at all.

        Imports and readers of data may keep Python's other threads from running.
        """
        return _LONG if self in (Phase.STARTING, Phase.READING, Phase.OTHER_JOB) else 1


@dataclass(frozen=True)
class Beat:
    """A heartbeat.

    Attributes:
        ticks: how often the process's watching thread has run. It stands still in a process that was stopped.
        moves: how often the main thread has reported progress.
        phase: what the main thread does.
        step: the step that it computes, or -1 before the first one.
        tower: the tower that it computes, or -1.
    """

    ticks: int = 0
    moves: int = 0
    phase: Phase = Phase.STARTING
    step: int = -1
    tower: int = -1

    def pack(self) -> bytes:
        """Return the heartbeat as bytes."""
        return _FORMAT.pack(self.ticks, self.moves, self.phase, self.step, self.tower)

    @staticmethod
    def of(data: bytes) -> "Beat":
        """Return the heartbeat in `data`."""
        ticks, moves, phase, step, tower = _FORMAT.unpack(data[: _FORMAT.size])
        return Beat(ticks, moves, Phase(phase), step, tower)

    @property
    def where(self) -> str:
        """Return the step and the tower, in words."""
        if self.phase == Phase.OTHER_JOB:
            return "at its work"
        if self.step < 0:
            return "before its first step" if self.phase != Phase.READING else "while it read the dataset"
        doing = {
            Phase.WAITING: ", waiting for the other processes", Phase.EVALUATING: ", in an evaluation",
            Phase.SAVING: ", saving", Phase.REPORTING: ", reporting",
        }  # fmt: skip
        return f"in step {self.step}{f', tower {self.tower}' if self.tower >= 0 else ''}{doing.get(self.phase, '')}"


class Heartbeat:
    """This process's heartbeat, in the file `path` or, if that is None, in memory of its own.

    Attributes:
        save_alone: saves a checkpoint of this process's state without the others. A run sets it when it can.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._memory: mmap.mmap | bytearray = bytearray(_FORMAT.size + _SAVE.size)
        if path is not None:
            with path.open("w+b") as file:
                file.write(self._memory)
                file.flush()
                self._memory = mmap.mmap(file.fileno(), len(self._memory))
        self._ticks = self._moves = 0
        self._phase, self._step, self._tower = Phase.STARTING, -1, -1
        self._write()
        self.save_alone: Callable[[], None] | None = None

    def at(self, phase: Phase, step: int | None = None, tower: int = -1) -> None:
        """Report that the main thread starts `phase`, of `step` (None: as before) and `tower` (-1: of none)."""
        self._phase, self._tower = phase, tower
        self._step = self._step if step is None else step
        self._moved()

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Report `phase` within the context, and then the phase from before it."""
        before, tower = self._phase, self._tower
        self.at(phase, tower=tower)
        try:
            yield
        finally:
            self.at(before, tower=tower)

    def tick(self) -> None:
        """Report that this process runs at all. The watching thread calls this."""
        self._ticks += 1
        struct.pack_into("<q", self._memory, 0, self._ticks)

    @property
    def beat(self) -> Beat:
        """Return the heartbeat as it is now."""
        return Beat.of(bytes(self._memory[: _FORMAT.size]))

    @property
    def must_save(self) -> bool:
        """Return whether the launcher asks this process to save the state alone and to end."""
        return bool(_SAVE.unpack_from(self._memory, _FORMAT.size)[0])

    def _moved(self) -> None:
        self._moves += 1
        self._write()

    def _write(self) -> None:
        # The two threads write different fields, so neither needs a lock.
        struct.pack_into("<4q", self._memory, 8, self._moves, self._phase, self._step, self._tower)


def read(path: Path) -> Beat:
    """Return the heartbeat in the file `path`; that of a process that has just started if there is none yet."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Beat()
    return Beat.of(data) if len(data) >= _FORMAT.size else Beat()


def ask_to_save(path: Path) -> None:
    """Ask the process whose heartbeat is in the file `path` to save the state alone and to end."""
    with path.open("r+b") as file:
        file.seek(_FORMAT.size)
        file.write(_SAVE.pack(1))


@dataclass(frozen=True)
class Stalled:
    """A process that stands still.

    Attributes:
        process: its number.
        beat: its last heartbeat.
        seconds: for how long nothing has changed.
        runs: False if the whole process stands still; True if only its main thread does.
    """

    process: int
    beat: Beat
    seconds: float
    runs: bool

    @property
    def why(self) -> str:
        """Return what is known, in words."""
        what = "makes no progress" if self.runs else "gives no sign: it is stopped, frozen or cut off"
        return f"{what} (for {self.seconds:.0f} s)"


class Observer:
    """Finds the processes that stand still, among several whose heartbeats it sees again and again.

    Time in which the observer itself did not run, for example after Ctrl-Z, does not count.
    """

    _LONGEST_LOOK_S = 1.0  # between two looks; if it took longer, the observer was stopped, and the others may be too

    def __init__(self, longest_look_s: float = _LONGEST_LOOK_S) -> None:
        self._longest_look_s = longest_look_s
        self._now = 0.0
        self._last_look: float | None = None
        self._seen: dict[int, tuple[Beat, float, float]] = {}  # the beat, and when ticks and moves last changed

    def look(self, beats: Mapping[int, Beat], clock_s: float) -> None:
        """Take in the `beats` by process. `clock_s` is a clock that never runs back, in seconds."""
        if self._last_look is not None:
            self._now += min(clock_s - self._last_look, self._longest_look_s)
        self._last_look = clock_s
        self._seen = {process: seen for process, seen in self._seen.items() if process in beats}  # others have ended
        for process, beat in beats.items():
            before, ticked, moved = self._seen.get(process, (None, self._now, self._now))
            ticked = ticked if before is not None and before.ticks == beat.ticks else self._now
            moved = moved if before is not None and before.moves == beat.moves else self._now
            self._seen[process] = beat, ticked, moved

    def stalled(self, timeout_s: float, stopped_s: float | None = None) -> list[Stalled]:
        """Return the processes that have stood still for too long, in order of number.

        A process may take `timeout_s` seconds for a tower, and ten times as long for its start, an evaluation and
        saving. It must give a sign that it runs every `stopped_s` seconds, by default also `timeout_s`. If all
        processes wait for each other, all are returned.
        """
        stopped_s = timeout_s if stopped_s is None else stopped_s
        found, waiting = [], []
        for process, (beat, ticked, moved) in sorted(self._seen.items()):
            still_s, idle_s, limit = self._now - ticked, self._now - moved, beat.phase.time_limit
            if still_s >= stopped_s * beat.phase.tick_limit:
                found.append(Stalled(process, beat, still_s, runs=False))
            elif limit is not None and idle_s >= limit * timeout_s:
                found.append(Stalled(process, beat, idle_s, runs=True))
            elif beat.phase == Phase.WAITING and idle_s >= timeout_s:
                waiting.append(Stalled(process, beat, idle_s, runs=True))
        return found or (waiting if len(waiting) == len(self._seen) else [])
