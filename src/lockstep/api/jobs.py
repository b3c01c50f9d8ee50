"""From resolved words to a job: what the command line and the Python functions have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lockstep.api.resolve import data_of, fixed_precision, folder_for, refuse_code, result_of
from lockstep.config.jobs import EvalJob, TrainJob
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.errors import LockstepError
from lockstep.processes.world import World
from lockstep.run.folder import Run

Note = Callable[[str], None]


@dataclass(frozen=True)
class CompleteRun:
    """A run that has nothing to resume: its folder and its result record."""

    path: Path
    result: dict[str, Any]


def train_job(
    recipe: Recipe,
    named_run: Path | None,
    placement: Placement,
    *,
    name: str | None,
    runs: Path,
    resume: bool,
    strict: bool,
    world: World,
    note: Note,
    **others: Any,
) -> TrainJob | CompleteRun:
    """Return the job that trains `recipe`, or the run if it is to be resumed and is complete.

    `named_run` is the folder if the user named a run; `others` are further fields of the job. May import torch.
    Raises: LockstepError.
    """
    folder = folder_for(named_run, name, runs, resume, recipe, world)
    recipe, precision_note = fixed_precision(recipe, placement.device, folder.path if folder.resume else None)
    if folder.resume:
        if (result := result_of(folder.path, recipe, world)) is not None:
            return CompleteRun(folder.path, result)
        placement = placement.replace(data=data_of(folder.path, placement.data, note))
    return TrainJob(
        recipe=recipe, placement=placement, path=folder.path, resume=folder.resume, numbered=folder.numbered,
        strict=strict, notes=(precision_note,) if precision_note else (), **others,
    )  # fmt: skip


def eval_job(
    run: Run,
    placement: Placement,
    *,
    model: str | None,
    split: str | None,
    checkpoint: str | int | None,
    note: Note,
    **others: Any,
) -> EvalJob:
    """Return the job that evaluates `run`. `model` allows its code to be run; `others` are further fields of the job.

    Raises: LockstepError.
    """
    recipe = run.recipe()
    if model is None:
        refuse_code(run.path, recipe)
    elif model != recipe.model:
        raise LockstepError(
            f"--model {model}: {run.path} was trained with model {recipe.model}: give that, or leave it out"
        )
    run.check_recipe()
    placement = placement.replace(data=data_of(run.path, placement.data, note))
    return EvalJob(
        recipe=recipe, placement=placement, path=run.path, split=split or recipe.evaluated_split,
        checkpoint=chosen_checkpoint(checkpoint), **others,
    )  # fmt: skip


def chosen_checkpoint(which: str | int | None) -> int | Literal["best"] | None:
    """Return the step that `which` names, "best", or None for the newest checkpoint. Raises: LockstepError."""
    if which is None or which == "best":
        return which  # type: ignore[return-value]  # mypy does not narrow a str by ==
    text = str(which)
    if isinstance(which, bool) or not (text.isascii() and text.isdigit()):
        raise LockstepError(f"--checkpoint {text!r}: give best, or the number of steps of a checkpoint, as in 1000")
    return int(text)
