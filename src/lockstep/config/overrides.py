"""Overrides: from the user's settings (a file, --set, options) to a recipe."""

import copy
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.config.recipe import Recipe
from lockstep.errors import DATA, USAGE, LockstepError, option
from lockstep.files import near, parse_json, read_bytes
from lockstep.schema import Changes, Fields, dotted, validated

_MAX_BYTES = 1 << 20  # of a recipe file
_LITERAL_NAMES = {"true": True, "false": False, "none": None}
_OF_USER = ("model", "dataset")  # which may be a function of the user
_OF_ONE_MODEL = ("model_options", "weight_decay", "lr_factors")  # these name parts of a model
# shorthand -> the setting that it switches, and its values without and with it
_SWITCHES = {"portable": ("arithmetic", "native", "portable")}
_ONE_SETTING = (
    ("batch", "tower_batch"),
    ("steps", "epochs"),
    *((setting, name) for name, (setting, *_) in _SWITCHES.items()),
)
# With multi-label data, each class has a threshold of its own in place of these.
_OF_ONE_LABEL = ("balanced", "label_smoothing")
_OF_KINDS = ("augmentation", "optimizer", "schedule")  # groups whose settings follow their kind
_EVERY_MATRIX = "default"  # the key of weight_decay that fits any model


def parse(settings: Sequence[str] | Fields, options: Fields) -> Changes:
    """Return `NAME=VALUE` texts, or settings by name, and the options that are not None. Raises:
    LockstepError.
    """
    changes: Changes = dict(settings) if isinstance(settings, Mapping) else {}
    for text in () if isinstance(settings, Mapping) else settings:
        name, equals, value = str(text).partition("=")
        if not equals or not name:
            raise LockstepError(
                f"{option('settings', text)}: give NAME=VALUE, as in "
                f"{option('settings', 'optimizer.momentum=0.9')}"
            )
        if name in changes:
            raise LockstepError(
                f"{option('settings', name)} is given twice: {changes[name]} and {value}"
            )
        changes[name] = _value(value)
    for name, given in options.items():
        if given is not None:
            if name in changes:
                raise LockstepError(
                    f"{option(name)} and {option('settings', name)} set the same setting: give one"
                )
            changes[name] = given
    return _with_importable(changes)


def _value(text: str) -> Any:
    """Return a value as JSON reads it, or true/false/none in any case; any other text stays a
    text.
    """
    if text.lower() in _LITERAL_NAMES:
        return _LITERAL_NAMES[text.lower()]
    try:
        return parse_json(text)
    except ValueError:
        return text


def read_file(path: Path) -> Changes:
    """Return the settings in a TOML file, with dotted names. Raises: LockstepError if it cannot be
    read.
    """
    try:
        settings = dotted(tomllib.loads(read_bytes(path, _MAX_BYTES).decode("utf-8-sig")))
    except (
        OSError,
        ValueError,
    ) as error:  # ValueErrors: not TOML, not UTF-8, a number of thousands of digits
        problem = getattr(error, "strerror", None) or error
        if isinstance(error, UnicodeDecodeError):
            problem = "it is not in UTF-8: save it as UTF-8"
        code = DATA if isinstance(error, FileNotFoundError) else USAGE
        raise LockstepError(f"recipe file {path}: {near(path)}{problem}", code) from None
    except RecursionError:
        raise LockstepError(f"recipe file {path}: its brackets nest too deeply") from None
    return _with_importable(settings)


def _with_importable(settings: Fields) -> Changes:
    """Return `settings` with a model and dataset of the user as package.module:function."""
    return {
        name: _importable(name, value) if name in _OF_USER else value
        for name, value in settings.items()
    }


def _importable(name: str, value: Any) -> Any:
    """Return the model or dataset `value` as package.module:function if it is the user's own."""
    if callable(value):
        module = getattr(value, "__module__", "")
        function = getattr(value, "__qualname__", "")
        if not function or getattr(sys.modules.get(module), function, None) is not value:
            raise LockstepError(
                f"{name}={value!r} cannot be imported by its name: give a function of a module"
            )
        value = f"{module}:{function}"
    if ".py:" in str(value):  # the path of a file, as in nets/mynet.py:Net
        if str(value).startswith(("/", "..")):
            raise LockstepError(
                f"{name}={value}: give the path from the current folder down, as in "
                f"nets/mynet.py:Net"
            )
        value = str(value).removeprefix("./").replace(".py:", ":").replace("/", ".")
    module, _, function = str(value).partition(":")
    if module == "__main__":
        raise LockstepError(
            f"{name}: {function} is defined in a notebook or in the script that is running, and "
            f"the processes that train cannot import it from there: put it in a file, for example "
            f"mynet.py, and give {name}='mynet:{function}'"
        )
    return value


