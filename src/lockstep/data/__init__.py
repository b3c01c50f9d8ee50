"""Data sets, and the registries of what can be read and how it can be augmented."""

from lockstep.data.augmentations import Distort as Distort
from lockstep.data.augmentations import FlipTranslate as FlipTranslate
from lockstep.data.augmentations import Plain as Plain
from lockstep.data.augmentations import Shift as Shift
from lockstep.settings import kinds

# name -> the function that reads it: (folder) -> {"train": Dataset, "test": Dataset, ...}
# What its files are called and where they are downloaded: SOURCES in catalog.py.
DATASETS = {
    "digits": "lockstep.data.digits:load",
    "cifar10": "lockstep.data.cifar:load_cifar10",
    "cifar100": "lockstep.data.cifar:load_cifar100",
    "mnist": "lockstep.data.mnist:load",
    "fashion-mnist": "lockstep.data.mnist:load_fashion",
}

Augmentation = Plain | Shift | Distort | FlipTranslate
AUGMENTATIONS = kinds(Augmentation)
