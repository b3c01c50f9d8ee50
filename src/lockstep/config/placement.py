"""Placement: where a run computes and what it records. No setting here can change a bit of the weights."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from lockstep.config.recipe import Recipe
from lockstep.errors import LockstepError, unknown
from lockstep.settings import Settings

# name -> a description for several processes. With one process only central-cpu differs from the others.
REDUCTIONS = {
    "tree": "each process adds one slice of the vectors, in the canonical tree; exact",
    "central": "process 0 adds all vectors, in the canonical tree, and sends the total back; exact",
    "central-cpu": "process 0 adds all vectors on its CPU, in the canonical tree, and sends the total back; exact",
    "allreduce": "the backend's own all-reduce, in its own order of additions; not exact, for comparison",
}

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
    """All settings that cannot change a bit of the weights: where a run computes and what it records.

    Attributes:
        device: "auto" uses GPUs if the host has any. "cuda:0,2" uses these GPUs, one for each process of the host.
        processes: number of processes. None: one for each GPU, or on CPU min(towers, cores / threads_per_tower).
        reduction: a name in REDUCTIONS. One that is not exact needs exact = false in the recipe.
        data: folder of the dataset. None searches LOCKSTEP_DATA and the user's cache.
        cache_limit: GB that the caches of decoded images may take on the disk, together; 0 makes none. None: half of
            what is free.
        init: file of weights that the run starts from, or None. The recipe has its SHA-256.
        log_every, save_every, eval_every: steps between lines, checkpoints and evaluations. eval_every None: at the
            end only.
        save_every_s: seconds of training that a crash may cost at most; 0 saves by steps only.
        digest_every: steps between comparisons of the processes' states, which metrics.jsonl records; 0 turns it off.
        summary_every: steps between TensorBoard summaries; 0 writes none.
        keep: how many of the latest checkpoints are kept, besides the best.
        log_loss: the loss that the log prints: the mean over all towers, or the last tower's, as TensorFlow's
            multi-GPU tutorial printed it.
        log_placement: True prints each process's device, and how towers are added, at the start.
        profile: the steps [first, end) whose operators are recorded, or None.
        max_restarts: how often our launcher starts the processes of a run again after one of them has failed.
        timeout: seconds after which a process that stands still counts as failed. The first step, reading and saving
            may take longer.
    """

    device: Annotated[str, BeforeValidator(_device)] = "auto"
    processes: int | None = Field(None, ge=1)
    reduction: str = "tree"
    data: Path | None = None
    cache_limit: float | None = Field(None, ge=0)
    init: Path | None = None
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
    max_restarts: int = Field(3, ge=0)
    timeout: float = Field(60.0, ge=1)

    @model_validator(mode="after")
    def _known(self) -> "Placement":
        if self.reduction not in REDUCTIONS:
            raise ValueError(unknown("reduction", self.reduction, REDUCTIONS))
        return self

    @property
    def gpus(self) -> list[int] | None:
        """Return the GPUs that `device` names, in order of the host's processes; None if it names none."""
        numbers = self.device.partition(":")[2]
        return [int(number) for number in numbers.split(",")] if numbers else None

    def on(self, processes: int) -> "Placement":
        """Return the same placement on `processes` processes, and on the first of the GPUs that it names."""
        device = self.device if self.gpus is None else f"cuda:{','.join(map(str, self.gpus[:processes]))}"
        return self.replace(processes=processes, device=device)

    def saves_after(self, step: int) -> bool:
        """Return whether a checkpoint is due after `step` updates, by the number of steps."""
        return step % self.save_every == 0

    def evaluates_after(self, step: int) -> bool:
        """Return whether an evaluation is due after `step` updates, besides the one at the end."""
        return self.eval_every is not None and step > 0 and step % self.eval_every == 0


def check(recipe: Recipe, placement: Placement) -> None:
    """Raise a LockstepError if `placement` cannot serve `recipe`."""
    if placement.processes is not None and placement.processes > recipe.towers:
        raise LockstepError(
            f"{placement.processes} processes for {recipe.towers} towers: each process needs at least one tower. "
            f"Choose --processes 1 to {recipe.towers}, or more --towers (which makes another recipe)"
        )
    if placement.reduction == "allreduce" and recipe.exact:
        raise LockstepError(
            "reduction 'allreduce' does not keep the bits: choose tree, central or central-cpu, "
            "or give up exactness in the recipe with --set exact=false"
        )
