"""Plan: from the options of a command to the spec of its job.

First comes the draft of a recipe, in layers: what the user named, and what changes it. Then the
spec of a new run, or of one to continue; then the fields of a spec for an existing run.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.commands.named import (
    Named,
    What,
    data_of,
    named_by,
    placed,
    placement_of,
)
from lockstep.commands.network import is_pretrained, scaled, settings_of
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
from lockstep.recipes.fitting import PHOTOS, decay_of_head, fitting
from lockstep.runs.run import Run
from lockstep.runs.run_folder import fresh_path, is_begun, refuse_existing
from lockstep.schema import Changes, Fields, validated
from lockstep.text import few, listed

if TYPE_CHECKING:
    from lockstep.pictures.examples import Examples

# what the user may state of the steps of a head
_RATES = {"lr", "optimizer", "optimizer.kind", "weight_decay", "weight_decay.default", "lr_factors"}
# what a survey of a folder depends on
_SURVEYED = ("test_share", "group", "label_source", "fit", "left_out")
_KEPT = (
    "timeout",
    "eval_every",
    "save_every",
    "keep",
    "folds",
    "check_products",
)  # of the last session, by a resume
_NOT_STORED = "0" * 64  # the SHA-256 of a dataset in memory until it is known
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
    return parse(settings or (), own)


@dataclass(frozen=True)
class Draft:
    """A recipe as layers of settings, each of which changes those below it.

    The lowest layer is the recipe that the user named. On it lie the settings of a recipe file and
    those of the command, each with those of the network that it names, and then what is chosen for
    the user. What fits images lies below all of these, as it changes nothing that the user states.

    Attributes:
        named: what the user named.
        layers: all layers above the lowest one and what fits images.
        recipe: what the layers make.
        notes: messages about the recipe, for the user and the run's log.
        details: what was chosen for the user, for the log.
        surveyed: the examples of the folder of images, if fitting the recipe has surveyed it.
    """

    named: Named
    layers: tuple[Fields, ...]
    recipe: Recipe
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    surveyed: "Examples | None" = None

    @property
    def stated(self) -> Changes:
        """Return the settings of all layers above the recipe that is named."""
        return {name: value for layer in self.layers for name, value in layer.items()}

    @property
    def images(self) -> Path | None:
        """Return the folder of images that the recipe trains on, or None."""
        return self.named.data if self.recipe.dataset == IMAGE_FOLDER else None

    def with_layer(self, layer: Fields, *details: str) -> "Draft":
        """Return the draft with another layer on top, and why it is there."""
        return replace(
            self,
            layers=(*self.layers, layer),
            recipe=make(self.recipe, layer),
            details=(*self.details, *details),
        )


def drafted(
    what: What,
    changes: Fields,
    data: Path | None = None,
    trust_code: bool = False,
    weights: WeightsFile | None = None,
) -> Draft:
    """Return the draft of the recipe that the user named by the argument `what`, see `named_by`,
    with the command's `changes`.

    Raises: LockstepError, also if a file or a run names code that is not trusted.
    """
    named = named_by(what, changes, data, weights)
    base, file, notes = named.base, named.own, list[str]()
    if base is not None:
        own, notes = settings_of(base, {**file, **changes}, weights)
        # They belong to the network, and so to the layer that names it.
        if "model" in file and "model" not in changes:
            file = {**file, **own}
        else:
            changes = {**changes, **own}
    recipe = make(base or {}, file, changes, note=notes.append)
    if named.source is not None:
        # The command may replace the code. A file without a model may still have options for that
        # of the command.
        stated = {"model": recipe.model, **dict(base or ()), **file}
        code = [name for name in ("model", "dataset") if stated.get(name) == getattr(recipe, name)]
        recipe.require_trust(named.source, trust_code, code)
    return Draft(named, (file, changes), recipe, tuple(notes), named.details)


def stored(draft: Draft, data: Any) -> Draft:
    """Write a dataset in memory to its file. Return the draft with its SHA-256, and the weight
    decay that fits it in the recipe photos.
    """
    from lockstep.data.arrays import load_stored, store  # imports torch

    sha256 = store(data, draft.recipe.image_px)
    layer: Changes = {"dataset_sha256": sha256}
    if draft.named.fits == (PHOTOS,):
        train = load_stored(sha256)["train"]
        layer |= decay_of_head(draft.stated, train.multi_label, len(train.classes), len(train))
    return draft.with_layer(layer)


def fitted(draft: Draft, weights: WeightsFile | None = None) -> Draft:
    """Return the draft of the recipe that fits the images, with the examples that the survey of
    their folder has found. A draft that no images decide stays as it is.

    Reads all images that are new since the last start. The learning rate follows the size of the
    features of another network with trained weights; `weights` are those of the user for it. It is
    an error if the folder cannot be trained on.
    """
    fits, before = draft.named.fits, draft.recipe
    if not fits or draft.images is None:
        return draft
    stated = draft.stated
    if "grey" in stated:
        stated["grey"] = before.grey
    survey = before.survey(draft.images).require_sound()
    fit = fitting(survey, stated, fits[0] if len(fits) == 1 else None)
    recipe = make(get_recipe(fit.recipe), fit.settings, *draft.layers)
    draft = replace(draft, recipe=recipe, details=(*draft.details, fit.note()))
    path = weights.path if weights else known_weights(recipe)
    measured = is_pretrained(stated) and recipe.model != get_recipe(PHOTOS).model
    if measured and recipe.head and path and not _RATES & stated.keys():
        settings = scaled(recipe, survey, path)
        chosen = [f"{name}={value:g}" for name, value in settings.items()]
        why = f"{listed(chosen)}, for the size of the network's features"
        draft = draft.with_layer(settings, why)
    if all(getattr(draft.recipe, name) == getattr(before, name) for name in _SURVEYED):
        draft = replace(draft, surveyed=survey.examples())
    return draft


def without_damaged(draft: Draft) -> Draft:
    """Return the draft of a recipe that leaves out the images that cannot be read."""
    photos = draft.recipe.survey(draft.images).photos
    causes = {photo.path: photo.cause for photo in photos if photo.cause}
    left_out = sorted({*draft.recipe.left_out, *causes})
    why = [f"left out: {photo}: {cause}" for photo, cause in causes.items()]
    return draft.with_layer({"left_out": left_out}, *why)


def folder_for(
    draft: Draft,
    world: World,
    name: str | None = None,
    runs: Path = Path("runs"),
    resume: bool = False,
) -> tuple[Path, bool]:
    """Return the folder to train in: the named run, runs/NAME, or a new numbered one; and whether
    it holds a run to continue, which this host has.

    A new run is named after its folder of images, or else after its recipe.
    """
    run = draft.named.run
    if name is not None:
        try:
            path = runs / plain_name(name)
        except ValueError as error:
            raise LockstepError(
                f"{option('name')} {name!r} is not allowed: {error}; {option('runs')} sets the "
                f"parent folder"
            ) from None
        if resume and run and run.path.resolve() != path.resolve():
            raise LockstepError(
                f"{run.path} and {option('name', name)} are two runs: give one to continue"
            )
        # An outer launcher restarts failed processes with the same command, so it resumes without
        # --resume. A scheduler may always pass --resume, so it starts a run that does not exist.
        restarted = world.launcher or world.elastic
        resume = (restarted and (path / "recipe.json").is_file()) or (resume and is_begun(path))
    elif run is not None:
        path = run.path
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
        stem = _NOT_PLAIN.sub("-", draft.images.resolve().name).lstrip("-.") if draft.images else ""
        return fresh_path(runs, stem or draft.recipe.name), False
    # Another process may look after the first one has already made the folder.
    if world.process == 0 and resume:
        Run.open(path)
    elif world.process == 0:
        refuse_existing(path)
    return path, resume and (path / "recipe.json").is_file()


def train_spec(
    what: What,
    changes: Fields,
    placement: Placement,
    world: World,
    *,
    data: Any = None,
    trust_code: bool = False,
    skip_damaged: bool = False,
    name: str | None = None,
    runs: Path = Path("runs"),
    resume: bool = False,
) -> TrainSpec:
    """Return the spec that trains `what` with `changes`, in a new folder or in that of a run to
    resume.

    `data` is a dataset in memory, or None. With `skip_damaged`, a new run leaves out the images
    that cannot be read; one to resume keeps its choice. `placement.init` is the file or run whose
    weights the run starts from. `name`, `runs` and `resume` decide the folder, see `folder_for`.
    """
    if data is not None:
        if "dataset" in changes:
            raise LockstepError(
                "data= is a dataset, and dataset= names another one: give one of them"
            )
        changes = {**changes, "dataset": MEMORY, "dataset_sha256": _NOT_STORED}
    weights = None
    if placement.init is not None:
        weights = find_weights(placement.init)
        placement = placement.model_copy(update={"init": weights.path})
    if what is None and resume and name and not world.launcher:
        what = runs / name if is_begun(runs / name) else None
    draft = drafted(what, changes, placement.data, trust_code, weights)
    if data is not None:
        draft = stored(draft, data)
    path, resume = folder_for(draft, world, name, runs, resume)
    if skip_damaged and draft.recipe.dataset != IMAGE_FOLDER:
        raise LockstepError(
            f"{option('skip_damaged', True)} is for folders of images, and dataset "
            f"{draft.recipe.dataset} is not one: leave it out"
        )
    if resume:
        draft, placement = continued(draft, Run(path), placement, weights, world)
    else:
        draft = fitted(without_damaged(draft) if skip_damaged else draft, weights)
        draft, placement = begun(draft, placement, weights)
    return TrainSpec(
        recipe=draft.recipe,
        placement=placement,
        path=path,
        resume=resume,
        numbered=name is None and draft.named.run is None,
        notes=draft.notes,
        details=draft.details,
        surveyed=draft.surveyed,
    )


def begun(
    draft: Draft, placement: Placement, weights: WeightsFile | None
) -> tuple[Draft, Placement]:
    """Return recipe and placement of a new run, which starts from the `weights`, if any."""
    recipe, reason = resolve(starting_from(draft.recipe, weights), placement.device)
    named, data = draft.named, draft.named.data
    if named.run and named.base and named.base.dataset == recipe.dataset:
        data = data_of(named.run, data)
    draft = replace(draft, recipe=recipe, details=(*draft.details, *filter(None, [reason])))
    return draft, placed(recipe, placement.replace(data=data))


def starting_from(recipe: Recipe, weights: WeightsFile | None) -> Recipe:
    """Return `recipe` with the SHA-256 of the `weights` that a new run starts from, if any.

    It is an error if the recipe states other weights, or some that are not here.
    """
    stated = recipe.init_sha256
    own = stated not in (None, *PACKAGED)  # no package has them
    if weights is None:
        if own and not kept(stated):
            raise LockstepError(
                f"the recipe starts from weights (init_sha256 {str(stated)[:12]}...): give their "
                f"file or run as {option('init')}, or start from random ones with "
                f"{option('settings', 'init_sha256=none')}"
            )
        return recipe
    if own and stated != weights.sha256:
        raise LockstepError(
            f"{weights.path}: the file has the sha256 {weights.sha256}, but the recipe's "
            f"init_sha256 is {stated}: give that file, or "
            f"{option('settings', 'init_sha256=none')} to start from this one"
        )
    return recipe.replace(init_sha256=weights.sha256)


def continued(
    draft: Draft, run: Run, placement: Placement, weights: WeightsFile | None, world: World
) -> tuple[Draft, Placement]:
    """Return recipe and placement of a `run` to continue. It keeps what was chosen when it was
    started: what fits its images, the precision, the weights that it started from, and in its
    placement the settings in `_KEPT`.

    It is an error if the run was started with another recipe than that of the `draft`, or from
    other `weights`.
    """
    stated, recipe, fits = run.recipe(), draft.recipe, draft.named.fits
    if fits and draft.images and stated.name in (recipe.name, *fits):
        recipe = make(stated, *draft.layers)
    if weights is not None and weights.sha256 != stated.init_sha256:
        raise LockstepError(
            f"{run.path} was not started from {weights.path}: leave out {option('init')} to resume "
            f"it"
        )
    if weights is not None or recipe.init_sha256 is None:
        recipe = recipe.replace(init_sha256=stated.init_sha256)
    if recipe.precision == "auto":
        recipe = recipe.replace(precision=stated.precision)
    differences = stated.differences(recipe)
    if differences and world.process == 0:
        raise LockstepError(
            f"{run.path} was started with another recipe, so it cannot be resumed with this one "
            f"({few(differences)}): resume {run.path} without other settings, or start a new run "
            f"with another {option('name')}, which may begin with the weights of this one: "
            f"{option('init', run.path)}"
        )
    # What is not given is as in the last session. An outer launcher repeats its command, and not
    # every host has the run's folder.
    if not world.launcher:
        last = (run.sessions() or [{}])[-1].get("placement", {})
        before = {name: last[name] for name in _KEPT if name in last}
        placement = validated(Placement, before | placement.model_dump(exclude_unset=True))
    if run.result() is None:  # A complete run needs no data.
        data = data_of(run, draft.named.data)
        placement = placed(recipe, placement.replace(data=data), run.path)
    return replace(draft, recipe=recipe), placement


def labels_spec(folder: Path, options: Fields) -> LabelsSpec:
    """Return the spec that judges the labels of the images in `folder` by the recipe
    photos.
    """
    draft = fitted(drafted(PHOTOS, parse((), options), folder))
    recipe, _ = resolve(draft.recipe, "auto")
    placement = placed(recipe, Placement(data=folder))
    return LabelsSpec(recipe=recipe, placement=placement, path=folder, surveyed=draft.surveyed)


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
    from lockstep.pictures.manifest import ALL

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
    if known.exists():
        trained = {photo.sha256 for photo in recipe.survey(known).splits.get("train", ())}
        seen = f"{sum(photo.sha256 in trained for photo in images):,} of these are training images"
    absent = sorted({*classes} - {name for photo in images for name in photo.labels})
    lacking = f"; no image of {few(absent)}" if absent else ""
    logger.warning(
        f"{data} is not the data of training: all {len(images):,} images are evaluated; "
        f"{seen}{lacking}"
    )
    return {"split": ALL, "surveyed": survey.examples()}