def make(
    base: Recipe | Fields, *layers: Fields, note: Callable[[str], None] = lambda text: None
) -> Recipe:
    """Return the recipe `base`, or of all its settings, changed by each of the `layers` in order
    (a file's settings, then options).

    A dotted name sets one value in a group of settings. Changing `towers` alone keeps the tower
    batch. `tower_batch` and `batch` both set the batch, so one layer may give only one of them;
    the same holds for `steps` and `epochs`. A layer with multi-label data turns off what is for
    one label, unless it states that too. A layer that changes the model drops the settings that
    name parts of the old model, and sends a `note`.
    Raises: LockstepError naming the setting, what it got and what is allowed.
    """
    fields = base.model_dump(mode="json") if isinstance(base, Recipe) else base
    changed = copy.deepcopy(dict(fields))
    for layer in layers:
        for name, other in _ONE_SETTING:
            if name in layer and other in layer:
                raise LockstepError(f"{name} and {other} are one setting: give one of them")
        _drop_settings_of_another_model(changed, layer, note)
        _change(changed, layer)
    return validated(Recipe, changed)


def _drop_settings_of_another_model(
    fields: Changes, source: Fields, note: Callable[[str], None]
) -> None:
    """If `source` changes the model, drop the settings in `fields` that name parts of the old one.

    Weight decay becomes the largest coefficient for every matrix, unless `source` gives another
    one.
    """
    old, new = fields.get("model"), source.get("model")
    if new is None or old is None or old == new:
        return
    given = {name.partition(".")[0] for name in source}
    texts = []
    for name in _OF_ONE_MODEL:
        values = fields.pop(name, None)
        if not values or not isinstance(values, Mapping) or name in given:
            continue
        if name != "weight_decay":
            texts.append(f"{name} is dropped")
        elif values.keys() == {_EVERY_MATRIX}:
            fields[name] = values
        elif not all(isinstance(value, int | float) for value in values.values()):
            fields[name] = values  # Validation reports it.
        else:
            coefficient = values.get(_EVERY_MATRIX, max(values.values()))
            fields[name] = {_EVERY_MATRIX: coefficient}
            texts.append(f"weight_decay is {coefficient:g} for every matrix")
    if texts:
        note(
            f"the recipe's settings for model {old} do not fit model {new}: {'; '.join(texts)}. "
            f"Choose others with {option('settings')}"
        )


def _change(fields: Changes, source: Fields) -> None:
    before = _tower_batch(fields)
    # The user states the length. A file may state `min_steps` too.
    if "steps" in source or "epochs" in source:
        for name in ("steps", "epochs", "min_steps"):
            fields.pop(name, None)
    for name in _OF_KINDS:
        if name in source and f"{name}.kind" in source:
            raise LockstepError(f"{name} and {name}.kind are one setting: give one of them")
    # A whole group comes first, then a new kind, as it drops the settings of the old kind.
    for name in sorted(source, key=lambda name: ("." in name) + (not name.endswith(".kind"))):
        if name in _SWITCHES:
            setting, *values = _SWITCHES[name]
            value = source[name]
            fields[setting] = values[value] if isinstance(value, bool) else value
        elif name != "tower_batch":
            _put(fields, name, source[name])
    if fields.get("multi_label"):
        for name in _OF_ONE_LABEL:
            if name not in source:
                fields.pop(name, None)
    for name in ("tower_batch", "towers"):
        if name in source and not _is_count(source[name]):
            raise LockstepError(
                f"recipe setting {name}: got {source[name]!r}: a whole number, 1 or more, is "
                f"allowed"
            )
    if "tower_batch" in source:
        before = source["tower_batch"]
    elif "batch" in source or "towers" not in source:
        return
    # Otherwise validation reports the towers before.
    if before is not None and _is_count(fields.get("towers", 1)):
        fields["batch"] = before * fields.get("towers", 1)


def _tower_batch(fields: Fields) -> int | None:
    """Return the tower batch before a change, or None if it is not a whole number."""
    batch, towers = fields.get("batch", 0), fields.get("towers", 1)
    if not _is_count(batch) or not _is_count(towers) or batch % towers:
        return None
    return int(batch // towers)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _put(fields: Changes, name: str, value: Any) -> None:
    """Set `name` to `value`. A new `kind` of a group drops the settings of its old kind."""
    # `rest` may have dots too: weight_decay's keys are parameter names.
    group, _, rest = name.partition(".")
    if not rest:
        fields[group] = value
        return
    inner = fields.get(group)
    inner = {"kind": inner} if isinstance(inner, str) else inner or {}
    if not isinstance(inner, Mapping):
        raise LockstepError(
            f"recipe setting {group} is one value ({inner!r}), so it has no setting {rest!r} inside"
        )
    another = name in [f"{each}.kind" for each in _OF_KINDS] and inner.get("kind") != value
    fields[group] = {"kind": value} if another else {**inner, rest: value}
