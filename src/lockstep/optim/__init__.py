"""Optimizers: torch's, with their settings; every process steps its own copy, and none knows of towers."""

from lockstep.optim.settings import SGD as SGD
from lockstep.optim.settings import Adam as Adam
from lockstep.optim.settings import Muon as Muon
from lockstep.settings import kinds

# The registry: a new optimizer is a settings class and its name here.
Optimizer = SGD | Adam | Muon
OPTIMIZERS = kinds(Optimizer)
