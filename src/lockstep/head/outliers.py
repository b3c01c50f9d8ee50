"""Outliers: which images are unlike the training images, judged by the features of a network with a
trained head.

A model file holds the features of a few hundred training images. The score of an image is the
cosine similarity of its features to the third most similar ones. The threshold is the score that 99
% of the training images reach, each compared with the others only, but never the lowest score,
which may be that of an odd image. A held-out image of the same kind is like a training image that
was left out, so about 1 % of such images are below the threshold.

Source: the distance to the k-th nearest neighbour, after Sun, Ming, Zhu, Li: Out-of-distribution
detection with deep nearest neighbors, ICML 2022.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lockstep.data.dataset import Dataset

_PREFIX, _SURE = "unlike/", "sure/"  # of the names in a model file
_REFERENCES, _THRESHOLD = f"{_PREFIX}references", f"{_PREFIX}threshold"
LEAST_IMAGES = 50  # With fewer, more than 4 % of held-out images can be marked.
_MOST_IMAGES = 5_000  # that the threshold is computed from, in less than a second
# About 1 MB. Near duplicates among more of them make the threshold too strict.
_MOST_REFERENCES = 500
NEIGHBOUR, _SHARE = 3, 0.99


def outlier_tensors(train_set: Dataset) -> dict[str, Tensor]:
    """Return the tensors that a model file needs to tell unlike images, or {} if there are too few
    training images.

    `train_set` has features in place of images. The result depends only on these.
    """
    if len(train_set) < LEAST_IMAGES:
        return {}
    rows = _spread(len(train_set), _MOST_IMAGES)
    features = normalize(every_view(train_set.pixels(rows).cpu())[:, 0].double())
    rows = _spread(len(features), _MOST_REFERENCES)
    references = features[rows].half()
    similarities = features @ references.double().T
    similarities[rows, torch.arange(len(rows))] = -torch.inf  # An image is not its own neighbour.
    scores = similarities.topk(NEIGHBOUR).values[:, -1].sort().values
    below = int((len(scores) + 1) * (1 - _SHARE) + 1e-9)
    return {_REFERENCES: references, _THRESHOLD: scores[max(1, below - 1)].float()}


def divided(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Divide the `tensors` of a model file into those of the model, and those of this folder."""
    of_model = dict(tensors)
    names = [name for name in tensors if name.startswith((_PREFIX, _SURE))]
    return of_model, {name: of_model.pop(name) for name in names}


class Outliers:
    """Tells whether images are unlike the training images."""

    def __init__(self, tensors: Mapping[str, Tensor], features: int) -> None:
        """Use the result of `outlier_tensors`; an image has `features` values. Raises: ValueError
        if it is not sound.
        """
        kinds = {name: (tensor.dtype, tensor.shape[1:]) for name, tensor in tensors.items()}
        expected = {_REFERENCES: (torch.float16, (features,)), _THRESHOLD: (torch.float32, ())}
        if kinds != expected or len(tensors[_REFERENCES]) < NEIGHBOUR or tensors[_THRESHOLD].ndim:
            raise ValueError(
                f"its tensors {_PREFIX}* are not those of a model with {features} features"
            )
        self.references = tensors[_REFERENCES].double()
        self.threshold = tensors[_THRESHOLD].double()

    def __call__(self, features: Tensor) -> list[bool]:
        """Return for each image whether it is unlike, by its `features`, float [n, D] on the
        CPU.
        """
        similarities = normalize(features.double()) @ self.references.T
        return (similarities.topk(NEIGHBOUR).values[:, -1] < self.threshold).tolist()


def every_view(features: Tensor) -> Tensor:
    """Return features as float32 [n, views, D], from uint8 [n, 1, views, 4 * D]. The first view is
    not mirrored.
    """
    return features[:, 0].contiguous().view(torch.float32)


def _spread(length: int, count: int) -> Tensor:
    """Return at most `count` row numbers at even distances."""
    return torch.arange(min(count, length)) * length // min(count, length)
