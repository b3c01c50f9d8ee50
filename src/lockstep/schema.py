"""Base of all settings: frozen, validated values that can be read before torch is imported.

The recipe fixes the number of CPU threads, and torch reads that number from the environment when it
is imported. So a settings class names its implementation and imports it only when it is asked to
build it.
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from lockstep.errors import LockstepError, option, unknown

S = TypeVar("S", bound="Settings")
Fields = Mapping[str, Any]  # the values of settings or options, by name
Changes = dict[str, Any]  # the same, which may still change
_SHOWN = 9  # errors that a message lists
_MAX_DEPTH = 20  # of brackets
_MOST_NUMBER = 1e300


class Settings(BaseModel):
    """A frozen group of settings. An unknown name in it is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
    shorthands: ClassVar[Sequence[str]] = ()  # names of no field, which set another one

    @field_validator("*", mode="before")
    @classmethod
    def _reject_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject booleans for numeric fields, as `towers=true` is a mistake. Python alone would
        read it as 1.
        """
        annotation = cls.model_fields[str(info.field_name)].annotation
        inner, values = get_args(annotation), [value]
        if get_origin(annotation) in (dict, list, tuple) and Any not in inner:
            values += value.values() if isinstance(value, Mapping) else ()
            values += value if isinstance(value, list | tuple) else ()
        if any(isinstance(each, bool) for each in values) and bool not in (annotation, *inner):
            raise ValueError("true and false are for switches: give a value")
        return value

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        """Return what `repr` shows: the fields that do not have their default."""
        fields = type(self).model_fields
        return [
            (name, value)
            for name, value in super().__repr_args__()
            if value != fields[str(name)].get_default()
        ]

    def replace(self, **changes: Any) -> Self:
        """Return a copy with `changes`, validated like settings from a file. Raises:
        LockstepError.
        """
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return validated(type(self), fields | changes)


def choose(what: str, registry: Mapping[str, type[S]]) -> Callable[[Any], S]:
    """Return a validator that reads `{"kind": name, ...}`, or just `name`, as the settings class
    `registry[name]`.
    """

    def validate(value: Any) -> S:
        if isinstance(value, Settings):
            return value  # type: ignore[return-value]
        if not isinstance(value, str | Mapping):
            raise ValueError(
                f"give a name, or settings with a kind. Allowed kinds: {', '.join(registry)}"
            )
        fields = {"kind": value} if isinstance(value, str) else dict(value)
        kind = str(fields.get("kind", ""))
        if kind not in registry:
            raise ValueError(unknown(what, kind, registry))
        return registry[kind].model_validate(fields)

    return validate


def registry_of(union: Any) -> dict[str, type[Any]]:
    """Return the registry of a union of settings classes: the default of each class's `kind` -> the
    class.
    """
    return {member.model_fields["kind"].default: member for member in get_args(union)}


def dotted(fields: Fields, prefix: str = "") -> Changes:
    """Return nested settings as one mapping with dotted names. An option of a model stays whole.

    Raises: LockstepError for two of one name.
    """
    flat: Changes = {}
    for key, value in fields.items():
        name = f"{prefix}{key}"
        whole = not isinstance(value, Mapping) or not value or prefix == "model_options."
        for inside, one in ({name: value} if whole else dotted(value, f"{name}.")).items():
            if inside in flat:
                raise LockstepError(f"setting {inside} is given twice: {flat[inside]} and {one}")
            flat[inside] = one
    return flat


def plain_values(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Return `value` as recipe.json gives it to a resumed run. Raises: ValueError if it would
    change there, or if lists and mappings in it nest more deeply than `depth`.
    """
    if depth == 0:
        raise ValueError("the brackets nest too deeply: give plain values and lists")
    if isinstance(value, Mapping):
        return {str(name): plain_values(part, depth - 1) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(part, depth - 1) for part in value]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float) and abs(value) < _MOST_NUMBER:
        return value
    raise ValueError("give finite numbers, texts, lists and mappings")


def validated(settings: type[S], fields: Fields) -> S:
    """Return `settings` made from `fields`. Raises: LockstepError that names each wrong setting and
    what is allowed.
    """
    try:
        return settings.model_validate(fields)
    except ValidationError as error:
        raise LockstepError(
            "; ".join(_sentence(settings, fields, item) for item in error.errors()[:_SHOWN])
        ) from None


def _sentence(settings: type[Settings], fields: Fields, item: Any) -> str:
    """Return one of pydantic's errors as a sentence: what we got and what is allowed."""
    name = ".".join(str(part) for part in item["loc"])
    title = settings.__name__.lower()
    if item["type"] == "extra_forbidden":
        allowed = _allowed_names(settings, fields, item["loc"])
        inner = (inside for inside in dotted(fields) if inside.partition(".")[0] in allowed)
        return unknown(f"{title} setting", name, {*allowed, *inner}, shown=allowed)
    if item["type"] == "missing":
        return f"{title} setting {name!r} is missing"
    problem = problem_of(item)
    if title == "placement":  # All its settings are options.
        return f"{option(name, item['input'])}: {problem}"
    try:
        got = f"{item['input']!r:.300}"
    except (ValueError, RecursionError):  # a number of thousands of digits, or deep brackets
        got = "a value that is too long"
    return f"{title} setting {name:.300}: got {got}: {problem}" if name else problem


def problem_of(item: Any) -> str:
    """Return what one of pydantic's errors says is allowed."""
    if item["type"] == "value_error":  # raised by a validator of ours
        return str(item["ctx"]["error"])
    text: str = item["msg"]
    return text.replace("Input should be", "it must be").partition(", unable")[0]


def _allowed_names(
    settings: type[Settings], fields: Fields, loc: tuple[str | int, ...]
) -> list[str]:
    """Return the names that exist where `loc` names one that does not: in the settings, or in a
    group of them.
    """
    if len(loc) == 1:
        return [*settings.model_fields, *settings.shorthands]
    group = str(loc[0])
    annotation: Any = settings.model_fields[group].annotation
    classes = [
        member
        for member in (annotation, *get_args(annotation))
        if isinstance(member, type) and issubclass(member, Settings)
    ]
    if len(classes) > 1:
        classes = [registry_of(annotation)[fields[group]["kind"]]]
    return [f"{group}.{name}" for name in classes[0].model_fields]


def load_object(path: str) -> Any:
    """Return the object `package.module:name`. Raises: LockstepError if there is none.

    The current folder is searched last, so that a file with the name of an installed module does
    not replace it. It stays on sys.path, because the object may import more when it is called.
    """
    module_name, _, name = path.partition(":")
    if module_name not in sys.modules and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not (module_name + ".").startswith(error.name + "."):
            # The module exists, but one of its own imports fails: its author needs the traceback.
            raise
        raise LockstepError(
            f"no module {module_name!r} for {path!r}: run from its folder or install it"
        ) from None
    if not hasattr(module, name):
        raise LockstepError(
            unknown(f"name in {module_name}", name, [n for n in dir(module) if n[0] != "_"])
        )
    return getattr(module, name)
