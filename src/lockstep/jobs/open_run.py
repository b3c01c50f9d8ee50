"""OpenRun: the folder of a run, as process 0 has it open: locked, with a saver and the listeners that write into it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lockstep.core.events import Listener
from lockstep.core.log import Log
from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import first_other_class
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.files import append
from lockstep.jobs.context import Context
from lockstep.jobs.due import Due
from lockstep.jobs.session import Session
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.startup import Line
from lockstep.messages import logger
from lockstep.report import console
from lockstep.report.metrics import MetricsFile
from lockstep.runs import checkpoint
from lockstep.runs.folder import LostRunError, Run
from lockstep.runs.provenance import compare, describe_custom_code, texts
from lockstep.runs.saver import Saver
from lockstep.runs.statefile import StateFile

# Differences that decide the bits of a run. If one differs between sessions, no other run has its bits.
_DECIDING = ("probe", "source", "decoder")


class OpenRun:
    """The folder of a run that process 0 trains. It holds the lock, and writes every file.

    Attributes:
        run: the folder.
        checkpoint: the checkpoint that a resumed run continues from, or None.
        listeners: the receivers of the run's events.
        saver: writes the checkpoints.
        mixed_arithmetic: True if sessions of the run differ in arithmetic, in the source of the model or in the
            decoder.
    """

    def __init__(self, spec: TrainSpec, ctx: Context, session: Session, probe: str) -> None:
        """Make the run's folder, or lock the existing one. `probe` is the session's arithmetic probe.

        Raises: LockstepError if the folder may not be used, or was trained on other data; with `spec.strict` also if
            this session computes differently from an earlier one.
        """
        self._session, placement = session, session.placement
        self.checkpoint: StateFile | None = None
        self.listeners: list[Listener] = []
        self._provenance = {
            "probe": probe,
            "data_sha256": session.data_sha256,
            "model_source": session.model_source,
            "decoder": session.decoder,
            **session.fingerprint,
        }
        self._earlier: list[dict[str, Any]] = []
        self.mixed_arithmetic = False
        if spec.resume:
            self.run = Run.existing(spec.path)
            self.run.lock()
        else:
            self.run = Run.create(spec.path, session.recipe, spec.numbered)
        try:
            if spec.resume:
                self._read(spec.strict)
            ctx.on_run_created(self.run.path)
            self.saver = Saver(
                self.run.checkpoints, keep=placement.keep, every_s=placement.save_every_s, fence=self.run.require_lock
            )
            self.listeners = self._make_listeners(ctx)
        except BaseException:
            self.run.unlock()
            raise

    def _read(self, strict: bool) -> None:
        self.checkpoint = checkpoint.latest(self.run.checkpoints)
        if self.checkpoint is None:
            logger.warning(f"{self.run.path} has no checkpoint: it starts again before its first step")
        else:
            self._require_same_data(self.checkpoint.facts)
        self._earlier = self.run.sessions()
        differing = [one for one in self._earlier if texts(compare(one, self._provenance), *_DECIDING)]
        self.mixed_arithmetic = bool(differing)
        differences = self._differences_from(self._earlier[-1]) if self._earlier else []
        if strict and differing:
            reasons = "; ".join(differences) or f"it differs from the session that began at step {differing[0]['step']}"
            raise LockstepError(
                f"--strict: {self.run.path} would not compute the same bits as before: {reasons}. Resume it where it "
                f"was, or leave out --strict to continue with other bits",
                ENVIRONMENT,
            )
        for text in differences:
            logger.warning(text)

    def _require_same_data(self, facts: Mapping[str, Any]) -> None:
        """Raise a LockstepError unless splits and classes are those that the checkpoint was trained on."""
        before = facts["data_sha256"]
        images = self._session.placement.data if self._session.recipe.dataset == IMAGE_FOLDER else None
        where = f" in {images}" if images else ""
        what_to_do = "give the same files as --data to resume"
        if images:
            what_to_do = "images were added, removed or changed since. Restore them, or start a new run"
        for name, digest in self._session.data_sha256.items():
            if before.get(name, digest) != digest:
                raise LockstepError(
                    f"the {'training' if name == 'train' else name} data{where} is not what {self.run.path} was "
                    f"trained on (its sha256 differs): {what_to_do}",
                    DATA,
                )
        if other := first_other_class(facts["classes"], self._session.splits["train"].classes):
            raise LockstepError(
                f"the classes are not those that {self.run.path} was trained on: label {other[0]} was {other[1]} and "
                f"is {other[2]}. Give the same names in the same order to resume, or start a new run",
                DATA,
            )

    def _differences_from(self, earlier: Mapping[str, Any]) -> list[str]:
        """Return each way in which this session computes differently from an `earlier` one, in words."""
        found, lines = compare(earlier, self._provenance), []
        elsewhere = texts(found, "environment")
        if sources := texts(found, "source"):
            code = describe_custom_code(self._session.recipe)
            lines.append(f"the source of {code} has changed: {'; '.join(sources)}")
        if texts(found, "probe"):
            where = "; ".join(elsewhere) or "environment.json shows no cause: suspect the model or the hardware"
            later = "so later weights will differ"
            lines.append(f"the arithmetic probe differs from the last session's, {later} ({where})")
        elif elsewhere and texts(found, "decoder"):
            lines.append(f"the image decoder has changed, so pixels may differ ({'; '.join(elsewhere)})")
        elif elsewhere:
            lines.append(f"the environment has changed ({'; '.join(elsewhere)}): the arithmetic probe is equal")
        return lines

    def _make_listeners(self, ctx: Context) -> list[Listener]:
        placement, session = self._session.placement, self._session
        try:
            log_file = console.Plain(append(self.run.log), placement.log_every)
        except OSError as error:
            raise self._cannot_write(error) from None
        listeners: list[Listener] = [log_file, MetricsFile(self.run.metrics_path, placement.log_every)]
        if (stream := ctx.display.stream) is not None:
            listeners.insert(0, console.for_stream(stream, placement.log_every, ctx.display.columns))
        if placement.summary_every:
            from lockstep.report.tensorboard import TensorBoard  # takes a quarter of a second

            tensorboard = TensorBoard(
                self.run.summaries,
                placement.summary_every,
                session.network.module,
                session.network.shape,
                dtype=session.network.dtype,
                compiled=session.recipe.compile,
                resumed=self.checkpoint.step if self.checkpoint else None,
                evaluations=self.run.evaluations,
            )
            listeners.append(tensorboard)
        return listeners

    def begin(self, log: Log, lines: list[Line], due: Due) -> None:
        """Record where the run computes, and print the `lines` of the start-up block."""
        step = self._session.state.step
        checkpoint.clear_ahead(self.run.checkpoints, step)
        self.run.forget_ahead(step, evaluation=due.evaluates(step))
        placement = self._session.placement
        session = {
            "step": step,
            "processes": self._session.group.processes,
            "data": str(placement.data) if placement.data else None,
            "init": str(placement.init) if placement.init else None,
            **self._provenance,
        }
        self.run.write("environment.json", [*self._earlier, session])
        log.start(lines)

    def stepped(self) -> None:
        """Learn that an update is done. Report a failed save; training continues."""
        self.saver.stepped()
        if (problem := self._save_problem()) is not None:
            logger.warning(f"{problem}. Training continues; the previous checkpoints are untouched")

    def save(self, due: Due) -> None:
        """Start to save a checkpoint, after the previous one is written. Training continues meanwhile."""
        self.saver.wait()
        if (problem := self._save_problem()) is not None:
            logger.warning(problem)
        state = self._session.state
        self.saver.best_step = due.best_step
        self.saver.save(state.named(), {**self._session.checkpoint_facts(), **due.facts()}, state.update_lock)

    def require_saved(self) -> None:
        """Wait until the last checkpoint is saved. Raises: LockstepError if it could not be saved."""
        self.saver.wait()
        if (problem := self._save_problem()) is not None:
            raise LockstepError(problem, ENVIRONMENT)

    def _save_problem(self) -> str | None:
        """Return the last failure to save, once, or None. Raises: an error that is not of the disk or the files."""
        error = self.saver.take_error()
        if isinstance(error, LostRunError):
            raise error
        if error is None or isinstance(error, LockstepError):
            return None if error is None else str(error)
        if not isinstance(error, OSError):
            raise error
        return f"could not save a checkpoint in {self.run.checkpoints}: {error.strerror or error}"

    def _cannot_write(self, error: OSError) -> LockstepError:
        problem = f"cannot write in {self.run.path}: {error.strerror or error}"
        return LockstepError(f"{problem}. Its checkpoints are untouched", ENVIRONMENT)

    def close(self) -> None:
        """Wait for the checkpoint that is being written, close the listeners and unlock the folder."""
        self.saver.wait()
        for listener in self.listeners:
            listener.close()
        self.run.unlock()


@contextmanager
def opened(spec: TrainSpec, ctx: Context, session: Session, probe: str) -> Iterator[OpenRun | None]:
    """Open the run in process 0 within the context; None in all other processes. Raises: as `OpenRun`."""
    if not ctx.first:
        yield None
        return
    run = OpenRun(spec, ctx, session, probe)
    try:
        yield run
    except OSError as error:
        raise run._cannot_write(error) from None
    finally:
        run.close()
