"""Plan: from the options of a command to the spec of its job.

First come the recipe of a run, what fits its images, and the weights that it starts from; then the
spec of a new run, or of one to continue; then the fields of a spec for an existing run.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.commands.named import (
    Subject,
    What,
    data_of,
    placed,
    placement_of,
    subject_of,
    with_importable,
)
from lockstep.commands.network import is_pretrained, scaled
from lockstep.config.overrides import make, parse
from lockstep.config.placement import Placement
from lockstep.config.precision import resolve
from lockstep.config.recipe import Recipe, plain_name
from lockstep.data import IMAGE_FOLDER, MEMORY
from lockstep.errors import LockstepError, called, option, unknown
from lockstep.jobs.specs import LabelsSpec, TrainSpec
from lockstep.jobs.weights import PACKAGED, WeightsFile, find_weights, kept, known_weights
from lockstep.launch.world import World
from lockstep.messages import logger
from lockstep.recipes import get_recipe
from lockstep.recipes.fitting import FOLDER, PHOTOS, decay_of_head, fitting
from lockstep.runs.run import Run
from lockstep.runs.run_folder import fresh_path, is_begun, refuse_existing
from lockstep.schema import Changes, Fields, validated
from lockstep.text import few, listed

# what the user may state of the steps of a head
_RATES = {"lr", "optimizer", "optimizer.kind", "weight_decay", "weight_decay.default", "lr_factors"}
# what a survey of a folder depends on
_SURVEYED = ("test_share", "group", "label_source", "fit", "left_out")
_KEPT = ("timeout", "eval_every", "save_every", "keep")  # of the last session, by a resume
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def changes_of(settings: Sequence[str] | Fields | None, options: Fields) -> Changes:
    """Return the changes of the recipe that the options of a command or a function state. A model
    or dataset of your own may be a function.
    """
    allowed = {*Recipe.options, *Placement.model_fields}
    settable = {*Recipe.model_fields} - allowed - {"name"}  # which is an argument of its own
    for name in options:
        if name in allowed:
            continue
        for setting in {name, called(name)} & settable:
            raise LockstepError(
                f"{setting} is a setting of the recipe: give settings={{{setting!r}: ...}}"
            )
        raise LockstepError(unknown("option", name, allowed))
    own = {name: options[name] for name in options if name in Recipe.options}
    return with_importable(parse(settings or (), own))


def with_stored_data(data: Any, what: What, changes: Changes, init: Path | None) -> Changes:
    """Write a dataset in memory to its file. Return `changes` with those that name it, and the
    weight decay that fits it in the recipe photos.
    """
    from lockstep.data.arrays import load_stored, store  # imports torch

    if "dataset" in changes:
        raise LockstepError("data= is a dataset, and dataset= names another one: give one of them")
    named = changes | {"dataset": MEMORY, "dataset_sha256": "0" * 64}
    subject = subject_of(what, named, None, True, find_weights(init) if init else None)
    sha256 = store(data, subject.recipe.image_px)
    if what == PHOTOS:
        train = load_stored(sha256)["train"]
        named |= decay_of_head(changes, train.multi_label, len(train.classes), len(train))
    return named | {"dataset_sha256": sha256}


def fitted(
    subject: Subject, stated: Fields | None = None, weights: WeightsFile | None = None
) -> Recipe:
    """Return the recipe of `subject` as it fits the images. Add a detail about a choice that is
    made now, and the examples that its survey has found.

    A run to continue, with the recipe `stated`, keeps its choice. Reads all images that are new
    since the last start. The learning rate follows the size of the features of another network
    with trained weights; `weights` are those of the user for it. It is an error if the folder
    cannot be trained on.
    """
    recipe, changes = subject.recipe, subject.changes
    if changes is None or subject.data is None or recipe.dataset != IMAGE_FOLDER:
        return recipe
    if stated:
        same = stated.get("name") in ([recipe.name] if subject.named else [FOLDER, PHOTOS])
        return make(stated, subject.settings, changes) if same else recipe
    known = {**subject.settings, **changes}
    if "grey" in known:
        known["grey"] = recipe.grey
    survey = recipe.survey(subject.data).require_sound()
    fit = fitting(survey, known, subject.named)
    subject.details.append(fit.note())
    fields = get_recipe(fit.recipe).model_dump(mode="json")
    recipe = make(fields, fit.settings, subject.settings, changes)
    path = weights.path if weights else known_weights(recipe)
    measured = is_pretrained(known) and recipe.model != get_recipe(PHOTOS).model
    if measured and recipe.head and path and not _RATES & known.keys():
        settings = scaled(recipe, survey, path)
        chosen = [f"{name}={value:g}" for name, value in settings.items()]
        subject.details.append(f"{listed(chosen)}, for the size of the network's features")
        recipe = make(recipe.model_dump(mode="json"), settings)
    if all(getattr(recipe, name) == getattr(subject.recipe, name) for name in _SURVEYED):
        subject.surveyed = survey.examples()
    return recipe


def with_initial_weights(
    recipe: Recipe, weights: WeightsFile | None, path: Path, stated: Fields | None
) -> Recipe:
    """Return `recipe` with the SHA-256 of the `weights` that the run at `path` starts from, if any.

    A run to continue, with the recipe `stated`, needs no file. It is an error if the recipe, or the
    run to continue, states other weights.
    """
    own, given = recipe.init_sha256, weights and weights.sha256
    if stated is not None:
        known = stated.get("init_sha256")
        if weights is not None and given != known:
            raise LockstepError(
                f"{path} was not started from {weights.path}: leave out {option('init')} to resume "
                f"it"
            )
        own = known if weights or own is None else own
    elif weights is not None:
        if own not in (None, given, *PACKAGED):
            raise LockstepError(
                f"{weights.path}: the file has the sha256 {given}, but the recipe's init_sha256 is "
                f"{own}: give that file, or {option('settings', 'init_sha256=none')} to start from "
                f"this one"
            )
        own = given
    elif own not in (None, *PACKAGED) and not kept(own):
        raise LockstepError(
            f"the recipe starts from weights (init_sha256 {str(own)[:12]}...): give their file or "
            f"run as {option('init')}, or start from random ones with "
            f"{option('settings', 'init_sha256=none')}"
        )
    return recipe.replace(init_sha256=own)


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
        restarted = world.launcher or world.elastic
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


def existing(run: str | Path | Run) -> Run:
    """Return the run that a command was given."""
    return run if isinstance(run, Run) else Run.open(run)


def fields_of_run(run: str | Path | Run, trust_code: bool, **options: Any) -> Changes:
    """Return what the specs of commands on an existing run have in common; `options` are those of
    the placement.

    It is an error if the run is damaged, or names code that is not trusted.
    """
    run, placement = existing(run), placement_of(options)
    recipe = run.recipe()
    recipe.require_trust(run.path, trust_code)
    placement = placed(recipe, placement.replace(data=data_of(run, placement.data)), run.path)
    return {"recipe": recipe, "placement": placement, "path": run.path}


def evaluated(recipe: Recipe, placement: Placement, path: Path) -> Changes:
    """Return fields of a spec: the `split` to evaluate of the run at `path`, "all" if the user has
    given a folder of other images, and `surveyed`, as a job looks for images only once.

    The images are those of training if the folder is, or if the SHA-256 of the training images is
    the same. A message says what differs. It is an error if the folder has no images of the run's
    classes, or other classes too.
    """
    from lockstep.pictures.photos import ALL

    run, data = Run(path), placement.data
    known, classes = run.data(), run.classes
    if (
        not (recipe.dataset == IMAGE_FOLDER and data and known and classes)
        or known.resolve() == data.resolve()
    ):
        return {"split": recipe.evaluated_split}
    survey, digests = recipe.survey(data), run.metadata().get("data_sha256", {})
    recorded = "train" in survey.splits and digests.get("train")
    if recorded and survey.examples().digest("train", recipe.decoding) == recorded:
        surveyed = survey.require_sound().examples()
        return {"split": recipe.evaluated_split, "surveyed": surveyed}
    survey = recipe.survey(data, classes).require_sound()
    images = survey.splits[ALL]
    seen = f"{known} is not here to say which are known"
    if known.is_dir():
        trained = {photo.sha256 for photo in recipe.survey(known).splits.get("train", ())}
        seen = f"{sum(photo.sha256 in trained for photo in images):,} of these are training images"
    absent = sorted({*classes} - {name for photo in images for name in photo.labels})
    lacking = f"; no image of {few(absent)}" if absent else ""
    logger.warning(
        f"{data} is not the data of training: all {len(images):,} images are evaluated; "
        f"{seen}{lacking}"
    )
    return {"split": ALL, "surveyed": survey.examples()}
