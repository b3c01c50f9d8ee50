"""Overrides: from what a user states (a file, --set, flags) to a recipe."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError
from lockstep.recipe import Recipe, validated

_LITERAL_NAMES = {"true": True, "false": False, "none": None}


def parse(settings: Sequence[str], flags: Mapping[str, Any]) -> dict[str, Any]:
    """`NAME=VALUE` texts and the flags that were given, as one mapping.

    Raises: LockstepError if a setting is given twice or has no value.
    """
    changes: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise LockstepError(f"--set {text}: give NAME=VALUE, as in --set optimizer.momentum=0.9")
        if name in changes:
            raise LockstepError(f"--set {name} is given twice: {changes[name]} and {value}")
        changes[name] = _value(value)
    for name, flag in flags.items():
        if flag is not None:
            if name in changes:
                raise LockstepError(f"--{name.replace('_', '-')} and --set {name} state the same setting: give one")
            changes[name] = flag
    if "epochs" in changes and "steps" in changes:
        raise LockstepError("epochs and steps both state the length of the run: give one of them")
    return changes


def _value(text: str) -> Any:
    """A value as JSON reads it, with true/false/none in any case; anything else is text."""
    if text.lower() in _LITERAL_NAMES:
        return _LITERAL_NAMES[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML file. Raises: LockstepError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LockstepError(f"recipe file {path}: {error}") from None


def make(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> Recipe:
    """The recipe of `fields` with `changes` applied; dotted names reach inside a group of settings.

    Changing `towers` alone keeps the examples per tower; `tower_batch` states them, `batch` the global number.
    Raises: LockstepError naming the setting, what it got and what is allowed.
    """
    merged = json.loads(json.dumps(dict(fields)))
    if "batch" in changes and "tower_batch" in changes:
        raise LockstepError("batch (of all towers) and tower_batch (of each) state the same thing: give one of them")
    tower_batch = merged.pop("tower_batch", None)
    if tower_batch is None and "batch" in merged:
        tower_batch = merged["batch"] / merged.get("towers", 1)
    for name, value in changes.items():
        if name in ("steps", "epochs"):
            merged.pop("epochs" if name == "steps" else "steps", None)
        if name != "tower_batch":
            _put(merged, name, value)
    tower_batch = changes.get("tower_batch", tower_batch)
    if "batch" not in changes and isinstance(tower_batch, int | float):
        towers = merged.get("towers", 1)
        if isinstance(towers, int) and towers > 0:  # else towers itself is the mistake to report
            whole = tower_batch * towers
            merged["batch"] = int(whole) if whole == int(whole) else whole
    return validated(Recipe, merged)


def _put(fields: dict[str, Any], name: str, value: Any) -> None:
    """Set a.b = value; a new `kind` of a group drops the settings of the old one; weight_decay keys may have dots."""
    group, _, rest = name.partition(".")
    if not rest:
        fields[group] = value
        return
    inner = fields.get(group)
    inner = {"kind": inner} if isinstance(inner, str) else dict(inner or {})
    fields[group] = {"kind": value} if rest == "kind" else {**inner, rest: value}
