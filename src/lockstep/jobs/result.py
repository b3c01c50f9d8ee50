"""Result: the result of a complete run, as the record in result.json and as the end block."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from lockstep.config.recipe import Recipe
from lockstep.core.log import Log
from lockstep.core.state import classifier_weights
from lockstep.core.task import Score
from lockstep.data import IMAGE_FOLDER
from lockstep.files import Record
from lockstep.head.confidence import Confidence, confidence_tensors
from lockstep.head.outliers import outlier_tensors
from lockstep.jobs.judge import Judgement, judge
from lockstep.jobs.replica import Replica
from lockstep.jobs.startup import Line
from lockstep.kernels.portable import arithmetic
from lockstep.messages import command
from lockstep.runs.run_folder import RunFolder
from lockstep.text import (
    cell_text,
    counted,
    folds_text,
    gpu_text,
    listed,
    noted,
    rate_text,
    scores_text,
)

# Fields of result.json that tell of the computers, the time and the sessions. `Result.decided`
# returns all others but the link.
STATED = (
    "train_s total_s images_per_s steps_per_s gpu_utilization peak_memory_bytes processes device "
    "versions model_source sessions mixed_arithmetic run folds"
)


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        replica: whose state has the resulting weights: after the last update.
        scores: those of the resulting weights by kind of weights, the classifier's first.
        judgement: what is true of the classifier's answers on the test set.
        tensors, metadata: the content of model.safetensors, the file of the classifier.
    """

    replica: Replica
    scores: Mapping[str, Score]
    judgement: Judgement
    tensors: Mapping[str, Tensor]
    metadata: Record

    def decided(self) -> Record:
        """Return the fields of result.json that recipe and data decide. `lockstep verify` computes
        them again.
        """
        replica, recipe, every = self.replica, self.replica.recipe, self.scores.items()
        judged = self.judgement.record()
        found = {
            "accuracy": {"ema": None} | {kind: each.accuracy for kind, each in every},
            "accuracy_interval": judged["accuracy_interval"],
            "accuracy_without_augmentation": judged.get("accuracy_without_augmentation"),
            "confident": self.judgement.confident(),
        }
        if labels := self.judgement.score.of_labels():
            found |= {**labels, "classes": judged["classes"]}
        return {
            "recipe": recipe.name,
            "digest": recipe.digest(),
            "weights_sha256": replica.state.weights_sha256(),
            "steps": replica.state.step,
            "examples": replica.state.step * recipe.batch,
            **{name: value for name, value in found.items() if value is not None},
            "warnings": self.judgement.warnings(
                replica.splits["train"], recipe.evaluated_split, recipe.head
            ),
            "left_out": [*recipe.left_out],
            "loss": {kind: each.loss for kind, each in every},
        }

    def record(
        self, log: Log, run: RunFolder, started: float, memory: list[int], mixed: bool
    ) -> Record:
        """Return the content of result.json.

        `started` is the time of the program's start, `memory` each process's peak, in bytes, and
        `mixed` whether sessions of the `run` computed differently.
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
            "peak_memory_bytes": memory,
            "processes": replica.group.processes,
            "device": replica.device.type,
            "versions": replica.fingerprint["versions"],
            "model_source": replica.model_source,
            "mixed_arithmetic": mixed,
            "run": str(run.path),
        }

    def lines(self, record: Record, model: Path) -> list[Line]:
        """Return the end block of a run whose weights are in the file `model`."""
        recipe, best, run = self.replica.recipe, self.judgement.score, record["run"]
        others = ""
        if "ema" in self.scores:
            others = (
                f" with averaged weights, {self.scores['raw'].accuracy:.2%} with the "
                f"weights of the last step"
            )
        if record.get("accuracy_without_augmentation", best.accuracy) != best.accuracy:
            alone = record["accuracy_without_augmentation"]
            others += f"; {alone:.2%} without test-time augmentation"
        what = f"{recipe.evaluated_split} images{best.words.exactly}"
        counts = counted(best.correct, best.examples, what)
        again = recipe.command("eval", run)
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
        if "confident" in record:
            share, count, _, coverage, accuracy, *_ = record["confident"].values()
            answers = best.words.answers.format(recipe.evaluated_split)
            of = f"{count} of {best.answers} {answers} (coverage {cell_text(coverage)})"
            lines.append(
                ("confident", f"{of}, accuracy {cell_text(accuracy)} (target: {share:.0%})")
            )
        if "folds" in record:
            lines.append(("folds", folds_text(record["folds"])))
        lines += [("warning", text) for text in record["warnings"]]
        lines += [("left out", text) for text in left_out]
        lines += [("weights", str(model)), ("speed", f"{rate_text(record)}; {seconds}")]
        if self.replica.gpus:
            lines.append(("gpus", gpu_text(record)))
        lines += [("sha256", f"{record['weights_sha256']} ({scope})")]
        return [*lines, ("next", f"{again}   or   {use}")]


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


def result_of(replica: Replica, scores: dict[str, Score]) -> Result:
    """Return the result with these `scores`, as the file of the classifier answers.

    The file of a head can tell unfamiliar images, and that of a linear one confident answers. With
    multi-label data, it has its own least probability of a label that is found.
    """
    recipe, state, test_set = replica.recipe, replica.state, replica.test_set
    tensors = classifier_weights(state.state_dict())
    if replica.backbone is not None:
        tensors |= confidence_tensors(replica.bound, state, replica.train_set)
        with arithmetic(recipe.arithmetic):
            tensors |= outlier_tensors(replica.train_set)
    confidence = Confidence(tensors, recipe, replica.backbone, len(test_set.classes))
    kind, score = next(iter(scores.items()))
    judgement = judge(test_set, score, confidence)
    metadata = {
        **replica.metadata(),
        "recipe": recipe.model_dump(mode="json"),
        "weights_sha256": state.weights_sha256(),
    }
    return Result(replica, scores | {kind: judgement.score}, judgement, tensors, metadata)
