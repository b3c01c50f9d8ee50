"""The manual's tables of options and settings: `python -m benchmarks.tables` writes them into
docs/settings.md.

Options come from the command line's own parameters, settings from the fields of Recipe.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator
from inspect import getdoc
from typing import Any

from typer.main import get_command

from lockstep.commands.program import app
from lockstep.config.recipe import Recipe
from lockstep.config.schedule import SCHEDULES
from lockstep.data import AUGMENTATIONS, DATASETS, IMAGE_FOLDER
from lockstep.models import MODELS
from lockstep.optim import OPTIMIZERS
from lockstep.text import entries

NAMES = {
    "dataset": [*DATASETS, IMAGE_FOLDER],
    "model": MODELS,
    "augmentation": AUGMENTATIONS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
# the first setting of a section -> its heading
SECTIONS = {
    "name": "Data",
    "model": "Model and input",
    "towers": "Batch and length",
    "optimizer": "Optimizer",
    "precision": "Arithmetic, evaluation and seed",
}
Row = tuple[str, str, str]


def every_command() -> Iterator[tuple[str, Any]]:
    """Yield (words, command) for each command that has no commands of its own, as in "data
    fetch".
    """

    def below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", {})
        for name, each in inner.items():
            yield from below(f"{words} {name}".strip(), each)
        if not inner:
            yield words, command

    yield from below("", get_command(app))


def text(name: str) -> str:
    """Return the part `name` of the manual: "settings" or "commands"."""
    return "\n".join(settings() if name == "settings" else commands()).strip()


def commands() -> Iterator[str]:
    """Yield the lines of the part on commands: for each command a section with its arguments, and a
    table of its options that are no settings of a recipe.
    """
    settings_of_recipe = {*Recipe.model_fields} & {*Recipe.options}
    for words, command in every_command():
        arguments = [
            p.metavar if p.required else f"[{p.metavar}]"
            for p in command.params
            if p.param_type_name == "argument"
        ]
        # The seed of `verify` is its own.
        same = [p for p in command.params if p.name in settings_of_recipe and words != "verify"]
        also = ""
        if words == "train":
            also = " It also takes the options in the table of settings."
        elif same:
            named = ", ".join(f"`{p.opts[0]}`" for p in same)
            also = f" It also takes these options of the table of settings: {named}."
        yield from [f"### {words}", "", f"**lockstep {words}** {' '.join(arguments)}".rstrip(), ""]
        text = f"{command.get_short_help_str(120)}{also}"
        yield from [*textwrap.wrap(text, 120, break_on_hyphens=False), ""]
        if own := [
            option(p) for p in command.params if p.param_type_name == "option" and p not in same
        ]:
            yield from ["| option | default | meaning |", "|---|---|---|", *rows(own), ""]


def rows(cells: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table."""
    for row in cells:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |".replace(
            "|  |", "| |"
        )


def option(parameter: Any) -> Row:
    """Return the row of an option. The default is the parameter's own, or stated in the help as
    `Default: X.`
    """
    first, *others = parameter.opts
    names = [f"{first} {parameter.metavar or ''}".strip(), *others]
    meaning, default = parameter.help, parameter.default
    if stated := re.search(r" ?Default: (.+?)\.(?= |$)", meaning):
        meaning, default = meaning.replace(stated[0], "").strip(), stated[1]
    elif default in (None, False):
        default = "the recipe's" if parameter.name in Recipe.options else ""
    return ", ".join(f"`{name}`" for name in names), str(default), meaning


def settings() -> Iterator[str]:
    """Yield the lines of the part on settings: tables with the default and the description of
    each.
    """
    for name, text in entries(getdoc(Recipe) or "", "Attributes").items():
        if name in SECTIONS:
            yield from ["", f"### {SECTIONS[name]}", ""]
            yield from ["| setting | default | meaning |", "|---|---|---|"]
        names = f" Names: {', '.join(NAMES[name])}." if name in NAMES else ""
        shown = f"`{name}`, `--{name.replace('_', '-')}`" if name in Recipe.options else f"`{name}`"
        yield from rows([(shown, default(name), f"{text}{names}")])


def default(name: str) -> str:
    """Return the default of a setting of a recipe; nothing if a recipe must state it."""
    field = Recipe.model_fields[name]
    if field.is_required() or field.default == {}:
        return ""
    return {"None": "none", "True": "true", "False": "false"}.get(
        str(field.default), str(field.default)
    )
