"""Functions that all commands share: do a job for the shell or for a Python program, and print for
the shell what a command returns.
"""

import json
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import asdict
from logging import INFO
from pathlib import Path
from typing import Any

import typer

from lockstep.commands import STARTED
from lockstep.errors import ENVIRONMENT, LockstepError, option, printable
from lockstep.files import Record, discard, no_room
from lockstep.jobs.specs import Output, Spec, TrainSpec
from lockstep.launch.submit import Outcome, require_alone, submit
from lockstep.messages import LoggedLines, logger, require_modules
from lockstep.runs.run import Run

# Whether the shell asked for JSON; None in a Python program that calls the function of a command.
_as_json: ContextVar[bool | None] = ContextVar("_as_json", default=None)


def call(function: Callable[..., Any], given: Record) -> None:
    """Call the `function` of a command for the shell, with what was `given`, and print what it
    returns.
    """
    as_json = given.pop("json_output", False)
    token = _as_json.set(as_json)
    try:
        present(function(**given), as_json, given.get("quiet", False))
    finally:
        _as_json.reset(token)


def present(result: Any, as_json: bool, quiet: bool = False) -> None:
    """Print what a command returned: str(result), or its record as JSON. Print each part of an
    iterator at once.

    A part that is a text is for people only, and one that is a dict for programs only, as the
    result of a run: its process 0 has printed the rest. A line of a table has escapes of its own.
    Where the reader of a pipe has gone, as in `lockstep eval | head`, nothing follows.
    """
    try:
        for part in result if isinstance(result, Iterator) else [result]:
            part = part.result() if isinstance(part, Run) else part
            if as_json and not isinstance(part, str | None):
                print(json.dumps(part if isinstance(part, dict) else asdict(part)), flush=True)
            elif not (as_json or quiet or isinstance(part, dict | None)):
                print(printable(part) if type(part) is str else part, flush=True)
    except OSError as error:
        gone = isinstance(error, BrokenPipeError)
        if not (gone or no_room(error)):
            raise
        discard(sys.stdout)
        if isinstance(result, Generator):
            result.close()  # which may raise the exit code
        if not gone:
            problem = f"stdout cannot be written: {error.strerror}"
            raise LockstepError(problem, ENVIRONMENT) from None


def in_shell() -> bool:
    """Return whether the shell called the command, and not a Python program."""
    return _as_json.get() is not None


def as_json() -> bool:
    """Return whether the shell asked for JSON."""
    return bool(_as_json.get())


def run_job(
    spec: Spec, quiet: bool = False, inline: bool = False, verbose: bool = False
) -> Outcome:
    """Do a job for the shell, or for a Python program, whose output and signals are its own.

    A Python program that has configured logging for the logger "lockstep" gets the lines of a run
    there, else on stdout.

    Raises: LockstepError; in the shell typer.Exit if the job was stopped.
    """
    if not in_shell():
        printed = logger.isEnabledFor(INFO) and not logger.hasHandlers()
        lines = sys.stdout if printed else LoggedLines()
        with open(os.devnull, "w") if quiet else nullcontext(lines) as stdout:
            return submit(spec, Output(quiet, verbose=verbose), inline=inline, stdout=stdout)
    if isinstance(spec, TrainSpec):
        spec = spec.replace(started=STARTED)
    outcome = submit(spec, Output(quiet, as_json(), verbose), inline=inline)
    if outcome.code:
        raise typer.Exit(outcome.code)
    return outcome


def record_of(spec: Spec, quiet: bool = False) -> Record:
    """Return the record of a job. Raises: LockstepError; if there is no record KeyboardInterrupt,
    or typer.Exit.

    In an outer launch of the shell, only process 0 has one. A Python program must be started once.
    """
    if not in_shell():
        require_alone(spec.job)
    record = run_job(spec, quiet).record
    if record is None:
        raise typer.Exit if in_shell() else KeyboardInterrupt
    return record


def require_extra(name: str, modules: Sequence[str]) -> None:
    """Raise a LockstepError, before anything is computed, unless the `modules` of an extra are
    installed.
    """
    require_modules(name, modules, name)


def require_writable(path: Path, force: bool, name: str = "output") -> None:
    """Raise a LockstepError, before anything is computed, if the file of option `name` cannot be
    written.

    With `force`, it may exist.
    """
    given = option(name, path)
    if not force and os.path.lexists(path):
        other = f", or {option('force', True)}" if name == "output" else ""
        raise LockstepError(f"{given}: this file exists already: give a new one{other}")
    folder = path.absolute().parent
    if not os.access(folder, os.W_OK):
        problem = (
            f"{folder} cannot be written" if folder.is_dir() else f"there is no folder {folder}"
        )
        raise LockstepError(f"{given}: {problem}: give a file in another folder", ENVIRONMENT)
