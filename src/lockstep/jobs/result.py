"""Result: what a complete run has found, as the record in result.json and as the lines at its
end.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lockstep.config.recipe import Recipe
from lockstep.core.evaluation import Evaluation
from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import Dataset
from lockstep.files import Record
from lockstep.head import outliers
from lockstep.head.confidence import SHARE, Confidence
from lockstep.jobs.replica import Replica
from lockstep.jobs.startup import Line
from lockstep.listeners.log import Log
from lockstep.messages import command
from lockstep.runs.run import Run
from lockstep.text import counted, gpu_text, noted, plural, rate_text, wilson_interval

_FEW = 20  # training images of a class, below which a warning says so
_UNEQUAL = 4  # times the images of the smallest class that the largest one has


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        replica: whose state has the resulting weights: after the last update.
        evaluations: those of the resulting weights by kind of weights, the classifier's first.
        memory: each process's peak, in bytes.
        sure: what `sure_answers` returned for the test set.
    """

    replica: Replica
    evaluations: Mapping[str, Evaluation]
    memory: list[int]
    sure: Record | None = None

    @property
    def best(self) -> Evaluation:
        """Return the evaluation of the classifier's weights."""
        return next(iter(self.evaluations.values()))

    def warnings(self) -> list[str]:
        """Return what the accuracy hides or what makes it doubtful, one sentence each."""
        train_set, best, texts = self.replica.splits["train"], self.best, list[str]()
        names, counts = (
            train_set.classes,
            train_set.labels.bincount(minlength=len(train_set.classes)).tolist(),
        )
        few = [
            f"{name} has {count}" for name, count in zip(names, counts, strict=True) if count < _FEW
        ]
        texts += noted(few, "class", f"with fewer than {_FEW} training images")
        most, least = counts.index(max(counts)), counts.index(min(counts))
        if counts[most] >= _UNEQUAL * max(1, counts[least]):
            shares = f"{counts[most]:,} training images, and class {names[least]} {counts[least]:,}"
            texts.append(f"class {names[most]} has {shares}")
        rows = [
            row
            for row in zip(best.class_correct, best.class_examples, names, strict=True)
            if row[1]
        ]
        rows.sort(key=lambda row: row[0] / row[1])
        (right, examples, name), (right_of_best, examples_of_best, best_name) = rows[0], rows[-1]
        if right / examples < right_of_best / examples_of_best / 2:
            text = (
                f"of class {name} only {right} of {plural(examples, 'image')} are classified "
                f"correctly"
            )
            texts.append(f"{text}, of class {best_name} {right_of_best} of {examples_of_best}")
        share, most_common = max(zip(best.class_examples, names, strict=True))
        if wilson_interval(best.correct, best.examples)[0] <= share / best.examples:
            always = f"always answering {most_common} gives {share / best.examples:.2%}"
            texts.append(f"this accuracy may be chance: {always}")
        if self.replica.recipe.head is not None and len(train_set) < outliers.LEAST_IMAGES:
            texts.append(
                f"no picture is marked as unlike the training images, as these are fewer than "
                f"{outliers.LEAST_IMAGES}"
            )
        return texts

    def record(self, log: Log, run: Run, started: float, mixed: bool) -> Record:
        """Return the content of result.json.

        `started` is the time of the program's start, and `mixed` whether sessions of the `run`
        computed differently.
        """
        replica, recipe, best = self.replica, self.replica.recipe, self.best
        steps_per_s = log.monitor.steps_per_s()
        views = {key: value for key, value in best.summary().items() if key == "accuracy_one_view"}
        if self.sure is not None:
            views["sure"] = self.sure
        if replica.gpus:
            views["gpu_utilization"] = log.gpus.mean
        return {
            "recipe": recipe.name,
            "digest": recipe.digest(),
            "weights_sha256": replica.state.weights_sha256(),
            "steps": replica.state.step,
            "examples": replica.state.step * recipe.batch,
            "accuracy": {"ema": None}
            | {kind: found.accuracy for kind, found in self.evaluations.items()},
            "accuracy_interval": wilson_interval(best.correct, best.examples),
            "warnings": self.warnings(),
            "left_out": [*recipe.left_out],
            **views,
            "loss": {"train": run.last_loss()}
            | {kind: found.loss for kind, found in self.evaluations.items()},
            "train_s": round(log.monitor.mark.seconds, 3),
            "total_s": round(time.time() - started, 3),
            "images_per_s": None if recipe.head else round(steps_per_s * recipe.batch, 1),
            "steps_per_s": round(steps_per_s, 3),
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
                f" by the averaged weights, {self.evaluations['raw'].accuracy:.2%} by those "
                f"of the last step"
            )
        if "accuracy_one_view" in record:
            others += (
                f"; {record['accuracy_one_view']:.2%} without mirrored and shifted views of "
                f"each image"
            )
        counts = counted(best.correct, best.examples, f"{recipe.evaluated_split} images")
        judge = recipe.command("eval", run)
        use = (
            recipe.command("predict", run, "IMAGE.jpg")
            if recipe.dataset == IMAGE_FOLDER
            else command("recipes")
        )
        seconds = f"{record['train_s']:.1f} s training, {record['total_s']:.1f} s in all"
        sure: list[Line] = []
        if self.sure is not None:
            share, images, right, _ = self.sure.values()
            of = f"{images} of {best.examples} {recipe.evaluated_split} images"
            sure = [("sure", f"{of}, {right} of them right ({share:.0%} is asked for)")]
        return [
            ("accuracy", f"{best.accuracy:.2%} ({counts}){others}"),
            *sure,
            *(("warning", text) for text in record["warnings"]),
            *(
                ("left out", text)
                for text in noted(recipe.left_out, "image", "that could not be read")
            ),
            ("weights", str(model)),
            ("speed", f"{rate_text(record)}; {seconds}"),
            *([("gpus", gpu_text(record))] if self.replica.gpus else []),
            (
                "sha256",
                f"{record['weights_sha256']} "
                f"({_scope_of_bits(recipe, record['mixed_arithmetic'])})",
            ),
            ("next", f"{judge}   or   {use}"),
        ]


def _scope_of_bits(recipe: Recipe, mixed_arithmetic: bool) -> str:
    """Return, in words, which runs have the SHA-256 of these weights."""
    if mixed_arithmetic:
        return "sessions computed differently, see environment.json; no other run has these bits"
    if not recipe.exact:
        return "not exact, as set in the recipe"
    same = (
        "every kind of CPU tried" if recipe.arithmetic == "portable" else "any number of processes"
    )
    return f"the same on {same}"


def sure_answers(
    replica: Replica,
    tensors: Mapping[str, Tensor],
    dataset: Dataset,
    probabilities: Tensor,
    share: float = SHARE,
) -> Record | None:
    """Return how many answers on `dataset` are sure and right, by the `tensors` of the model file;
    None if unknown.

    "least" are the least probabilities of sure answers. Raises: ValueError if the file is damaged.
    """
    marks = Confidence(
        outliers.divided(tensors)[1],
        replica.backbone.shape[-1] // 4 if replica.backbone else 0,
        len(dataset.classes),
        share,
        replica.recipe.balanced,
    )
    if marks.sure_from is None:
        return None
    answers = marks(dataset.pixels(slice(None)).cpu(), probabilities)
    sure = torch.tensor([answer == "sure" for answer in answers])
    right = sure & (probabilities.argmax(1) == dataset.labels.cpu())
    return {
        "share": share,
        "images": int(sure.sum()),
        "right": int(right.sum()),
        "least": sorted({least for least in marks.sure_from.tolist() if least <= 1}),
    }
