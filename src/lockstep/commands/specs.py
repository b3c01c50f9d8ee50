"""From words to specs: what the command line and the Python functions have in common.

The words of a command say which recipe, which run folder, which data folder, which precision.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lockstep import numerics
from lockstep.config.consent import check_code, stated
from lockstep.config.overrides import make, read_file
from lockstep.config.placement import Placement, device_for
from lockstep.config.precision import on_gpu, resolve
from lockstep.config.recipe import MIN_IMAGE_PX, Recipe, plain_name
from lockstep.data import IMAGE_FOLDER
from lockstep.data.catalog import SOURCES
from lockstep.data.folder.scan import is_image_folder
from lockstep.data.locate import incomplete, present
from lockstep.errors import DATA, LockstepError
from lockstep.jobs.specs import EvaluateSpec, FoldsSpec, TrainSpec, VerifySpec
from lockstep.jobs.weights import PACKAGED, WeightsFile, find_weights, known_weights
from lockstep.launch.world import World
from lockstep.messages import collected, command, handled, logger, muted
from lockstep.recipes import RECIPES, get_recipe
from lockstep.recipes.fitting import FOLDER, PHOTOS, fitting
from lockstep.runs.folder import Run, fresh_path, is_begun, newest, refuse_existing
from lockstep.settings import dotted, validated

_ALLOWED = (
    "give the name of a recipe, a recipe file, the folder of a run, as in runs/digits-1, or a folder that holds a "
    "folder of images for each class"
)
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run to train.

    Attributes:
        path: the folder.
        numbered: True if a new run may take the next free number in place of the one in `path`.
        stated: the recipe that a run to continue was started with, {} if this host does not have it; None for a new
            run.
        result: the result of a run to continue, or None if it is not complete.
    """

    path: Path
    numbered: bool = False
    stated: Mapping[str, Any] | None = None
    result: dict[str, Any] | None = None


class Subject(NamedTuple):
    """What a command is about.

    recipe: with the command's changes. run: the folder of the run, if the command names one. data: the folder of the
    dataset, if the command names one; or else the folder of images that it names. changes: the command's changes if
    `fitted` fits the recipe to the images in `data`, else None. named: whether the command names the recipe.
    """

    recipe: Recipe
    run: Path | None = None
    data: Path | None = None
    changes: Mapping[str, Any] | None = None
    named: bool = True


def subject_of(
    what: str | Recipe | None, changes: dict[str, Any], data: Path | None = None, *, imports: bool = True
) -> Subject:
    """Return what the word `what` of a command names: a recipe, a recipe file, a run or a folder of images.

    Without a word, it is the folder of images `data`, or else the recipe "digits". If the folder `data` has no files of
    a recipe's dataset, but folders of images, the recipe is trained on these. `imports` says that the command imports
    the recipe's model and dataset. If a file or a run names code of the user's own, the `changes` must then name it too
    (`check_code`). Raises: LockstepError.
    """
    changes = stated(changes)
    if what is None and data is not None and "dataset" not in changes and is_image_folder(data):
        return _folder_of_images(data, changes, data)
    if what is None:
        what = "digits"
    if isinstance(what, Recipe):
        return _switch_to_images(what.model_dump(mode="json"), [changes], data)
    path = Path(what).expanduser()
    # `lockstep train photos` means the folder photos here, not the recipe, which would need --data.
    if data is None and what in RECIPES and get_recipe(what).dataset == IMAGE_FOLDER and is_image_folder(path):
        return _folder_of_images(path, changes, data)
    if path.suffix == ".toml" and what not in RECIPES:
        settings = dotted(read_file(path))
        start = settings.pop("recipe", None)  # A file may name a recipe, and contain only what differs from it.
        subject = _switch_to_images(_fields(str(start)) if start else {}, [settings, changes], data)
    elif what in RECIPES or not (path.is_dir() or "/" in what):
        subject = _switch_to_images(_fields(what), [changes], data)
        return subject._replace(changes=changes) if what == FOLDER else subject
    elif (path / "recipe.json").is_file():
        fields = Run.existing(path).recipe().model_dump(mode="json")
        subject = Subject(make(fields, changes, note=logger.warning), path, data)
    else:
        return _folder_of_images(path, changes, data)
    if imports:
        check_code(path, subject.recipe, {"model": None, "dataset": None, **changes})
    return subject


def _fields(name: str) -> dict[str, Any]:
    return get_recipe(name).model_dump(mode="json")


