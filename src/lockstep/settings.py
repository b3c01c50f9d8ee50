"""Settings: frozen, validated values that can be read before torch is imported.

A recipe must be known before torch is: the thread count it fixes has to be in the environment when torch's
thread pools start. So settings classes name their implementation and import it only when asked to build it.
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from lockstep.errors import LockstepError, unknown


class Settings(BaseModel):
    """A frozen group of settings; an unknown name in it is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python takes True for 1; who writes `towers=true` did not mean that."""
        if isinstance(value, bool) and bool not in (
            kind := cls.model_fields[str(info.field_name)].annotation,
            *get_args(kind),
        ):
            raise ValueError("true and false are for switches: give a value")
        return value

    def replace(self, **changes: Any) -> Self:
        """Return a copy with `changes`, validated like any other settings."""
        return type(self).model_validate({name: getattr(self, name) for name in type(self).model_fields} | changes)


T = TypeVar("T", bound=Settings)


def choose(what: str, registry: Mapping[str, type[T]]) -> Callable[[Any], T]:
    """A validator that reads `{"kind": name, ...}` (or just `name`) as the settings class `registry[name]`."""

    def validate(value: Any) -> T:
        if isinstance(value, Settings):
            return value  # type: ignore[return-value]
        if not isinstance(value, str | Mapping):
            raise ValueError(f"give a name, or settings with a kind. Allowed kinds: {', '.join(registry)}")
        fields = {"kind": value} if isinstance(value, str) else dict(value)
        kind = str(fields.get("kind", ""))
        if kind not in registry:
            raise ValueError(unknown(what, kind, registry))
        return registry[kind].model_validate(fields)

    return validate


def kinds(union: Any) -> dict[str, type[Any]]:
    """The registry of a union of settings classes: the default of each one's `kind` -> the class."""
    return {member.model_fields["kind"].default: member for member in get_args(union)}


def load_object(path: str) -> Any:
    """Import `package.module:name` and return the object; the current folder is searched too, as `python` does."""
    module_name, _, name = path.partition(":")
    if not name:
        raise LockstepError(f"{path!r} is not of the form package.module:name")
    folder = os.getcwd()
    if folder not in sys.path:  # at the end: a file named like an installed module must not stand in for it
        sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not (module_name + ".").startswith(error.name + "."):
            raise  # the module was found; what it imports was not: that is its author's to see in full
        raise LockstepError(f"no module {module_name!r} for {path!r}: run from its folder or install it") from None
    if not hasattr(module, name):
        raise LockstepError(unknown(f"name in {module_name}", name, [n for n in dir(module) if n[0] != "_"]))
    return getattr(module, name)
