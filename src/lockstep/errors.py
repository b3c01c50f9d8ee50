"""Errors that a user can fix, the exit codes of the program, and the words of messages."""

from collections.abc import Iterable
from signal import SIGHUP, SIGINT, SIGTERM

CRASH = 1
USAGE = 2
DATA = 3
ENVIRONMENT = 4
SIGNAL_BASE = 128  # plus the signal's number, as in shells: 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM
STOP_SIGNALS = (SIGINT, SIGTERM, SIGHUP)  # If a run receives several, the first of these counts.

# What Lockstep calls it -> the words of other programs.
_SYNONYMS = {
    "lr": "learning_rate learningrate lr0 base_lr eta",
    "batch": "batch_size batchsize bs train_batch_size per_device_train_batch_size",
    "epochs": "num_epochs max_epochs n_epochs num_train_epochs",
    "steps": "max_steps num_steps train_steps iterations iters max_iter",
    "processes": "num_workers workers gpus num_gpus n_gpus devices nproc nproc_per_node "
    "num_processes world_size nodes",
    "device": "gpu cuda accelerator",
    "towers": "accumulate gradient_accumulation_steps accumulate_grad_batches",
    "image_px": "imgsz img_size image_size input_size resolution",
    "precision": "amp fp16 bf16 half mixed_precision dtype",
    "optimizer": "opt optim",
    "weight_decay": "wd l2",
    "schedule": "scheduler lr_scheduler warmup warmup_steps warmup_epochs",
    "augmentation": "augment augmentations transforms",
    "data": "data_dir data_path dataset_path datadir root classes num_classes class_names",
    "test_share": "test_size test_split",
    "held_out": "val_split val_size validation_split",
    "balanced": "class_weight class_weights",
    "test_time_augmentation": "tta",
    "runs": "output output_dir out_dir save_dir log_dir logdir project",
    "name": "run_name experiment exp_name",
    "model_options": "dropout drop_rate",
    "model": "arch architecture network model_name backbone",
    "init": "weights pretrained checkpoint_path ckpt resume_from",
    "seed": "random_seed random_state",
    "multi_label": "multilabel",
    "save_every": "save_steps save_freq checkpoint_every",
    "log_every": "log_interval log_freq print_freq logging_steps",
    "eval_every": "eval_steps eval_freq val_check_interval",
    "eval --checkpoint best": "patience early_stopping",
    "train": "fit learn",
    "eval": "test val validate evaluate score",
    "predict": "infer inference detect classify",
    "report": "runs list_runs plot",
    "recipes": "list models",
}
_CALLED = {word: name for name, words in _SYNONYMS.items() for word in words.split()}

# Whether a Python program reads the messages of this process, from all its threads. The command
# line sets it to False, and every worker process to what the launcher has.
in_python = True


class LockstepError(Exception):
    """An error that the user can fix. The message says what we got, what is allowed and what to do.

    Attributes:
        code: the program's exit code: 1 crash, 2 usage or recipe, 3 data, 4 environment or
            processes.
    """

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


class PeerLostError(LockstepError):
    """The connection to another process broke. It is never the first cause, so other errors are
    reported first.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, ENVIRONMENT)


def option(name: str, value: object = None) -> str:
    """Return an option as the reader of a message gives it: `--data DIR` in a shell, `data="DIR"`
    in Python.

    `name` is the argument's name in Python: that of --set is `settings`, and its `value` is
    NAME=VALUE. Without a value, only the option is named. True and False are for switches:
    `--resume` and `resume=True`, `--no-portable` and `portable=False`.
    """
    if in_python:
        if value is None:
            return f"{name}="
        given = str(value) if isinstance(value, int | float) else f'"{value}"'
        return f"{name}=[{given}]" if name == "settings" else f"{name}={given}"
    flag = "set" if name == "settings" else name.replace("_", "-")
    if value is False:
        return f"--no-{flag}"
    return f"--{flag}" if value is None or value is True else f"--{flag} {value}"


def printable(text: str, keep: str = "") -> str:
    """Return `text` with characters that do not print escaped, as Python escapes them, except those
    in `keep`.

    Names and messages may come from other people's files, and a terminal executes the control codes
    in them.
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def called(word: str) -> str:
    """Return what Lockstep calls an option, a setting or a command of another program, or ""."""
    return _CALLED.get(word.lower().strip("-").replace("-", "_"), "")


def unknown(what: str, got: str, allowed: Iterable[str], shown: Iterable[str] | None = None) -> str:
    """Return the error message for a name that is not in `allowed`. The nearest names come first.

    `shown` are the names to list, by default all; many are listed only if none is near. `x.got` is
    nearest to `got`, and `got` to `x.got`.
    """
    from difflib import get_close_matches  # not before the program handles signals

    got, allowed = got[:300], sorted(allowed)
    near = [name for name in allowed if name.endswith(f".{got}")] or get_close_matches(
        got, allowed, n=3, cutoff=0.5
    )
    inner = got.rpartition(".")[2]
    other = called(inner) or (inner if inner != got and inner in _SYNONYMS else "")
    if other and what.endswith(("option", "setting")):
        near = [other if other in allowed or " " in other else option(other)]
    listed = allowed if shown is None else sorted(shown)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    rest = "" if near and len(listed) > 12 else f"Allowed: {', '.join(listed)}"
    return f"unknown {what} {got!r}: {hint}{rest}".strip()
