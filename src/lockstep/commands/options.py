"""What commands share: options, also those made from fields of Placement and Recipe, and how they print a result."""

import contextlib
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import IO, Annotated, Any, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.errors import ENVIRONMENT, LockstepError, printable
from lockstep.files import discard
from lockstep.messages import on_stderr
from lockstep.settings import validated

STARTED = time.time()  # when the program started: `total_s` of a result counts from here

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
Source = Annotated[Path, typer.Argument(metavar="RUN|MODEL", help="A run's folder, or model.safetensors.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="best|STEP",
        help="The checkpoint after STEP steps, or the one with the best accuracy in training (--eval-every). "
        "Default: the newest; of a complete run with patience the best.",
    ),
]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Execute the model and dataset of your own that a file or a run names.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change any recipe setting; `lockstep show` lists them."),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print only errors, and the record of --json. log.txt still has everything."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON record on stdout, and nothing else there.")]

EVERYWHERE = ("data", "processes", "device")  # what every command that computes can be told
AS_TRAINED = MappingProxyType({"data": "that of training", "processes": "as in training"})


class Command(TyperCommand):
    """A command that says that Ctrl-C has stopped it, where it does not say so itself."""

    def invoke(self, ctx: Any) -> Any:
        """Execute the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            on_stderr("stopped by Ctrl-C: start again with the same command")
            raise


def options_from(
    *,
    recipe: Sequence[str] = (),
    placement: Sequence[str] = (),
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> Callable[..., Callable[..., Any]]:
    """Return a decorator that gives a command the options of these fields, in place of its `**options`.

    Options of the recipe come first, before the command's own ones; those of the placement last. All are None unless
    they are given, so that the fields alone state the defaults. `defaults` has, by name, what the help says in place of
    a field's default, for a command that has another one.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        arguments = [p for p in own if isinstance(get_args(p.annotation)[1], typer.models.ArgumentInfo)]
        first = [_of_recipe(name) for name in recipe]
        last = [_of_placement(name, Placement.model_fields[name], defaults.get(name)) for name in placement]
        others = [p for p in own if p not in arguments]
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in [*arguments, *first, *others, *last]]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def _of_recipe(name: str) -> inspect.Parameter:
    """Return the option of a setting of the recipe, or of a shorthand. The recipe has the default."""
    if name in Recipe.shorthands:
        kind, text = Recipe.shorthands[name]
    else:
        kind, text = _plain(Recipe.model_fields[name].annotation), str(Recipe.model_fields[name].description)
    return _parameter(name, kind, text, flag=f"{_flag(name)}/--no-{name}" if kind is bool else _flag(name))


def _of_placement(name: str, field: FieldInfo, default: str | None) -> inspect.Parameter:
    """Return the option of a field: its name, bound and description, and its default in the help."""
    bound = next((bound.ge for bound in field.metadata if hasattr(bound, "ge")), None)
    if default is None and field.default not in (None, False):
        default = f"{field.default:g}" if isinstance(field.default, float) else f"{field.default}"
    text = str(field.description)
    if default is not None:
        text = f"{text.partition(' Default: ')[0]} Default: {default}."
    return _parameter(name, _plain(field.annotation), text, flag=_flag(name), bound=bound)


def _parameter(name: str, kind: Any, text: str, *, flag: str, bound: Any = None) -> inspect.Parameter:
    option = typer.Option(flag, min=bound, help=text, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _plain(annotation: Any) -> Any:
    """Return the type of a field without None and without validators. A choice of texts is a text."""
    if get_origin(annotation) is Annotated or isinstance(annotation, UnionType):
        return _plain(get_args(annotation)[0])
    return annotation if isinstance(annotation, type) else str


def placement_of(options: Mapping[str, Any]) -> Placement:
    """Return the placement that the options of a command or a function state. Raises: LockstepError."""
    given = {name: value for name, value in options.items() if name in Placement.model_fields and value is not None}
    return validated(Placement, given | ({"data": absolute(given["data"])} if "data" in given else {}))


def absolute(folder: str | Path | None) -> Path | None:
    """Return a folder that the user names as an absolute path."""
    return Path(folder).expanduser().absolute() if folder is not None else None


def require_new_file(option: str, path: Path) -> None:
    """Raise a LockstepError, before anything is computed, if `option` cannot write a new file at `path`."""
    if os.path.lexists(path):
        raise LockstepError(f"{option} {path}: this file exists already: give a new one, or move it away")
    if not path.absolute().parent.is_dir():
        raise LockstepError(f"{option} {path}: there is no folder {path.parent}: make it first", ENVIRONMENT)
    if not os.access(path.absolute().parent, os.W_OK):
        raise LockstepError(f"{option} {path}: the folder {path.parent} is not writable: give another one", ENVIRONMENT)


def present(lines: Iterable[str], record: Mapping[str, Any] | None = None) -> None:
    """Print the `lines` of a result, or its `record` as JSON, if the user asked for that."""
    try:
        print(*(map(printable, lines) if record is None else [json.dumps(record)]), sep="\n", flush=True)
    except BrokenPipeError:  # the reader has closed the pipe, as in `lockstep eval | head`
        discard(sys.stdout)


def streams(quiet: bool) -> contextlib.AbstractContextManager[IO[str]]:
    """Return the stream for results: the caller's stdout, or none at all if `quiet`."""
    return open(os.devnull, "w") if quiet else contextlib.nullcontext(sys.stdout)
