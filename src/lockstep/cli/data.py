"""lockstep data fetch, lockstep data list, lockstep data check."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.cli.hints import HintingCommand
from lockstep.cli.options import Json
from lockstep.errors import DATA, LockstepError, unknown

if TYPE_CHECKING:
    from lockstep.data.catalog import Source

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Download, list and check data sets.

`train` and `eval` download what they need on first use, unless --data says where it is. LOCKSTEP_DATA names the
folder for all data sets (default: the user's cache). LOCKSTEP_MIRROR is an address tried before the official ones,
as LOCKSTEP_MIRROR/FILE; its checksums are verified all the same.

\b
Examples:
  lockstep data list
  lockstep data fetch cifar10
  lockstep data check cifar10""",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set; `lockstep data list` has them.")]


@app.command(cls=HintingCommand, short_help="Download a data set, unless it is here.")
def fetch(
    name: Name,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Download into DIR/NAME. Default: LOCKSTEP_DATA/NAME, or the user's cache."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Download a data set, verify and unpack it; if it is here and whole, say where.

    One program downloads, others wait for it. A download that fails or is stopped leaves nothing behind. One that got
    damaged later is replaced; a folder that no download made never is.

    \b
    Examples:
      lockstep data fetch cifar10
      lockstep data fetch mnist --data ~/data                 then: lockstep train mnist --data ~/data
      LOCKSTEP_MIRROR=http://files.local/data lockstep data fetch mnist
    """
    from lockstep.data import locate
    from lockstep.data.download import fetch as module
    from lockstep.processes.signals import handled_by, leave

    source, data = _source(name), data.absolute() if data else None
    place, downloaded = None, False
    if source.archives:
        place, ours = module.located(source, data) or (locate.destination(source, data), True)
        if ours:
            with handled_by(leave):
                downloaded = module.fetch(source, place)
    if json_output:
        _print_json({"dataset": name, "folder": str(place) if place else None, "downloaded": downloaded})
    elif not downloaded:
        print(f"{name} is already in {place}" if place else f"{name} comes with scikit-learn: nothing to download")
    else:
        print(f"{name} is in {place}")


@app.command("list", cls=HintingCommand, short_help="List the data sets, and where they are.")
def list_(json_output: Json = False) -> None:
    """List the data sets: images, size of the download, and the folder they are in if they are here.

    \b
    Example:
      lockstep data list
    """
    from lockstep.data import DATASETS
    from lockstep.data.catalog import SOURCES
    from lockstep.data.download.fetch import located
    from lockstep.data.download.transfer import size

    sources = [SOURCES[name] for name in DATASETS if name in SOURCES]
    found = {source.name: located(source, None) if source.archives else None for source in sources}
    if json_output:
        _print_json(
            {
                source.name: {
                    "images": source.images,
                    "download_bytes": source.size_bytes,
                    "folder": str(place[0]) if (place := found[source.name]) else None,
                    "here": bool(place) or not source.archives,
                }
                for source in sources
            }
        )
        return
    print(f"{'data set':14} {'images':>7}  {'download':>9}  where")
    for source in sources:
        place = found[source.name]
        where = str(place[0]) if place else f"not here: lockstep data fetch {source.name}"
        download = size(source.size_bytes) if source.archives else "none"
        print(f"{source.name:14} {source.images:7}  {download:>9}  {where if source.archives else 'in scikit-learn'}")


@app.command(cls=HintingCommand, short_help="Verify the files of a data set.")
def check(
    name: Name,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of the data set. Default: LOCKSTEP_DATA, the user's cache.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Verify every file of a download against the checksums it was made with.

    Of files placed by hand the structure is checked: sizes, headers and labels.

    \b
    Examples:
      lockstep data check cifar10
      lockstep data check mnist --data ~/mnist
    """
    from lockstep.data import DATASETS
    from lockstep.data.download import manifest
    from lockstep.data.download.fetch import located
    from lockstep.settings import load_object

    source, data = _source(name), data.absolute() if data else None
    place, ours = (located(source, data) if source.archives else None) or (None, False)
    if place and ours:
        if problem := manifest.problem(place):
            given = f" --data {data}" if data else ""
            raise LockstepError(f"data set {name}: {problem}. Replace it with: lockstep data fetch {name}{given}", DATA)
        count, checked = len(manifest.files(place)), "sizes and sha256"
    else:
        load_object(DATASETS[name])(data)  # or its error
        count, checked = len(source.files), "structure"
    if json_output:
        _print_json({"dataset": name, "folder": str(place) if place else None, "files": count, "checked": checked})
    elif ours:
        print(f"ok: {place}, {count} files, {checked}")
    elif place:
        print(f"ok: {place}, {count} files placed by hand, so only their structure was checked")
    else:
        print(f"ok: {name} comes with scikit-learn, and can be read")


def _source(name: str) -> "Source":
    from lockstep.data.catalog import SOURCES

    if name not in SOURCES:
        raise LockstepError(unknown("data set", name, SOURCES))
    return SOURCES[name]


def _print_json(record: dict[str, object]) -> None:
    print(json.dumps(record))
