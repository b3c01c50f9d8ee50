"""Specs: what a job is to compute. Each names its job: the module of this folder, and the function
in it.
"""

import sys
import time
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.schema import Settings


class _Spec(Settings):
    """What all jobs have.

    Attributes:
        path: the run's folder, which only training writes to.
        surveyed: the `Examples` of the folder of images, if the launcher has surveyed it. No copy
            of the spec copies them. Their module, which imports numpy, is not named here.
    """

    recipe: Recipe
    placement: Placement
    path: Path
    surveyed: Any = Field(None, repr=False)


class TrainSpec(_Spec):
    """Train a run.

    Attributes:
        resume: True to continue the run in the folder.
        numbered: True if a new run may take the next free number in place of the one in `path`.
        notes: messages for the user at the start.
        details: what was chosen for the user, for the log.
        started: time.time() at the program's start.
    """

    job: ClassVar[str] = "train"
    resume: bool = False
    numbered: bool = False
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    started: float = Field(default_factory=time.time)


class EvaluateSpec(_Spec):
    """Evaluate a checkpoint of a run.

    Attributes:
        weights: "ema", "raw", or None for those of the classifier.
        split: the split to evaluate.
        examples: how many of its examples, see `Replica.split`, or None for all.
        checkpoint: the step of a checkpoint, "best", or None for the newest.
        predictions: the file that gets a row for each example, or None.
    """

    job: ClassVar[str] = "evaluate"
    weights: Literal["ema", "raw"] | None = None
    split: str = "test"
    examples: int | None = None
    checkpoint: int | Literal["best"] | None = None
    predictions: Path | None = None

    @property
    def is_of_model(self) -> bool:
        """Whether the weights are those of the run's model file, if it is complete."""
        return self.checkpoint is None and self.weights in (None, self.recipe.own_weights)


class ReportSpec(EvaluateSpec):
    """Evaluate a checkpoint of a run, and choose the images that its report shows."""

    job: ClassVar[str] = "report"


class VerifySpec(_Spec):
    """Replay steps of a run, and compare them with what its folder states.

    Attributes:
        start: from which step to replay, up to the next checkpoint; None: from the second newest
            one.
        parts: the steps from which and up to which to replay instead, in order.
    """

    job: ClassVar[str] = "verify"
    start: int | None = Field(None, ge=0)
    parts: tuple[tuple[int, int], ...] = ()


class LabelsSpec(_Spec):
    """Find the images whose labels are doubtful. `path` is their folder."""

    job: ClassVar[str] = "labels"


Spec = TrainSpec | EvaluateSpec | ReportSpec | VerifySpec | LabelsSpec


class Output(NamedTuple):
    """What process 0 prints.

    quiet: True for errors only. lines_to_stderr: True to leave stdout to the caller, for a record
    as JSON. verbose: True for all that log.txt has.
    """

    quiet: bool = False
    lines_to_stderr: bool = False
    verbose: bool = False

    @property
    def lines(self) -> IO[str] | None:
        """Return the stream for the lines of a run, or None."""
        return None if self.quiet else sys.stderr if self.lines_to_stderr else sys.stdout
