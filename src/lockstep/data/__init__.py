"""Datasets and augmentations, and their registries.

`dataset.py` has the dataset and the plan of a step; `readers.py`, `folder.py` and `arrays.py` make
datasets. `catalog.py` and `fetch.py` find and download files. `augmentations.py` has the settings
of an augmentation, `transforms.py` its arithmetic.
"""

from lockstep.data.augmentations import (
    Crop as Crop,
    Distort as Distort,
    Features as Features,
    FlipTranslate as FlipTranslate,
    Plain as Plain,
    Shift as Shift,
)
from lockstep.schema import registry_of

# name -> the function that reads the dataset: (folder) -> {"train": Dataset, "test": Dataset, ...}.
# CATALOG in catalog.py lists the files of each dataset and where to download them.
DATASETS = {
    "digits": "lockstep.data.readers:load_digits",
    "cifar10": "lockstep.data.readers:load_cifar10",
    "mnist": "lockstep.data.readers:load_mnist",
}

# The dataset of a folder of images, which the placement names. `folder.py` reads it.
IMAGE_FOLDER = "folder"
# the dataset of a recipe whose data a Python program gave; `arrays.py` stores and reads it
MEMORY = "memory"

# To add an augmentation, write its settings class and add the class to this union.
Augmentation = Plain | Shift | Distort | FlipTranslate | Crop
AUGMENTATIONS = registry_of(Augmentation)
