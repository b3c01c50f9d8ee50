"""Stop a program of Lockstep at a phase of its training. Python imports this file if its folder is
in PYTHONPATH.

`benchmarks/survival.py` sets the variables. A worker process that reaches PHASE for the first time
writes its process id into the file PHASE_FOLDER/at-RANK, and waits there until the file
PHASE_FOLDER/go exists. The phases "program" and "program import" are those of the program itself:
the import of its commands, and of torch. With PHASE_FAULT "exception" it raises an error instead,
in process 0. With "deaf" it drops signals while it waits, and the launcher asks only once: a
planted defect, which a test must notice.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

PHASE, FAULT = os.environ.get("PHASE", ""), os.environ.get("PHASE_FAULT", "")
FOLDER = Path(os.environ.get("PHASE_FOLDER", "."))
WORKER = "LOCKSTEP_RENDEZVOUS" in os.environ
# the step in "training", and the first checkpoint that "save begun" and "save done" mean
_STEP, _SAVED = (7, 4)


def reach(phase: str) -> None:
    """Stop here if this is the phase, and this process has not been here before."""
    rank = os.environ.get("RANK", "0")
    place = FOLDER / f"at-{rank}"
    if phase != PHASE or place.exists():
        return
    partial = FOLDER / f".at-{rank}"
    partial.write_text(str(os.getpid()))
    partial.rename(place)
    if FAULT == "exception" and rank == "0":
        raise RuntimeError("planted")
    before = signal.signal(signal.SIGTERM, lambda *_: None) if FAULT == "deaf" else None
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    if before is not None:
        signal.signal(signal.SIGTERM, before)


def before(
    phase: str, found: Callable[..., Any], if_: Callable[..., bool] = lambda *_: True
) -> Callable[..., Any]:
    """Return the function `found`, which reaches the phase when it is called with arguments for
    which `if_` is true.
    """

    @functools.wraps(found)
    def call(*args: Any, **kwargs: Any) -> Any:
        if if_(*args):
            reach(phase)
        return found(*args, **kwargs)

    return call


def after(phase: str, found: Callable[..., Any], if_: Callable[..., bool]) -> Callable[..., Any]:
    """Return the function `found`, which reaches the phase at its end."""

    @functools.wraps(found)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = found(*args, **kwargs)
        if if_(*args):
            reach(phase)
        return result

    return call


def _replica(module: Any) -> None:
    module.read_splits = before("read", module.read_splits)
    module.evaluate = before("evaluation", module.evaluate)


def _result(module: Any) -> None:
    module.confidence_tensors = before("finish", module.confidence_tensors)


def _agreement(module: Any) -> None:
    module.require_agreement = before("agreement", module.require_agreement)
    module.restore = before("restore", module.restore)


def _folder(module: Any) -> None:
    def named(expected: str) -> Callable[..., bool]:
        return lambda _, name, *rest: bool(name == expected)

    write = before("record", module.RunFolder.write, named("result.json"))
    write = after("made", write, named("recipe.json"))
    module.RunFolder.write = after("result", write, named("result.json"))


def _saver(module: Any) -> None:
    def late(folder: Path, tensors: Any, *_: Any) -> bool:
        return int(tensors["step"]) >= _SAVED

    module.save = after("save done", before("save begun", module.save, late), late)


def _train(module: Any) -> None:
    module.open_run = before("open", module.open_run)


def _folds(module: Any) -> None:
    module.cross_validated = before("folds", module.cross_validated)


def _tower(module: Any) -> None:
    def trains(*arguments: Any) -> bool:
        return len(arguments) > 4  # The probe gives fewer.

    def late(*arguments: Any) -> bool:
        return trains(*arguments) and bool(arguments[3] == _STEP)

    module.Tower.__call__ = before(
        "first step", before("training", module.Tower.__call__, late), trains
    )


def _features(module: Any) -> None:
    module.features_of = before("features", module.features_of)


def _group(module: Any) -> None:
    module.connect = before("join", module.connect)


def _supervisor(module: Any) -> None:
    def ask_once(supervisor: Any, beats: Any, again: bool) -> None:
        if not again:
            supervisor._send(signal.SIGTERM)

    if FAULT == "deaf":
        module.Supervisor._ask_to_stop = ask_once


_CHANGES: dict[str, Callable[[Any], None]] = {
    "lockstep.jobs.replica": _replica,
    "lockstep.jobs.result": _result,
    "lockstep.jobs.agreement": _agreement,
    "lockstep.jobs.train": _train,
    "lockstep.jobs.folds": _folds,
    "lockstep.runs.run_folder": _folder,
    "lockstep.runs.saver": _saver,
    "lockstep.core.tower": _tower,
    "lockstep.head.features": _features,
    "lockstep.core.group": _group,
    "lockstep.launch.supervisor": _supervisor,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `_CHANGES`, and changes each after its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's spec, or None for any other module."""
        if fullname == "torch":
            reach("import" if WORKER else "program import")
        if fullname == "lockstep.commands.program":
            reach("program")
        if fullname not in _CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _CHANGES[fullname](module)

        loader.exec_module = exec_module
        return spec


if PHASE:
    sys.meta_path.insert(0, _Finder())