def _folder_of_images(path: Path, changes: dict[str, Any], data: Path | None) -> Subject:
    """Return the recipe "folder", not fitted yet, on the images in `path`. Raises: LockstepError if it holds none."""
    if not path.exists():
        raise LockstepError(f"there is no folder {path}: {_ALLOWED}")
    if path.is_file():
        raise LockstepError(f"{path} is a file: {_ALLOWED}")
    if not is_image_folder(path):
        raise LockstepError(
            f"{path} is not a run: it has no recipe.json. It is no folder of images either: no folder in it holds an "
            f"image. {_ALLOWED[0].upper()}{_ALLOWED[1:]}"
        )
    if data is not None and data.resolve() != path.resolve():
        raise LockstepError(f"{path} is a folder of images, and --data names another one, {data}: give one of them")
    recipe = make(_fields(FOLDER), changes, note=logger.warning)
    return Subject(recipe, None, path.absolute(), changes, named=False)


def fitted(subject: Subject, stated: Mapping[str, Any] | None = None) -> tuple[Recipe, str | None]:
    """Return the recipe of `subject` as it fits the images, and the reason if it is chosen now.

    A run to continue, with the recipe `stated`, keeps its choice. Reads all images that are new since the last start.
    Raises: LockstepError if the folder cannot be trained on.
    """
    recipe, changes = subject.recipe, subject.changes
    if changes is None or subject.data is None or recipe.dataset != IMAGE_FOLDER:
        return recipe, None
    if stated:
        same = stated.get("name") in ([recipe.name] if subject.named else [FOLDER, PHOTOS])
        return (make(stated, changes) if same else recipe), None
    from lockstep.data.folder.survey import survey

    stated_settings = {**dict.fromkeys(changes), **({"grey": recipe.grey} if "grey" in changes else {})}
    found = survey(subject.data, recipe.test_share, recipe.skip_unreadable).require_sound()
    fit = fitting(found, stated_settings, recipe.name if subject.named else None)
    return make(_fields(fit.recipe), fit.settings, changes), fit.note()


def _switch_to_images(fields: dict[str, Any], sources: list[dict[str, Any]], data: Path | None) -> Subject:
    """Return the recipe of `fields` and `sources`; on the images in `data`, if its own dataset is not there."""
    recipe = make(fields, *sources, note=logger.warning)
    source = SOURCES.get(recipe.dataset)
    if data is None or source is None or any("dataset" in changes for changes in sources):
        return Subject(recipe, None, data)
    absent = not source.files or not (present(source, data) or incomplete(source, data))
    if not (absent and is_image_folder(data)):
        return Subject(recipe, None, data)
    image_px = max(MIN_IMAGE_PX, source.side_px)
    on_images = {"dataset": IMAGE_FOLDER, "image_px": image_px}
    replaced = f"they replace the dataset {recipe.dataset}, at {image_px} pixels a side"
    logger.warning(f"{data} is a folder of images: {replaced}")
    return Subject(make(fields, on_images, *sources), None, data)


def with_initial_weights(
    recipe: Recipe, weights: WeightsFile | None, folder: RunFolder, own_recipe: bool = True
) -> Recipe:
    """Return `recipe` with the SHA-256 of the `weights` that the run starts from, if any.

    A run to continue needs no file. `own_recipe` is False if `recipe` has its `init_sha256` from the run that the
    weights come from, which may itself have started from other weights.
    Raises: LockstepError if the recipe, or the run to continue, states other weights.
    """
    if folder.stated is not None:
        stated = folder.stated.get("init_sha256")
        if weights is not None and weights.sha256 != stated:
            raise LockstepError(f"{folder.path} was not started from {weights.path}: leave out --init to resume it")
        return recipe.replace(init_sha256=stated) if weights or recipe.init_sha256 is None else recipe
    if weights is not None:
        if own_recipe and recipe.init_sha256 not in (None, weights.sha256, *PACKAGED):
            raise LockstepError(
                f"{weights.path} has the sha256 {weights.sha256}, but the recipe's init_sha256 is "
                f"{recipe.init_sha256}: give that file, or --set init_sha256=none to start from this one"
            )
        return recipe.replace(init_sha256=weights.sha256)
    if recipe.init_sha256 is not None and recipe.init_sha256 not in PACKAGED:
        raise LockstepError(
            f"the recipe starts from weights (init_sha256 {recipe.init_sha256[:12]}...): give their file or run as "
            f"--init, or start from random ones with --set init_sha256=none"
        )
    return recipe


