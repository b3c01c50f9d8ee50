"""From the options of a command to the spec of its job: which recipe, run, data and precision they
name.

`train_spec` and `fields_of_run` are the only places where an option becomes a field.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lockstep import files
from lockstep.config.overrides import make, parse, read_file
from lockstep.config.placement import Placement, device_for
from lockstep.config.precision import resolve
from lockstep.config.recipe import Recipe, plain_name
from lockstep.data import IMAGE_FOLDER, MEMORY
from lockstep.errors import DATA, LockstepError, option, unknown
from lockstep.jobs.specs import LabelsSpec, TrainSpec
from lockstep.jobs.weights import PACKAGED, WeightsFile, find_weights, known_weights
from lockstep.launch.world import World
from lockstep.messages import logger
from lockstep.pictures.scan import require_folder
from lockstep.recipes import RECIPES, get_recipe
from lockstep.recipes.fitting import FOLDER, PHOTOS, fitting
from lockstep.runs.run import Run
from lockstep.runs.run_folder import fresh_path, is_begun, refuse_existing
from lockstep.schema import dotted, validated
from lockstep.text import few

Fields = Mapping[str, Any]  # the values of settings or options, by name

_ALLOWED = (
    "give the name of a recipe, a recipe file, the folder of a run, as in runs/digits-1, or a "
    "folder that holds a "
    "folder of images for each class"
)
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass
class Subject:
    """What the words of a command name.

    Attributes:
        recipe: the recipe, with the command's changes.
        run: the run that is named, or None.
        data: the folder of the dataset, or of the images that are named; None for the usual places.
        changes: the command's changes if the recipe is still to be fitted to the images in `data`,
            else None.
        named: True if the recipe is named, and not only the images.
        notes: messages about the recipe, for the user and the run's log.
        details: what was chosen for the user, for the log.
    """

    recipe: Recipe
    run: Run | None
    data: Path | None
    changes: Fields | None
    named: bool
    notes: list[str]
    details: list[str] = field(default_factory=list)

    def data_folder(self) -> Path | None:
        """Return the data folder of the command, else that of the run it names, unless that had
        another dataset.
        """
        if self.run is None or self.recipe.dataset != self.run.recipe().dataset:
            return self.data
        return data_of(self.run, self.data)


def existing(run: str | Path | Run) -> Run:
    """Return the run that a command was given. Raises: LockstepError if the folder is not a run."""
    return run if isinstance(run, Run) else Run.open(run)


def path_of(given: str | Path | Run | None) -> Path | None:
    """Return the absolute path of a folder or run that the user names."""
    return (
        given.path
        if isinstance(given, Run)
        else files.given(given).absolute()
        if given is not None
        else None
    )


def placement_of(options: Fields) -> Placement:
    """Return the placement that the options of a command or a function state. Raises:
    LockstepError.
    """
    return validated(
        Placement,
        {
            name: path_of(value) if name in ("data", "init") else value
            for name, value in options.items()
            if name in Placement.model_fields and value is not None
        },
    )


def divided(
    settings: Sequence[str] | Fields | None, options: Fields, init: str | Path | Run | None = None
) -> tuple[dict[str, Any], Placement]:
    """Return the changes of the recipe, and the placement, that the options of a command state.
    Raises: LockstepError.

    An own model or dataset may be a function.
    """
    allowed = {*Recipe.options, *Placement.model_fields}
    for name in options:
        if name not in allowed:
            if name in Recipe.model_fields:
                raise LockstepError(
                    f"{name} is a setting of the recipe: give settings={{{name!r}: ...}}"
                )
            raise LockstepError(unknown("option", name, allowed))
    changes = parse(
        settings or (), {name: options[name] for name in options if name in Recipe.options}
    )
    for name in ("model", "dataset"):
        value = changes.get(name, "")
        if callable(value):
            module, own = (getattr(value, part, "") for part in ("__module__", "__qualname__"))
            if getattr(sys.modules.get(module), own or "", None) is not value:
                raise LockstepError(
                    f"{name}={value!r} cannot be imported by its name: give a function of a module"
                )
            changes[name] = value = f"{module}:{own}"
        if ".py:" in str(value):  # the path of a file, as in nets/mynet.py:Net
            changes[name] = value = (
                str(value).removeprefix("./").replace(".py:", ":").replace("/", ".")
            )
        module, _, function = str(value).partition(":")
        if module == "__main__":
            raise LockstepError(
                f"{name}: {function} is defined in a notebook or in the script that is running, "
                f"and the processes that "
                f"train cannot import it from there: put it in a file, for example mynet.py, and "
                f"give "
                f"{name}='mynet:{function}'"
            )
    return changes, placement_of({**options, "init": init})


def with_stored_data(
    data: Mapping[str, Any],
    what: str | Path | Recipe | Run | None,
    changes: dict[str, Any],
    placement: Placement,
) -> dict[str, Any]:
    """Write a dataset in memory to its file. Return `changes` with those that name it. Raises:
    LockstepError.
    """
    from lockstep.data.arrays import store  # imports torch

    if "dataset" in changes:
        raise LockstepError("data= is a dataset, and dataset= names another one: give one of them")
    named = changes | {"dataset": MEMORY, "dataset_sha256": "0" * 64}
    weights = find_weights(placement.init) if placement.init else None
    subject = subject_of(what, named, None, True, weights)
    return named | {"dataset_sha256": store(data, subject.recipe.image_px)}


def subject_of(
    what: str | Path | Recipe | Run | None,
    changes: Fields,
    data: Path | None = None,
    trust_code: bool = False,
    weights: WeightsFile | None = None,
) -> Subject:
    """Return what the word `what` of a command names: a recipe, a recipe file, a run or a folder of
    images.

    Without a word, it is the recipe of the run whose `weights` a new run starts from, or the folder
    of images `data`, or the recipe "digits". Raises: LockstepError, also if a file or a run names
    code that is not trusted.
    """
    if isinstance(what, Run):
        what = what.path
    if isinstance(what, Path):
        what = str(what) if len(what.parts) > 1 else f"./{what}"  # "digits" alone is a recipe
    if not isinstance(what, str | Recipe | None):
        raise LockstepError(
            f"what: got a {type(what).__name__}: give a recipe's name, a Recipe, a recipe file, or "
            f"a run to resume"
        )
    notes, details = list[str](), list[str]()
    kind, path = _kind_of(what, changes, data)
    images = path.absolute() if kind == "images" else None
    if images:
        require_folder(path)
        if data is not None and data.resolve() != path.resolve():
            raise LockstepError(
                f"{path} is a folder of images, and {option('data')} names another one, {data}: "
                f"give one of them"
            )
        data = images
    settings: dict[str, Any] = {}
    base: Recipe | None
    source, run, fits = None, None, images is not None or what in (FOLDER, PHOTOS)
    parent = Run.open(weights.run) if weights and weights.run else None
    # Weights of a run on images may not fit the recipe of others.
    if (
        parent
        and weights
        and (what is None or (images and parent.recipe().dataset == IMAGE_FOLDER))
    ):
        base = parent.recipe().replace(init_sha256=weights.sha256)
        source, fits, data = parent.path, False, data_of(parent, data)
        if images:
            details.append(
                f"the recipe is that of {parent.path}, whose weights the run starts from"
            )
    elif isinstance(what, Recipe):
        base = what
    elif kind == "file":
        settings, source = dotted(read_file(path)), path
        # A file may name a recipe, and contain only what differs from it.
        start = settings.pop("recipe", None)
        base = get_recipe(str(start)) if start else None
    elif kind == "run":
        run = Run.open(path)
        base, source = run.recipe(), path
    else:
        base = get_recipe(FOLDER if images else what or "digits")
    fields = base.model_dump(mode="json") if base else {}
    recipe = make(fields, settings, changes, note=notes.append)
    if source is not None:
        # The command may replace the code. A file without a model may still have options for that
        # of the command.
        stated = {"model": recipe.model, **fields, **settings}
        code = [name for name in ("model", "dataset") if stated.get(name) == getattr(recipe, name)]
        recipe.require_trust(source, trust_code, code)
    return Subject(recipe, run, data, changes if fits else None, images is None, notes, details)


def _kind_of(
    what: str | Recipe | None, changes: Fields, data: Path | None
) -> tuple[Literal["images", "recipe", "file", "run"], Path]:
    """Return which kind of thing a command names, and its path. Raises: LockstepError for a path
    with nothing there.
    """
    if what is None:
        return ("recipe", Path()) if data is None or "dataset" in changes else ("images", data)
    # `lockstep train photos` means the folder photos here, not the recipe, which would need --data.
    if isinstance(what, Recipe) or (
        what in RECIPES and (data or get_recipe(what).dataset != IMAGE_FOLDER)
    ):
        return "recipe", Path()
    path = files.given(what)
    if path.suffix == ".toml":
        return "file", path
    if os.path.lexists(path / "recipe.json"):
        return "run", path
    if os.path.lexists(path):
        return "images", path
    if "/" in what:
        raise LockstepError(f"there is no folder {path}: {files.near(path)}{_ALLOWED}", DATA)
    if what not in RECIPES and ("runs" / path).is_dir():
        Run.open(path)  # raises an error that names the run
    return "recipe", path


def fitted(subject: Subject, stated: Fields | None = None) -> Recipe:
    """Return the recipe of `subject` as it fits the images, and add a detail about a choice that is
    made now.

    A run to continue, with the recipe `stated`, keeps its choice. Reads all images that are new
    since the last start.
    Raises: LockstepError if the folder cannot be trained on.
    """
    recipe, changes = subject.recipe, subject.changes
    if changes is None or subject.data is None or recipe.dataset != IMAGE_FOLDER:
        return recipe
    if stated:
        same = stated.get("name") in ([recipe.name] if subject.named else [FOLDER, PHOTOS])
        return make(stated, changes) if same else recipe
    stated_settings = {**changes, "grey": recipe.grey} if "grey" in changes else changes
    found = recipe.survey(subject.data).require_sound()
    fit = fitting(found, stated_settings, recipe.name if subject.named else None)
    subject.details.append(fit.note())
    return make(get_recipe(fit.recipe).model_dump(mode="json"), fit.settings, changes)


def with_initial_weights(
    recipe: Recipe, weights: WeightsFile | None, path: Path, stated: Fields | None
) -> Recipe:
    """Return `recipe` with the SHA-256 of the `weights` that the run at `path` starts from, if any.

    A run to continue, with the recipe `stated`, needs no file. Raises: LockstepError if the recipe,
    or the run to continue, states other weights.
    """
    if stated is not None:
        known = stated.get("init_sha256")
        if weights is not None and weights.sha256 != known:
            raise LockstepError(
                f"{path} was not started from {weights.path}: leave out {option('init')} to resume "
                f"it"
            )
        return (
            recipe.replace(init_sha256=known) if weights or recipe.init_sha256 is None else recipe
        )
    if weights is not None:
        if recipe.init_sha256 not in (None, weights.sha256, *PACKAGED):
            raise LockstepError(
                f"{weights.path}: the file has the sha256 {weights.sha256}, but the recipe's "
                f"init_sha256 is "
                f"{recipe.init_sha256}: give that file, or "
                f"{option('settings', 'init_sha256=none')} to start from this "
                f"one"
            )
        return recipe.replace(init_sha256=weights.sha256)
    if recipe.init_sha256 is not None and recipe.init_sha256 not in PACKAGED:
        raise LockstepError(
            f"the recipe starts from weights (init_sha256 {recipe.init_sha256[:12]}...): give "
            f"their file or run as "
            f"{option('init')}, or start from random ones with "
            f"{option('settings', 'init_sha256=none')}"
        )
    return recipe


def data_of(run: Run, data: Path | None) -> Path | None:
    """Return the data folder for the `run`: `data` if the user gave it, else the one of the run's
    last session.

    If that folder does not exist on this host, a message says so, and None is returned: the usual
    folders are searched.
    Raises: LockstepError if it was a folder of images, which no other place has.
    """
    known = run.data() if data is None else None
    if known is not None and not known.is_dir():
        if run.recipe().dataset == IMAGE_FOLDER:
            raise LockstepError(
                f"{run.path} was trained on the images in {known}, which is not on this host: give "
                f"their folder as "
                f"{option('data')}",
                DATA,
            )
        logger.warning(
            f"{run.path} was trained with {option('data', known)}, which is not on this host: "
            f"searching"
        )
        return None
    return known or data


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
    Raises: LockstepError if the folder may not be used.
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
        # An outer launcher restarts failed processes with the same command, so it resumes without
        # --resume. A scheduler may always pass --resume, so it starts a run that does not exist.
        resume = (world.launcher and (path / "recipe.json").is_file()) or (
            resume and is_begun(path)
        )
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
            f"recipe, or its "
            f"{option('name')}"
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
    what: str | Path | Recipe | Run | None,
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
    the name, the folder of runs and whether to resume. Raises: LockstepError.
    """
    weights = find_weights(placement.init) if placement.init else None
    subject = subject_of(what, changes, placement.data, trust_code, weights)
    path, stated = folder_for(subject, world, **folder)
    if skip_damaged and stated is None:
        photos = subject.recipe.survey(subject.data).scan.photos
        causes = {photo.path: photo.cause for photo in photos if photo.cause}
        subject = subject_of(
            what, {**changes, "left_out": [*causes]}, placement.data, trust_code, weights
        )
        subject.details += [f"left out: {path}: {cause}" for path, cause in causes.items()]
    recipe = with_initial_weights(fitted(subject, stated), weights, path, stated)
    if stated and recipe.precision == "auto":  # A run to continue keeps its choice.
        recipe = recipe.replace(precision=stated["precision"])
    recipe, chosen = resolve(recipe, placement.device)
    if chosen:
        subject.details.append(chosen)
    if (
        stated
        and world.process == 0
        and (differences := validated(Recipe, stated).differences(recipe))
    ):
        raise LockstepError(
            f"{path} was started with another recipe, so it cannot be resumed with this one "
            f"({'; '.join(differences)}): leave out what differs, or start a new run with another "
            f"{option('name')}"
        )
    placement = placement.replace(init=weights.path if weights else None)
    if stated is None or Run(path).result() is None:  # A complete run needs no data.
        data = subject.data_folder() if stated is None else data_of(Run(path), subject.data)
        placement = placed(recipe, placement.replace(data=data), path)
    return TrainSpec(
        recipe=recipe,
        placement=placement,
        path=path,
        resume=stated is not None,
        numbered=stated is None and folder.get("name") is None and subject.run is None,
        notes=tuple(subject.notes),
        details=tuple(subject.details),
    )


