"""Keeper: process 0's hold on the run folder, and all that is written there."""

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.files import append
from lockstep.report import console
from lockstep.report.metrics import MetricsFile
from lockstep.run import checkpoint
from lockstep.run.environment import changes, describe
from lockstep.run.folder import Run
from lockstep.run.model_file import save_classifier
from lockstep.run.saver import Saver
from lockstep.run.session import Session
from lockstep.run.source import source_changes
from lockstep.training.evaluate import Evaluation
from lockstep.training.events import Listener
from lockstep.training.log import Log


class Keeper:
    """Process 0's hold on the run folder.

    Attributes:
        run: the folder.
        found: the checkpoint that a resumed run continues from, or None.
        listeners: the console and the files that hear of the run.
        saver: writes checkpoints.
        notes: what the user is told after the start-up block.
    """

    def __init__(
        self, session: Session, path: Path, probed: str, *, resume: bool, numbered: bool, to_stderr: bool, quiet: bool
    ) -> None:
        """Make the run's folder, or take over the one that is there. `probed` is what `session.probe` found."""
        self._session = session
        recipe, placement = session.recipe, session.placement
        self.found: checkpoint.Checkpoint | None = None
        self.notes: list[str] = []
        self._earlier: list[dict[str, Any]] = []
        if resume:
            self.run = Run.open(path)
            self.run.lock()
            self.found = checkpoint.latest(self.run.checkpoints, self.notes.append)
            self._check_data()
            self._earlier = self.run.read("environment.json") or []
        else:
            self.run = Run.create(path, recipe, numbered, self.notes.append)
        self._here = {
            "processes": session.reduction.processes,
            "data": str(placement.data) if placement.data else None,
            "probe": probed,
            "model_source": session.model_source,
            **session.fingerprint,
        }
        self.saver = Saver(self.run.checkpoints, keep=placement.keep, every_s=placement.save_every_s)
        stream = sys.stderr if to_stderr else sys.stdout
        self.listeners: list[Listener] = [
            *([] if quiet else [console.for_stream(stream, placement.log_every)]),
            console.Plain(append(self.run.log), placement.log_every),
            MetricsFile(self.run.metrics, placement.log_every),
        ]
        if placement.summary_every:
            from lockstep.report.tensorboard import TensorBoard  # a quarter of a second

            summaries = TensorBoard(
                self.run.summaries,
                placement.summary_every,
                session.network.module,
                session.network.shape,
                note=self.tell,
                dtype=session.network.dtype,
                compiled=session.recipe.compile,
                resumed=int(self.found.manifest["step"]) if self.found else None,
                evaluations=self.run.evaluations,
            )
            self.listeners.append(summaries)

    def tell(self, text: str) -> None:
        """A note for the user."""
        for listener in self.listeners:
            listener.note(text)

    def close(self) -> None:
        """Wait for the checkpoint that is being written, then close the listeners and unlock the folder."""
        self.saver.wait()
        for listener in self.listeners:
            listener.close()
        self.run.unlock()

    @property
    def mixed(self) -> bool:
        """Whether sessions of the run computed with different arithmetic, or with different sources of the model."""
        return any(self._differs(earlier) for earlier in self._earlier)

    def _differs(self, earlier: Mapping[str, Any]) -> bool:
        return any(name in earlier and earlier[name] != self._here[name] for name in ("probe", "model_source"))

    def compare(self, strict: bool) -> None:
        """Note where this session computes otherwise than the run's earlier ones.

        Raises: LockstepError if that is `strict`ly refused: bits differ, or the source of the model.
        """
        for earlier in self._earlier[-1:]:
            sources = source_changes(earlier.get("model_source", {}), self._here["model_source"])
            elsewhere = changes(earlier, self._session.fingerprint)
            if sources and "model_source" in earlier:
                self.notes.append(f"the source of model {self._session.recipe.model} has changed: {'; '.join(sources)}")
            if "probe" in earlier and earlier["probe"] != self._here["probe"]:
                where = "; ".join(elsewhere) or "no entry of environment.json: the model itself, or faulty hardware"
                self.notes.append(
                    f"the arithmetic probe differs from the last session's: other bits from here on ({where})"
                )
            elif elsewhere:
                same = "the arithmetic probe is equal" if "probe" in earlier else "equal bits are not promised"
                self.notes.append(f"computing elsewhere than before ({'; '.join(elsewhere)}): {same}")
        differing = next((earlier for earlier in self._earlier if self._differs(earlier)), None)
        if strict and differing is not None:
            told = "; ".join(self.notes) or f"from the session that began at step {differing['step']}"
            raise LockstepError(
                f"--strict: {self.run.path} was not computed as it would be now: {told}. Resume it where it was, or "
                f"leave out --strict to go on with other bits",
                ENVIRONMENT,
            )

    def begin(self, log: Log, train_set: Dataset, test_set: Dataset, places: list[tuple[str, str]]) -> None:
        """Record where the run computes, say what is about to happen, and save step 0 or the state it resumes at.

        `places` are more lines for the start-up block.
        """
        session = self._session
        checkpoint.clear_ahead(self.run.checkpoints, session.state.step)
        self.run.forget_ahead(session.state.step, self.notes.append)
        self.run.write("environment.json", [*self._earlier, {"step": session.state.step, **self._here}])
        lines = describe(
            session.recipe,
            session.placement,
            session.reduction,
            session.device,
            images=(len(train_set), len(test_set)),
            shape=tuple(train_set.images.shape[1:]),
            classes=len(train_set.classes),
            parameters=session.parameters,
            run=self.run.path,
        )
        lines += places
        if session.state.step:
            lines.append(("resumes", f"after step {session.state.step}"))
        log.start(lines)
        for text in self.notes:
            log.note(text)
        with log.untimed():
            self.save()

    def stepped(self) -> None:
        """Note that a step was done, and tell of a checkpoint that could not be written: the run goes on without it."""
        self.saver.stepped()
        if (text := self._failure()) is not None:
            self.tell(f"{text}. Training goes on; the previous checkpoints are untouched")

    def save(self) -> None:
        """Begin to save a checkpoint, when the one before is written; training goes on meanwhile."""
        session = self._session
        self.saver.wait()
        if (text := self._failure()) is not None:
            self.tell(text)
        facts: dict[str, Any] = {
            "recipe_digest": session.recipe.digest(),
            "data_sha256": session.data_sha256,
            "model_source": session.model_source,
        }
        self.saver.save(session.state, facts)

    def record_accuracy(self, evaluated: dict[str, Evaluation]) -> None:
        """Add the accuracy to the checkpoint of the weights that were evaluated, by which the best one is known."""
        facts = {"accuracy": next(iter(evaluated.values())).accuracy}
        self.saver.add_facts(self._session.state.step, facts)

    def not_evaluated(self) -> bytes:
        """Not empty if the checkpoint that a resumed run continues from was saved, but not evaluated."""
        return b"" if self.found is None or "accuracy" in self.found.manifest else b"evaluate"

    def require_saved(self) -> None:
        """Wait until the state is saved. Raises: LockstepError if it could not be."""
        self.saver.wait()
        if (text := self._failure()) is not None:
            raise LockstepError(text, ENVIRONMENT)

    def _failure(self) -> str | None:
        """Why a checkpoint could not be written, told once. Raises: what is no fault of the disk's."""
        error = self.saver.failed()
        if error is not None and not isinstance(error, OSError):
            raise error
        if error is None:
            return None
        return f"could not save a checkpoint in {self.run.checkpoints}: {error.strerror or error}"

    def not_finite(self) -> str:
        """Save the state if its weights are finite; returns what the user has then."""
        if self._session.state.is_finite():
            self.save()
            self.require_saved()
            return f"The last good state, after {self._session.state.step} steps, is saved in {self.run.path}"
        return f"The last good state is the latest checkpoint in {self.run.path}"

    def stopped(self, log: Log) -> None:
        """Save where the run was stopped, and say how to go on."""
        self.save()
        self.require_saved()
        step = self._session.state.step
        log.end([("stopped", f"after {step} steps, saved"), ("go on", self._command("train", "--resume"))])

    def _command(self, name: str, *options: str) -> str:
        """A command on this run, quoted for the shell, which names the user's own model as its code is run."""
        model = ("--model", self._session.recipe.model) if ":" in self._session.recipe.model else ()
        return shlex.join(["lockstep", name, str(self.run.path), *options, *model])

    def finish(self, log: Log, evaluated: dict[str, Evaluation], memory: list[int], started: float) -> dict[str, Any]:
        """Write the model and the result, and say where they are."""
        session, recipe = self._session, self._session.recipe
        save_classifier(self.run.model, session)
        best = next(iter(evaluated.values()))
        views = {"accuracy_one_view": best.summary()["accuracy_one_view"]} if recipe.test_views != "one" else {}
        result = {
            "recipe": recipe.name,
            "digest": recipe.digest(),
            "weights_sha256": session.state.weights_sha256(),
            "steps": session.state.step,
            "examples": session.state.step * recipe.batch,
            "accuracy": {
                weights: evaluated[weights].accuracy if weights in evaluated else None for weights in ("ema", "raw")
            },
            **views,
            "loss": {"train": log.last_loss} | {weights: result.loss for weights, result in evaluated.items()},
            "train_s": round(log.train_s, 3),
            "total_s": round(time.time() - started, 3),
            "images_per_s": round(log.images_per_s, 1),
            "peak_memory_bytes": memory,
            "processes": session.reduction.processes,
            "device": session.device.type,
            "versions": session.fingerprint["versions"],
            "model_source": session.model_source,
            "mixed_arithmetic": self.mixed,
            "run": str(self.run.path),
        }
        self.run.write("result.json", result)
        ema = ""
        if "ema" in evaluated:
            ema = f" by the averaged weights, {evaluated['raw'].accuracy:.2%} by the raw ones"
        ema += f"; {views['accuracy_one_view']:.2%} without test_views" if views else ""
        log.end(
            [
                ("accuracy", f"{best.accuracy:.2%} ({best.correct} of {best.examples} {recipe.tested_on} images){ema}"),
                ("weights", str(self.run.model)),
                (
                    "speed",
                    f"{log.images_per_s:,.0f} images/s; {log.train_s:.1f} s training, {result['total_s']:.1f} s in all",
                ),
                ("sha256", f"{result['weights_sha256']} ({self._promise()})"),
                ("next", f"{self._command('eval')}   or   lockstep recipes"),
            ]
        )
        return result

    def _promise(self) -> str:
        """Whose bits the sha256 of the weights tells."""
        if self.mixed:
            return "raw weights: of sessions that computed differently, see environment.json; no other run has them"
        if not self._session.recipe.exact:
            return "raw weights: not exact, as the recipe says"
        return "raw weights: the same on any number of processes"

    def _check_data(self) -> None:
        """Raise a LockstepError unless every split that training uses is the one the checkpoint's run had."""
        if self.found is None:
            return
        before = self.found.manifest.get("data_sha256")
        if not isinstance(before, dict):  # of an older release, which knew the training images only
            before = {"train": before}
        for name, digest in self._session.data_sha256.items():
            if name in before and before[name] != digest:
                raise LockstepError(
                    f"the {'training' if name == 'train' else name} data is not what {self.run.path} was trained on "
                    f"(its sha256 differs): give the same files as --data to resume",
                    DATA,
                )