def data_of(path: Path, data: Path | None) -> Path | None:
    """Return the data folder for the run at `path`: `data` if the user gave it, else the one of the run's last session.

    If that folder does not exist on this host, a message says so, and None is returned: the usual folders are searched.
    Raises: LockstepError if it was a folder of images, which no other place has.
    """
    known = Run(path).data() if data is None else None
    if known is not None and not known.is_dir():
        if Run(path).recipe().dataset == IMAGE_FOLDER:
            raise LockstepError(
                f"{path} was trained on the images in {known}, which is not on this host: give their folder as --data",
                DATA,
            )
        logger.warning(f"{path} was trained with --data {known}, which is not on this host: searching")
        return None
    return known or data


def data_for(subject: Subject) -> Path | None:
    """Return the data folder of the command: the one it names, or else that of the run it names; see `data_of`.

    A run of another dataset has no data for it. Raises: LockstepError.
    """
    if subject.run is None or subject.recipe.dataset != Run(subject.run).recipe().dataset:
        return subject.data
    return data_of(subject.run, subject.data)


def folder_for(subject: Subject, name: str | None, runs: Path, resume: bool, world: World) -> RunFolder:
    """Return the folder to train in: the named run, runs/`name`, the newest run to resume, or a new numbered one.

    A new run is named after its folder of images, or else after its recipe.
    Raises: LockstepError if it may not be used.
    """
    images = subject.data if subject.recipe.dataset == IMAGE_FOLDER else None
    if name is not None:
        path = runs / checked_name(name)
        if resume and world.process == 0:
            # A program that was killed when it had just made the folder has left it empty. rmdir removes no other.
            with contextlib.suppress(OSError):
                path.rmdir()
        # An outer launcher restarts failed processes with the same command, so it resumes without --resume. A scheduler
        # may always pass --resume, so it starts a run that does not exist.
        begun = world.outer and (path / "recipe.json").is_file()
        resume = begun or (resume and is_begun(path))
    elif subject.run is not None:
        path = subject.run
    elif resume:
        names = [subject.recipe.name] if subject.named else [FOLDER, PHOTOS]
        path = newest(runs, names, images)
    else:
        stem = _NOT_PLAIN.sub("-", images.resolve().name).lstrip("-.") if images else ""
        return RunFolder(fresh_path(runs, stem or subject.recipe.name), numbered=True)
    # Only the first process checks, as it may already have made the folder when another one looks.
    if not resume and world.process == 0:
        refuse_existing(path)
    if not resume:
        return RunFolder(path)
    run = Run.existing(path) if world.process == 0 else Run(path)
    return RunFolder(path, stated=run.read("recipe.json") or {}, result=run.result())


def fixed_precision(recipe: Recipe, device: str, stated: Mapping[str, Any] | None = None) -> tuple[Recipe, str | None]:
    """Return `recipe` with a fixed precision, and the reason if it is chosen now.

    A run to continue, with the recipe `stated`, keeps its choice. Imports torch if the host has a GPU driver.
    """
    if recipe.precision != "auto":
        return recipe, None
    if stated:
        return recipe.replace(precision=stated["precision"]), None
    return resolve(recipe, on_gpu(device))


def require_same(folder: RunFolder, recipe: Recipe) -> None:
    """Raise a LockstepError if the run to continue was started with another recipe."""
    if folder.stated and (differences := validated(Recipe, folder.stated).differences(recipe)):
        raise LockstepError(
            f"{folder.path} was started with another recipe, so it cannot be resumed with this one "
            f"({'; '.join(differences)}): leave out what differs, or start a new run with another --name"
        )


def checked_name(name: str) -> str:
    """Return `name` if it can be the name of a run's folder. Raises: LockstepError."""
    try:
        return plain_name(name)
    except ValueError as error:
        raise LockstepError(f"--name {name!r} is not allowed: {error}; --runs sets the parent folder") from None


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
) -> TrainSpec | RunFolder:
    """Return the spec that trains `what` with `changes`, or the folder of a run to resume that is complete.

    `init` is the file or run whose weights the run starts from. `own_program` says that this is the program lockstep,
    whose environment torch may be prepared in. `others` are further fields of the spec. Raises: LockstepError.
    """
    weights = find_weights(init) if init else None
    if weights:
        placement = placement.replace(init=weights.path)
    parent = weights.run if weights and what is None else None  # the run whose recipe and data a new run takes over
    data = data_of(parent, placement.data) if parent else placement.data
    with handled(lambda text: None), collected() as notes:  # The run prints them, and has them in its log.
        subject = subject_of(what or (str(parent.absolute()) if parent else None), changes, data)
        if not subject.named and weights and weights.run and Run(weights.run).recipe().dataset == IMAGE_FOLDER:
            # A recipe that fits other images may have other parameters than the run's weights.
            parent = weights.run
            subject = subject_of(str(parent.absolute()), changes, subject.data)
            logger.warning(f"the recipe is that of {parent}, whose weights the run starts from")
    if parent:
        subject = subject._replace(run=None)
    folder = folder_for(subject, name, runs, resume, world)
    with muted(world.process != 0):
        recipe, fit_note = fitted(subject, folder.stated)
    own_recipe = parent is None or "init_sha256" in changes
    recipe = with_initial_weights(recipe, weights, folder, own_recipe)
    if own_program:
        numerics.prepare(recipe.threads_per_tower)  # The next line may import torch.
    recipe, precision_note = fixed_precision(recipe, placement.device, folder.stated)
    notes += filter(None, (fit_note, precision_note))
    if folder.stated is not None:
        if world.process == 0:
            require_same(folder, recipe)
        if folder.result is not None:
            return folder
        data = data_of(folder.path, subject.data)
    else:
        data = data_for(subject)
    placement = placed(recipe, placement.replace(data=data), folder.path)
    return TrainSpec(
        recipe=recipe, placement=placement, path=folder.path, resume=folder.stated is not None,
        numbered=folder.numbered, notes=tuple(notes), **others,
    )  # fmt: skip


