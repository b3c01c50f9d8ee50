"""What each process of a run does, from the data to the result. All processes do the same, in lockstep.

Process 0 alone reads and writes the run folder; what the others need of it is broadcast.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

import torch
from safetensors.torch import load, save, save_file
from torch import Tensor

from lockstep import checkpoint
from lockstep.data import DATASETS
from lockstep.data.dataset import Dataset
from lockstep.environment import describe, fingerprint
from lockstep.errors import CRASH, DATA, ENVIRONMENT, LockstepError
from lockstep.evaluate import Evaluation, evaluate
from lockstep.recipe import Placement, Recipe
from lockstep.reduce import Reduction
from lockstep.report import console
from lockstep.report.log import EvaluationEvent, Listener, Log
from lockstep.report.metrics import MetricsFile
from lockstep.run import Run
from lockstep.settings import load_object
from lockstep.state import State
from lockstep.tower import Network, NonFiniteError, Tower, build_model, persistent_buffers
from lockstep.train import train


class Session:
    """The data, network and state of one run, in one process."""

    def __init__(self, recipe: Recipe, placement: Placement, reduction: Reduction, device: torch.device) -> None:
        self.recipe, self.placement, self.reduction, self.device = recipe, placement, reduction, device
        self.splits: dict[str, Dataset] = load_object(DATASETS[recipe.dataset])(placement.data)
        train_set = self.splits["train"]
        try:
            shape = recipe.augmentation.shape(*train_set.images.shape[1:])
        except ValueError as error:
            raise LockstepError(str(error)) from None
        self.network = Network(recipe, shape, len(train_set.classes), device)
        model = build_model(recipe, shape, len(train_set.classes))
        self.state = State(recipe, model, persistent_buffers(model), device)
        self.parameters = sum(p.numel() for p in self.state.parameters.values())

    @property
    def data_sha256(self) -> str:
        """The training data's sha256, which a resumed run must find unchanged."""
        return self.splits["train"].sha256

    def split(self, name: str) -> Dataset:
        """A split, on the device. Raises: LockstepError if the data set has no such split."""
        if name not in self.splits:
            raise LockstepError(f"data set {self.recipe.dataset} has no split {name!r}: it has {', '.join(self.splits)}")
        return self.splits[name].to(self.device)

    def restore(self, found: checkpoint.Checkpoint | None) -> None:
        """Continue from the checkpoint process 0 found, in every process; None keeps the initial state."""
        tensors = self.reduction.broadcast(save(found.tensors) if found else b"")
        if tensors:
            self.state.load(load(tensors))

    def evaluate(self, dataset: Dataset, weights: str) -> Evaluation:
        """Evaluate the "ema" or "raw" weights."""
        parameters = self.state.ema if weights == "ema" else self.state.parameters
        assert parameters is not None
        return evaluate(self.recipe, self.network, parameters, self.state.buffers, dataset, self.reduction)

    def evaluate_all(self, dataset: Dataset) -> dict[str, Evaluation]:
        """Evaluate every kind of weights the run has, the one that makes the classifier first."""
        kinds = ["ema", "raw"] if self.state.ema is not None else ["raw"]
        return {weights: self.evaluate(dataset, weights) for weights in kinds}


