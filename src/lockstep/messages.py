"""Messages for the user: Python's logger "lockstep", the commands that messages name, and the
progress of long work.

A program that calls Lockstep gets them as it gets those of every library: where its handlers send
them. The command line and the worker processes handle them with `handled`.
"""

import io
import logging
import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path

from lockstep.errors import ENVIRONMENT, LockstepError, printable
from lockstep.text import duration

logger = logging.getLogger("lockstep")
logger.setLevel(logger.level or logging.INFO)  # Else the root logger's level would drop a run's.
DISTRIBUTION = "lockstep-images"  # under which pip installs Lockstep
_OF_RUN = re.compile(
    r"  (?!warning )|\d{4}-\d\d-\d\d "
)  # A row of a block but a warning, or a time.
_SILENT_S = 1.0  # Shorter work shows no progress.
_LINE_S = 10.0  # between two lines of progress
_WAIT_S = 5.0  # A shorter wait for other programs is not mentioned.
_AGAIN_S = 60.0  # between two lines about a wait


def program() -> str:
    """Return how the user's shell starts Lockstep: by its name, if that is the program beside this
    Python; else by the shorter path of that program; without one by Python.
    """
    installed, beside = shutil.which("lockstep"), Path(sys.executable).with_name("lockstep")
    if not beside.exists():
        return shlex.join([sys.executable, "-m", "lockstep"])
    if installed and beside.samefile(installed):
        return "lockstep"
    paths = [str(beside)]
    with suppress(OSError):  # The current folder may be gone.
        paths.append(os.path.relpath(beside))
    # A shell takes a word without a slash for a name.
    return shlex.quote(min((path for path in paths if "/" in path), key=len))


def command(*words: object) -> str:
    """Return a command of Lockstep that works in the user's shell as it is printed."""
    return f"{program()} {shlex.join(map(str, words))}"


def require_modules(what: str, modules: Sequence[str], extra: str) -> None:
    """Raise a LockstepError that says how to install an extra, unless the `modules` that `what`
    needs are installed.
    """
    if missing := [module for module in modules if find_spec(module) is None]:
        install = f"pip install '{DISTRIBUTION}[{extra}]'"
        raise LockstepError(f"{what} needs {', '.join(missing)}: {install}", ENVIRONMENT)


def _escape(record: logging.LogRecord) -> bool:
    """Escape control codes: names in a message may come from other people's files."""
    record.msg, record.args = printable(record.getMessage()), None
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


class LoggedLines(io.StringIO):
    """A stream whose lines go to the logger: the blocks of a run's start and end, its steps and its
    evaluations as INFO, warnings and notes as WARNING.
    """

    rest = ""  # of a line that has not ended

    def write(self, text: str) -> int:
        """Log the lines that have ended."""
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            logger.log(logging.INFO if _OF_RUN.match(line) else logging.WARNING, line)
        return len(text)


def on_stderr(text: str) -> None:
    """Print a message, so that a reader of a pipe sees it at once."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # The reader has gone, or the disk is full: what it lost ends nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


@contextmanager
def handled(write: Callable[[str], None], later: bool = False) -> Iterator[_Handler]:
    """Give every message within the context to `write` of the handler that this returns, and to no
    other handler.

    If `write` shows them `later`, those that have the extra "progress" go to the handlers outside
    of the context.
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


@contextmanager
def waiting(text: Callable[[], str]) -> Iterator[None]:
    """Say `text()` if what is within the context takes long, and again every minute.

    It waits for other programs, in calls that do not return meanwhile, so a thread says it.
    """
    over = threading.Event()

    def say() -> None:
        pause_s = _WAIT_S
        while not over.wait(pause_s):
            logger.warning(text(), extra={"progress": True})
            pause_s = _AGAIN_S

    thread = threading.Thread(target=say, name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def progress(
    description: str, total: int, *, at_once: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show the progress of `total` pieces of work, for one thread at a time. Yield a function that
    counts done pieces.

    With `at_once`, the first line comes before any piece is done.
    """
    began = time.monotonic()
    all_done, due = 0, began + _SILENT_S
    if at_once:
        logger.warning(description, extra={"progress": True})

    def advance(done: int) -> None:
        nonlocal all_done, due
        all_done += done
        now = time.monotonic()
        if now >= due and all_done:
            left = duration((now - began) * (total - all_done) / all_done)
            logger.warning(
                f"{description}: {all_done / total:.0%}, about {left} left",
                extra={"progress": True},
            )
            due = now + _LINE_S

    yield advance
