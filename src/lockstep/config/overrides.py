"""Overrides: from what a user states (a file, --set, flags) to a recipe."""

import copy
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.config.recipe import Recipe, validated
from lockstep.errors import LockstepError

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


def make(fields: Mapping[str, Any], *sources: Mapping[str, Any]) -> Recipe:
    """The recipe of `fields` changed by `sources` (a file's settings, then flags), later ones over earlier ones.

    Dotted names reach inside a group of settings. Changing `towers` alone keeps the examples per tower; `tower_batch`
    states them, `batch` the global number; one source may not state both, nor both `steps` and `epochs`.
    Raises: LockstepError naming the setting, what it got and what is allowed.
    """
    changed = copy.deepcopy(dict(fields))
    for source in sources:
        _refuse_contradiction(source)
        _change(changed, source)
    return validated(Recipe, changed)


def _refuse_contradiction(source: Mapping[str, Any]) -> None:
    for one, other in (("batch", "tower_batch"), ("steps", "epochs")):
        if one in source and other in source:
            what = "the batch (of all towers, of each)" if one == "batch" else "the length of the run"
            raise LockstepError(f"{one} and {other} both state {what}: give one of them")


def _change(fields: dict[str, Any], source: Mapping[str, Any]) -> None:
    before = _tower_batch(fields)
    for one, other in (("steps", "epochs"), ("epochs", "steps")):
        if one in source:
            fields.pop(other, None)
    for name in sorted(source, key=lambda name: not name.endswith(".kind")):  # a new kind first, then its settings
        if name != "tower_batch":
            _put(fields, name, source[name])
    if "tower_batch" in source:
        before = source["tower_batch"]
        if not _is_count(before):
            raise LockstepError(f"recipe setting tower_batch: got {before!r}: a whole number, 1 or more, is allowed")
    elif "batch" in source or "towers" not in source:
        return
    if before is not None and _is_count(fields.get("towers", 1)):  # else towers is the mistake to report
        fields["batch"] = before * fields.get("towers", 1)


def _tower_batch(fields: Mapping[str, Any]) -> int | None:
    """Examples per tower before a change, or None if that is no whole number."""
    batch, towers = fields.get("batch"), fields.get("towers", 1)
    if not isinstance(batch, int) or not _is_count(batch) or not _is_count(towers) or batch % towers:
        return None
    return int(batch // towers)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _put(fields: dict[str, Any], name: str, value: Any) -> None:
    """Set a.b = value; another `kind` of a group drops the settings of the one before."""
    group, _, rest = name.partition(".")  # what follows may have dots itself, as weight_decay's parameter names do
    if not rest:
        fields[group] = value
        return
    inner = fields.get(group)
    inner = {"kind": inner} if isinstance(inner, str) else inner or {}
    if not isinstance(inner, Mapping):
        raise LockstepError(f"recipe setting {group} is one value ({inner!r}) and has no {rest!r} inside")
    another = rest == "kind" and inner.get("kind") != value
    fields[group] = {"kind": value} if another else {**inner, rest: value}
