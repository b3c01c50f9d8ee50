"""Evaluation: classify every example exactly once, in file order, on any number of processes."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.config.recipe import Recipe
from lockstep.core.captured import Captured
from lockstep.core.group import Group
from lockstep.core.loss import loss_of
from lockstep.core.multi_label import Found, found_labels
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
    predicted. With multi-label data an example is correct if exactly its labels are found, and
    there is no confusion matrix and no count without augmentation.
    """

    examples: int
    correct: int
    loss: float  # mean cross-entropy; with multi-label data the sum of the classes' binary ones
    class_examples: tuple[int, ...] = ()  # [classes], examples of each class
    # [classes][classes], the row is the label, the column the prediction. Predictions that are not
    # finite have no column, so a row may sum to less than its class has examples.
    confusion: tuple[tuple[int, ...], ...] = ()
    # by the image alone; None without test-time augmentation
    correct_without_augmentation: int | None = None
    # float32 [examples, classes] on the CPU, in process 0, if asked for, or with multi-label data
    logits: Tensor | None = field(default=None, compare=False)
    multi_label: Found | None = None  # which labels are found, with multi-label data

    def at(self, thresholds: Tensor | None, labels: Tensor) -> "Evaluation":
        """Return the same evaluation of multi-label data with other `thresholds`, float32
        [classes]; None: 0.5. `labels` are the dataset's. It needs the logits, which process 0 has.
        """
        assert self.logits is not None
        return self._finding(found_labels(self.logits, labels.cpu(), thresholds))

    def _finding(self, found: Found) -> "Evaluation":
        """Return the same evaluation with the labels that are `found`."""
        return replace(
            self, correct=found.exact, class_examples=tuple(found.examples), multi_label=found
        )

    @property
    def accuracy(self) -> float:
        """Return the share of examples that are classified correctly, in [0, 1]."""
        return self.correct / self.examples

    @property
    def class_correct(self) -> list[int]:
        """Return how many examples of each class are classified correctly, or get its label."""
        if self.multi_label:
            return [*self.multi_label.right]
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
        if self.correct_without_augmentation is not None:
            results["accuracy_without_augmentation"] = (
                self.correct_without_augmentation / self.examples
            )
        return results | (self.multi_label.summary() if self.multi_label else {})


