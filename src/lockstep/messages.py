"""Messages for the user: Python's logger "lockstep", and the commands and options that messages name.

They name options as the shell takes them. A Python program reads them as arguments: resume=True, not --resume.

A program that calls Lockstep gets them as it gets those of every library: on stderr, or where it sends them. The
command line and the worker processes handle them with `handled`.
"""

import logging
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError, printable

logger = logging.getLogger("lockstep")
in_python = ContextVar("in_python", default=False)  # whether a Python program reads the messages

_SWITCHES = {"resume", "trust_code", "portable", "inline", "quiet", "verbose", "watch", "once", "force"}
_ONLY_IN_SHELL = {"json", "host", "port", "labels", "html"}
# An option, and what follows if that is its value: a name in capitals, a number, a path, a setting, or one of six
# words. Or a command of the shell for which Python has no function, up to the end of the message.
_VALUE = r"(?:[A-Z]+\b|[\d./~]|[\w.]+=|(?:cpu|raw|float32|bfloat16|folders|table)\b)[^\s,;:)]*"
_OPTION = re.compile(rf"(?<![\w-])--(no-)?([a-z]+(?:-[a-z]+)*)(?: ({_VALUE}))?|\blockstep [a-z].*")


def program() -> str:
    """Return how the user's shell starts Lockstep: by its name, if that is the program beside this Python."""
    found, beside = shutil.which("lockstep"), Path(sys.executable).with_name("lockstep")
    by_name = found and beside.exists() and beside.samefile(found)
    return "lockstep" if by_name else shlex.join([sys.executable, "-m", "lockstep"])


def command(*words: object) -> str:
    """Return a command of Lockstep that works in the user's shell as it is printed; to resume in Python, the call."""
    texts = [*map(str, words)]
    if in_python.get() and "--resume" in texts:
        return f"lockstep.train({', '.join([repr(texts[1]), *map(with_arguments, texts[2:])])})"
    return f"{program()} {shlex.join(texts)}"


def with_arguments(text: str) -> str:
    """Return a message for a Python program: --data DIR becomes data=DIR, --resume becomes resume=True."""

    def argument(found: re.Match[str]) -> str:
        negated, option, value = found.groups()
        if option is None or option in _ONLY_IN_SHELL:
            return found[0]
        name = option.replace("-", "_")
        if name in _SWITCHES:
            return f"{name}={not negated}" + (f" {value}" if value else "")
        if name == "set":
            return f'settings=["{value}"]' if value else "settings"
        bare = not value or value.isupper() or value[0].isdigit()
        return f"{name}={value or ''}" if bare else f'{name}="{value}"'

    return _OPTION.sub(argument, text)


def for_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the `function` of a command as a Python program calls it: its messages name arguments, not options."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        token = in_python.set(True)
        try:
            return function(*args, **kwargs)
        except LockstepError as error:
            error.args = (with_arguments(str(error)),)
            raise
        finally:
            in_python.reset(token)

    return call


def _escape(record: logging.LogRecord) -> bool:
    """Escape control codes: names in a message may come from other people's files. Name options as the reader does."""
    text = printable(record.getMessage())
    record.msg, record.args = with_arguments(text) if in_python.get() else text, None
    return True


logger.addFilter(_escape)


class _Handler(logging.Handler):
    def __init__(self, write: Callable[[str], None], outer: Sequence[logging.Handler]) -> None:
        super().__init__()
        self.write, self._outer = write, outer

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "progress") and self._outer:
            for handler in self._outer:
                handler.handle(record)
        else:
            self.write(record.getMessage())


def on_stderr(text: str) -> None:
    """Print a message, so that a reader of a pipe sees it at once."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def handled(write: Callable[[str], None], later: bool = False) -> Iterator[_Handler]:
    """Give every message within the context to `write` of the handler that this returns, and to no other handler.

    If `write` shows them `later`, those that have the extra "progress" go to the handlers outside of the context.
    """
    before = logger.handlers[:], logger.propagate
    handler = _Handler(write, before[0] if later else ())
    logger.handlers, logger.propagate = [handler], False
    try:
        yield handler
    finally:
        logger.handlers, logger.propagate = before


def muted(quiet: bool) -> AbstractContextManager[object]:
    """If `quiet`, drop all messages within the context."""
    return handled(lambda text: None) if quiet else nullcontext()
