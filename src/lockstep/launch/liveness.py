"""Liveness: which processes hang, by the heartbeats that an observer sees again and again."""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.core.monitor import LIMITS, Beat, Stage


@dataclass(frozen=True)
class Stalled:
    """A process that hangs.

    Attributes:
        process: its number.
        beat: its last heartbeat.
        seconds: for how long nothing has changed.
        runs: False if the whole process hangs; True if only its main thread does.
    """

    process: int
    beat: Beat
    seconds: float
    runs: bool

    @property
    def why(self) -> str:
        """Return what is known, in words."""
        what = "makes no progress" if self.runs else "is unresponsive (suspended, frozen or unreachable)"
        return f"{what} for {self.seconds:.0f} s"


class Observer:
    """Finds the processes that hang, among several whose heartbeats it sees again and again.

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

    def stalled(self, timeout_s: float, sign_s: float | None = None) -> list[Stalled]:
        """Return the processes that have hung for too long, in order of number.

        A process may take `timeout_s` seconds for a tower, and ten times as long for its start, an evaluation and
        saving. It must give a sign that it runs every `sign_s` seconds, by default also `timeout_s`. If all
        processes wait for each other, all are returned.
        """
        sign_s = timeout_s if sign_s is None else sign_s
        found, waiting = [], []
        for process, (beat, ticked, moved) in sorted(self._seen.items()):
            unresponsive_s, idle_s, limits = self._now - ticked, self._now - moved, LIMITS[beat.stage]
            if unresponsive_s >= sign_s * limits.sign:
                found.append(Stalled(process, beat, unresponsive_s, runs=False))
            elif limits.progress is not None and idle_s >= limits.progress * timeout_s:
                found.append(Stalled(process, beat, idle_s, runs=True))
            elif beat.stage == Stage.EXCHANGE and idle_s >= timeout_s:
                waiting.append(Stalled(process, beat, idle_s, runs=True))
        return found or (waiting if len(waiting) == len(self._seen) else [])