def run_training(
    recipe: Recipe,
    placement: Placement,
    path: Path,
    resume: bool,
    json_output: bool,
    reduction: Reduction,
    device: torch.device,
    asked: Callable[[], Sequence[bool]],
    started: float,
) -> tuple[dict[str, Any] | None, Signals | None]:
    """Train in the run folder `path`: a new one, or with `resume` the one that is there.

    `started` is the time.time() the program was started at. Returns the result record (in process 0) and None, or
    None and the signal that stopped the run.
    Raises: LockstepError; after a loss that is not finite the last good state has been saved.
    """
    session = Session(recipe, placement, reduction, device)
    keeper = _Keeper(session, path, resume, json_output) if reduction.process == 0 else None
    session.restore(keeper.found if keeper else None)
    train_set, test_set = session.split("train"), session.split("test")
    log = Log(recipe, len(train_set), keeper.listeners if keeper else [])
    tower = Tower(recipe, session.network)
    steps = recipe.total_steps(len(train_set))
    if keeper:
        keeper.begin(log, train_set, test_set)
    evaluated: dict[str, Evaluation] = {}

    def after_step(state: State) -> None:
        evaluated.clear()
        every = placement.eval_every
        due = state.step == steps or (every is not None and state.step % every == 0)
        with log.untimed():
            if due:
                evaluated.update(session.evaluate_all(test_set))
                log.evaluation(EvaluationEvent(state.step, "test", dict(evaluated)))
            if keeper and (due or state.step % placement.save_every == 0):
                keeper.save(log, evaluated, required=state.step == steps)

    try:
        stop = train(recipe, train_set, reduction, tower, session.state, log, asked=asked, after_step=after_step)
    except NonFiniteError as error:
        if keeper:
            keeper.save(log, {}, required=True)
        saved = f"The last good state, after {session.state.step} steps, is saved in {path}"
        raise LockstepError(f"{error}. {saved}", error.code) from None
    if stop is not None:
        if keeper:
            keeper.stopped(log, evaluated)
        return None, stop
    if not evaluated:  # resumed after the last step, before the result was written
        evaluated.update(session.evaluate_all(test_set))
    return (keeper.finish(log, evaluated, started) if keeper else None), None


class _Keeper:
    """Process 0's hold on the run folder."""

    def __init__(self, session: Session, path: Path, resume: bool, json_output: bool) -> None:
        self._session = session
        recipe, placement = session.recipe, session.placement
        self.found: checkpoint.Checkpoint | None = None
        notes: list[str] = []
        if resume:
            self.run = Run.open(path)
            self.run.lock()
            self.found = checkpoint.latest(self.run.checkpoints, notes.append)
            self._check_data()
            step = self.found.manifest["step"] if self.found else 0
            checkpoint.clear_ahead(self.run.checkpoints, step)
            self.run.forget_ahead(step)
        else:
            self.run = Run.create(path, recipe)
        self._notes = notes
        stream = sys.stderr if json_output else sys.stdout
        self.listeners: list[Listener] = [
            console.for_stream(stream, placement.log_every),
            console.Plain(self.run.log.open("a"), placement.log_every),
            MetricsFile(self.run.metrics, placement.log_every),
        ]

    def begin(self, log: Log, train_set: Dataset, test_set: Dataset) -> None:
        """Record where the run computes, say what is about to happen, and save step 0 or the state it resumes at."""
        session = self._session
        here = fingerprint(session.device)
        sessions = self.run.read("environment.json") or []
        for previous in sessions[-1:]:
            changed = [f"{k} {previous[k]} -> {here[k]}" for k in here if previous.get(k) != here[k]]
            if changed:
                self._notes.append(f"computing elsewhere than before ({', '.join(changed)}): equal bits are not promised")
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

    def stopped(self, log: Log, evaluated: dict[str, Evaluation]) -> None:
        """Save where the run was stopped, and say how to go on."""
        self.save(log, evaluated, required=True)
        step = self._session.state.step
        log.end([("stopped", f"after {step} steps, saved"), ("go on", f"lockstep train {self.run.path} --resume")])

    def finish(self, log: Log, evaluated: dict[str, Evaluation], started: float) -> dict[str, Any]:
        """Write the model and the result, and say where they are."""
        session, recipe = self._session, self._session.recipe
        classes = session.splits["train"].classes
        save_model(self.run.model, session, classes)
        best = next(iter(evaluated.values()))
        result = {
            "recipe": recipe.name,
            "digest": recipe.digest(),
            "weights_sha256": session.state.weights_sha256(),
            "steps": session.state.step,
            "examples": session.state.step * recipe.batch,
            "accuracy": {weights: evaluated[weights].accuracy if weights in evaluated else None
                         for weights in ("ema", "raw")},
            "loss": {"train": log.last_loss} | {weights: result.loss for weights, result in evaluated.items()},
            "train_s": round(log.train_s, 3),
            "total_s": round(time.time() - started, 3),
            "images_per_s": round(log.images_per_s, 1),
            "processes": session.reduction.processes,
            "device": session.device.type,
            "versions": fingerprint(session.device)["versions"],
            "run": str(self.run.path),
        }
        self.run.write("result.json", result)
        ema = ""
        if "ema" in evaluated:
            ema = f" by the averaged weights, {evaluated['raw'].accuracy:.2%} by the raw ones"
        log.end([
            ("accuracy", f"{best.accuracy:.2%} ({best.correct} of {best.examples} test images){ema}"),
            ("weights", str(self.run.model)),
            ("speed", f"{log.images_per_s:,.0f} images/s; {log.train_s:.1f} s training, {result['total_s']:.1f} s in all"),
            ("sha256", f"{result['weights_sha256']} (raw weights: the same on any number of processes)"),
            ("next", f"lockstep eval {self.run.path}   or   lockstep recipes"),
        ])
        return result

    def _check_data(self) -> None:
        if self.found and self.found.manifest.get("data_sha256") != self._session.data_sha256:
            raise LockstepError(
                f"the training data is not what {self.run.path} was trained on (its sha256 differs): "
                f"give the same files as --data to resume",
                DATA,
            )


