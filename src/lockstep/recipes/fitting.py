"""The recipe and the settings that fit a folder of images."""

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from lockstep.errors import option
from lockstep.messages import command
from lockstep.models import TIMM
from lockstep.recipes.built_in import FOLDER_STEPS, PACKAGED_NETWORKS
from lockstep.schema import Changes, Fields
from lockstep.text import listed

if TYPE_CHECKING:
    from lockstep.pictures.survey import Survey

PHOTOS, PHOTOS_TUNED, FOLDER = "photos", "photos-tuned", "folder"
_PHOTO_PX = 96  # the least median shorter side of photos that the recipe `photos` is for
# Sizes from 33 to 63 cost more than 64, where the network's first layer has stride 2.
_SMALL_PX = 32
# Grey images of `_SMALL_PX` are mostly letters and digits. A mirror turns these into other ones,
# and a narrower network learns them about as well (2,000 images of MNIST: 98.91% in place of 99.12
# %) in less than a third of the time.
_LETTERS = {
    "augmentation.flip": False,
    "test_time_augmentation": "off",
    "model_options.widths": [32, 96, 128],
}
# The weight decay at which the probabilities of `photos` are calibrated falls with the number of
# classes, and with the root of the number of training images. Measured on 2, 5, 5, 10 and 43
# classes, with 244 to 6,000 images.
_DECAY = 2.0
# With multi-label data, each class is a problem of its own, so their number does not matter. The
# best value was 0.06 for pairs of digits, and 1.1 for four flowers in a grid: no value fits all.
_DECAY_OF_MULTI_LABEL = 0.14
_DECAY_FACTORS = [0.25, 0.5, 1, 2, 4, 8, 16]
_EPOCHS = 11.0  # of the recipe `folder`; large sets are seen fewer times
_SEEN, _LEAST = 550_000, 3.0  # images of the run, and epochs
_LETTERS_SEEN, _LETTERS_LEAST = 300_000, 2.0
# the means of ImageNet's three values
_GREY = {"augmentation.mean": [0.449], "augmentation.std": [0.226]}
# the share of test images that would need another class to have the shares of the training images
_MOVED = 0.1
# Settings of the user that may depend on three channels.
_NEED_COLOUR = {"model", "augmentation", "augmentation.kind", *_GREY}


def _equal_shares(survey: "Survey") -> bool:
    """Return whether the user has given test images, and these have the classes in the shares of
    the training images.

    They then show how frequent each class is in use. Test images that Lockstep has taken from all
    images do not.
    """
    if not {"test", "validation"} & survey.manifest.folders.keys():
        return False
    train = Counter(name for photo in survey.splits["train"] for name in photo.labels)
    test = Counter(name for photo in survey.splits["test"] for name in photo.labels)
    moved = sum(
        abs(train[name] / train.total() - test[name] / max(1, test.total()))
        for name in survey.classes
    )
    return moved / 2 < _MOVED


def decay_of_head(stated: Fields, multi_label: bool, classes: int, count: int) -> Changes:
    """Return the settings of `photos` that choose the weight decay for `count` training images of
    so many `classes`, unless the user has `stated` it. `multi_label` is the recipe's setting.
    """
    # A network of the user has features of another size.
    model = str(stated.get("model", ""))
    known = not model or model in PACKAGED_NETWORKS or model.startswith(TIMM)
    if not known or {"weight_decay", "weight_decay.default"} & stated.keys():
        return {}
    decay, factors = _DECAY / classes, list[float]()
    if multi_label:
        decay, factors = _DECAY_OF_MULTI_LABEL, _DECAY_FACTORS
    settings: Changes = {"weight_decay.default": float(f"{decay / count**0.5:.2g}")}
    if factors and stated.get("head", True):
        settings["decay_factors"] = factors
    return settings


class Fit(NamedTuple):
    """What fits a folder of images.

    Attributes:
        recipe: the name of the recipe.
        settings: the settings that differ from the recipe's own, by dotted name.
        why: the cause in words.
    """

    recipe: str
    settings: Changes
    why: str

    def note(self) -> str:
        """Return the choice and its cause in one line."""
        settings = [
            f"{name}={str(value).lower()}"
            for name, value in self.settings.items()
            if name not in (*_GREY, "min_steps")
        ]
        recipe = f"{self.recipe} with {listed(settings)}" if settings else self.recipe
        other = option("settings")
        if self.recipe == PHOTOS:
            other = command("train", "folder", "--data", "DIR")
        return f"recipe {recipe}, because {self.why}; choose others with {other}"


def fitting(survey: "Survey", stated: Fields, recipe: str | None = None) -> Fit:
    """Return what fits the images in `survey`. The user has `stated` settings, which stay, and may
    name the recipe.

    Images whose median shorter side is 96 pixels or more are photos, in colour or not. All others
    get the recipe `folder`, whose size, channels, mirror images and length follow the images. The
    weight decay of `photos` follows the number of classes, or with multi-label data held-out
    images, so that its probabilities are calibrated. It is not `balanced` if the user's test images
    have the classes in the shares of the training images.
    """
    photos = [photo for split in survey.splits.values() for photo in split]
    side = median(photo.shorter_side for photo in photos)
    grey = all(photo.grey for photo in photos)
    count = len(survey.splits["train"])
    colours = "all images are grey" if grey else "the images are in colour"
    why = f"{colours} and their median shorter side is {side:g} pixels"
    # trained whole: the head of `photos` is not its head
    own_network = "model" in stated and "head" not in stated
    multi_label = stated.get("multi_label") is True
    one_channel = stated.get("grey") is True  # which the network of `photos` does not take
    if recipe is None and side >= _PHOTO_PX and not own_network and not one_channel:
        recipe = PHOTOS
        why += "; "
    elif recipe == PHOTOS:
        why = ""
    settings: Changes = {}
    if recipe == PHOTOS:
        classes = len(survey.classes)
        why += f"there are {classes} classes and {count:,} training images"
        settings = decay_of_head(stated, multi_label, classes, count)
        if not multi_label and "balanced" not in stated and _equal_shares(survey):
            settings["balanced"] = False
            why += "; the test images have the classes in the shares of the training images"
        return Fit(PHOTOS, settings, why)
    settings["image_px"] = _SMALL_PX if side <= _SMALL_PX else 64
    if stated.get("grey", grey and not _NEED_COLOUR & stated.keys()) is True:
        settings |= {"grey": True, **_GREY}
    seen, least = _SEEN, _LEAST
    if grey and side <= _SMALL_PX:
        settings |= _LETTERS
        seen, least = _LETTERS_SEEN, _LETTERS_LEAST
    epochs = max(least, round(seen / count, 1))
    if epochs < _EPOCHS and not {"epochs", "steps"} & stated.keys():
        # A stated length drops the recipe's least number of steps.
        settings |= {"epochs": epochs, "min_steps": FOLDER_STEPS}
        why += f"; there are {count:,} training images"
    # A stated group, such as augmentation=plain, stands for all settings in it. Another model has
    # other options.
    taken = {name.removesuffix(".kind") for name in stated}
    if "model" in stated:
        taken.add("model_options")
    for name in [*settings]:
        if {name, name.partition(".")[0]} & taken:
            del settings[name]
    return Fit(FOLDER, settings, why)
