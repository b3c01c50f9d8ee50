"""`lockstep data fetch`, `lockstep data list` and `lockstep data check`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.commands.options import STARTED, Command, Json, present, require_new_file
from lockstep.errors import DATA, LockstepError, unknown
from lockstep.messages import command

if TYPE_CHECKING:
    from lockstep.data.catalog import Source

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Download, list and check datasets.

`train`, `eval` and `bench` download their dataset on first use, unless --data names its folder. Two environment
variables apply: LOCKSTEP_DATA is the folder for all datasets (default: the user's cache). LOCKSTEP_MIRROR is an
address that is tried before the official ones, as LOCKSTEP_MIRROR/FILE. Its files must have the official checksums.

\b
Examples:
  lockstep data list
  lockstep data fetch cifar10
  lockstep data check cifar10""",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a dataset, as `lockstep data list` shows it.")]


@app.command(cls=Command)
def fetch(
    name: Name,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="Download into DIR/NAME. Default: LOCKSTEP_DATA/NAME, or the user's cache."
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Download a dataset, verify it and unpack it. If it is there already, print its folder.

    If several programs need the dataset, one downloads it and the others wait. A download that fails or is stopped
    leaves nothing behind. A folder that holds anything else is never touched.

    \b
    Examples:
      lockstep data fetch cifar10
      lockstep data fetch mnist --data ~/data                 then: lockstep train mnist --data ~/data
      LOCKSTEP_MIRROR=http://files.local/data lockstep data fetch mnist
    """
    from lockstep.data import catalog
    from lockstep.data import fetch as module
    from lockstep.launch.signals import handled_by, leave

    source, data = _source(name), data.absolute() if data else None
    folder, downloaded = None, False
    if source.archives:
        folder, managed = module.located(source, data) or (catalog.destination(source, data), True)
        if managed:
            with handled_by(leave):
                downloaded = module.fetch(source, folder)
    text = f"{name} is {'in' if downloaded else 'already in'} {folder}"
    record = {"dataset": name, "folder": str(folder) if folder else None, "downloaded": downloaded}
    present([text if folder else f"{name} comes with lockstep: nothing to download"], record if json_output else None)


@app.command("list", cls=Command)
def list_(json_output: Json = False) -> None:
    """List the datasets and their folders on this machine.

    \b
    Examples:
      lockstep data list
      lockstep data list --json
    """
    from lockstep.data import DATASETS
    from lockstep.data.catalog import SOURCES
    from lockstep.data.fetch import located
    from lockstep.words import size

    sources = [SOURCES[name] for name in DATASETS if name in SOURCES]
    located_sources = {source.name: located(source, None) for source in sources if source.archives}
    folders = {name: str(place[0]) for name, place in located_sources.items() if place}
    lines, record = [f"{'dataset':14} {'images':>7}  {'download':>9}  folder"], {}
    for source in sources:
        folder = folders.get(source.name)
        download = size(source.size_bytes) if source.archives else "none"
        absent = f"none yet: {command('data', 'fetch', source.name)}" if source.archives else "comes with lockstep"
        lines.append(f"{source.name:14} {source.images:7}  {download:>9}  {folder or absent}")
        record[source.name] = {
            "images": source.images, "download_bytes": source.size_bytes, "folder": folder,
            "here": folder is not None or not source.archives,
        }  # fmt: skip
    present(lines, record if json_output else None)


@app.command(cls=Command)
def check(
    name: Annotated[
        str, typer.Argument(metavar="NAME|PHOTOS", help="Name of a dataset, or a folder with a folder for each class.")
    ],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder of the dataset. Default: LOCKSTEP_DATA, then the user's cache."),
    ] = None,
    labels: Annotated[
        bool,
        typer.Option(
            "--labels",
            help="Of a folder: also list the images whose label is doubtful. Classifiers that are trained on the other "
            "images judge each image, in five parts.",
        ),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --labels: write a page of these images to a new file.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Verify every downloaded file by its SHA-256.

    Files placed by hand have no recorded checksums: their sizes, headers and labels are checked instead.

    Of a folder of images, every file is read. The report has classes, splits, sizes, formats, duplicates, images in
    several splits or classes, and files that cannot be read. The exit code is 3 if it cannot be trained on.

    --labels trains the last layer of a network, as recipe photos does, five times. It takes a minute or two for some
    thousands of images. Most images that it lists have a wrong label or show several things: look at them. A doubtful
    label does not change the exit code.

    \b
    Examples:
      lockstep data check cifar10
      lockstep data check photos
      lockstep data check photos --labels --html doubtful.html
      lockstep data check mnist --data ~/mnist
    """
    from lockstep.data import DATASETS
    from lockstep.data.fetch import located, problem, sums
    from lockstep.settings import load_object

    if html and not labels:
        raise LockstepError("--html needs --labels: add it, or leave out the option")
    if "/" in name or Path(name).is_dir():
        _check_folder(Path(name), data, json_output, labels, html)
        return
    if labels:
        raise LockstepError(f"--labels is for folders of images, and {name} is the name of a dataset: leave it out")
    source, data = _source(name), data.absolute() if data else None
    folder, managed = (located(source, data) if source.archives else None) or (None, False)
    if folder and managed:
        if (damage := problem(folder)) is not None:
            again = command("data", "fetch", name, *(("--data", data) if data else ()))
            raise LockstepError(f"dataset {name}: {damage}. Delete {folder}, and then: {again}", DATA)
        count, checked = len(sums(folder)), "sha256"
    else:
        load_object(DATASETS[name])(data)  # raises a LockstepError if the files are missing or malformed
        count, checked = len(source.files), "structure"
    text = f"ok: {folder}, {count} files placed by hand, so only their structure was checked"
    if managed or not folder:
        text = (
            f"ok: {folder}, {count} files, {checked}" if folder else f"ok: {name} comes with lockstep and can be read"
        )
    record = {"dataset": name, "folder": str(folder) if folder else None, "files": count, "checked": checked}
    present([text], record if json_output else None)


def _check_folder(folder: Path, data: Path | None, json_output: bool, labels: bool, html: Path | None) -> None:
    """Print the report on a folder of images. Raises: LockstepError if it cannot be trained on."""
    from lockstep.data.check import lines_of, record_of
    from lockstep.data.photos import survey
    from lockstep.launch.signals import handled_by, leave
    from lockstep.recipes import RECIPES

    if data is not None:
        raise LockstepError(f"--data is for datasets by name, and {folder} is a folder: leave it out")
    if html:
        require_new_file("--html", html)
    with handled_by(leave):
        found = survey(folder, test_share=0.2)
    record = record_of(found)
    sound = not found.problems
    if not json_output:
        present([*lines_of(record), *(f"note: {note}" for note in found.notes)])
    if labels and sound:
        record["labels"] = _check_labels(folder, html, json_output)
    if json_output:
        present([], record)
    found.require_sound()
    if not json_output:
        recipe = str(folder) in RECIPES  # A word that names a recipe names the folder only with a slash.
        present([f"ok: {command('train', f'{folder}/' if recipe else folder)}"])


def _check_labels(folder: Path, html: Path | None, json_output: bool) -> dict[str, Any]:
    """Print the doubtful labels of a folder, or write a page of them to `html`. Return the record of the job."""
    from lockstep.commands.specs import folds_spec
    from lockstep.config.placement import Placement
    from lockstep.jobs.context import Output
    from lockstep.launch.submit import submit
    from lockstep.pages.labels import lines_of, page

    placement = Placement(data=folder.absolute())
    spec = folds_spec("photos", {}, placement, folds=5, labels=True, started=STARTED)
    outcome = submit(spec, Output(lines_to_stderr=True))
    if outcome.record is None:
        raise typer.Exit(outcome.code)
    if html:
        with html.open("x", encoding="utf-8") as file:
            file.write(page(outcome.record))
    if not json_output:
        seen = f"pictures of them: {html}" if html else "to see them: add --html doubtful.html"
        present(["", *lines_of(outcome.record), *([seen] if outcome.record["doubtful"] or html else []), ""])
    return outcome.record


def _source(name: str) -> "Source":
    from lockstep.data.catalog import SOURCES

    if name not in SOURCES:
        raise LockstepError(unknown("dataset", name, SOURCES))
    return SOURCES[name]
