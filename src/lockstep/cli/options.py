"""Options that several commands have."""

import time
from pathlib import Path
from typing import Annotated

import typer

STARTED = time.time()  # of the program, for the seconds a run took in all

Data = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Folder of the data set. Default: LOCKSTEP_DATA, then the user's cache, then a download."
    ),
]
Processes = Annotated[
    int | None,
    typer.Option("--processes", min=1, help="Processes. Default: one a GPU; on CPU min(towers, cores / threads)."),
]
Device = Annotated[
    str,
    typer.Option("--device", help="auto (GPUs if there are any), cpu, cuda, or the GPUs to use, as in cuda:0,2."),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but errors (and the record of --json); log.txt has it all.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON record on stdout and nothing else there.")]
