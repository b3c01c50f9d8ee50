"""Map options of the original TensorFlow programs to Lockstep's, for the error message of an unknown option."""

from collections.abc import Sequence
from pathlib import PurePath
from shlex import quote
from typing import Any

from typer.core import TyperCommand, TyperGroup

from lockstep.errors import LockstepError

# Options of TensorFlow's CIFAR-10 tutorial and MNIST multi-GPU example -> how to say the same here.
# A switch has two answers: for on and for off.
_ANSWERS: dict[str, str | tuple[str, str]] = {
    "num_gpus": "lockstep train --towers {value} (logical replicas, which share the GPUs or cores there are)",
    "batch_size": "lockstep train --tower-batch {value} (batch_size was per GPU; --batch is for all towers together)",
    "train_dir": "lockstep train --runs {parent} --name {name} (a run is never erased; --resume continues it)",
    "data_dir": "lockstep train --data {value} (by default a data set is downloaded once, into the user's cache)",
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
    "eval_dir": "lockstep eval RUN --watch (which records in RUN/eval)",
}
_PLACEHOLDERS = {"data_dir": "DIR", "checkpoint_dir": "RUN", "eval_data": "SPLIT"}  # where no value is given; else N


def hint(option: str, args: Sequence[str], own: Sequence[str]) -> str | None:
    """What to say of the unknown `option` in `args`, as in `--num_gpus`; None if nothing is known of it.

    `own` are the options of the command: one of them may only have been written with underscores.
    """
    if (ours := option.replace("_", "-")) in own:
        return f"no such option: {option}: write {ours}"
    name = option.removeprefix("--").replace("-", "_")
    if name not in _ANSWERS:
        return None
    value = _value(option, args, is_switch=isinstance(_ANSWERS[name], tuple))
    answer = _answer(name, value)
    if any(word in own for word in answer.split()):
        answer = answer.removeprefix("lockstep train ")  # that is the command we are in, or one with the same option
    return f"{option if value is None else f'{option} {value}'} is TensorFlow's: use {answer}"


def _answer(name: str, value: str | None) -> str:
    answer = _ANSWERS[name]
    if isinstance(answer, tuple):
        return answer[value is not None and value.lower() in ("false", "f", "no", "n", "0")]
    if value is None:
        return answer.format(value=_PLACEHOLDERS.get(name, "N"), parent="PARENT", name="NAME")
    if (name, value) == ("eval_data", "train_eval"):
        value = "train"
    path = PurePath(value)
    return answer.format(value=quote(value), parent=quote(str(path.parent)), name=quote(path.name or "NAME"))


def _value(option: str, args: Sequence[str], is_switch: bool) -> str | None:
    """What was given: `--x=v` or `--x v`, or None. A switch takes no word after it but True or False."""
    for number, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name != option:
            continue
        if equals:
            return value
        after = args[number + 1] if number + 1 < len(args) else "-"
        takes = after.lower() in ("true", "false") if is_switch else not after.startswith("-")
        return after if takes else None
    return None


class _Hinting:
    """A command that answers an unknown option with the right one, where it knows it."""

    params: list[Any]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's. Raises: LockstepError with the hint."""
        given = list(args)  # the parser takes them out
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc,no-any-return]
        except Exception as error:
            option = getattr(error, "option_name", None)  # of click's NoSuchOption, which typer has in a private place
            own = [name for parameter in self.params for name in parameter.opts]
            if option not in own and (words := hint(str(option), given, own)) is not None:
                raise LockstepError(words) from None
            raise


class HintingCommand(_Hinting, TyperCommand):
    """A command of `lockstep`."""


class HintingGroup(_Hinting, TyperGroup):
    """`lockstep` itself."""
