"""The supervisor of a job on this host: it starts the worker processes, and starts them again if one has failed.

The processes between two starts are a generation. If one of them dies or stands still, the others cannot go on, so all
end, and the next generation continues from the newest checkpoint. The bits stay the same.
"""

import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from lockstep.core.heartbeat import Observer, Stalled
from lockstep.errors import CRASH, ENVIRONMENT, SIGNAL_BASE, STOP_SIGNALS, LockstepError, printable
from lockstep.jobs.specs import Job, TrainJob
from lockstep.launch.signals import SignalForwarder
from lockstep.launch.workers import Failure, Workers
from lockstep.launch.world import World

POLL_S = 0.02  # seconds between two looks at the workers
_LOOK_S = 0.2  # seconds between two looks at the heartbeats
_KILL_AFTER_S = 1.0  # seconds that the others have to end after a process has died
_FAILURES_AT_A_STEP = 3  # in a row; then the step itself is at fault
# Seconds after a signal to stop: when to look, without a sign that a worker runs, and after SIGTERM without progress
_STOP_S, _STOPPED_S, _SLOW_S = 10.0, 3.0, 15.0
_LAST_CAUSE_S = 1.0  # seconds for the worker that the others have lost to end
_SAVE_S = 15.0  # seconds for saving without the processes that stand still


