"""Datasets and augmentations, and the registries of both."""

from lockstep.data.augmentations import Distort as Distort
from lockstep.data.augmentations import FlipTranslate as FlipTranslate
from lockstep.data.augmentations import Plain as Plain
from lockstep.data.augmentations import Shift as Shift
from lockstep.settings import kinds

# name -> the function that reads the dataset: (folder) -> {"train": Dataset, "test": Dataset, ...}.
# SOURCES in catalog.py lists the files of each dataset and where to download them.
DATASETS = {
    "digits": "lockstep.data.digits:load",
    "cifar10": "lockstep.data.cifar:load_cifar10",
    "cifar100": "lockstep.data.cifar:load_cifar100",
    "mnist": "lockstep.data.mnist:load",
    "fashion-mnist": "lockstep.data.mnist:load_fashion",
}

# The dataset that is a folder of the user's own images. data/folder/ reads it by the recipe's settings.
FOLDER = "folder"

# To add an augmentation, write its settings class and add the class to this union.
Augmentation = Plain | Shift | Distort | FlipTranslate
AUGMENTATIONS = kinds(Augmentation)
