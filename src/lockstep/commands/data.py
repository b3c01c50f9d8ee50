"""`lockstep data fetch` and `lockstep data check`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.commands.plan import labels_spec
from lockstep.commands.shell import record_of as record_of_job, require_writable
from lockstep.config.overrides import make, parse
from lockstep.errors import LockstepError, unknown
from lockstep.files import Record, deliver, given


def fetch(name: str, data: Path | None = None) -> Iterator[str | Record]:
    """Download a dataset, verify its checksum and unpack it. If it is already there, print its
    folder.

    If several programs need a dataset, one of them downloads it and the others wait. If a download
    fails or is stopped, the next one continues it. A folder with other contents is never changed.

    Examples:
      lockstep data fetch cifar10
      lockstep data fetch mnist --data ~/data         then: lockstep train mnist --data ~/data
      LOCKSTEP_MIRROR=http://files.local/data lockstep data fetch mnist

    Args:
        name: Name of a dataset: cifar10 or mnist.
        data: Download into DIR/NAME. Default: LOCKSTEP_DATA/NAME, or the user's cache.
    """
    from lockstep.data import catalog, fetch as module

    if name not in catalog.CATALOG:
        raise LockstepError(
            f"{unknown('dataset', name, catalog.CATALOG)}; folders of images need no download"
        )
    source, data = catalog.CATALOG[name], data and given(data).absolute()
    if not source.archives:
        yield {"dataset": name, "folder": None, "downloaded": False}
        yield f"{name} comes with lockstep: nothing to download"
        return
    paths, _ = catalog.searched(source, data)
    folder = paths[0].parent if paths else catalog.destination(source, data)
    downloaded = not paths and module.fetch(source, folder)
    yield {"dataset": name, "folder": str(folder), "downloaded": downloaded}
    yield f"{name} is {'in' if downloaded else 'already in'} {folder}"


def check(
    photos: Path, labels: bool = False, html: Path | None = None, **options: Any
) -> Iterator[str | Record]:
    """Read every image of a folder, and report problems before you train on it.

    The report lists classes, splits, sizes and formats, files that cannot be read, duplicates, and
    images that are the same, or nearly the same, in several splits or classes. The exit code is 3
    if the folder cannot be trained on.

    --labels also lists the images whose label may be wrong, the most doubtful one first. Five
    classifiers, trained as by the recipe photos, each judge a fifth of the images after training on
    the other four fifths. Look at the listed images: some labels are wrong, and some images show
    several things. The judgement is less reliable for small and grey images. The exit code stays
    the same.

    Examples:
      lockstep data check photos
      lockstep data check photos --labels --html doubtful.html

    Args:
        photos: Folder that holds one folder of images for each class, or another form that is read,
            as Parquet files or hf://OWNER/NAME.
        labels: Also list the images whose label is doubtful.
        html: With `labels`: write a page with these images to a new file.
        **options: Where the labels stand, as for `lockstep train`.
    """
    if html and not labels:
        raise LockstepError("--html needs --labels: add it, or leave out the option")
    from lockstep.pictures.check import lines_of, record_of
    from lockstep.pictures.hub import located
    from lockstep.recipes import get_recipe

    folder = located(photos)
    recipe = make(get_recipe("folder"), parse((), options))
    if html:
        html = given(html)
        require_writable(html, force=False, name="html")
    survey = recipe.survey(folder)
    record = record_of(survey)
    yield from lines_of(record) if record["classes"] else ()
    if labels and not survey.problems:
        from lockstep.pages import doubtful

        record["labels"] = record_of_job(labels_spec(folder.absolute(), options))
        yield from doubtful.lines_of(record["labels"])
        if html:
            deliver(html, doubtful.page(record["labels"]).encode())
            yield f"pictures of them: {html}"
    yield record
    survey.require_sound()
    yield "ok: it can be trained on"
