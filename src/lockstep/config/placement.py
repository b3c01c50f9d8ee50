"""Placement: where a run computes and what it records. Nothing here can change a bit of the weights."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from lockstep.config.recipe import Recipe
from lockstep.errors import LockstepError, unknown
from lockstep.reduce import REDUCTIONS
from lockstep.settings import Settings

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+(,\d+)*)?")
_STEPS = re.compile(r"steps=(\d+):(\d+)")


def _device(value: Any) -> Any:
    if not isinstance(value, str) or not _DEVICE.fullmatch(value):
        raise ValueError("give auto, cpu, cuda, or the GPUs to use, as in cuda:0 or cuda:0,2")
    numbers = value.partition(":")[2].split(",")
    if len(set(numbers)) < len(numbers):
        raise ValueError("each GPU takes one process: name it once")
    return value


def _profile(value: Any) -> Any:
    if value is None or isinstance(value, list | tuple):
        return value
    match = _STEPS.fullmatch(str(value))
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError("give steps=FIRST:END, END not included and above FIRST, as in steps=10:13")
    return int(match[1]), int(match[2])


class Placement(Settings):
    """Where a run computes and what it records: nothing here can change a bit of the weights.

    Attributes:
        device: "auto" takes GPUs if there are any; "cuda:0,2" takes these, one for each process of this host.
        processes: None takes one for each GPU, or on CPU min(towers, cores / threads_per_tower).
        reduction: a name in REDUCTIONS; one that is not exact also needs the recipe to say exact = false.
        data: the folder of the data set; None looks in LOCKSTEP_DATA and the user's cache.
        log_every, save_every, eval_every: steps between lines, checkpoints and evaluations (None: at the end only).
        save_every_s: seconds of training that may be lost to whatever ends the program; 0 saves by steps only.
        digest_every: steps between comparisons of the processes' states, recorded in metrics.jsonl; 0 for none.
        summary_every: steps between TensorBoard summaries; 0 writes none.
        keep: how many of the latest checkpoints to keep, besides the best.
        log_loss: whose loss the log states: the mean over the towers, or that of the last tower alone, as TensorFlow's
            multi-GPU tutorial printed it.
        log_placement: whether the start-up block says what is where.
        profile: the steps [first, end) to record the operators of; None: none.
    """

    device: Annotated[str, BeforeValidator(_device)] = "auto"
    processes: int | None = Field(None, ge=1)
    reduction: str = "tree"
    data: Path | None = None
    log_every: int = Field(10, ge=1)
    save_every: int = Field(1000, ge=1)
    save_every_s: float = Field(30.0, ge=0)
    digest_every: int = Field(100, ge=0)
    eval_every: int | None = Field(None, ge=1)
    summary_every: int = Field(100, ge=0)
    keep: int = Field(5, ge=1)
    log_loss: Literal["mean", "last"] = "mean"
    log_placement: bool = False
    profile: Annotated[tuple[int, int] | None, BeforeValidator(_profile)] = None

    @model_validator(mode="after")
    def _known(self) -> "Placement":
        if self.reduction not in REDUCTIONS:
            raise ValueError(unknown("reduction", self.reduction, REDUCTIONS))
        return self

    @property
    def gpus(self) -> list[int] | None:
        """The GPUs named, in order of the host's processes; None if they are left to us."""
        numbers = self.device.partition(":")[2]
        return [int(number) for number in numbers.split(",")] if numbers else None

    def on(self, processes: int) -> "Placement":
        """The same on so many processes, and on the first of the GPUs that are named."""
        device = self.device if self.gpus is None else f"cuda:{','.join(map(str, self.gpus[:processes]))}"
        return self.model_copy(update={"processes": processes, "device": device})


def check(recipe: Recipe, placement: Placement) -> None:
    """Raise a LockstepError if `placement` cannot serve `recipe`."""
    if placement.processes is not None and placement.processes > recipe.towers:
        raise LockstepError(
            f"{placement.processes} processes for {recipe.towers} towers: a process needs a tower of its own. "
            f"Choose --processes 1 to {recipe.towers}, or more --towers (which is another recipe)"
        )
    if placement.reduction == "allreduce" and recipe.exact:
        raise LockstepError(
            "reduction 'allreduce' does not keep the bits: choose tree, central or central-cpu, "
            "or give exactness up in the recipe with --set exact=false"
        )
