"""Evaluation: classify every example exactly once, in file order, on any number of processes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.config.recipe import Recipe
from lockstep.core.group import Group
from lockstep.core.network import Network
from lockstep.core.tree import owned
from lockstep.data.dataset import Dataset
from lockstep.files import finite
from lockstep.kernels.portable import arithmetic

Forward = Callable[[Tensor], Tensor]  # a network: from its input to logits
Progress = Callable[[float], None]  # receives the share of the evaluation that is done, in [0, 1]


@dataclass(frozen=True)
class Evaluation:
    """Counts over a split.

    A prediction that is not finite counts as wrong. Among equal logits the first class is
    predicted.
    """

    examples: int
    correct: int
    loss: float  # mean cross-entropy
    class_examples: tuple[int, ...] = ()  # [classes], examples of each class
    # [classes][classes], the row is the label, the column the prediction. Predictions that are not
    # finite have no column, so a row may sum to less than its class has examples.
    confusion: tuple[tuple[int, ...], ...] = ()
    correct_one_view: int | None = None  # by the image alone, if `test_views` are several
    # float32 [examples, classes] on the CPU, if asked for
    logits: Tensor | None = field(default=None, compare=False)

    @property
    def accuracy(self) -> float:
        """Return the share of examples that are classified correctly, in [0, 1]."""
        return self.correct / self.examples

    @property
    def class_correct(self) -> list[int]:
        """Return how many examples of each class are classified correctly."""
        return [row[label] for label, row in enumerate(self.confusion)]

    def summary(self) -> dict[str, Any]:
        """Return the scalar results as entries of JSON, which has no NaN: a loss that is not finite
        is None.
        """
        results = {
            "accuracy": self.accuracy,
            "examples": self.examples,
            "correct": self.correct,
            "loss": finite(self.loss),
        }
        if self.correct_one_view is not None:
            results["accuracy_one_view"] = self.correct_one_view / self.examples
        return results


@torch.no_grad()
def evaluate(
    network: Network,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    dataset: Dataset,
    group: Group,
    progress: Progress = lambda share: None,
    keep_logits: bool = False,
) -> Evaluation:
    """Classify `dataset`, in the views that the recipe's `test_views` name. The result is equal in
    every process.

    The processes share chunks of `eval_batch` examples. The last chunk is padded with repeats that
    do not count, because the bits of a kernel's result may depend on the batch size. Every process
    calls `progress` before each of its chunks, and when all processes are done.
    """
    recipe = network.recipe
    network.load_parameters(parameters)
    network.load_buffers(buffers)
    network.module.eval()
    size = recipe.eval_batch
    classes = len(dataset.classes)
    device = dataset.labels.device
    chunks = -(-len(dataset) // size)
    share = owned(chunks, group.processes, group.process)
    # Sums stay on the device until the last chunk, so that a GPU does not wait for the host between
    # chunks. There is one loss for each chunk, so that the order in which they are summed does not
    # depend on the processes.
    losses = torch.zeros(chunks, dtype=torch.float64, device=device)
    # The last column counts predictions that are not finite. The last row begins with the count by
    # one view.
    counts = torch.zeros(classes + 1, classes + 1, dtype=torch.int64, device=device)
    kept = torch.zeros(len(dataset) if keep_logits else 0, classes, device=device)
    for done, chunk in enumerate(share):
        progress(done / len(share))
        index = torch.arange(chunk * size, (chunk + 1) * size, device=device)
        counted = index < len(dataset)
        index.clamp_(max=len(dataset) - 1)
        labels = dataset.labels[index]
        logits, one_view = classify(recipe, network, dataset.pixels(index), counted)
        if keep_logits:
            kept[index[counted]] = logits[counted]
        with arithmetic(recipe.arithmetic):
            loss = functional.cross_entropy(logits, labels, reduction="none").double()
            losses[chunk] = (loss * counted).sum()
        counts[classes, 0].add_(((predicted(one_view, classes) == labels) & counted).sum())
        cells = labels * (classes + 1) + predicted(logits, classes)
        counts.view(-1).scatter_add_(0, cells, counted.long())
    # The chunks and rows of other processes are 0.
    losses = group.gather(losses).sum(0)
    counts = group.gather(counts).sum(0).cpu()
    progress(1.0)
    confusion = counts[:classes, :classes]
    return Evaluation(
        len(dataset),
        correct=int(confusion.trace()),
        loss=sum(losses.tolist()) / len(dataset),
        class_examples=tuple(counts[:classes].sum(1).tolist()),
        confusion=tuple(map(tuple, confusion.tolist())),
        correct_one_view=None if recipe.test_views == "one" else int(counts[classes, 0]),
        logits=group.gather(kept).sum(0).cpu() if keep_logits else None,
    )


def classify(
    recipe: Recipe, network: Forward, images: Tensor, counted: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return float32 logits [b, classes] twice: the mean over the recipe's views of `images`, and
    by one view.

    `images` is uint8 [b, H, W, C], or the bytes of features if the recipe has a `head`. `counted`,
    bool [b], is False for the repeats that fill the last chunk up. The unmoved image has half the
    weight, the two moved ones the other half, and mirror images count equally. With "unsure" in the
    views, only the images whose two best classes are closest to each other are moved: a quarter of
    the `counted` ones, or a single image.
    Source: multi-crop evaluation of Jordan 2024 (arXiv:2404.00498); views for the unsure only,
    Hiverge 2025.
    """
    with arithmetic(recipe.arithmetic):
        images, views = recipe.input.test(images), recipe.test_views
        one_view = network(images)
        if views == "one":
            return one_view, one_view
        unmoved = (one_view + network(images.flip(-1))) / 2
        if views == "flip":
            return unmoved, one_view
        if "unsure" not in views:
            return (unmoved + _moved(network, images)) / 2, one_view
        unsure = _unsure(unmoved, counted)
        logits = (unmoved[unsure] + _moved(network, images[unsure])) / 2
        return unmoved.index_copy(0, unsure, logits), one_view


def _moved(network: Forward, images: Tensor) -> Tensor:
    """Return the mean logits of `images` [b, C, h, w] moved by one pixel, down and right, and up
    and left.
    """
    height, width = images.shape[2:]
    padded = functional.pad(images, (1, 1, 1, 1), mode="reflect")
    moved = [padded[:, :, shift : shift + height, shift : shift + width] for shift in (0, 2)]
    return sum(network(image) + network(image.flip(-1)) for image in moved) / 4  # type: ignore[return-value]


def probabilities_of(logits: Tensor) -> Tensor:
    """Return the probabilities, float64 [n, classes]; NaN where logits are not finite."""
    unclassified = ~logits.isfinite().all(1, keepdim=True)
    return logits.double().softmax(1).masked_fill(unclassified, torch.nan)


def predicted(logits: Tensor, classes: int) -> Tensor:
    """Return the class of each row of `logits`, int64 [b]; `classes` for a row that is not finite
    or predicts none.
    """
    return logits.argmax(1).clamp(max=classes).masked_fill(~logits.isfinite().all(1), classes)


def _unsure(logits: Tensor, counted: Tensor | None) -> Tensor:
    """Return the `counted` rows of `logits` [b, classes] whose two largest are closest: int64 [b //
    4, at least 1].

    If fewer rows are counted, others fill the result: the network's batch size stays fixed.
    """
    first, second = logits.softmax(1).topk(2).values.unbind(1)
    margins = first - second
    if counted is not None:
        margins.masked_fill_(~counted, torch.inf)
    return margins.argsort(stable=True)[: max(1, len(logits) // 4)]
