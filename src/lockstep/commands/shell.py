"""A command is one function: Python programs call it, and `shell` makes of it what typer registers.

Its options are its parameters, with the help of its docstring's Args, and the fields of Recipe and
Placement that `shell` names. It returns what it found, and `present` prints that.
"""

import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from copy import copy
from dataclasses import asdict
from importlib.util import find_spec
from logging import INFO
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import typer

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.errors import ENVIRONMENT, LockstepError, option, printable
from lockstep.files import Record, discard, no_room
from lockstep.jobs.specs import Output, Spec, TrainSpec
from lockstep.launch.submit import Outcome, require_alone, submit
from lockstep.messages import DISTRIBUTION, LoggedLines, logger
from lockstep.runs.run import Run
from lockstep.schema import entries_of

STARTED = time.time()  # when the program started: `total_s` of a result counts from here

# The shell takes the first type of a union.
AnyRun = Annotated[Path | str | Run, typer.Argument(metavar="RUN")]
Source = Annotated[Path | str | Run, typer.Argument(metavar="RUN|MODEL")]
Checkpoint = Annotated[str | int | None, typer.Option(metavar="best|STEP")]
SettingsOption = Annotated[
    list[str] | Mapping[str, Any] | None, typer.Option("--set", metavar="NAME=VALUE")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q")]
_JSON = typer.Option(
    "--json", help="Print the result as JSON on stdout, a record a line, and nothing else there."
)

_OF_RECIPE = entries_of(Recipe, "Attributes") | entries_of(Recipe, "Shorthands")
_OF_PLACEMENT = entries_of(Placement, "Attributes")

# Whether the shell asked for JSON; None in a Python program that calls the function of a command.
_as_json: ContextVar[bool | None] = ContextVar("_as_json", default=None)


def shell(
    function: Callable[..., Any], fields: Sequence[str] = (), *, with_json: bool = True
) -> Callable[..., None]:
    """Return what typer registers for the `function` of a command. It takes the `fields` by name,
    as **options.

    Options of the recipe come first, those of the placement last. All are None unless they are
    given, so that the fields alone state the defaults.
    """
    text, _, _ = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
    texts = entries_of(function, "Args")
    parameters = [
        _of_function(parameter, texts.get(name))
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and name not in fields
    ]
    of_recipe = [_of_recipe(name) for name in fields if name in Recipe.options]
    of_placement = [_of_placement(name) for name in fields if name in Placement.model_fields]
    if with_json:
        parameters.append(_parameter("json_output", bool, _JSON, default=False))

    def command(**given: Any) -> None:
        as_json = given.pop("json_output", False)
        token = _as_json.set(as_json)
        try:
            present(function(**given), as_json, given.get("quiet", False))
        finally:
            _as_json.reset(token)

    every = [*of_recipe, *parameters, *of_placement]
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    # "\b": the lines stay as they are
    command.__doc__ = text.replace("\n\nExamples:", "\n\n\b\nExamples:")
    return command


def _of_function(parameter: inspect.Parameter, text: str | None) -> inspect.Parameter:
    """Return the option or argument of a function's own parameter."""
    annotation, info = parameter.annotation, typer.Option()
    if get_origin(annotation) is Annotated:
        annotation, info = get_args(annotation)
    if isinstance(annotation, UnionType):
        annotation = get_args(annotation)[0]
    info = copy(info)
    info.help = text
    # else it has its own flag; typer would add --no-... to a switch
    if isinstance(info, typer.models.OptionInfo) and not isinstance(info.default, str):
        info.param_decls = (f"--{parameter.name.replace('_', '-')}",)
    return _parameter(parameter.name, annotation, info, parameter.default)


def _of_recipe(name: str) -> inspect.Parameter:
    """Return the option of a setting of the recipe, or of a shorthand."""
    annotation = Recipe.shorthands.get(name) or _plain(Recipe.model_fields[name].annotation)
    return _parameter(name, annotation, typer.Option(help=_OF_RECIPE.get(name)), default=None)


def _of_placement(name: str) -> inspect.Parameter:
    """Return the option of a field: its bound and description, and its default in the help."""
    field, text = Placement.model_fields[name], _OF_PLACEMENT.get(name, "")
    bound = next((bound.ge for bound in field.metadata if hasattr(bound, "ge")), None)
    if field.default not in (None, False):
        number = isinstance(field.default, float)
        text += f" Default: {format(field.default, 'g') if number else field.default}."
    info = typer.Option(min=bound, help=text)
    return _parameter(name, _plain(field.annotation), info, default=None)


def _parameter(name: str, annotation: Any, info: Any, default: Any) -> inspect.Parameter:
    if default is None:
        annotation = annotation | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, info],
    )


def _plain(annotation: Any) -> Any:
    """Return the type of a field without None and without validators. A choice of texts is a
    text.
    """
    if get_origin(annotation) is Annotated or isinstance(annotation, UnionType):
        return _plain(get_args(annotation)[0])
    return annotation if isinstance(annotation, type) else str


def present(result: Any, as_json: bool, quiet: bool = False) -> None:
    """Print what a command returned: str(result), or its record as JSON. Of an iterator, each part
    at once.

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
    except BrokenPipeError:
        discard(sys.stdout)
        if isinstance(result, Generator):
            result.close()  # which may raise the exit code
    except OSError as error:
        if not no_room(error):
            raise
        discard(sys.stdout)
        if isinstance(result, Generator):
            result.close()
        raise LockstepError(f"stdout cannot be written: {error.strerror}", ENVIRONMENT) from None


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
    if missing := [module for module in modules if find_spec(module) is None]:
        install = f"pip install '{DISTRIBUTION}[{name}]'"
        raise LockstepError(f"{name} needs {', '.join(missing)}: {install}", ENVIRONMENT)


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
