"""Result: the result of a complete run, as the record in result.json and as the end block."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lockstep.config.recipe import Recipe
from lockstep.core.task import Score, task_of
from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import Dataset
from lockstep.files import Record
from lockstep.head import outliers
from lockstep.head.confidence import Confidence
from lockstep.jobs.replica import Replica
from lockstep.jobs.startup import Line
from lockstep.listeners.log import Log
from lockstep.messages import command
from lockstep.runs.run_folder import RunFolder
from lockstep.text import (
    cell_text,
    counted,
    gpu_text,
    listed,
    noted,
    plural,
    rate_text,
    scores_text,
    wilson_interval,
)

_FEW = 20  # A class with fewer training images causes a warning.
_UNEQUAL = 4  # ratio of the largest class to the smallest from which on there is a warning
# Fields of result.json that tell of the computers, the time and the sessions. `Result.decided`
# returns all others but the link.
STATED = (
    "train_s total_s images_per_s steps_per_s gpu_utilization peak_memory_bytes processes device "
    "versions model_source sessions mixed_arithmetic run"
)


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        replica: whose state has the resulting weights: after the last update.
        evaluations: those of the resulting weights by kind of weights, the classifier's first.
        confident: what `confident_answers` returned for the test set.
        memory: each process's peak, in bytes.
    """

    replica: Replica
    evaluations: Mapping[str, Score]
    confident: Record | None
    memory: list[int]

    @property
    def best(self) -> Score:
        """Return the evaluation of the classifier's weights."""
        return next(iter(self.evaluations.values()))

    def warnings(self) -> list[str]:
        """Return the warnings about the accuracy, one sentence each."""
        train_set, best = self.replica.splits["train"], self.best
        names = train_set.classes
        counts = train_set.counts.tolist()
        rare = [f"{name} has {n}" for name, n in zip(names, counts, strict=True) if n < _FEW]
        texts = noted(rare, "class", f"with fewer than {_FEW} training images")
        most = counts.index(max(counts))
        least = counts.index(min(counts))
        if counts[most] >= _UNEQUAL * max(1, counts[least]):
            texts.append(
                f"the classes are unbalanced: {names[most]} has {counts[most]:,} training images, "
                f"and {names[least]} has {counts[least]:,}"
            )
        by_class = zip(best.class_correct, best.class_examples, names, strict=True)
        rows = sorted((row for row in by_class if row[1]), key=lambda row: row[0] / row[1])
        rows = rows or [(1, 1, "")]  # No test image has a label.
        right, examples, name = rows[0]
        right_of_best, examples_of_best, best_name = rows[-1]
        if right / examples < right_of_best / examples_of_best / 2:
            texts.append(
                f"class {name} is recognized less well than class {best_name}: {right} of "
                f"{plural(examples, 'image')} {best.words.correct}, against {right_of_best} of "
                f"{examples_of_best}"
            )
        texts += best.cautions(names, self.replica.recipe.evaluated_split)
        texts += filter(None, [self.replica.test_set.caution])
        if self.replica.recipe.head is not None and len(train_set) < outliers.LEAST_IMAGES:
            texts.append(
                f"no answer is marked as confident, unsure or unfamiliar: that needs at least "
                f"{outliers.LEAST_IMAGES} training images, and this run has {len(train_set)}"
            )
        return texts

    def decided(self) -> Record:
        """Return the fields of result.json that recipe and data decide. `lockstep verify` computes
        them again.
        """
        replica, recipe, best = self.replica, self.replica.recipe, self.best
        every = self.evaluations.items()
        found = {
            "accuracy": {"ema": None} | {kind: each.accuracy for kind, each in every},
            "accuracy_interval": wilson_interval(best.correct, best.examples),
            "accuracy_without_augmentation": best.summary().get("accuracy_without_augmentation"),
            "confident": self.confident,
        }
        if labels := best.of_labels():
            found |= {**labels, "classes": best.by_class(replica.splits["train"].classes)}
        return {
            "recipe": recipe.name,
            "digest": recipe.digest(),
            "weights_sha256": replica.state.weights_sha256(),
            "steps": replica.state.step,
            "examples": replica.state.step * recipe.batch,
            **{name: value for name, value in found.items() if value is not None},
            "warnings": self.warnings(),
            "left_out": [*recipe.left_out],
            "loss": {kind: each.loss for kind, each in every},
        }

    def record(self, log: Log, run: RunFolder, started: float, mixed: bool) -> Record:
        """Return the content of result.json.

        `started` is the time of the program's start, and `mixed` whether sessions of the `run`
        computed differently.
        """
        replica, recipe = self.replica, self.replica.recipe
        link = run.saver.newest
        assert link is not None  # A session saves before its first step.
        steps_per_s = log.monitor.steps_per_s()
        steps = [row for row in run.metrics() if row["kind"] == "step"]
        losses = [row.get("loss") for row in steps if not row.get("skipped")]
        decided = self.decided()
        return {
            **decided,
            "loss": {"train": losses[-1] if losses else None, **decided["loss"]},
            "link": link.sha256,
            **({"gpu_utilization": log.gpus.mean} if replica.gpus else {}),
            "train_s": round(log.monitor.mark.seconds, 3),
            "total_s": round(time.time() - started, 3),
            "images_per_s": None if recipe.head else round(steps_per_s * recipe.batch, 1),
            "steps_per_s": round(steps_per_s, 3),
            "sessions": len(run.earlier) + 1,
            "peak_memory_bytes": self.memory,
            "processes": replica.group.processes,
            "device": replica.device.type,
            "versions": replica.fingerprint["versions"],
            "model_source": replica.model_source,
            "mixed_arithmetic": mixed,
            "run": str(run.path),
        }

    def lines(self, record: Record, model: Path) -> list[Line]:
        """Return the end block of a run whose weights are in the file `model`."""
        recipe, best, run = self.replica.recipe, self.best, record["run"]
        others = ""
        if "ema" in self.evaluations:
            others = (
                f" with averaged weights, {self.evaluations['raw'].accuracy:.2%} with the "
                f"weights of the last step"
            )
        if record.get("accuracy_without_augmentation", best.accuracy) != best.accuracy:
            alone = record["accuracy_without_augmentation"]
            others += f"; {alone:.2%} without test-time augmentation"
        what = f"{recipe.evaluated_split} images{best.words.exactly}"
        counts = counted(best.correct, best.examples, what)
        judge = recipe.command("eval", run)
        use = command("recipes")
        if recipe.dataset == IMAGE_FOLDER:
            use = recipe.command("predict", run, "IMAGE.jpg")
        seconds = f"{record['train_s']:.1f} s training, {record['total_s']:.1f} s in all"
        if record["sessions"] > 1:
            seconds += f", since the last of {record['sessions']} starts"
        scope = _scope_of_bits(recipe, record["mixed_arithmetic"], record["device"])
        left_out = noted(recipe.left_out, "image", "that could not be read")
        lines = [("accuracy", f"{best.accuracy:.2%} ({counts}){others}")]
        if "f1" in record:
            lines.append(("labels", scores_text(record)))
        if self.confident is not None:
            share, count, _, coverage, accuracy, *_ = self.confident.values()
            of = f"{count} of {best.answers(recipe.evaluated_split)} (coverage "
            of += f"{cell_text(coverage)})"
            lines.append(
                ("confident", f"{of}, accuracy {cell_text(accuracy)} (target: {share:.0%})")
            )
        lines += [("warning", text) for text in record["warnings"]]
        lines += [("left out", text) for text in left_out]
        lines += [("weights", str(model)), ("speed", f"{rate_text(record)}; {seconds}")]
        if self.replica.gpus:
            lines.append(("gpus", gpu_text(record)))
        lines += [("sha256", f"{record['weights_sha256']} ({scope})")]
        return [*lines, ("next", f"{judge}   or   {use}")]


