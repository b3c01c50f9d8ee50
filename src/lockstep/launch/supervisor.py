"""The supervisor of a job on this host: it starts the worker processes, and starts them again if one has failed.

If a process dies or hangs, the others cannot continue, so all end. A restart continues from the newest checkpoint, with
the same bits.
"""

import math
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep.core.monitor import Beat
from lockstep.errors import CRASH, SIGNAL_BASE, STOP_SIGNALS, LockstepError
from lockstep.jobs.specs import Spec, TrainSpec
from lockstep.launch.signals import SignalForwarder
from lockstep.launch.workers import Failure, Workers
from lockstep.launch.world import World
from lockstep.messages import logger

POLL_S = 0.01  # seconds between two looks at the workers
_LONGEST_LOOK_S = 1.0  # between two looks; if it took longer, this program was stopped, and its workers may be too
_KILL_AFTER_S = 1.0  # seconds that the others have to end after a process has died
_FAILURES_AT_A_STEP = 3  # in a row; then the step itself is at fault
_STOP_S = 15.0  # seconds without progress after SIGTERM
_LAST_CAUSE_S = 1.0  # seconds for the worker that the others have lost to end
_SAVE_S = 25.0  # seconds for workers that were stopped to save


class Idle:
    """Measures how long no worker has moved on, without the time in which this program itself did not run (Ctrl-Z)."""

    def __init__(self) -> None:
        self._beats: dict[int, Beat] = {}
        self._s = 0.0
        self._last = 0.0

    def __call__(self, beats: dict[int, Beat], clock_s: float) -> float:
        """Return the seconds since a heartbeat changed. `clock_s` is a clock that never runs back, in seconds."""
        self._s = self._s + min(clock_s - self._last, _LONGEST_LOOK_S) if beats == self._beats else 0.0
        self._beats, self._last = beats, clock_s
        return self._s