@torch.no_grad()
def evaluate(
    network: Network,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    dataset: Dataset,
    group: Group,
    progress: Progress = lambda share: None,
    keep_logits: bool = False,
    captured: Captured | None = None,
) -> Evaluation:
    """Classify `dataset`, with the recipe's test-time augmentation. The result is
    equal in every process, and process 0 alone has the logits. `captured` classifies a
    chunk as a CUDA graph.

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
    shares = [owned(chunks, group.processes, process) for process in range(group.processes)]
    share = shares[group.process]
    keep_logits = keep_logits or dataset.multi_label
    # Sums stay on the device until the last chunk, so that a GPU does not wait for the host between
    # chunks. There is one loss for each chunk, so that the order in which they are summed does not
    # depend on the processes.
    losses = torch.zeros(chunks, dtype=torch.float64, device=device)
    # The last column counts predictions that are not finite. The last row begins with the count
    # without test-time augmentation.
    counts = torch.zeros(classes + 1, classes + 1, dtype=torch.int64, device=device)
    # Process 0, which has the first share, has room for all logits, the others for their own.
    room = shares if group.process == 0 else [share]
    kept = torch.zeros(size * sum(map(len, room)) * keep_logits, classes, device=device)
    for done, chunk in enumerate(share):
        progress(done / len(share))
        index = torch.arange(chunk * size, (chunk + 1) * size, device=device)
        counted = index < len(dataset)
        index.clamp_(max=len(dataset) - 1)
        labels = dataset.labels[index]
        classified = captured or partial(classify, recipe)
        logits, unaugmented = classified(network, dataset.pixels(index), counted)
        if keep_logits:
            kept[done * size : (done + 1) * size] = logits
        with arithmetic(recipe.arithmetic):
            loss = loss_of(logits, labels, each=True).double()
            losses[chunk] = (loss * counted).sum()
        if dataset.multi_label:
            continue
        counts[classes, 0].add_(((predicted(unaugmented, classes) == labels) & counted).sum())
        cells = labels * (classes + 1) + predicted(logits, classes)
        counts.view(-1).scatter_add_(0, cells, counted.long())
    # The chunks and rows of other processes are 0.
    losses = group.gather(losses).sum(0)
    loss_sum = math.fsum(losses.tolist())  # since Python 3.12, `sum` rounds in another way
    counts = group.gather(counts).sum(0).cpu()
    every = None
    if keep_logits:
        kept = _in_first(kept, [len(part) * size for part in shares], group)
        every = kept.cpu()[: len(dataset)] if group.process == 0 else None
    progress(1.0)
    if dataset.multi_label:
        found = every is not None and asdict(found_labels(every, dataset.labels.cpu()))
        found = json.loads(group.broadcast(json.dumps(found).encode()))
        counted_once = Evaluation(len(dataset), 0, loss_sum / len(dataset), logits=every)
        return counted_once._finding(Found(**found))
    confusion = counts[:classes, :classes]
    return Evaluation(
        len(dataset),
        correct=int(confusion.trace()),
        loss=loss_sum / len(dataset),
        class_examples=tuple(counts[:classes].sum(1).tolist()),
        confusion=tuple(map(tuple, confusion.tolist())),
        correct_without_augmentation=None
        if recipe.test_time_augmentation == "off"
        else int(counts[classes, 0]),
        logits=every,
    )


def _in_first(rows: Tensor, counts: Sequence[int], group: Group) -> Tensor:
    """Return the rows of all processes, one after the other, in process 0; `rows` in the others.

    Each process has the number of rows in `counts`. Process 0 has room for all, after its own.
    """
    rows = group.exchanged(rows)
    if group.process:
        group.exchange([(0, rows)], [])
    else:
        _, *others = enumerate(torch.split(rows, [*counts]))
        group.exchange([], others)
    return rows


def classify(
    recipe: Recipe, network: Forward, images: Tensor, counted: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return float32 logits [b, classes] twice: with the recipe's test-time augmentation, the mean
    over all views of `images`, and without it.

    `images` is uint8 [b, H, W, C], or the bytes of features if the recipe has a `head`. `counted`,
    bool [b], is False for the repeats that fill the last chunk up. The unmoved image has half the
    weight, the two moved ones the other half, and mirror images count equally. With
    "flip-translate-unsure", only the images whose two best classes are closest to each other (with
    multi-label data, those with a label that is nearest to 0.5) are moved: b // 4 of them, or a
    single image, the `counted` ones first.
    Source: multi-crop evaluation of Jordan 2024 (arXiv:2404.00498); further views for unsure images
    only, Hiverge 2025.
    """
    with arithmetic(recipe.arithmetic):
        images, views = recipe.input.test(images), recipe.test_time_augmentation
        unaugmented = network(images)
        if views == "off":
            return unaugmented, unaugmented
        unmoved = (unaugmented + network(images.flip(-1))) / 2
        if views == "flip":
            return unmoved, unaugmented
        if "unsure" not in views:
            return (unmoved + _moved(network, images)) / 2, unaugmented
        unsure = _unsure(unmoved, counted, recipe.multi_label)
        logits = (unmoved[unsure] + _moved(network, images[unsure])) / 2
        return unmoved.index_copy(0, unsure, logits), unaugmented


def _moved(network: Forward, images: Tensor) -> Tensor:
    """Return the mean logits of `images` [b, C, h, w] moved by one pixel, down and right, and up
    and left.
    """
    height, width = images.shape[2:]
    padded = functional.pad(images, (1, 1, 1, 1), mode="reflect")
    moved = [padded[:, :, shift : shift + height, shift : shift + width] for shift in (0, 2)]
    return sum(network(image) + network(image.flip(-1)) for image in moved) / 4  # type: ignore[return-value]


def predicted(logits: Tensor, classes: int) -> Tensor:
    """Return the class of each row of `logits`, int64 [b]; `classes` for a row that is not finite
    or predicts none.
    """
    return logits.argmax(1).clamp(max=classes).masked_fill(~logits.isfinite().all(1), classes)


def _unsure(logits: Tensor, counted: Tensor | None, multi_label: bool) -> Tensor:
    """Return the `counted` rows of `logits` [b, classes] whose two largest are closest, or with
    `multi_label` data those with a logit nearest to 0: int64 [b // 4, at least 1].

    If fewer rows are counted, others fill the result: the network's batch size stays fixed.
    """
    if multi_label:
        margins = logits.abs().amin(1)
    else:
        first, second = logits.softmax(1).topk(2).values.unbind(1)
        margins = first - second
    if counted is not None:
        margins.masked_fill_(~counted, torch.inf)
    return margins.argsort(stable=True)[: max(1, len(logits) // 4)]
