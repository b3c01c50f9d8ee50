"""Optimizers and their settings. Every process updates its own copy of the weights; no optimizer
knows of towers.
"""

from lockstep.optim.optimizers import (
    EMA as EMA,
    SGD as SGD,
    Adam as Adam,
    AdamW as AdamW,
    Muon as Muon,
)
from lockstep.schema import registry_of

# To add an optimizer, write its settings class and add the class to this union.
Optimizer = SGD | Adam | AdamW | Muon
OPTIMIZERS = registry_of(Optimizer)
