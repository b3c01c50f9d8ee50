"""Random images in the shapes of the real datasets, for benchmarks and tests that read no files."""

import numpy as np

from lockstep.data.dataset import Dataset

MULTI_LABEL = "benchmarks.invented:several"  # an image may have several labels, or none
# dataset -> (height, width, channels, classes), so that the shape is known without the dataset's
# files
SHAPES = {
    MULTI_LABEL: (8, 8, 1, 10),
    "digits": (8, 8, 1, 10),
    "cifar10": (32, 32, 3, 10),
    "mnist": (28, 28, 1, 10),
}


def load(
    name: str, examples: int, image_px: int | None = None, grey: bool = False
) -> dict[str, Dataset]:
    """Return `examples` random images in the shape of dataset `name`, the same images in every
    process.

    image_px: the side of the images of a dataset without a size of its own, which gets three
    channels, or one with `grey`, and ten classes. An image of `MULTI_LABEL` has the label of each
    of its first pixels that is bright.
    """
    *shape, classes = (
        (image_px, image_px, 1 if grey else 3, 10) if image_px is not None else SHAPES[name]
    )
    images = np.random.default_rng(0).integers(0, 256, (examples, *shape), dtype=np.uint8)
    labels = np.arange(examples) % classes
    if name == MULTI_LABEL:
        labels = images.reshape(examples, -1)[:, :classes] >> 7
    dataset = Dataset.of(images, labels, tuple(map(str, range(classes))))
    return {"train": dataset, "test": dataset}
