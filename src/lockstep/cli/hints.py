"""Hints for unknown options: an option of the original TensorFlow programs maps to the option of Lockstep."""

from collections.abc import Sequence
from pathlib import PurePath
from shlex import quote
from typing import Any

from typer.core import TyperCommand, TyperGroup

from lockstep.errors import LockstepError
from lockstep.messages import on_stderr

# Options of TensorFlow's CIFAR-10 tutorial and MNIST multi-GPU example -> the equivalent of Lockstep.
# A switch has two equivalents: one for on, one for off.
_EQUIVALENTS: dict[str, str | tuple[str, str]] = {
    "num_gpus": "lockstep train --towers {value} (logical replicas, which share the available GPUs or cores)",
    "batch_size": "lockstep train --tower-batch {value} (batch_size was per GPU; --batch is for all towers together)",
    "train_dir": "lockstep train --runs {parent} --name {name} (a run is never overwritten; --resume continues it)",
    "data_dir": "lockstep train --data {value} (by default a dataset is downloaded once, into the user's cache)",
    "max_steps": "lockstep train --steps {value}",
    "num_steps": "lockstep train --steps {value}",
    "learning_rate": "lockstep train --lr {value}",
    "log_frequency": "lockstep train --log-every {value}",
    "display_step": "lockstep train --log-every {value}",
    "log_device_placement": ("lockstep train --log-placement", "lockstep train without --log-placement"),
    "use_fp16": ("lockstep train --precision float16 (or bfloat16)", "lockstep train --precision float32"),
    "eval_interval_secs": "lockstep eval RUN --watch --interval {value}",
    "run_once": ("lockstep eval RUN, without --watch", "lockstep eval RUN --watch"),
    "eval_data": "lockstep eval RUN --split {value}",
    "num_examples": "lockstep eval RUN --examples {value} (by default all are counted)",
    "checkpoint_dir": "lockstep eval {value} (the folder of a run, as in runs/digits-1)",
    "eval_dir": "lockstep eval RUN --watch (writes to RUN/eval)",
}
_PLACEHOLDERS = {"data_dir": "DIR", "checkpoint_dir": "RUN", "eval_data": "SPLIT"}  # for a missing value; else N
_OFF = ("false", "f", "no", "n", "0")


def hint(option: str, args: Sequence[str], own: Sequence[str]) -> str | None:
    """Return the error message for the unknown `option` in `args`, or None if the option is in no table.

    own: the options of the command. A user may write one of these with underscores.
    """
    if (hyphenated := option.replace("_", "-")) in own:
        return f"no such option: {option}: write {hyphenated}"
    name = option.removeprefix("--").replace("-", "_")
    if name not in _EQUIVALENTS:
        return None
    value = _value(option, args, is_switch=isinstance(_EQUIVALENTS[name], tuple))
    equivalent = _equivalent(name, value)
    if any(word in own for word in equivalent.split()):
        equivalent = equivalent.removeprefix("lockstep train ")  # the current command has this option
    return f"{option if value is None else f'{option} {value}'} is TensorFlow's: use {equivalent}"


def _equivalent(name: str, value: str | None) -> str:
    equivalent = _EQUIVALENTS[name]
    if isinstance(equivalent, tuple):
        on, off = equivalent
        return off if value is not None and value.lower() in _OFF else on
    if value is None:
        return equivalent.format(value=_PLACEHOLDERS.get(name, "N"), parent="PARENT", name="NAME")
    if (name, value) == ("eval_data", "train_eval"):
        value = "train"
    path = PurePath(value)
    return equivalent.format(value=quote(value), parent=quote(str(path.parent)), name=quote(path.name or "NAME"))


def _value(option: str, args: Sequence[str], is_switch: bool) -> str | None:
    """Return the value of `option`, from `--x=v` or `--x v`, or None. A switch accepts only true or false as `v`."""
    for number, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name != option:
            continue
        if equals:
            return value
        following = args[number + 1] if number + 1 < len(args) else "-"
        is_value = following.lower() in ("true", "false") if is_switch else not following.startswith("-")
        return following if is_value else None
    return None


class _Hinting:
    """Replaces the error for an unknown option by a LockstepError with a hint, if there is one for it."""

    params: list[Any]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does. Raises: LockstepError with the hint."""
        given = list(args)  # a copy, as the parser removes what it has parsed
        try:
            parsed: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
            return parsed
        except Exception as error:
            option = getattr(error, "option_name", None)  # of click's NoSuchOption, a class that typer keeps private
            own = [name for parameter in self.params for name in parameter.opts]
            if option is not None and option not in own and (message := hint(str(option), given, own)) is not None:
                raise LockstepError(message) from None
            raise


class HintingCommand(_Hinting, TyperCommand):
    """A command whose error for an unknown option names the right one, if that is known."""

    def invoke(self, ctx: Any) -> Any:
        """Execute the command. Say that Ctrl-C has stopped it, where it does not say so itself."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            on_stderr("stopped by Ctrl-C: start again with the same command")
            raise


class HintingGroup(_Hinting, TyperGroup):
    """A group of commands with the same error for an unknown option."""
