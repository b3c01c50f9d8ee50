"""Writers: what a process writes about its run. Process 0 writes everything, all other processes write nothing."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lockstep.core.evaluate import Evaluation
from lockstep.core.events import Listener
from lockstep.core.log import Log
from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import Dataset
from lockstep.data.user_data import first_other_class
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.files import append
from lockstep.jobs.probe import Probe
from lockstep.jobs.profile import Profile
from lockstep.jobs.session import Session
from lockstep.jobs.specs import TrainJob
from lockstep.jobs.startup import Line, startup_lines
from lockstep.report import console
from lockstep.report.metrics import MetricsFile
from lockstep.runs import checkpoint
from lockstep.runs.checkpoint import Checkpoint
from lockstep.runs.folder import LostRunError, Run
from lockstep.runs.provenance import compare, describe_custom_code, texts
from lockstep.runs.saver import Saver
from lockstep.runs.tensors import save_model

# Differences that decide the bits of a run. If one differs between sessions, no other run has its bits.
_DECIDING = ("probe", "source", "decoder")


@contextmanager
def open_writer(
    job: TrainJob, session: Session, probe: Probe, notes: Sequence[str], begun: Callable[[Path], None]
) -> Iterator["Writer"]:
    """Open this process's writer: a `RunWriter` in process 0, else a `Writer`, which writes nothing.

    `probe` is the session's arithmetic probe; `notes` are messages for the user at the start. `begun` is called with
    the run's folder, in process 0.
    Raises: LockstepError if the run's folder may not be used, or a file in it cannot be written.
    """
    if session.reduction.process != 0:
        yield Writer()
        return
    with closing(RunWriter(job, session, probe)) as writer:
        begun(writer.run.path)
        try:
            writer.notes += notes
            if job.resume:
                writer.compare_with_earlier_sessions(job.strict)
            yield writer
        except OSError as error:
            problem = f"cannot write in {writer.run.path}: {error.strerror or error}"
            raise LockstepError(f"{problem}. Its checkpoints are untouched", ENVIRONMENT) from None


class Writer:
    """The writer of every process but process 0: all methods are no-ops.

    Attributes:
        checkpoint: the checkpoint that a resumed run continues from, or None.
        listeners: the receivers of the run's events.
        run: the run's folder, or None if this process does not write.
    """

    run: Run | None = None
    checkpoint: Checkpoint | None = None
    listeners: Sequence[Listener] = ()

    def begin(
        self, log: Log, train_set: Dataset, test_set: Dataset, placement_lines: list[Line], local_processes: int
    ) -> None:
        """Record where the run computes, print the start-up block, and save the state that the run starts from."""

    def before_step(self, step: int) -> None:
        """Prepare to write about `step`, which is computed next."""

    def after_step(self, step: int) -> None:
        """Record that `step` updates are done."""

    def save_due(self) -> bool:
        """Return whether a checkpoint is due by time."""
        return False

    def save(self) -> None:
        """Start to save a checkpoint. Training continues meanwhile."""

    def wait(self) -> None:
        """Wait until nothing is being written."""

    def require_saved(self) -> None:
        """Wait until the last checkpoint is saved. Raises: LockstepError if it could not be saved."""

    def record_accuracy(self, evaluations: Mapping[str, Evaluation]) -> None:
        """Add the accuracy to the manifest of the checkpoint that was evaluated."""

    def evaluation_missing(self) -> bool:
        """Return whether the checkpoint that a run resumes from was saved, but not evaluated."""
        return False

    def save_last_good(self) -> str:
        """Save the state after a failed step, if it is finite. Return a sentence about what is saved."""
        return ""

    def end_training(self) -> None:
        """End the recording of the steps."""

    def save_and_report_stop(self) -> None:
        """Save the state of a run that a signal stopped, and print how to continue."""

    def best_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint whose weights are the result of a run with `patience`. Raises: LockstepError."""
        return None

    def finish(self, evaluations: Mapping[str, Evaluation], memory: list[int], trained: int) -> dict[str, Any] | None:
        """Write the model and the result, print the end block, and return the result (None if nothing is written)."""
        return None


