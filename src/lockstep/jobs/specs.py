"""Jobs: what the processes of one command do. The launcher hands a job to its worker processes as JSON."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.settings import Settings

BenchMode = Literal["synthetic", "forward-only", "independent"]


class TrainJob(Settings):
    """Train a run.

    Attributes:
        path: the run's folder.
        resume: True to continue the run in the folder.
        numbered: True if a new run may take the next free number in place of the one in `path`.
        strict: True to refuse to resume with other arithmetic or a changed model source.
        notes: messages for the user at the start.
        json_output: True to print the result as JSON on stdout, and everything else on stderr.
        quiet: True to print only errors (and the JSON).
        started: time.time() at the program's start.
        line_width: columns of a line that is redrawn on stdout, for a caller that relays stdout to a notebook or a
            terminal; None lets stdout decide.
        path_file: file into which process 0 writes the path of the run's folder as soon as it exists, or None.
        restarts: how often the processes were started again after a failure, since the program started.
    """

    command: Literal["train"] = "train"
    recipe: Recipe
    placement: Placement
    path: Path
    resume: bool = False
    numbered: bool = False
    strict: bool = False
    notes: tuple[str, ...] = ()
    json_output: bool = False
    quiet: bool = False
    started: float
    line_width: int | None = None
    path_file: Path | None = None
    restarts: int = 0


class EvalJob(Settings):
    """Evaluate checkpoints of a run.

    Attributes:
        path: the run's folder.
        weights: "ema", "raw", or None for those of the classifier.
        split: the split to evaluate.
        examples: how many of its examples, see `Session.split`, or None for all.
        checkpoint: the step of a checkpoint, "best", or None for the newest.
        save_model: file for the evaluated model, or None.
        watch: True to evaluate each new checkpoint until the run ends; `interval` is in seconds.
        once: True to look for new checkpoints only once.
        strict: True to refuse a model whose source has changed since the checkpoint.
        json_output, quiet: as in TrainJob.
    """

    command: Literal["eval"] = "eval"
    recipe: Recipe
    placement: Placement
    path: Path
    weights: Literal["ema", "raw"] | None = None
    split: str = "test"
    examples: int | None = None
    checkpoint: int | Literal["best"] | None = None
    save_model: Path | None = None
    watch: bool = False
    interval: float = 5.0
    once: bool = False
    strict: bool = False
    json_output: bool = False
    quiet: bool = False


class BenchJob(Settings):
    """Time training steps.

    Attributes:
        record: file for the record, which process 0 writes as JSON.
        steps, warmup: number of timed steps, and of untimed steps before them.
        modes: parts of a step that are left out or replaced.
    """

    command: Literal["bench"] = "bench"
    recipe: Recipe
    placement: Placement
    record: Path
    steps: int = Field(ge=1)
    warmup: int = Field(0, ge=0)
    modes: tuple[BenchMode, ...] = ()
    quiet: bool = False


class VerifyJob(Settings):
    """Replay steps of a run, and compare them with what its folder states.

    Attributes:
        path: the run's folder, which is only read.
        record: file for the record, which process 0 writes as JSON.
        start, steps: from which step to replay, and how many; None: see `lockstep verify --help`.
        quiet: as in TrainJob.
    """

    command: Literal["verify"] = "verify"
    recipe: Recipe
    placement: Placement
    path: Path
    record: Path
    start: int | None = Field(None, ge=0)
    steps: int | None = Field(None, ge=1)
    quiet: bool = False


Job = TrainJob | EvalJob | BenchJob | VerifyJob