def folds_spec(
    what: str | None, changes: dict[str, Any], placement: Placement, *, init: Path | None = None, **others: Any
) -> FoldsSpec:
    """Return the spec that judges the images of `what` by heads that were not trained on them.

    `others` are further fields of the spec. Only the program lockstep calls this. Raises: LockstepError.
    """
    weights = find_weights(init) if init else None
    subject = subject_of(what, changes, placement.data)
    recipe, fit_note = fitted(subject)
    recipe = with_initial_weights(recipe, weights, RunFolder(Path()))
    if recipe.dataset != IMAGE_FOLDER:
        raise LockstepError(
            f"--folds divides a folder of images, and recipe {recipe.name} is for dataset {recipe.dataset}: leave it "
            f"out, or use: {command('train', 'DIR', '--folds', 'N')}"
        )
    if recipe.head is None:
        raise LockstepError(
            f"--folds needs a recipe that trains only a head, such as photos: each fold of recipe {recipe.name} would "
            f"take as long as the whole training. Use: "
            f"{command('train', 'photos', '--data', 'DIR', '--folds', others['folds'])}"
        )
    numerics.prepare(recipe.threads_per_tower)  # The next line may import torch.
    recipe, precision_note = fixed_precision(recipe.replace(held_out=0, patience=None), placement.device)
    for note in filter(None, (fit_note, precision_note)):
        logger.warning(note)
    placement = placement.replace(data=data_for(subject), init=weights.path if weights else None)
    return FoldsSpec(recipe=recipe, placement=placed(recipe, placement, subject.run), **others)


def placed(recipe: Recipe, placement: Placement, run: Path | None = None) -> Placement:
    """Return `placement` as `recipe` needs it. Raises: LockstepError.

    A recipe that starts from known weights needs no --init. Portable arithmetic computes on a CPU.
    """
    placement = placement.replace(device=device_for(recipe.arithmetic, placement.device))
    return placement if placement.init else placement.replace(init=known_weights(recipe, run))


def evaluate_spec(
    run: Run,
    placement: Placement,
    *,
    code: Mapping[str, str | None],
    split: str | None,
    checkpoint: str | int | None,
    kind: type[EvaluateSpec] = EvaluateSpec,
    **others: Any,
) -> EvaluateSpec:
    """Return the spec that evaluates `run`, of the given `kind`.

    `code` has the options, model and dataset, that allow the run's own code to be executed. `others` are further
    fields of the spec. Raises: LockstepError.
    """
    recipe = run.recipe()
    check_code(run.path, recipe, code)
    run.check_recipe()
    placement = placement.replace(data=data_of(run.path, placement.data))
    return kind(
        recipe=recipe, placement=placed(recipe, placement, run.path), path=run.path,
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
    placement = placed(recipe, placement, run.path)
    return VerifySpec(recipe=recipe, placement=placement, path=run.path, **others)


def chosen_checkpoint(which: str | int | None) -> int | Literal["best"] | None:
    """Return the step that `which` names, "best", or None for the newest checkpoint. Raises: LockstepError."""
    if which is None or which == "best":
        return which  # type: ignore[return-value]  # mypy does not narrow a str by ==
    text = str(which)
    if isinstance(which, bool) or not (text.isascii() and text.isdigit()):
        raise LockstepError(f"--checkpoint {text!r}: give best, or the number of steps of a checkpoint, as in 1000")
    return int(text)