class RunWriter(Writer):
    """Process 0's writer: it holds the lock of the run's folder, and writes every file in it.

    Attributes:
        notes: messages for the user after the start-up block.
        saver: writes the checkpoints.
    """

    run: Run

    def __init__(self, job: TrainJob, session: Session, probe: Probe) -> None:
        """Make the run's folder, or lock the existing one. Raises: LockstepError."""
        self._job, self._session, self._probe = job, session, probe
        placement = session.placement
        self.notes: list[str] = []
        self._earlier: list[dict[str, Any]] = []
        if job.resume:
            self.run = Run.open(job.path)
            self.run.lock()
            try:
                self._read_run()
            except BaseException:
                self.run.unlock()
                raise
        else:
            self.run = Run.create(job.path, session.recipe, job.numbered)
        self._provenance = {
            "probe": probe.sha256,
            "model_source": session.model_source,
            "decoder": session.decoder,
            **session.fingerprint,
        }
        self._environment = {
            "processes": session.reduction.processes,
            "data": str(placement.data) if placement.data else None,
            "init": str(placement.init) if placement.init else None,
            **self._provenance,
        }
        self.saver = Saver(
            self.run.checkpoints, keep=placement.keep, every_s=placement.save_every_s, fence=self.run.require_lock
        )
        self._profile: Profile | None = None
        self._skipped_steps = 0
        if placement.profile:
            self._profile = Profile(self.run.profile, placement.profile, session.device, self._note)
        self.listeners = self._make_listeners()

    def _read_run(self) -> None:
        """Read what a resumed run continues from. Raises: LockstepError."""
        self.checkpoint = checkpoint.latest(self.run.checkpoints)
        if self.checkpoint is None:
            self.notes.append(f"{self.run.path} has no checkpoint: it starts again before its first step")
        self._require_same_data()
        self._earlier = self.run.sessions()

    def _make_listeners(self) -> list[Listener]:
        placement, session = self._session.placement, self._session
        stream = sys.stderr if self._job.json_output else sys.stdout
        listeners: list[Listener] = [
            *([] if self._job.quiet else [console.for_stream(stream, placement.log_every, self._job.line_width)]),
            console.Plain(append(self.run.log), placement.log_every),
            MetricsFile(self.run.metrics_path, placement.log_every, self._note),
        ]
        if placement.summary_every:
            from lockstep.report.tensorboard import TensorBoard  # takes a quarter of a second

            tensorboard = TensorBoard(
                self.run.summaries,
                placement.summary_every,
                session.network.module,
                session.network.shape,
                note=self._note,
                dtype=session.network.dtype,
                compiled=session.recipe.compile,
                resumed=int(self.checkpoint.manifest["step"]) if self.checkpoint else None,
                evaluations=self.run.evaluations,
            )
            listeners.append(tensorboard)
        return listeners

    def _require_same_data(self) -> None:
        """Raise a LockstepError unless splits and classes are those that the checkpoint was trained on."""
        if self.checkpoint is None:
            return
        before = self.checkpoint.manifest.get("data_sha256")
        if not isinstance(before, dict):  # An older release recorded the training images only.
            before = {"train": before}
        for name, digest in self._session.data_sha256.items():
            if name in before and before[name] != digest:
                raise LockstepError(self._other_data(name), DATA)
        own = self._session.splits["train"].classes
        trained = self.checkpoint.manifest.get("classes", own)  # An older release recorded no classes.
        if other := first_other_class(trained, own):
            raise LockstepError(
                f"the classes are not those that {self.run.path} was trained on: label {other[0]} was {other[1]} and "
                f"is {other[2]}. Give the same names in the same order to resume, or start a new run",
                DATA,
            )

    def _other_data(self, split: str) -> str:
        """Return the error for a split that is not the one that the run was trained on."""
        what = f"the {'training' if split == 'train' else split} data"
        if self._session.recipe.dataset != IMAGE_FOLDER:
            return (
                f"{what} is not what {self.run.path} was trained on (its sha256 differs): give the same files as "
                f"--data to resume"
            )
        return (
            f"{what} in {self._session.placement.data} is not what {self.run.path} was trained on (its sha256 "
            f"differs): images were added, removed or changed since. Restore them, or start a new run"
        )

    def compare_with_earlier_sessions(self, strict: bool) -> None:
        """Add a note for each way in which this session computes differently from the previous one.

        Raises: LockstepError if `strict`, and the arithmetic probe or the model's source differs from an earlier one.
        """
        for earlier in self._earlier[-1:]:
            found = compare(earlier, self._provenance)
            elsewhere = texts(found, "environment")
            if sources := texts(found, "source"):
                code = describe_custom_code(self._session.recipe)
                self.notes.append(f"the source of {code} has changed: {'; '.join(sources)}")
            if texts(found, "probe"):
                where = "; ".join(elsewhere) or "environment.json shows no cause: suspect the model or the hardware"
                self.notes.append(
                    f"the arithmetic probe differs from the last session's, so later weights will differ ({where})"
                )
            elif elsewhere and texts(found, "decoder"):
                self.notes.append(f"the image decoder has changed, so pixels may differ ({'; '.join(elsewhere)})")
            elif elsewhere:
                same = "the arithmetic probe is equal" if "probe" in earlier else "the weights may differ"
                self.notes.append(f"the environment has changed ({'; '.join(elsewhere)}): {same}")
        differing = next((earlier for earlier in self._earlier if self._differs(earlier)), None)
        if strict and differing is not None:
            reasons = "; ".join(self.notes) or f"it differs from the session that began at step {differing['step']}"
            raise LockstepError(
                f"--strict: {self.run.path} would not compute the same bits as before: {reasons}. Resume it where it "
                f"was, or leave out --strict to continue with other bits",
                ENVIRONMENT,
            )

    @property
    def _mixed_arithmetic(self) -> bool:
        """Return whether sessions of the run differ in arithmetic, in the source of the model or in the decoder."""
        return any(self._differs(earlier) for earlier in self._earlier)

    def _differs(self, earlier: Mapping[str, Any]) -> bool:
        return bool(texts(compare(earlier, self._provenance), *_DECIDING))

    def begin(
        self, log: Log, train_set: Dataset, test_set: Dataset, placement_lines: list[Line], local_processes: int
    ) -> None:
        """Record where the run computes, print the start-up block, and save the state that the run starts from.

        `placement_lines` are those of --log-placement; `local_processes` is how many processes this host has.
        """
        session, self._log = self._session, log
        step = session.state.step
        checkpoint.clear_ahead(self.run.checkpoints, step)
        self.run.forget_ahead(step)
        self.run.write("environment.json", [*self._earlier, {"step": step, **self._environment}])
        lines = startup_lines(
            session, log.course, train_set, test_set, self.run.path, local_processes, self._probe.tower_s
        )
        lines += placement_lines
        if self._job.restarts:  # The start-up block is above, in the same output.
            times = f"{self._job.restarts} of at most {session.placement.max_restarts}"
            lines = [("restarted", f"{times}; continues after step {step}"), *placement_lines]
        elif step:
            lines.append(("resumes", f"after step {step}"))
        log.start(lines)
        for text in self.notes:
            log.note(text)
        with log.untimed():
            self.save()

    def before_step(self, step: int) -> None:
        """Start the profile if `step` is the first one of it."""
        if self._profile:
            self._profile.before(step)

    def after_step(self, step: int) -> None:
        """Record that `step` updates are done. Report a failed save as a note; training continues."""
        if self._profile:
            with self._log.untimed():
                self._profile.after(step)
        self.saver.stepped()
        if (problem := self._save_problem()) is not None:
            self._note(f"{problem}. Training goes on; the previous checkpoints are untouched")

    def end_training(self) -> None:
        """Write a profile that the end of the run cuts short, and keep the counts of the last step."""
        if self._profile:
            self._profile.stop()
        # With `patience`, the state of an earlier step may replace this one before `finish`.
        self._skipped_steps = self._session.state.skipped_steps

    def save_due(self) -> bool:
        """Return whether a checkpoint is due by time."""
        return self.saver.due()

    def save(self) -> None:
        """Start to save a checkpoint, after the previous one is written. Training continues meanwhile."""
        self.saver.wait()
        if (problem := self._save_problem()) is not None:
            self._note(problem)
        session = self._session
        self.saver.save(session.state.named(), session.checkpoint_facts(), session.state.update_lock)

    def wait(self) -> None:
        """Wait until nothing is being written."""
        self.saver.wait()

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

    def record_accuracy(self, evaluations: Mapping[str, Evaluation]) -> None:
        """Add the classifier's accuracy to the manifest of the checkpoint, which decides the best checkpoint.

        Raises: LockstepError if the checkpoint could not be saved, and its weights are the best of a run with patience.
        """
        session = self._session
        if session.early_stop.best_step == session.state.step:
            self.require_saved()
        facts = {"accuracy": next(iter(evaluations.values())).accuracy, **session.early_stop.facts()}
        self.saver.add_facts(session.state.step, facts)

    def evaluation_missing(self) -> bool:
        """Return whether the checkpoint that a run resumes from was saved, but not evaluated."""
        return self.checkpoint is not None and "accuracy" not in self.checkpoint.manifest

    def save_last_good(self) -> str:
        """Save the state after a failed step, if it is finite. Return a sentence about what is saved."""
        if self._session.state.is_finite():
            self.save()
            self.require_saved()
            return f"The last good state, after {self._session.state.step} steps, is saved in {self.run.path}"
        return f"The last good state is the latest checkpoint in {self.run.path}"

    def save_and_report_stop(self) -> None:
        """Save the state of a run that a signal stopped, and print how to continue."""
        self.save()
        self.require_saved()
        step = self._session.state.step
        self._log.end([("stopped", f"after {step} steps, saved"), ("go on", self._command("train", "--resume"))])

    def best_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint whose weights are the result of a run with `patience`. Raises: LockstepError."""
        self.require_saved()
        step = self._session.early_stop.best_step
        assert step is not None
        try:
            return checkpoint.read_step(self.run.checkpoints, step)
        except FileNotFoundError:
            raise LockstepError(
                f"{self.run.checkpoints} has no checkpoint after {step} steps, which has the best weights", DATA
            ) from None

    def finish(self, evaluations: Mapping[str, Evaluation], memory: list[int], trained: int) -> dict[str, Any]:
        """Write the model and the result, print the end block, and return the result.

        `evaluations` come by kind of weights, the classifier's first; `memory` is each process's peak in bytes.
        `trained` is the number of updates. With `patience` the state has the best weights, which may be earlier ones.
        """
        session, recipe, log = self._session, self._session.recipe, self._log
        self.run.require_lock()
        save_model(self.run.model, *session.model_contents())
        best = next(iter(evaluations.values()))
        one_view = {"accuracy_one_view": best.summary()["accuracy_one_view"]} if recipe.test_views != "one" else {}
        result = {
            "recipe": recipe.name,
            "digest": recipe.digest(),
            "weights_sha256": session.state.weights_sha256(),
            "steps": trained,
            "examples": trained * recipe.batch,
            **self._ending(trained),
            **({"skipped_steps": self._skipped_steps} if recipe.non_finite == "skip" else {}),
            "accuracy": {
                weights: evaluations[weights].accuracy if weights in evaluations else None for weights in ("ema", "raw")
            },
            **one_view,
            "loss": {"train": log.last_loss} | {weights: result.loss for weights, result in evaluations.items()},
            "train_s": round(log.train_s, 3),
            "total_s": round(time.time() - self._job.started, 3),
            "images_per_s": round(log.images_per_s, 1),
            "peak_memory_bytes": memory,
            "processes": session.reduction.processes,
            "device": session.device.type,
            "versions": session.fingerprint["versions"],
            "model_source": session.model_source,
            "mixed_arithmetic": self._mixed_arithmetic,
            "run": str(self.run.path),
        }
        self.run.write("result.json", result)
        others = ""
        if "ema" in evaluations:
            others = f" by the averaged weights, {evaluations['raw'].accuracy:.2%} by the raw ones"
        others += f"; {one_view['accuracy_one_view']:.2%} without test_views" if one_view else ""
        counts = f"{best.correct} of {best.examples} {recipe.evaluated_split} images"
        # A run with `patience` has chosen its weights by the evaluated split, so another split must judge them.
        test_split = ("--split", "test") if recipe.patience is not None else ()
        seconds = f"{log.train_s:.1f} s training, {result['total_s']:.1f} s in all"
        log.end(
            [
                *self._ending_lines(trained),
                *([("skipped", f"{self._skipped_steps} of {trained} steps")] if recipe.non_finite == "skip" else []),
                ("accuracy", f"{best.accuracy:.2%} ({counts}){others}"),
                ("weights", str(self.run.model)),
                ("speed", f"{log.images_per_s:,.0f} images/s; {seconds}"),
                ("sha256", f"{result['weights_sha256']} ({self._scope_of_bits()})"),
                ("next", f"{self._command('eval', *test_split)}   or   {self._suggestion()}"),
            ]
        )
        return result

    def _ending(self, trained: int) -> dict[str, Any]:
        """Return how a run with `patience` ended, for its result; nothing for other runs."""
        session = self._session
        if session.recipe.patience is None:
            return {}
        early = trained < self._log.course.steps
        return {"stopped_after": trained if early else None, "best_step": session.early_stop.best_step}

    def _ending_lines(self, trained: int) -> list[Line]:
        """Return how a run with `patience` ended, in words; nothing for other runs."""
        recipe, steps = self._session.recipe, self._log.course.steps
        if recipe.patience is None:
            return []
        lines = [("best", f"the weights after {self._session.early_stop.best_step} of {trained} steps are the result")]
        if trained < steps:
            epochs = "1 epoch" if recipe.patience == 1 else f"{recipe.patience} epochs"
            why = f"the accuracy on the {recipe.evaluated_split} images did not improve for {epochs}"
            lines.insert(0, ("stopped", f"after {trained} of {steps} steps: {why}"))
        return lines

    def _suggestion(self) -> str:
        """Return the command that a user may want to try after an evaluation."""
        on_images = self._session.recipe.dataset == IMAGE_FOLDER
        return self._command("predict", "IMAGE.jpg") if on_images else "lockstep recipes"

    def _scope_of_bits(self) -> str:
        """Return, in words, which runs have the SHA-256 of these weights."""
        if self._mixed_arithmetic:
            return "raw weights: sessions computed differently, see environment.json; no other run has these bits"
        if not self._session.recipe.exact:
            return "raw weights: not exact, as set in the recipe"
        return "raw weights: the same on any number of processes"

    def _command(self, name: str, *options: str) -> str:
        """Return a shell command on this run. It names the user's own code, because the command runs it."""
        code = [word for setting, value in self._session.recipe.custom_code.items() for word in (f"--{setting}", value)]
        return shlex.join(["lockstep", name, str(self.run.path), *options, *code])

    def _note(self, text: str) -> None:
        """Send a message for the user to all listeners."""
        for listener in self.listeners:
            listener.note(text)

    def close(self) -> None:
        """Wait for the checkpoint that is being written, close the listeners and unlock the folder."""
        self.saver.wait()
        for listener in self.listeners:
            listener.close()
        self.run.unlock()
