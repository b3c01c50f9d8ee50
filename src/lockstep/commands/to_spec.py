"""From the options of `lockstep train` to its spec: a new run, or one to continue."""

import os
import re
from pathlib import Path
from typing import Any

from lockstep.commands.subject import Subject, subject_of
from lockstep.commands.to_placement import Fields, What, data_of, placed
from lockstep.commands.to_recipe import fitted, with_initial_weights
from lockstep.config.overrides import parse
from lockstep.config.placement import Placement
from lockstep.config.precision import resolve
from lockstep.config.recipe import Recipe, plain_name
from lockstep.data import IMAGE_FOLDER
from lockstep.errors import LockstepError, option
from lockstep.jobs.specs import LabelsSpec, TrainSpec
from lockstep.jobs.weights import find_weights
from lockstep.launch.world import World
from lockstep.recipes.fitting import PHOTOS
from lockstep.runs.run import Run
from lockstep.runs.run_folder import fresh_path, is_begun, refuse_existing
from lockstep.schema import validated
from lockstep.text import few

_KEPT = ("timeout", "eval_every", "save_every", "keep")  # of the last session, by a resume
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def folder_for(
    subject: Subject,
    world: World,
    name: str | None = None,
    runs: Path = Path("runs"),
    resume: bool = False,
) -> tuple[Path, Fields | None]:
    """Return the folder to train in: the named run, runs/NAME, or a new numbered one.

    Beside it is the recipe that a run to continue was started with, {} if this host does not have
    it; None for a new run. A new run is named after its folder of images, or else after its recipe.
    """
    images = subject.data if subject.recipe.dataset == IMAGE_FOLDER else None
    if name is not None:
        try:
            path = runs / plain_name(name)
        except ValueError as error:
            raise LockstepError(
                f"{option('name')} {name!r} is not allowed: {error}; {option('runs')} sets the "
                f"parent folder"
            ) from None
        if resume and subject.run and subject.run.path.resolve() != path.resolve():
            raise LockstepError(
                f"{subject.run.path} and {option('name', name)} are two runs: give one to continue"
            )
        # An outer launcher restarts failed processes with the same command, so it resumes without
        # --resume. A scheduler may always pass --resume, so it starts a run that does not exist.
        restarted = world.launcher or "TORCHELASTIC_RUN_ID" in os.environ  # also of one process
        resume = (restarted and (path / "recipe.json").is_file()) or (resume and is_begun(path))
    elif subject.run is not None:
        path = subject.run.path
    elif world.launcher:
        raise LockstepError(
            f"give {option('name')}: if {world.launcher} starts the processes again, they continue "
            f"the run"
        )
    elif resume:
        raise LockstepError(
            f"{option('resume', True)} continues a run: give its folder in {runs}/ in place of the "
            f"recipe, or its {option('name')}"
        )
    else:
        stem = _NOT_PLAIN.sub("-", images.resolve().name).lstrip("-.") if images else ""
        return fresh_path(runs, stem or subject.recipe.name), None
    if resume:
        run = Run.open(path) if world.process == 0 else Run(path)
        return path, run.read("recipe.json") or {}
    # Another process may look after the first one has already made the folder.
    if world.process == 0:
        refuse_existing(path)
    return path, None


def train_spec(
    what: What,
    changes: Fields,
    placement: Placement,
    world: World,
    *,
    trust_code: bool = False,
    skip_damaged: bool = False,
    **folder: Any,
) -> TrainSpec:
    """Return the spec that trains `what` with `changes`, in a new folder or in that of a run to
    resume.

    With `skip_damaged`, a new run leaves out the images that cannot be read; one to resume keeps
    its choice. `placement.init` is the file or run whose weights the run starts from. `folder` has
    the name, the folder of runs and whether to resume.
    """
    weights = find_weights(placement.init) if placement.init else None
    if what is None and folder.get("resume") and folder.get("name") and not world.launcher:
        begun = folder["runs"] / str(folder["name"])
        what = begun if is_begun(begun) else None
    subject = subject_of(what, changes, placement.data, trust_code, weights)
    path, stated = folder_for(subject, world, **folder)
    if skip_damaged and subject.recipe.dataset != IMAGE_FOLDER:
        raise LockstepError(
            f"{option('skip_damaged', True)} is for folders of images, and dataset "
            f"{subject.recipe.dataset} is not one: leave it out"
        )
    if skip_damaged and stated is None:
        photos = subject.recipe.survey(subject.data).scan.photos
        causes = {photo.path: photo.cause for photo in photos if photo.cause}
        subject = subject_of(
            what,
            {**changes, "left_out": sorted({*subject.recipe.left_out, *causes})},
            placement.data,
            trust_code,
            weights,
        )
        subject.details += [f"left out: {photo}: {cause}" for photo, cause in causes.items()]
    recipe = with_initial_weights(fitted(subject, stated, weights), weights, path, stated)
    if stated and recipe.precision == "auto":  # A run to continue keeps its choice.
        recipe = recipe.replace(precision=stated["precision"])
    recipe, reason = resolve(recipe, placement.device)
    if reason:
        subject.details.append(reason)
    if stated and world.process == 0:
        differences = validated(Recipe, stated).differences(recipe)
        if differences:
            raise LockstepError(
                f"{path} was started with another recipe, so it cannot be resumed with this one "
                f"({few(differences)}): resume {path} without other settings, or start a new run "
                f"with another {option('name')}, which may begin with the weights of this one: "
                f"{option('init', path)}"
            )
    # What is not given is as in the last session. An outer launcher repeats its command, and not
    # every host has the run's folder.
    if stated is not None and not world.launcher:
        last = (Run(path).sessions() or [{}])[-1].get("placement", {})
        kept = {name: last[name] for name in _KEPT if name in last}
        placement = validated(Placement, kept | placement.model_dump(exclude_unset=True))
    placement = placement.replace(init=weights.path if weights else None)
    if stated is None or Run(path).result() is None:  # A complete run needs no data.
        data, parent = subject.data, subject.run
        if stated is not None:
            data = data_of(Run(path), data)
        elif parent and subject.recipe.dataset == parent.recipe().dataset:
            data = data_of(parent, data)
        placement = placed(recipe, placement.replace(data=data), path)
    return TrainSpec(
        recipe=recipe,
        placement=placement,
        path=path,
        resume=stated is not None,
        numbered=stated is None and folder.get("name") is None and subject.run is None,
        notes=tuple(subject.notes),
        details=tuple(subject.details),
        surveyed=subject.surveyed,
    )


def labels_spec(folder: Path, options: Fields) -> LabelsSpec:
    """Return the spec that judges the labels of the images in `folder` by the recipe
    photos.
    """
    subject = subject_of(PHOTOS, parse((), options), folder)
    recipe, _ = resolve(fitted(subject), "auto")
    placement = placed(recipe, Placement(data=folder))
    return LabelsSpec(recipe=recipe, placement=placement, path=folder, surveyed=subject.surveyed)
