"""From the function of a command to what typer registers.

The signature and the docstring are read from the function's source, and the descriptions of the
options from that of Recipe and Placement. None of these modules is imported before a command runs,
so that `--help` does not wait for pydantic and the code that starts processes.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin

import typer

from lockstep.text import entries

_PACKAGE = Path(__file__).parents[1]
# The first type of an annotation, as the source writes it -> the type of the option.
_TYPES: dict[str, Any] = {
    **{each.__name__: each for each in (str, int, float, bool, Path)},
    "Sequence[Path]": list[Path],
    "Sequence[str]": list[str],
    "Literal['ema', 'raw']": str,
}
_METAVARS = {int: "N", float: "X", Path: "DIR", str: "NAME"}

# What typer cannot know from a signature, for a parameter's name, or the function's and its name:
# the metavar of an argument,
_ARGUMENTS = {
    "run": "RUN",
    "source": "RUN|MODEL",
    "images": "FILE|DIR...",
    "photos": "PHOTOS",
    "repository": "OWNER/NAME",
    "train.what": "RECIPE|FILE.toml|RUN|PHOTOS",
    "show.what": "RECIPE|FILE.toml|RUN",
    "fetch.name": "NAME",
}
# and the flags, metavar, bounds and the shell's own help of an option.
_HINTS: dict[str, dict[str, Any]] = {
    "checkpoint": {"metavar": "best|STEP"},
    "weights": {"metavar": "ema|raw"},
    "quiet": {"flags": "--quiet -q"},
    "train.quiet": {
        "help": "Print only errors, and the record of --json. log.txt still has everything."
    },
    "evaluate.quiet": {
        "help": "Print only errors, and the record of --json. --watch still records in RUN/eval."
    },
    "verbose": {"flags": "--verbose -v"},
    "settings": {
        "flags": "--set",
        "metavar": "NAME=VALUE",
        "help": "Change any setting of the recipe. `lockstep show RECIPE` prints all of them.",
    },
    "init": {"metavar": "FILE|RUN|URL"},
    "verify.init": {"metavar": "FILE"},
    "predictions": {"metavar": "FILE.csv"},
    "interval": {"metavar": "S"},
    "top": {"min": 1},
    "port": {"min": 0, "max": 65535},
    "html": {"metavar": "FILE.html"},
    "output": {"flags": "--output -o", "metavar": "FILE"},
    "report.output": {"metavar": "FILE.html"},
    "start": {"flags": "--from", "metavar": "STEP", "min": 0},
    "every": {"flags": "--all"},
    "sample": {"min": 1},
    "link": {"metavar": "K", "min": 1},
    "verify.seed": {"metavar": "TEXT"},
    **{name: {"metavar": "FILE"} for name in ("statement", "key", "statements", "signers")},
}
_JSON = "Print the result as JSON on stdout, one record per line, and nothing else there."


def command_of(
    module: str,
    name: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    json: bool = True,
    within: str = "",
) -> Callable[..., None]:
    """Return what typer registers for the function `name` of a module of this folder. It takes the
    `options`, settings with their types, as **options. With `within`, that function is called, with
    its own parameters too.

    Settings of the recipe come first, those of the placement last. All are None unless they are
    given, so that their classes alone state the defaults.
    """
    source = _tree(f"commands/{module}.py")
    functions = [_definition(source, each) for each in (name, within) if each]
    docs = [ast.get_docstring(function) or "" for function in functions]
    own = [
        _of_function(name, one, default, entries(doc, "Args")[one.arg])
        for function, doc in zip(functions, docs, strict=True)
        for one, default in _arguments(function)
        if one.arg not in options
    ]
    recipe, placement = (
        [_of_setting(each, kind, of[each]) for each, kind in options.items() if each in of]
        for of in (_described("recipe"), _described("placement"))
    )
    switch = [_parameter("json_output", bool, False, typer.Option("--json", help=_JSON))]
    parameters = [*recipe, *own, *placement, *(switch if json else ())]
    infos = {each.name: get_args(each.annotation)[1] for each in parameters}
    flags = {
        each: _HINTS.get(each, {}).get("flags", _flag(each)).split()[0]
        for each, info in infos.items()
        if isinstance(info, typer.models.OptionInfo)
    }
    for info in infos.values():
        info.help = _in_shell(info.help, flags)

    def command(**given: Any) -> None:
        from lockstep.commands.shell import call

        call(getattr(import_module(f"lockstep.commands.{module}"), within or name), given)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    # What only the shell's help says of a function for Python stands in the module's docstring.
    _, _, of_shell = (ast.get_docstring(source) or "").partition("\n\n")
    text = "\n\n".join(filter(None, (docs[0].partition("\n\nArgs:\n")[0], of_shell)))
    # "\b": the lines stay as they are
    command.__doc__ = _in_shell(text, flags).replace("\n\nExamples:", "\n\n\b\nExamples:")
    return command


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse((_PACKAGE / path).read_text(encoding="utf-8"))


def _definition(source: ast.Module, name: str) -> Any:
    """Return the function or class `name` of a module."""
    return next(each for each in source.body if getattr(each, "name", "") == name)


@cache
def _described(settings: str) -> dict[str, str]:
    """Return the descriptions of the settings of the "recipe" or "placement", with shorthands."""
    source = _tree(f"config/{settings}.py")
    doc = ast.get_docstring(_definition(source, settings.capitalize())) or ""
    return entries(doc, "Attributes") | entries(doc, "Shorthands")


def _arguments(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, Any]]:
    """Yield the arguments of a function, each with its default, `...` if it has none."""
    arguments = function.args
    required = len(arguments.args) - len(arguments.defaults)
    defaults = [*[None] * required, *arguments.defaults, *arguments.kw_defaults]
    for one, default in zip([*arguments.args, *arguments.kwonlyargs], defaults, strict=True):
        yield one, ... if default is None else ast.literal_eval(default)


def _of_function(function: str, one: ast.arg, default: Any, text: str) -> inspect.Parameter:
    """Return the option or argument of a function's own parameter."""
    name, annotation = one.arg, _TYPES[ast.unparse(one.annotation or one).split(" | ")[0]]
    if metavar := _ARGUMENTS.get(f"{function}.{name}", _ARGUMENTS.get(name)):
        return _parameter(name, annotation, default, typer.Argument(metavar=metavar, help=text))
    hints = _HINTS.get(name, {}) | _HINTS.get(f"{function}.{name}", {})
    # With a flag of its own, a switch gets no --no-...
    flags = hints.get("flags", _flag(name)).split()
    told = {"help": text, "metavar": _METAVARS.get(annotation), **hints}
    told.pop("flags", None)
    return _parameter(name, annotation, default, typer.Option(*flags, **told))


def _of_setting(name: str, annotation: Any, text: str) -> inspect.Parameter:
    """Return the option of a setting. A choice of texts is a text, which the setting validates."""
    kind = get_args(annotation)[0] if get_args(annotation) else annotation
    if get_origin(kind) is Sequence:
        kind = list[str]
    kind = kind if isinstance(kind, type) or kind == list[str] else str
    return _parameter(name, kind, None, typer.Option(metavar=_METAVARS.get(kind), help=text))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parameter(name: str, annotation: Any, default: Any, info: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is ... else default,
        annotation=Annotated[annotation | None if default is None else annotation, info],
    )


def _in_shell(text: str, flags: Mapping[str, str]) -> str:
    """Return a text that names options as Python does, with the `flags` of the shell: `lr` becomes
    --lr, and `resume=True` --resume.
    """

    def in_shell(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in flags:
            return found[0]
        if value == "False":
            return flags[name].replace("--", "--no-", 1)
        value = "" if value in (None, "True") else value.strip('"')
        return f"{flags[name]} {value}".strip()

    return re.sub(r"`(\w+)(?:=([^`]+))?`", in_shell, text)
