"""Keeper: process 0's hold on the run folder, and all that is written there."""

import sys
import time
from pathlib import Path
from typing import Any

from lockstep import checkpoint
from lockstep.classifier_file import save_classifier
from lockstep.data.dataset import Dataset
from lockstep.environment import describe, fingerprint
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.evaluate import Evaluation
from lockstep.report import console
from lockstep.report.events import Listener
from lockstep.report.log import Log
from lockstep.report.metrics import MetricsFile
from lockstep.run import Run
from lockstep.session import Session


class Keeper:
    """Process 0's hold on the run folder."""

    def __init__(
        self, session: Session, path: Path, *, resume: bool, numbered: bool, to_stderr: bool, quiet: bool
    ) -> None:
        self._session = session
        recipe, placement = session.recipe, session.placement
        self.found: checkpoint.Checkpoint | None = None
        notes: list[str] = []
        if resume:
            self.run = Run.open(path)
            self.run.lock()
            self.found = checkpoint.latest(self.run.checkpoints, notes.append)
            self._check_data()
        else:
            self.run = Run.create(path, recipe, numbered, notes.append)
        self._notes = notes
        stream = sys.stderr if to_stderr else sys.stdout
        self.listeners: list[Listener] = [
            *([] if quiet else [console.for_stream(stream, placement.log_every)]),
            console.Plain(self.run.log.open("a"), placement.log_every),
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
        """Let go of the terminal and the folder."""
        for listener in self.listeners:
            listener.close()
        self.run.unlock()

    def begin(self, log: Log, train_set: Dataset, test_set: Dataset, places: list[tuple[str, str]]) -> None:
        """Record where the run computes, say what is about to happen, and save step 0 or the state it resumes at.

        `places` are more lines for the start-up block.
        """
        session = self._session
        checkpoint.clear_ahead(self.run.checkpoints, session.state.step)
        self.run.forget_ahead(session.state.step, self._notes.append)
        here = fingerprint(session.device)
        sessions = self.run.read("environment.json") or []
        for previous in sessions[-1:]:
            changed = [f"{k} {previous[k]} -> {here[k]}" for k in here if previous.get(k) != here[k]]
            if changed:
                self._notes.append(
                    f"computing elsewhere than before ({', '.join(changed)}): equal bits are not promised"
                )
        record = {"step": session.state.step, "processes": session.reduction.processes, **here}
        self.run.write("environment.json", [*sessions, record])
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
        for text in self._notes:
            log.note(text)
        with log.untimed():
            self.save(log, {}, required=False)

    def save(self, log: Log, evaluated: dict[str, Evaluation], required: bool) -> None:
        """Save a checkpoint and delete old ones. A disk that refuses costs this checkpoint, not the run."""
        session = self._session
        facts: dict[str, Any] = {"recipe_digest": session.recipe.digest(), "data_sha256": session.data_sha256}
        if evaluated:
            facts["accuracy"] = next(iter(evaluated.values())).accuracy
        try:
            checkpoint.save(self.run.checkpoints, session.state.tensors(), facts)
        except OSError as error:
            text = f"could not save a checkpoint in {self.run.checkpoints}: {error.strerror or error}"
            if required:
                raise LockstepError(text, ENVIRONMENT) from None
            log.note(f"{text}. Training goes on; the previous checkpoints are untouched")
            return
        checkpoint.prune(self.run.checkpoints, session.placement.keep)

    def not_finite(self, log: Log) -> str:
        """Save the state if its weights are finite; returns what the user has then."""
        if self._session.state.is_finite():
            self.save(log, {}, required=True)
            return f"The last good state, after {self._session.state.step} steps, is saved in {self.run.path}"
        return f"The last good state is the latest checkpoint in {self.run.path}"

    def stopped(self, log: Log, evaluated: dict[str, Evaluation]) -> None:
        """Save where the run was stopped, and say how to go on."""
        self.save(log, evaluated, required=True)
        step = self._session.state.step
        log.end([("stopped", f"after {step} steps, saved"), ("go on", f"lockstep train {self.run.path} --resume")])

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
            "versions": fingerprint(session.device)["versions"],
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
                ("sha256", f"{result['weights_sha256']} (raw weights: the same on any number of processes)"),
                ("next", f"lockstep eval {self.run.path}   or   lockstep recipes"),
            ]
        )
        return result

    def _check_data(self) -> None:
        if self.found and self.found.manifest.get("data_sha256") != self._session.data_sha256:
            raise LockstepError(
                f"the training data is not what {self.run.path} was trained on (its sha256 differs): "
                f"give the same files as --data to resume",
                DATA,
            )