class Supervisor:
    """Runs `job` on `processes` worker processes of this host, with files in the empty `folder`.

    `start` starts the workers that it is given. `pause` waits a moment, and may relay what they print. `outer` is this
    program's place in an outer launch, if it is in one. It then has one worker, which watches the other programs' ones.
    """

    def __init__(
        self,
        job: Job,
        processes: int,
        folder: Path,
        start: Callable[[Workers], None],
        pause: Callable[[], None],
        outer: World | None = None,
    ) -> None:
        self._job, self._processes, self._folder = job, processes, folder
        self._start, self._pause, self._outer = start, pause, outer
        self._path_file = folder / "run"
        if isinstance(job, TrainJob):
            self._path_file = job.path_file or self._path_file
            self._job = job.replace(path_file=self._path_file)
        self.signals = SignalForwarder()
        self._restarts = 0
        self._failed_steps: list[int] = []

    def run(self) -> int:
        """Do the job and return the exit code. Raises: LockstepError with the cause if the job failed."""
        while True:
            folder = self._folder / f"generation-{self._restarts}"
            folder.mkdir()
            workers = Workers(self._job, self._processes, folder, self._outer)
            self.signals.workers = workers
            failure = self._generation(workers)
            if self.signals.killed:
                return SIGNAL_BASE + signal.SIGINT
            if failure is None:
                return 0
            if isinstance(failure, int):
                return failure
            self._restart_or_raise(failure)

    def _generation(self, workers: Workers) -> Failure | int | None:
        """Run one generation. Return None if it did the job, the exit code if it was stopped, or why it failed."""
        grace_s = _KILL_AFTER_S
        try:
            self._start(workers)
            self.signals.repeat()
            failed, stalled = self._wait(workers)
            if not failed:
                return None
            if was_stopped(failed):
                grace_s = _SAVE_S + _STOP_S
                return int(SIGNAL_BASE + (self.signals.received or signal.SIGTERM))
            failure = workers.failure(failed)
            if stalled is not None:
                text = f"{workers.describe(stalled.process)} {stalled.why}, {stalled.beat.where}"
                failure = failure._replace(message=text, step=stalled.beat.step, restartable=True)
            if not failure.restartable:
                grace_s = _SAVE_S + _STOP_S  # The others end by themselves, and process 0 may be saving.
            return failure
        finally:
            workers.end(grace_s)

    def _wait(self, workers: Workers) -> tuple[dict[int, int], Stalled | None]:
        """Wait for the workers. Return the exit codes of those that failed, and the one that stood still, if any did.

        A worker that stands still is killed. If the workers were asked to stop, another one then saves the state.
        """
        observer, next_look = Observer(), 0.0
        while True:
            try:
                if workers.failed() is not None:
                    return self._all_failed(workers), None
                self._pause()
                if (now := time.monotonic()) < next_look:
                    continue
                next_look = now + _LOOK_S
                observer.look(beats := workers.beats(), now)
                if stalled := self._stalled(observer):
                    # A process whose main thread makes no progress can still save.
                    stopped = {one.process for one in stalled if not one.runs}
                    answering = sorted(set(beats) - {one.process for one in stalled}) or sorted(set(beats) - stopped)
                    if self._stopping and answering:
                        return self._save_without(workers, stalled, answering[0]), None
                    for one in stalled:
                        workers.kill(one.process)
                    return {stalled[0].process: -signal.SIGKILL}, stalled[0]
            except KeyboardInterrupt:  # in a program that calls Lockstep
                self.signals.stop(signal.SIGINT, None)

    @property
    def _stopping(self) -> bool:
        """Return whether training was asked to stop. In an outer launch, the worker itself sees to the end."""
        return isinstance(self._job, TrainJob) and self.signals.received is not None and self._outer is None

    def _stalled(self, observer: Observer) -> list[Stalled]:
        """Return the workers that stand still for too long."""
        timeout_s = self._job.placement.timeout
        stalled = observer.stalled(timeout_s)
        if self._stopping and not stalled and self.signals.since() > _STOP_S:
            # Who presses Ctrl-C waits for a slow step. A scheduler does not.
            slow_s = _SLOW_S if self.signals.received == signal.SIGTERM else timeout_s
            stalled = observer.stalled(slow_s, _STOPPED_S)
        # In an outer launch, the one worker here may wait for another host.
        return [one for one in stalled if not one.runs] if self._outer else stalled

    def _all_failed(self, workers: Workers) -> dict[int, int]:
        """Return the exit codes of the workers that failed. If these have lost another one, wait until it has ended."""
        until = time.monotonic() + _LAST_CAUSE_S
        while workers.lost_others_only() and time.monotonic() < until:
            time.sleep(POLL_S)
        return workers.failed() or {}

    def _save_without(self, workers: Workers, stalled: list[Stalled], saver: int) -> dict[int, int]:
        """Save the state in the worker `saver`, without those that stand still. Return its exit code, by its number."""
        workers.ask_to_save(saver)
        for one in stalled:  # Process 0 holds the lock of the run's folder until it has ended.
            if one.process != saver:
                workers.kill(one.process)
        code = workers.await_end(saver, _SAVE_S)
        first = f"{workers.describe(stalled[0].process)} {stalled[0].why}, {stalled[0].beat.where}"
        if not was_stopped({saver: code}):
            text = f"{first}, and the state could not be saved without it{self._how_to_continue()}"
            raise LockstepError(text, ENVIRONMENT)
        self._tell(f"{first}: the state after the last update was saved without it{self._how_to_continue()}")
        return {saver: code}

    def _restart_or_raise(self, failure: Failure) -> None:
        """Prepare the next generation. Raises: LockstepError if there must be none."""
        job = self._job
        restarts = job.placement.max_restarts if isinstance(job, TrainJob) else 0
        # A program that crashes before its first step does so again.
        hopeless = failure.code == CRASH and failure.step < 0 and not self._path_file.exists()
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
        assert isinstance(job, TrainJob)
        self._restarts += 1
        note = _joined(failure.message, f"all processes were started again (restart {self._restarts} of {restarts})")
        job = job.replace(restarts=self._restarts, notes=(*job.notes, note))
        if self._path_file.exists():  # The notes of earlier generations are in its log.
            path = Path(self._path_file.read_text())
            job = job.replace(path=path, resume=True, numbered=False, notes=(note,))
        self._job = job

    def _how_to_continue(self) -> str:
        """Return a sentence with the command that continues the run; "" if there is no run."""
        if not isinstance(self._job, TrainJob) or not self._path_file.exists():
            return ""
        code = [word for setting, value in self._job.recipe.custom_code.items() for word in (f"--{setting}", value)]
        return f". Continue with: {shlex.join(['lockstep', 'train', self._path_file.read_text(), '--resume', *code])}"

    def _tell(self, text: str) -> None:
        if not self._job.quiet:
            print(printable(f"lockstep: {text}"), file=sys.stderr, flush=True)


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