class Supervisor:
    """Runs `spec` on `processes` worker processes of this host, with files in the empty `folder`.

    `on_record` receives the records that process 0 emits. `start` starts the workers that it is given. `pause` waits a
    moment, and may relay what they print. `outer` is this program's place in an outer launch, if it is in one. It then
    has one worker, which ends by itself if the other programs' ones hang.

    Attributes:
        signals: passes signals to stop on to the workers.
        code: the exit code: 0, or 128 + the signal that stopped the job.
        run_folder: the folder of the run that process 0 trains, as soon as it exists.
    """

    def __init__(
        self,
        spec: Spec,
        processes: int,
        folder: Path,
        on_record: Callable[[dict[str, Any]], None],
        *,
        start: Callable[[Workers], None],
        pause: Callable[[], None],
        outer: World | None = None,
    ) -> None:
        self._spec, self._processes, self._folder = spec, processes, folder
        self._on_record, self._start, self._pause, self._outer = on_record, start, pause, outer
        self.signals = SignalForwarder()
        self.code = 0
        self.run_folder: Path | None = None
        self._record: dict[str, Any] | None = None
        self._restarts = 0
        self._failed_steps: list[int] = []

    def run(self) -> dict[str, Any] | None:
        """Do the job and return its last record. Raises: LockstepError with the cause if the job failed."""
        while True:
            folder = self._folder / f"start-{self._restarts}"
            folder.mkdir(parents=True, exist_ok=True)  # Programs that clean /tmp may have removed the parent.
            workers = Workers(self._spec, self._processes, folder, self._outer)
            self.signals.workers = workers
            failure = self._until_the_end(workers)
            if self.signals.killed:
                self.code = SIGNAL_BASE + signal.SIGINT
            elif isinstance(failure, Failure):
                self._restart_or_raise(failure)
                continue
            else:
                self.code = failure
            return self._record

    def _until_the_end(self, workers: Workers) -> Failure | int:
        """Start the workers and wait for their end. Return the exit code, or why they failed."""
        grace_s = _KILL_AFTER_S
        try:
            self._start(workers)
            self.signals.repeat()
            failed = self._wait(workers)
            if isinstance(failed, Failure) and self._stopping:
                logger.warning(
                    f"{failed.message}. All were killed, and the newest checkpoint stays{self._how_to_continue()}"
                )
                return self._stop_code
            if isinstance(failed, Failure):
                return failed
            if not failed:
                return 0
            if was_stopped(failed) or (self._stopping and workers.only_lost_others):
                grace_s = _SAVE_S
                return self._stop_code
            failure = workers.failure(failed)
            if not failure.restartable:
                grace_s = _SAVE_S  # The others end by themselves, and process 0 may be saving.
            return failure
        finally:
            workers.end(grace_s)

    def _read_messages(self, workers: Workers) -> None:
        """Take what process 0 has sent: the run's folder, and records."""
        if self.run_folder is None:
            self.run_folder = workers.run_folder()
        if (record := workers.mailbox.take()) is not None:
            self._record = record
            self._on_record(record)

    def _wait(self, workers: Workers) -> dict[int, int] | Failure:
        """Wait for the workers. Return the exit codes of those that failed; or a failure if they hang, and are killed.

        If the workers were asked to stop, the run continues from its newest checkpoint.
        """
        idle = Idle()
        while True:
            try:
                self._read_messages(workers)
                if workers.failed() is not None:
                    self._read_messages(workers)
                    return self._all_failed(workers)
                self._pause()
                beats = workers.beats()
                idle_s = idle(beats, time.monotonic())
                if beats and idle_s >= self._limit_s * max(beat.slow for beat in beats.values()):
                    for number in beats:
                        workers.kill(number)
                    return workers.hang(beats, idle_s)
            except KeyboardInterrupt:  # in a program that calls Lockstep
                self.signals.stop(signal.SIGINT, None)

    @property
    def _stopping(self) -> bool:
        """Return whether training was asked to stop. In an outer launch, the worker itself sees to the end."""
        return isinstance(self._spec, TrainSpec) and self.signals.received is not None and self._outer is None

    @property
    def _stop_code(self) -> int:
        return int(SIGNAL_BASE + (self.signals.received or signal.SIGTERM))

    @property
    def _limit_s(self) -> float:
        """Return the seconds that the workers may take to move on."""
        if self._outer is not None:
            return math.inf  # The one worker here may wait for another host.
        timeout_s = self._spec.placement.timeout
        # Who presses Ctrl-C waits for a slow step. A scheduler does not.
        return min(timeout_s, _STOP_S) if self._stopping and self.signals.received == signal.SIGTERM else timeout_s

    def _all_failed(self, workers: Workers) -> dict[int, int]:
        """Return the exit codes of the workers that failed. If these have lost another one, wait until it has ended."""
        until = time.monotonic() + _LAST_CAUSE_S
        while workers.lost_others_only() and time.monotonic() < until:
            time.sleep(POLL_S)
        return workers.failed() or {}

    def _restart_or_raise(self, failure: Failure) -> None:
        """Prepare a restart. Raises: LockstepError if there must be none."""
        spec = self._spec
        restarts = spec.placement.max_restarts if isinstance(spec, TrainSpec) else 0
        # A program that crashes before its first step does so again.
        hopeless = failure.code == CRASH and failure.step < 0 and self.run_folder is None
        if not failure.restartable:
            raise LockstepError(failure.message, failure.code)
        self._failed_steps = [*self._failed_steps, failure.step][-_FAILURES_AT_A_STEP:]
        why = ""
        if self._failed_steps == [failure.step] * _FAILURES_AT_A_STEP:
            where = f"step {failure.step}" if failure.step >= 0 else "the start"
            why = f"{where} has failed {_FAILURES_AT_A_STEP} times in a row, so a restart does not help"
        elif self._restarts == restarts and restarts:
            why = f"--max-restarts {restarts} allows no further restart"
        if why or hopeless or self._restarts == restarts or self.signals.received is not None:
            raise LockstepError(_joined(failure.message, why) + self._how_to_continue(), failure.code)
        assert isinstance(spec, TrainSpec)
        self._restarts += 1
        note = _joined(failure.message, f"all processes were started again (restart {self._restarts} of {restarts})")
        spec = spec.replace(restarts=self._restarts, notes=(*spec.notes, note))
        if self.run_folder is not None:  # The notes of earlier starts are in its log.
            spec = spec.replace(path=self.run_folder, resume=True, numbered=False, notes=(note,))
        self._spec = spec

    def _how_to_continue(self) -> str:
        """Return a sentence with the command that continues the run; "" if there is no run."""
        if not isinstance(self._spec, TrainSpec) or self.run_folder is None:
            return ""
        return f". Continue with: {self._spec.recipe.command('train', self.run_folder, '--resume')}"


def _joined(message: str, more: str) -> str:
    """Return two statements as one text. The first one may end with a traceback."""
    if not more:
        return message.rstrip()
    return f"{message.rstrip()}\n{more}" if "\n" in message else f"{message}: {more}"


def was_stopped(failed: Mapping[int, int]) -> bool:
    """Return whether the exit codes in `failed` are those of workers that a signal stopped."""
    stopped = {SIGNAL_BASE + number for number in STOP_SIGNALS}
    # -SIGTERM: before the worker handled signals, or in an evaluation
    return set(failed.values()) <= stopped | {-signal.SIGTERM}