def labels_spec(folder: Path, options: Fields) -> LabelsSpec:
    """Return the spec that judges the labels of the images in `folder` by the recipe photos.
    Raises: LockstepError.
    """
    recipe = fitted(subject_of(PHOTOS, parse((), options), folder))
    recipe, _ = resolve(recipe, "auto")
    return LabelsSpec(recipe=recipe, placement=placed(recipe, Placement(data=folder)), path=folder)


def placed(recipe: Recipe, placement: Placement, run: Path | None = None) -> Placement:
    """Return `placement` as `recipe` needs it. Raises: LockstepError.

    A recipe that starts from known weights needs no --init. Portable arithmetic takes no GPU by
    itself.
    """
    placement = placement.replace(device=device_for(recipe.arithmetic, placement.device))
    return placement if placement.init else placement.replace(init=known_weights(recipe, run))


def fields_of_run(run: str | Path | Run, trust_code: bool, **options: Any) -> dict[str, Any]:
    """Return what the specs of commands on an existing run have in common; `options` are those of
    the placement.

    Raises: LockstepError if the run is damaged, or names code that is not trusted.
    """
    run, placement = existing(run), placement_of(options)
    recipe = run.recipe()
    recipe.require_trust(run.path, trust_code)
    placement = placed(recipe, placement.replace(data=data_of(run, placement.data)), run.path)
    return {"recipe": recipe, "placement": placement, "path": run.path}


