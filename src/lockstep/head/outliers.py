"""Outliers: which images are unfamiliar (out of distribution), judged by the features of a network
with a trained head.

A model file holds the features of a few hundred training images. The score of an image is the
cosine similarity of its features to the third most similar ones. The threshold is the score that 99
% of the training images reach, each compared with the others only, but never the lowest score,
which may belong to an odd image. So about 1% of new images of the same kind are below the
threshold. `benchmarks/unfamiliar.py` compares this with other published methods.

Source: the distance to the k-th nearest neighbour, after Sun, Ming, Zhu, Li: Out-of-distribution
detection with deep nearest neighbors, ICML 2022.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lockstep.data.dataset import Dataset

# of the names in a model file
_PREFIX = "unfamiliar/"
_OTHERS = ("confident/", "multi_label/")
_REFERENCES = f"{_PREFIX}references"
_THRESHOLD = f"{_PREFIX}threshold"
LEAST_IMAGES = 50  # With fewer, more than 4% of held-out images can be marked.
_MOST_IMAGES = 5_000  # that the threshold is computed from, in less than a second
# They take about 1 MB. With more of them, near duplicates would make the threshold too strict.
_MOST_REFERENCES = 500
NEIGHBOUR = 3
_SHARE = 0.99


def outlier_tensors(train_set: Dataset) -> dict[str, Tensor]:
    """Return the tensors that a model file needs to tell unfamiliar images, or {} if there are too
    few training images.

    `train_set` has features in place of images. The result depends only on these.
    """
    if len(train_set) < LEAST_IMAGES:
        return {}
    rows = _spread(len(train_set), _MOST_IMAGES)
    features = every_view(train_set.pixels(rows).cpu())[:, 0]
    features = normalize(features.double())
    rows = _spread(len(features), _MOST_REFERENCES)
    references = features[rows].half()
    similarities = features @ references.double().T
    similarities[rows, torch.arange(len(rows))] = -torch.inf  # An image is not its own neighbour.
    scores = _scores(similarities).sort().values
    below = int((len(scores) + 1) * (1 - _SHARE) + 1e-9)
    threshold = scores[max(1, below - 1)].float()
    return {_REFERENCES: references, _THRESHOLD: threshold}


def _scores(similarities: Tensor) -> Tensor:
    """Return the similarity to the third most similar reference: [n, references] -> [n]."""
    return similarities.topk(NEIGHBOUR).values[:, -1]


def divided(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Divide the `tensors` of a model file into those of the model, and those of this folder."""
    of_head = {name: t for name, t in tensors.items() if name.startswith((_PREFIX, *_OTHERS))}
    return {name: t for name, t in tensors.items() if name not in of_head}, of_head


class Outliers:
    """Tells whether images are unfamiliar."""

    def __init__(self, tensors: Mapping[str, Tensor], features: int) -> None:
        """Use the result of `outlier_tensors`; an image has `features` values. Raises: ValueError
        if it is not sound.
        """
        dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
        sound = (
            dtypes == {_REFERENCES: torch.float16, _THRESHOLD: torch.float32}
            and tensors[_THRESHOLD].ndim == 0
            and tensors[_REFERENCES].shape[1:] == (features,)
            and len(tensors[_REFERENCES]) >= NEIGHBOUR
        )
        if not sound:
            raise ValueError(
                f"its tensors {_PREFIX}* are not those of a model with {features} features"
            )
        self.references = tensors[_REFERENCES].double()
        self.threshold = tensors[_THRESHOLD].double()

    def __call__(self, features: Tensor) -> Tensor:
        """Return for each image whether it is unfamiliar, bool [n], by its `features`, float [n, D]
        on the CPU.
        """
        similarities = normalize(features.double()) @ self.references.T
        return _scores(similarities) < self.threshold


def every_view(features: Tensor) -> Tensor:
    """Return features as float32 [n, views, D], from uint8 [n, 1, views, 4 * D]. The first view is
    not mirrored.
    """
    return features[:, 0].contiguous().view(torch.float32)


def _spread(length: int, count: int) -> Tensor:
    """Return at most `count` row numbers at even distances."""
    count = min(count, length)
    return torch.arange(count) * length // count
