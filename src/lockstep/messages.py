"""Messages for the user: Python's logger "lockstep".

A program that calls Lockstep gets them as it gets those of every library: on stderr, or where it sends them. The
command line and the worker processes handle them with `handled`.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lockstep.errors import printable

logger = logging.getLogger("lockstep")


def _escape(record: logging.LogRecord) -> bool:
    """Escape control codes: names in a message may come from other people's files."""
    record.msg, record.args = printable(record.getMessage()), None
    return True


logger.addFilter(_escape)


class _Handler(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(record.getMessage())


def on_stderr(text: str) -> None:
    """Print a message, so that a reader of a pipe sees it at once."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def handled(write: Callable[[str], None]) -> Iterator[None]:
    """Give every message within the context to `write`, and to no other handler."""
    before = logger.handlers[:], logger.propagate
    logger.handlers, logger.propagate = [_Handler(write)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before


@contextmanager
def collected() -> Iterator[list[str]]:
    """Return a list that also receives the messages within the context."""
    texts: list[str] = []
    handler = _Handler(texts.append)
    logger.addHandler(handler)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)


@contextmanager
def muted(quiet: bool) -> Iterator[None]:
    """If `quiet`, drop all messages within the context."""
    before = logger.level
    logger.setLevel(logging.ERROR if quiet else before)
    try:
        yield
    finally:
        logger.setLevel(before)


class Held:
    """Keeps messages until there is a place for them."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._send: Callable[[str], None] = self.texts.append

    def __call__(self, text: str) -> None:
        """Keep or send a message."""
        self._send(text)

    def send_to(self, send: Callable[[str], None]) -> None:
        """Send the messages that were kept, and all later ones, to `send`."""
        texts, self.texts, self._send = self.texts, [], send
        for text in texts:
            send(text)
