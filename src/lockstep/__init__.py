"""Lockstep trains image classifiers on one or many devices, with the same result on all of them.

The recipe decides the bits; the placement decides only the speed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.config.placement import Placement as Placement
    from lockstep.config.recipe import Recipe as Recipe
    from lockstep.data.dataset import Dataset as Dataset
    from lockstep.data.plan import Plan as Plan
    from lockstep.errors import LockstepError as LockstepError
    from lockstep.recipes import RECIPES as RECIPES
    from lockstep.reduce import Reduction as Reduction
    from lockstep.run.folder import Run as Run
    from lockstep.training.state import State as State
    from lockstep.training.tower import Tower as Tower

# name -> its module. Modules are imported on first use, so that --help does not wait for torch.
_PUBLIC = {
    "Dataset": "lockstep.data.dataset",
    "LockstepError": "lockstep.errors",
    "Placement": "lockstep.config.placement",
    "Plan": "lockstep.data.plan",
    "RECIPES": "lockstep.recipes",
    "Recipe": "lockstep.config.recipe",
    "Reduction": "lockstep.reduce",
    "Run": "lockstep.run.folder",
    "State": "lockstep.training.state",
    "Tower": "lockstep.training.tower",
}

__all__ = [
    "RECIPES",
    "Dataset",
    "LockstepError",
    "Placement",
    "Plan",
    "Recipe",
    "Reduction",
    "Run",
    "State",
    "Tower",
]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("lockstep")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
