"""From words to specs: what the command line and the Python functions have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lockstep import numerics
from lockstep.api.resolve import (
    data_of,
    fixed_precision,
    folder_for,
    require_same,
    subject_of,
    with_initial_weights,
)
from lockstep.config.consent import check_code
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.errors import LockstepError
from lockstep.jobs.specs import EvaluateSpec, TrainSpec, VerifySpec
from lockstep.launch.world import World
from lockstep.messages import collected, handled
from lockstep.runs.folder import Run
from lockstep.runs.weights_file import find_weights


@dataclass(frozen=True)
class CompleteRun:
    """A run that has nothing to resume: its folder and its result record."""

    path: Path
    result: dict[str, Any]


def train_spec(
    what: str | Recipe | None,
    changes: dict[str, Any],
    placement: Placement,
    *,
    init: Path | None,
    name: str | None,
    runs: Path,
    resume: bool,
    world: World,
    own_program: bool = False,
    **others: Any,
) -> TrainSpec | CompleteRun:
    """Return the spec that trains `what` with `changes`, or the run if it is to be resumed and is complete.

    `init` is the file or run whose weights the run starts from. `own_program` says that this is the program lockstep,
    whose environment torch may be prepared in. `others` are further fields of the spec. Raises: LockstepError.
    """
    weights = find_weights(init) if init else None
    if weights:
        placement = placement.replace(init=weights.path)
    parent = weights.run if weights and what is None else None  # the run whose recipe and data a new run takes over
    data = data_of(parent, placement.data) if parent else placement.data
    with handled(lambda text: None), collected() as notes:  # The run prints them, and has them in its log.
        subject = subject_of(what or str(parent.absolute() if parent else "digits"), changes, data)
    if parent:
        subject = subject._replace(run=None)
    recipe, placement = subject.recipe, placement.replace(data=subject.data)
    folder = folder_for(subject, name, runs, resume, world)
    own_recipe = parent is None or "init_sha256" in changes
    recipe = with_initial_weights(recipe, weights, folder, own_recipe)
    if own_program:
        numerics.prepare(recipe.threads_per_tower)  # The next line may import torch.
    recipe, precision_note = fixed_precision(recipe, placement.device, folder.stated)
    notes += [precision_note] if precision_note else []
    if folder.stated is not None:
        if world.process == 0:
            require_same(folder, recipe)
        if folder.result is not None:
            return CompleteRun(folder.path, folder.result)
        placement = placement.replace(data=data_of(folder.path, placement.data))
    return TrainSpec(
        recipe=recipe, placement=placement, path=folder.path, resume=folder.stated is not None,
        numbered=folder.numbered, notes=tuple(notes), **others,
    )  # fmt: skip


def evaluate_spec(
    run: Run,
    placement: Placement,
    *,
    code: Mapping[str, str | None],
    split: str | None,
    checkpoint: str | int | None,
    **others: Any,
) -> EvaluateSpec:
    """Return the spec that evaluates `run`.

    `code` has the options, model and dataset, that allow the run's own code to be executed. `others` are further
    fields of the spec. Raises: LockstepError.
    """
    recipe = run.recipe()
    check_code(run.path, recipe, code)
    run.check_recipe()
    return EvaluateSpec(
        recipe=recipe, placement=placement.replace(data=data_of(run.path, placement.data)), path=run.path,
        split=split or recipe.evaluated_split, checkpoint=chosen_checkpoint(checkpoint), **others,
    )  # fmt: skip


def verify_spec(
    run: Run, placement: Placement, *, code: Mapping[str, str | None], init: Path | None, **others: Any
) -> VerifySpec:
    """Return the spec that replays `run`, with the arguments of `evaluate_spec`; `init` is what the run starts from.

    Raises: LockstepError.
    """
    recipe = run.recipe()
    check_code(run.path, recipe, code)
    run.check_recipe()
    if not recipe.exact:
        raise LockstepError(
            f"{run.path} has exact = false in its recipe, so a second computation has other bits: only exact runs can "
            f"be verified"
        )
    weights = find_weights(init) if init else None
    if weights and weights.sha256 != recipe.init_sha256:
        raise LockstepError(f"{run.path} was not started from {weights.path}: leave out --init to verify it")
    placement = placement.replace(data=data_of(run.path, placement.data), init=weights.path if weights else None)
    return VerifySpec(recipe=recipe, placement=placement, path=run.path, **others)


def chosen_checkpoint(which: str | int | None) -> int | Literal["best"] | None:
    """Return the step that `which` names, "best", or None for the newest checkpoint. Raises: LockstepError."""
    if which is None or which == "best":
        return which  # type: ignore[return-value]  # mypy does not narrow a str by ==
    text = str(which)
    if isinstance(which, bool) or not (text.isascii() and text.isdigit()):
        raise LockstepError(f"--checkpoint {text!r}: give best, or the number of steps of a checkpoint, as in 1000")
    return int(text)