def _scope_of_bits(recipe: Recipe, mixed_arithmetic: bool, device: str) -> str:
    """Return, in words, which runs have the SHA-256 of these weights."""
    if mixed_arithmetic:
        return "of this run alone: its sessions computed differently, see environment.json"
    if not recipe.exact:
        return "of this run alone: the recipe sets exact=false"
    if recipe.arithmetic == "portable":
        code = listed([*recipe.custom_code.values()])
        return "bit-exact on every CPU tried" + (f", if {code} is too" if code else "")
    kind = f"this kind of {'GPU' if device == 'cuda' else 'CPU'}"
    return f"the same on any number of processes, on {kind}"


def judged(
    replica: Replica,
    evaluations: dict[str, Score],
    model: Mapping[str, Tensor],
    memory: list[int],
) -> Result:
    """Return the result of the `evaluations` as the file of the classifier answers, whose tensors
    `model` has.

    With multi-label data, the file has its own least probability of a label that is found.
    """
    recipe, test_set = replica.recipe, replica.test_set
    kind, best = next(iter(evaluations.items()))
    confidence, confident = Confidence(model, recipe, replica.backbone, len(test_set.classes)), None
    if best.logits is not None:
        evaluations = evaluations | {kind: best.at(confidence.found_from, test_set.labels)}
        probabilities = task_of(test_set).probabilities(best.logits)
        confident = confident_answers(confidence, test_set, probabilities)
    return Result(replica, evaluations, confident, memory)


def confident_answers(
    confidence: Confidence, dataset: Dataset, probabilities: Tensor
) -> Record | None:
    """Return how many answers on `dataset` are confident and right; None if the model file cannot
    tell. With multi-label data, each label that is found is an answer.

    "share" is the share of right answers that the thresholds aim at, "coverage" the share of all
    answers that are confident, and "accuracy" the share of these that are right. "least" has the
    thresholds, and "never" is the number of classes without one: none of their answers is
    confident.
    """
    if confidence.confident_from is None:
        return None
    task = task_of(dataset)
    least = torch.tensor(confidence.confident_from, dtype=torch.float64)
    unfamiliar = confidence.unfamiliar(dataset.pixels(slice(None)).cpu())
    confident = (probabilities.float() >= least) & ~unfamiliar[:, None]
    answers = task.found(probabilities, confidence.found_from)
    confident &= answers
    own = task.own(dataset.labels.cpu(), len(dataset.classes))
    every, count, right = (int(each.sum()) for each in (answers, confident, confident & own))
    return {
        "share": confidence.share,
        task.unit: count,
        "right": right,
        "coverage": count / every if every else None,
        "accuracy": right / count if count else None,
        "least": sorted({each for each in confidence.confident_from if each <= 1}),
        "never": int((least > 1).sum()),
    }
