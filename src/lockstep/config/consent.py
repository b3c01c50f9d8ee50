"""Consent: code that a file names is executed only if the command, or the Python call, names it too.

A recipe file, a run or a model file may come from somebody else. Importing its model or dataset executes a module, and
texts among the options of a model can name further code: `torch.hub:load` takes the address of a repository.
"""

import ast
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.config.recipe import Recipe, holds_text
from lockstep.errors import LockstepError
from lockstep.words import listed


def stated(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `changes` with a model that is given as a call, `timm:create_model(model_name="resnet18")`, taken apart.

    Its arguments become `model_options.NAME`. Raises: LockstepError if the call cannot be read, or an option is given
    twice.
    """
    model = changes.get("model")
    if not isinstance(model, str) or "(" not in model:
        return dict(changes)
    name, _, arguments = model.partition("(")
    try:
        call = ast.parse(f"_({arguments}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(one.arg is None for one in call.keywords):
            raise ValueError
        options = {f"model_options.{one.arg}": ast.literal_eval(one.value) for one in call.keywords}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise LockstepError(
            f"model {model!r}: give package.module:function, or with options as in "
            f'timm:create_model(model_name="resnet18")'
        ) from None
    for option in options:
        if option in changes:
            raise LockstepError(f"{option} is given twice, in {model!r} and as a setting: give one of them")
    return {**changes, "model": name, **options}


def check_code(source: Path, recipe: Recipe, given: Mapping[str, Any]) -> None:
    """Raise a LockstepError unless `given` names all of the user's code in `recipe`, which `source` names.

    `given` maps settings to what the user states: model, dataset (None stands for nothing) and settings of the model,
    as in `stated`. A setting that is not a key of it is not checked, because it is not used. Options of the model
    that hold no text need not be given: a number names no file and no code.
    """
    given = {name: value for name, value in stated(given).items() if value is not None or name in ("model", "dataset")}
    for name in ("model", "dataset"):
        if given.get(name) not in (None, own := getattr(recipe, name)):
            raise LockstepError(
                f"--{name} {given[name]}: {source} was trained with {name} {own}: give that, or leave it out"
            )
    needed = {name: value for name, value in recipe.custom_code.items() if name in given}
    missing = {name: value for name, value in needed.items() if given[name] is None}
    options = {name.removeprefix("model_options."): value for name, value in given.items() if "model_options." in name}
    if "model" in needed and "model" not in missing:
        if differing := [name for name, value in options.items() if recipe.model_options.get(name) != value]:
            raise LockstepError(f"--model: {source} has model {needed['model']}: its {', '.join(differing)} differ")
        unnamed = {} if "model_options" in given else recipe.model_options.keys() - options.keys()
        if any(holds_text(recipe.model_options[name]) for name in unnamed):
            missing["model"] = needed["model"]
    if not missing:
        return
    what = listed([f"a {name} that is not built in, {value}" for name, value in missing.items()])
    python = ", ".join(f"{name}={value!r}" for name, value in missing.items())
    options_too = " with these options" if "(" in missing.get("model", "") else ""
    raise LockstepError(
        f"{source} uses {what}, and loading it executes its code{options_too}. If it is yours, or you trust it, give "
        f"{python} in Python; on the command line, add "
        + " ".join(f"--{name} {shlex.quote(value)}" for name, value in missing.items())
    )
