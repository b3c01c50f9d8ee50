"""Options that several commands share."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.errors import printable

if TYPE_CHECKING:
    from lockstep.launch.world import World

STARTED = time.time()  # when the program started: `total_s` of a result counts from here

Data = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Folder of the dataset. Default: LOCKSTEP_DATA, then the user's cache, then a download."
    ),
]
CacheLimit = Annotated[
    float | None,
    typer.Option(
        "--cache-limit",
        metavar="GB",
        min=0,
        help="Disk space for caches of decoded images; 0: decode on the fly. Default: half of the free space.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="The run's own package.module:function, to allow that its code is executed."),
]
Dataset = Annotated[
    str | None,
    typer.Option("--dataset", help="The run's own package.module:function, to allow that its code is executed."),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes", min=1, help="Number of processes. Default: one per GPU; on CPU min(towers, cores / threads)."
    ),
]
Device = Annotated[
    str,
    typer.Option("--device", help="cpu, cuda, certain GPUs as in cuda:0,2, or auto: GPUs if there are any."),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print only errors, and the record of --json. log.txt still has everything."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON record on stdout, and nothing else there.")]


def note_of(world: "World") -> Callable[[str], None]:
    """Return a function that prints a message for the user on stderr, in the first process of the run only."""

    def note(text: str) -> None:
        if world.process == 0:
            print(printable(text), file=sys.stderr)

    return note
