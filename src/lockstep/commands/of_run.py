"""From the options of a command on an existing run to the fields of its spec."""

from pathlib import Path
from typing import Any

from lockstep.commands.to_placement import data_of, placed, placement_of
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.data import IMAGE_FOLDER
from lockstep.messages import logger
from lockstep.runs.run import Run
from lockstep.text import few


def existing(run: str | Path | Run) -> Run:
    """Return the run that a command was given."""
    return run if isinstance(run, Run) else Run.open(run)


def fields_of_run(run: str | Path | Run, trust_code: bool, **options: Any) -> dict[str, Any]:
    """Return what the specs of commands on an existing run have in common; `options` are those of
    the placement.

    It is an error if the run is damaged, or names code that is not trusted.
    """
    run, placement = existing(run), placement_of(options)
    recipe = run.recipe()
    recipe.require_trust(run.path, trust_code)
    placement = placed(recipe, placement.replace(data=data_of(run, placement.data)), run.path)
    return {"recipe": recipe, "placement": placement, "path": run.path}


def evaluated(recipe: Recipe, placement: Placement, path: Path) -> dict[str, Any]:
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
