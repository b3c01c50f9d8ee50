"""OpenRun: the folder of a run, as process 0 has it open: locked, with a saver and the listeners that write into it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import first_other_class
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.due import Due
from lockstep.jobs.session import Session
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.startup import Line
from lockstep.listeners import console
from lockstep.listeners.events import Listener
from lockstep.listeners.log import Log
from lockstep.listeners.metrics import MetricsFile
from lockstep.messages import logger
from lockstep.runs.folder import Folder
from lockstep.runs.provenance import compare, describe_custom_code, texts

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

        Raises: LockstepError if the folder may not be used, or was trained on other data.
        """
        self._session, placement = session, session.placement
        self.listeners: list[Listener] = []
        self._provenance = {
            "probe": probe,
            "data_sha256": session.data_sha256,
            "model_source": session.model_source,
            "decoder": session.decoder,
            **session.fingerprint,
        }
        self.mixed_arithmetic = False
        if spec.resume:
            self.run = Folder.resume(spec.path, placement)
        else:
            self.run = Folder.create(spec.path, session.recipe, placement, spec.numbered)
        self.checkpoint, self.saver = self.run.checkpoint, self.run.saver
        try:
            if self.checkpoint is not None:
                self._require_same_data(self.checkpoint.facts)
            self._compare_sessions()
            ctx.tell("run", str(self.run.path))
            self.listeners = self._make_listeners(ctx)
        except BaseException:
            self.run.close()
            raise

    def _compare_sessions(self) -> None:
        earlier = self.run.earlier
        differing = [one for one in earlier if texts(compare(one, self._provenance), *_DECIDING)]
        self.mixed_arithmetic = bool(differing)
        differences = self._differences_from(earlier[-1]) if earlier else []
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
            log_file = console.Plain(self.run.log.open("a", encoding="utf-8"), placement.log_every)
        except OSError as error:
            raise self._cannot_write(error) from None
        listeners: list[Listener] = [log_file, MetricsFile(self.run.metrics_path, placement.log_every)]
        if (stream := ctx.output.lines) is not None:
            listeners.insert(0, console.for_stream(stream, placement.log_every))
        if placement.summary_every:
            from lockstep.listeners.tensorboard import TensorBoard  # takes a quarter of a second

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
        placement = self._session.placement
        session = {
            "processes": self._session.group.processes,
            "data": str(placement.data) if placement.data else None,
            "init": str(placement.init) if placement.init else None,
            **self._provenance,
        }
        step = self._session.state.step
        self.run.begin(step, session, evaluation=due.evaluates(step))
        log.start(lines)

    def save(self, due: Due) -> None:
        """Start to save a checkpoint, after the previous one is written. Training continues meanwhile."""
        state, facts = self._session.state, {**self._session.checkpoint_facts(), **due.facts()}
        self.run.save(state.named(), facts, state.update_lock, due.best_step)

    def _cannot_write(self, error: OSError) -> LockstepError:
        problem = f"cannot write in {self.run.path}: {error.strerror or error}"
        return LockstepError(f"{problem}. Its checkpoints are untouched", ENVIRONMENT)

    def close(self) -> None:
        """Wait for the checkpoint that is being written, close the listeners and unlock the folder."""
        for listener in self.listeners:
            listener.close()
        self.run.close()


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
