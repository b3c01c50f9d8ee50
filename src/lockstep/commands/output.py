"""Where a Python function prints: the caller's own sys.stdout, which may be a notebook's cell, a terminal or a file."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from typing import IO

_NOTEBOOK_COLUMNS = 100


@contextlib.contextmanager
def streams(quiet: bool) -> Iterator[tuple[IO[str], IO[str]]]:
    """Return the streams for results and for messages: the caller's stdout and stderr, or none at all if `quiet`."""
    if not quiet:
        yield sys.stdout, sys.stderr
        return
    with open(os.devnull, "w") as nowhere:
        yield nowhere, nowhere


def line_width(stream: IO[str]) -> int | None:
    """Return the columns of a line that is redrawn on `stream`; None if a carriage return does not work there."""
    if type(stream).__module__.partition(".")[0] == "ipykernel":
        return _NOTEBOOK_COLUMNS
    isatty = getattr(stream, "isatty", lambda: False)  # Any object with `write` may replace sys.stdout.
    if isatty() and os.environ.get("TERM") != "dumb":
        return shutil.get_terminal_size().columns - 1
    return None
