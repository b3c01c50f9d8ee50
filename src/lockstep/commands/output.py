"""Where a Python function prints: the caller's own sys.stdout, which may be a notebook's cell, a terminal or a file."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def streams(quiet: bool) -> Iterator[tuple[IO[str], IO[str]]]:
    """Return the streams for results and for messages: the caller's stdout and stderr, or none at all if `quiet`."""
    if not quiet:
        yield sys.stdout, sys.stderr
        return
    with open(os.devnull, "w") as nowhere:
        yield nowhere, nowhere
