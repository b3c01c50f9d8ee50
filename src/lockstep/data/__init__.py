"""Data sets, and the registries of what can be read and how it can be augmented."""

from lockstep.data.settings import Distort as Distort
from lockstep.data.settings import Plain as Plain
from lockstep.data.settings import Shift as Shift
from lockstep.settings import kinds

# name -> the function that reads it: (folder) -> {"train": Dataset, "test": Dataset, ...}
DATASETS = {
    "digits": "lockstep.data.digits:load",
    "cifar10": "lockstep.data.cifar:load_cifar10",
    "cifar100": "lockstep.data.cifar:load_cifar100",
    "mnist": "lockstep.data.mnist:load",
}

Augmentation = Plain | Shift | Distort
AUGMENTATIONS = kinds(Augmentation)