def save_model(path: Path, session: Session, classes: tuple[str, ...]) -> None:
    """Write the classifier: float32 weights by name, and what is needed to use them in the metadata, as JSON.

    One metadata key, `lockstep`: safetensors writes several in no fixed order.
    """
    import json

    recipe = session.recipe
    facts = {
        "model": recipe.model,
        "classes": classes,
        "image_shape": list(session.splits["train"].images.shape[1:]),
        "preprocessing": recipe.augmentation.model_dump(mode="json"),
        "weights": "ema" if session.state.ema is not None else "raw",
        "recipe_digest": recipe.digest(),
    }
    tensors: dict[str, Tensor] = {**session.state.evaluated, **session.state.buffers}
    temporary = path.with_name(f".{path.name}")
    save_file({k: t.detach().cpu().clone() for k, t in tensors.items()}, temporary, {"lockstep": json.dumps(facts)})
    temporary.replace(path)


def run_evaluation(
    recipe: Recipe,
    placement: Placement,
    path: Path,
    weights: str | None,
    split: str,
    reduction: Reduction,
    device: torch.device,
) -> tuple[dict[str, Any], list[str]]:
    """Evaluate the newest whole checkpoint of the run at `path`.

    `weights` is "ema", "raw" or None for the ones that make the classifier. Returns the record and, in process 0,
    notes for the user. Raises: LockstepError.
    """
    session = Session(recipe, placement, reduction, device)
    dataset = session.split(split)
    if weights == "ema" and session.state.ema is None:
        raise LockstepError(f"{path} keeps no average of its weights: use --weights raw")
    notes: list[str] = []
    found = None
    if reduction.process == 0:
        found = checkpoint.latest(Run.open(path).checkpoints, notes.append)
        if found is None:
            raise LockstepError(f"{path} has no checkpoint yet", DATA)
    session.restore(found)
    chosen = weights or ("ema" if session.state.ema is not None else "raw")
    result = session.evaluate(dataset, chosen)
    return {
        "run": str(path),
        "step": session.state.step,
        "split": split,
        "weights": chosen,
        "examples": result.examples,
        "correct": result.correct,
        "accuracy": result.accuracy,
        "loss": result.loss,
    }, notes


__all__ = ["CRASH", "Session", "run_evaluation", "run_training"]
