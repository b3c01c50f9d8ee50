"""Specs: what a job is to compute. The launcher gives a spec to its worker processes as JSON."""

import json
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.settings import Settings

_PATH = "path in a spec"  # the only key of a JSON object that stands for a path


class TrainSpec(Settings):
    """Train a run.

    Attributes:
        path: the run's folder.
        resume: True to continue the run in the folder.
        numbered: True if a new run may take the next free number in place of the one in `path`.
        notes: messages for the user at the start.
        started: time.time() at the program's start.
    """

    job: Literal["train"] = "train"
    recipe: Recipe
    placement: Placement
    path: Path
    resume: bool = False
    numbered: bool = False
    notes: tuple[str, ...] = ()
    started: float = Field(default_factory=time.time)


class EvaluateSpec(Settings):
    """Evaluate a checkpoint of a run.

    Attributes:
        path: the run's folder.
        weights: "ema", "raw", or None for those of the classifier.
        split: the split to evaluate.
        examples: how many of its examples, see `Session.split`, or None for all.
        checkpoint: the step of a checkpoint, "best", or None for the newest.
    """

    job: Literal["evaluate"] = "evaluate"
    recipe: Recipe
    placement: Placement
    path: Path
    weights: Literal["ema", "raw"] | None = None
    split: str = "test"
    examples: int | None = None
    checkpoint: int | Literal["best"] | None = None


class ReportSpec(EvaluateSpec):
    """Evaluate a checkpoint of a run, and choose the images that its report shows.

    Attributes:
        shown: how many of the worst mistakes, and of the least certain images.
    """

    job: Literal["report"] = "report"  # type: ignore[assignment]
    shown: int = 24


class VerifySpec(Settings):
    """Replay steps of a run, and compare them with what its folder states.

    Attributes:
        path: the run's folder, which is only read.
        start: from which step to replay, up to the next checkpoint; None: from the second newest one.
    """

    job: Literal["verify"] = "verify"
    recipe: Recipe
    placement: Placement
    path: Path
    start: int | None = Field(None, ge=0)


class LabelsSpec(Settings):
    """Find the images of a folder whose labels are contradicted by heads that were not trained on them."""

    job: Literal["labels"] = "labels"
    recipe: Recipe
    placement: Placement


Spec = TrainSpec | EvaluateSpec | ReportSpec | VerifySpec | LabelsSpec


def encoded(spec: Spec) -> str:
    """Return `spec` as JSON. The bytes of a path need not be UTF-8."""
    return json.dumps(spec.model_dump(), default=lambda path: {_PATH: str(path)})


def decoded(text: str) -> Spec:
    """Return the spec that `encoded` wrote."""
    fields = json.loads(text, object_hook=lambda found: Path(found[_PATH]) if found.keys() == {_PATH} else found)
    spec: Spec = _ADAPTER.validate_python(fields)
    return spec


_ADAPTER: TypeAdapter[Any] = TypeAdapter(Spec)
