"""Commands of `lockstep` that a text names: parsed by the real program's parser, and not run."""

import re
import shlex
from typing import Any

from lockstep.config.overrides import make, parse
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.recipes import RECIPES, get_recipe
from tests.documents import PROGRAM


def check(line: str) -> None:
    """Parse `lockstep ...` as the program does, and check its settings.

    Raises: an exception of the parser, of pydantic or a LockstepError, if the program would refuse
    the line anywhere.
    """
    command, words = _command(line)
    if getattr(command, "commands", {}):  # Its options act as soon as they are parsed.
        _check_options(command, words)
        return
    given = command.make_context("lockstep", [*words]).params
    if command.name != "train":
        return
    fields = {name: given[name] for name in Placement.model_fields if given.get(name) is not None}
    Placement.model_validate(fields)
    changes = parse(given["settings"] or [], {name: given.get(name) for name in Recipe.options})
    what = given["what"] or "digits"
    recipe = "folder" if what == "photos/" else what
    if recipe in RECIPES:  # else a file or a run, which the line before may have made
        make(get_recipe(recipe), changes)


def check_mention(line: str) -> None:
    """Check a command in running text: its name and options alone, as in `lockstep eval --watch`,
    or a whole command.

    N stands for a number, and [brackets] for what may be left out. Raises: as `check`.
    """
    line = re.sub(r"(?<=\s)N\b", "2", re.sub(r" \.\.\.|[][]", "", line))
    command, words = _command(line)
    if any(not word.startswith("-") for word in words):
        check(line)
    else:
        _check_options(command, words)


def _check_options(command: Any, words: list[str]) -> None:
    own = {
        name
        for parameter in command.params
        for name in (*parameter.opts, "--help", "--install-completion")
    }
    if unknown := {*words} - own:
        raise ValueError(f"no such option: {', '.join(unknown)}")


def _command(line: str) -> tuple[Any, list[str]]:
    """Return the command that a line calls, and its arguments. Raises: ValueError if there is
    none.
    """
    words = shlex.split(line)
    assert words[0] == "lockstep", line
    command, words = PROGRAM, words[1:]
    while words and (inner := getattr(command, "commands", {}).get(words[0])) is not None:
        command, words = inner, words[1:]
    if getattr(command, "commands", {}) and words and not words[0].startswith("-"):
        raise ValueError(f"no such command: {words[0]}")
    return command, words
