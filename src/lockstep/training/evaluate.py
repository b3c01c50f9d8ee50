"""Evaluation: every example exactly once, in file order, on any number of processes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.config.recipe import Recipe
from lockstep.data.dataset import Dataset
from lockstep.reduce import Reduction, owned
from lockstep.training.tower import Network

Progress = Callable[[float], None]  # is told the share that is done, in [0, 1]


@dataclass(frozen=True)
class Evaluation:
    """Counts over a split. loss: mean cross-entropy. A prediction that is not finite is wrong; ties go to the first.

    class_examples: [classes]. confusion: [classes][classes], the row is the label, the column the prediction; one that
    is not finite has no column, so a row may add up to less than its class has examples.
    correct_one_view: how many are right by each image alone, where the recipe's `test_views` are several; else None.
    """

    examples: int
    correct: int
    loss: float
    class_examples: tuple[int, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    correct_one_view: int | None = None

    @property
    def accuracy(self) -> float:
        """The share of examples classified right, in [0, 1]."""
        return self.correct / self.examples

    @property
    def class_correct(self) -> list[int]:
        """How many of each class are classified right."""
        return [row[label] for label, row in enumerate(self.confusion)]

    def summary(self) -> dict[str, float]:
        """What is worth a row of a file that grows: no tables."""
        facts = {"accuracy": self.accuracy, "examples": self.examples, "correct": self.correct, "loss": self.loss}
        if self.correct_one_view is not None:
            facts["accuracy_one_view"] = self.correct_one_view / self.examples
        return facts


@torch.no_grad()
def evaluate(
    recipe: Recipe,
    network: Network,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    dataset: Dataset,
    reduction: Reduction,
    progress: Progress | None = None,
) -> Evaluation:
    """Classify `dataset`, seen as `recipe.test_views` says, with the given weights; equal in every process.

    The examples are cut into chunks of `recipe.eval_batch`, which the processes share. The last chunk is filled up
    with repeats that are not counted: a kernel's result may depend on the number of images it is given. Process 0
    tells `progress` what share of its chunks is done: before each of them, and when all processes are done.
    """
    tell = progress if progress and reduction.process == 0 else lambda share: None
    network.load_parameters(parameters)
    network.load_buffers(buffers)
    network.module.eval()
    size, classes = recipe.eval_batch, len(dataset.classes)
    chunks = -(-len(dataset) // size)
    shares = [owned(chunks, reduction.processes, process) for process in range(reduction.processes)]
    own = shares[reduction.process]
    losses = torch.zeros(max(map(len, shares)), dtype=torch.float64)  # of each chunk, so that their order is one
    # The last column: no prediction. The last row begins with how many are right by the image alone.
    counts = torch.zeros(classes + 1, classes + 1, dtype=torch.int64)
    for row, chunk in enumerate(own):
        tell(row / len(own))
        index = torch.arange(chunk * size, (chunk + 1) * size, device=dataset.labels.device)
        counted = index < len(dataset)
        index.clamp_(max=len(dataset) - 1)
        labels = dataset.labels[index]
        images = recipe.augmentation.test(dataset.images[index])
        logits, one_view = _logits(network, images, recipe.test_views, counted)
        counts[classes, 0] += (_predicted(one_view, classes) == labels)[counted].sum().cpu()
        cells = (labels * (classes + 1) + _predicted(logits, classes))[counted].cpu()
        counts += torch.bincount(cells, minlength=counts.numel()).view_as(counts)
        losses[row] = (functional.cross_entropy(logits, labels, reduction="none").double() * counted).sum()
    every_loss, every_count = reduction.gather(losses).cpu(), reduction.gather(counts).cpu()
    tell(1.0)
    total = sum(loss for share, part in zip(shares, every_loss, strict=True) for loss in part[: len(share)].tolist())
    table, one_view_correct = every_count.sum(0)[:classes], int(every_count.sum(0)[classes, 0])
    examples, confusion = int(table.sum()), table[:, :classes]
    assert examples == len(dataset)
    return Evaluation(
        examples,
        correct=int(confusion.trace()),
        loss=total / examples,
        class_examples=tuple(table.sum(1).tolist()),
        confusion=tuple(map(tuple, confusion.tolist())),
        correct_one_view=None if recipe.test_views == "one" else one_view_correct,
    )


def _predicted(logits: Tensor, classes: int) -> Tensor:
    """The class of each row of `logits`, int64 [b]; `classes`, which is none, for outputs beyond and if not finite."""
    return logits.argmax(1).clamp(max=classes).masked_fill(~logits.isfinite().all(1), classes)


def _logits(network: Network, images: Tensor, views: str, counted: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [b, classes] each: by the mean over `views` of the images [b, C, H, W], and by the images alone.

    Half the weight is the image's where it is, half its two neighbours'; the mirror images count alike. With "unsure"
    in `views` only those images are moved for which the two best classes are nearest to each other: a quarter of the
    `counted` (bool [b]).
    Source: multi-crop evaluation of Jordan 2024 (arXiv:2404.00498); views for the unsure only, Hiverge 2025.
    """
    one_view = network(images)
    if views == "one":
        return one_view, one_view
    here = (one_view + network(images.flip(-1))) / 2
    if views == "flip":
        return here, one_view
    chosen = _unsure(here, counted) if "unsure" in views else torch.arange(len(images), device=images.device)
    height, width = images.shape[2:]
    padded = functional.pad(images[chosen], (1, 1, 1, 1), mode="reflect")
    moved = [padded[:, :, shift : shift + height, shift : shift + width] for shift in (0, 2)]
    there = sum(network(image) + network(image.flip(-1)) for image in moved) / 4
    return here.index_copy(0, chosen, (here[chosen] + there) / 2), one_view


def _unsure(logits: Tensor, counted: Tensor) -> Tensor:
    """The `counted` rows of `logits` [b, classes] in which the two largest are nearest: int64 [b // 4, at least 1].

    Filled up by others where fewer are counted: the network is always given as many.
    """
    first, second = logits.softmax(1).topk(2).values.unbind(1)
    margins = (first - second).masked_fill(~counted, torch.inf)
    return margins.argsort(stable=True)[: max(1, len(logits) // 4)]
