"""Optimizers and their settings. Every process updates its own copy of the weights; no optimizer knows of towers."""

from lockstep.optim.settings import EMA as EMA
from lockstep.optim.settings import SGD as SGD
from lockstep.optim.settings import Adam as Adam
from lockstep.optim.settings import AdamW as AdamW
from lockstep.optim.settings import Muon as Muon
from lockstep.settings import kinds

# To add an optimizer, write its settings class and add the class to this union.
Optimizer = SGD | Adam | AdamW | Muon
OPTIMIZERS = kinds(Optimizer)