def evaluated_split(recipe: Recipe, placement: Placement, path: Path) -> str:
    """Return the split to evaluate of the run at `path`: "all" if the user has given a folder of
    other images.

    The images are those of training if the folder is, or if the SHA-256 of the training images is
    the same. A message says what differs. Raises: LockstepError if the folder has no images of the
    run's classes, or other classes too.
    """
    from lockstep.pictures.photos import ALL

    run, data = Run(path), placement.data
    known, classes = run.data(), run.classes
    if (
        not (recipe.dataset == IMAGE_FOLDER and data and known and classes)
        or known.resolve() == data.resolve()
    ):
        return recipe.evaluated_split
    found, stated = recipe.survey(data), run.metadata().get("data_sha256", {})
    own = (
        found.digest("train", recipe.image_px, recipe.grey, recipe.fit)
        if "train" in found.splits
        else ""
    )
    if own == stated.get("train"):
        return recipe.evaluated_split
    images = recipe.survey(data, classes).require_sound().splits[ALL]
    seen = f"{known} is not here to say which are known"
    if known.is_dir():
        trained = {photo.sha256 for photo in recipe.survey(known).splits.get("train", ())}
        seen = f"{sum(photo.sha256 in trained for photo in images):,} of these are training images"
    absent = sorted({*classes} - {photo.class_name for photo in images})
    lacking = f"; no image of {few(absent)}" if absent else ""
    logger.warning(
        f"{data} is not the data of training: all {len(images):,} images are evaluated; "
        f"{seen}{lacking}"
    )
    return ALL


def step_or_best(which: str | int | None) -> int | Literal["best"] | None:
    """Return the step that `which` names, "best", or None for the newest checkpoint. Raises:
    LockstepError.
    """
    if which is None or which == "best":
        return which  # type: ignore[return-value]  # mypy does not narrow a str by ==
    text = str(which)
    if not text.isdecimal():
        raise LockstepError(
            f"{option('checkpoint')} {text!r}: give best, or the number of steps of a checkpoint, "
            f"as in 1000"
        )
    return int(text)
