"""How commands print a result, and where a Python function prints.

That is the caller's own sys.stdout, which may be a notebook's cell, a terminal or a file.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from lockstep.errors import printable
from lockstep.files import discard


def present(lines: Iterable[str], record: Mapping[str, Any] | None = None) -> None:
    """Print the `lines` of a result, or its `record` as JSON, if the user asked for that."""
    try:
        print(*(map(printable, lines) if record is None else [json.dumps(record)]), sep="\n", flush=True)
    except BrokenPipeError:  # the reader has closed the pipe, as in `lockstep eval | head`
        discard(sys.stdout)


@contextlib.contextmanager
def streams(quiet: bool) -> Iterator[tuple[IO[str], IO[str]]]:
    """Return the streams for results and for messages: the caller's stdout and stderr, or none at all if `quiet`."""
    if not quiet:
        yield sys.stdout, sys.stderr
        return
    with open(os.devnull, "w") as nowhere:
        yield nowhere, nowhere
