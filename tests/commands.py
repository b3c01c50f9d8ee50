"""Commands of `lockstep` that a document names: parsed by the real program's parser, and not run."""

import shlex

from typer.main import get_command

from lockstep.cli import app
from lockstep.config.options import RECIPE_OPTIONS
from lockstep.config.overrides import make, parse
from lockstep.config.placement import Placement
from lockstep.recipes import RECIPES, get_recipe


def check(line: str) -> None:
    """Parse `lockstep ...` as the program does, and check its settings.

    Raises: an exception of the parser, of pydantic or a LockstepError, if the program would refuse the line anywhere.
    """
    words = shlex.split(line)
    assert words[0] == "lockstep", line
    command, words = get_command(app), words[1:]
    while words and (inner := getattr(command, "commands", {}).get(words[0])) is not None:
        command, words = inner, words[1:]
    if getattr(command, "commands", {}) and words and not words[0].startswith("-"):
        raise ValueError(f"no such command: {words[0]}")
    given = command.make_context("lockstep", [*words]).params
    if command.name not in ("train", "bench"):
        return
    fields = {name: given[name] for name in Placement.model_fields if given.get(name) is not None}
    Placement.model_validate(fields)
    changes = parse(given["settings"] or [], {name: given.get(name) for name in RECIPE_OPTIONS})
    what = given["what"] or "digits"
    recipe = "folder" if what == "photos/" else what
    if recipe in RECIPES:  # else a file or a run, which the line before may have made
        make(get_recipe(recipe).model_dump(mode="json"), changes)
