"""The manual's tables of options and settings: `python -m benchmarks.tables` writes them into docs/usage.md.

Options come from the command line's own parameters, settings from the fields of Recipe.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

from benchmarks.figures import replaced
from lockstep.commands.program import app
from lockstep.config.recipe import Recipe
from lockstep.config.schedule import SCHEDULES
from lockstep.data import AUGMENTATIONS, DATASETS, IMAGE_FOLDER, POLICIES
from lockstep.models import MODELS
from lockstep.optim import OPTIMIZERS

PAGE = Path(__file__).parents[1] / "docs/usage.md"
END = "<!-- end -->"
NAMES = {
    "dataset": [*DATASETS, IMAGE_FOLDER],
    "model": MODELS,
    "augmentation": AUGMENTATIONS,
    "policy": POLICIES,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
VALUES = {int: "N", float: "X", Path: "DIR"}  # the type of an option -> what stands for its value
DETAILS = {  # name of a setting or option -> the title of the section that explains it
    "image_px": "Folders of images",
    "model": "A model of your own",
    "dataset": "A dataset of your own",
    "policy": "Training images",
    "weight_decay": "Weight decay and clipping",
    "patience": "End early",
    "precision": "Precision",
    "init": "Start from trained weights",
    "init_sha256": "Start from trained weights",
    "data": "Datasets",
}


def every_command() -> Iterator[tuple[str, Any]]:
    """Yield (words, command) for each command that has no commands of its own, as in "data fetch"."""

    def below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", {})
        for name, each in inner.items():
            yield from below(f"{words} {name}".strip(), each)
        if not inner:
            yield words, command

    yield from below("", get_command(app))


def text() -> str:
    """Return the manual with its tables made again."""
    page = PAGE.read_text()
    for table in tables():
        page = replaced(page, table)
    return page


def tables() -> list[str]:
    """Return every table of the manual between its markers."""
    found = [marked("settings of a recipe", "| setting | default | meaning |", settings())]
    for words, command in every_command():
        options = [p for p in command.params if p.param_type_name == "option"]
        parts = {f"options of {words}": options}
        if words == "train":
            of_recipe = [p for p in options if p.name in Recipe.options or {"--set", "--init"} & {*p.opts}]
            others = [p for p in options if p not in of_recipe]
            parts = {"recipe options of train": of_recipe, "placement options of train": others}
        for title, members in parts.items():
            found.append(marked(title, "| option | default | meaning |", map(option, members)))
    return found


def marked(title: str, head: str, rows: Iterable[tuple[str, str, str]]) -> str:
    """Return a table between the two markers of `title`."""
    cells = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    lines = [f"| {name} | {default} | {meaning} |".replace("|  |", "| |") for name, default, meaning in cells]
    return "\n".join([f"<!-- {title}: begin -->", "", head, "|---|---|---|", *lines, "", END])


def option(parameter: Any) -> tuple[str, str, str]:
    """Return the row of an option. The default is the parameter's own, or stated in the help as `Default: X.`"""
    first, *others = parameter.opts
    names = [f"{first} {value(parameter)}".strip(), *others]
    meaning, default = parameter.help, parameter.default
    if stated := re.search(r" ?Default: (.+?)\.(?= |$)", meaning):
        meaning, default = meaning.replace(stated[0], "").strip(), stated[1]
    elif default in (None, False):
        default = "the recipe's" if parameter.name in Recipe.options else ""
    return ", ".join(f"`{name}`" for name in names), str(default), explained(parameter.name, meaning)


def value(parameter: Any) -> str:
    """Return what stands for the value of an option; nothing for a switch."""
    if parameter.is_flag or parameter.metavar:
        return parameter.metavar or ""
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    return next((letter for kind, letter in VALUES.items() if kind in (annotation, *get_args(annotation))), "NAME")


def explained(name: str, text: str) -> str:
    """Return `text` with a link to the section that explains `name`, if the manual has one."""
    title = DETAILS.get(name)
    return f"{text} See [{title}](#{title.lower().replace(' ', '-')})." if title else text


def settings() -> Iterator[tuple[str, str, str]]:
    """Yield the row of each setting of a recipe: its default, and its description."""
    for name, field in Recipe.model_fields.items():
        names = f" Names: {', '.join(NAMES[name])}." if name in NAMES else ""
        yield f"`{name}`", default(name), explained(name, f"{field.description}{names}")


def default(name: str) -> str:
    """Return the default of a setting of a recipe; nothing if a recipe must state it."""
    field = Recipe.model_fields[name]
    if field.is_required() or field.default == {}:
        return ""
    return {"None": "none", "True": "true", "False": "false"}.get(str(field.default), str(field.default))
