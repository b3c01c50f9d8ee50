"""Reproducible data-parallel training of image classifiers, on PyTorch.

The recipe determines every bit of the weights. The placement, that is how many processes and which
devices compute, determines only how soon you have them.

    >>> import lockstep
    >>> run = lockstep.train("digits")  # a recipe, a recipe file, or a folder of images
    >>> print(run.accuracy, run.path)
    >>> print(lockstep.evaluate(run, split="train").accuracy)
    >>> classifier = lockstep.load(run)  # a run, its folder, or model.safetensors
    >>> print(classifier.predict("one.png").label)
    >>> print([p.label for p in classifier.predict(["two.png", "photos/"])])
"""

import importlib
import sys

__version__ = "0.1.0"

TYPE_CHECKING = False  # The module typing would be imported before the program handles signals.
if TYPE_CHECKING:
    from typing import Any

    from lockstep.classify.classifier import Classifier as Classifier
    from lockstep.commands.evaluate import (
        ClassRecord as ClassRecord,
        EvaluationRecord as EvaluationRecord,
        evaluate as evaluate,
    )
    from lockstep.commands.export import ExportRecord as ExportRecord, export as export
    from lockstep.commands.hub import PushRecord as PushRecord, push as push
    from lockstep.commands.predict import load as load
    from lockstep.commands.report import Report as Report, report as report
    from lockstep.commands.train import train as train
    from lockstep.config.placement import Placement as Placement
    from lockstep.config.recipe import Recipe as Recipe
    from lockstep.data.dataset import Dataset as Dataset
    from lockstep.errors import LockstepError as LockstepError
    from lockstep.pages.prediction import Prediction as Prediction
    from lockstep.recipes import RECIPES as RECIPES
    from lockstep.runs.run import Run as Run

if sys.platform == "win32":
    sys.tracebacklimit = 0  # The sentence says all.
    raise ImportError(
        "Lockstep does not run on Windows itself: it needs POSIX signals and file locks. Use WSL 2"
    )

# module -> its public names. It is imported when one is first used, so that --help does not wait
# for torch.
_NAMES = {
    "classify.classifier": ("Classifier",),
    "commands.evaluate": ("ClassRecord", "EvaluationRecord", "evaluate"),
    "commands.export": ("ExportRecord", "export"),
    "commands.hub": ("PushRecord", "push"),
    "commands.predict": ("load",),
    "commands.report": ("Report", "report"),
    "commands.train": ("train",),
    "config.placement": ("Placement",),
    "config.recipe": ("Recipe",),
    "data.dataset": ("Dataset",),
    "errors": ("LockstepError",),
    "pages.prediction": ("Prediction",),
    "recipes": ("RECIPES",),
    "runs.run": ("Run",),
}
_MODULES = {name: f"lockstep.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [*_MODULES]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> "Any":
    if name not in _MODULES:
        from lockstep.errors import called

        other = called(name) or name
        other = {"eval": "evaluate", "predict": "load"}.get(other, other)  # a command's function
        hint = f": did you mean {other}?" if other in _MODULES else ""
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}{hint}")
    return getattr(importlib.import_module(_MODULES[name]), name)
