"""Evaluation: classify every example exactly once, in file order, on any number of processes."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.config.recipe import Recipe
from lockstep.core.captured import Captured
from lockstep.core.group import Group
from lockstep.core.network import Network
from lockstep.core.task import Score, predicted, task_of
from lockstep.core.tree import owned
from lockstep.data.dataset import Dataset
from lockstep.files import Record
from lockstep.kernels.portable import arithmetic

Forward = Callable[[Tensor], Tensor]  # a network: from its input to logits
Progress = Callable[[float], None]  # receives the share of the evaluation that is done, in [0, 1]


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
) -> Score:
    """Classify `dataset`, with the recipe's test-time augmentation. The result is
    equal in every process, and process 0 alone has the logits. `captured` classifies a
    chunk as a CUDA graph.

    The processes share chunks of `eval_batch` examples. The last chunk is padded with repeats that
    do not count, because the bits of a kernel's result may depend on the batch size. Every process
    calls `progress` before each of its chunks, and when all processes are done.
    """
    recipe, task = network.recipe, task_of(dataset)
    network.load_parameters(parameters)
    network.load_buffers(buffers)
    network.module.eval()
    size = recipe.eval_batch
    classes = len(dataset.classes)
    device = dataset.labels.device
    chunks = -(-len(dataset) // size)
    shares = [owned(chunks, group.processes, process) for process in range(group.processes)]
    share = shares[group.process]
    keep_logits = keep_logits or task.needs_logits
    answers = 1 + (recipe.test_time_augmentation != "off")
    # Sums stay on the device until the last chunk, so that a GPU does not wait for the host between
    # chunks. There is one loss for each chunk, so that the order in which they are summed does not
    # depend on the processes.
    losses = torch.zeros(chunks, dtype=torch.float64, device=device)
    # A row for each example: its answers, with and without augmentation, and its logits. Process 0,
    # which has the first share, has room for all rows, the others for their own.
    room = shares if group.process == 0 else [share]
    width = answers + classes * keep_logits
    kept = torch.zeros(size * sum(map(len, room)), width, device=device)
    for done, chunk in enumerate(share):
        progress(done / len(share))
        index = torch.arange(chunk * size, (chunk + 1) * size, device=device)
        counted = index < len(dataset)
        index.clamp_(max=len(dataset) - 1)
        labels = dataset.labels[index]
        classified = captured or partial(classify, recipe)
        logits, unaugmented = classified(network, dataset.pixels(index), counted)
        rows = kept[done * size : (done + 1) * size]
        for column, each in enumerate((logits, unaugmented)[:answers]):
            rows[:, column] = predicted(each, classes)
        if keep_logits:
            rows[:, answers:] = logits
        with arithmetic(recipe.arithmetic):
            loss = task.loss(logits, labels, each=True).double()
            losses[chunk] = (loss * counted).sum()
    # The chunks of other processes are 0.
    losses = group.gather(losses).sum(0)
    loss_sum = math.fsum(losses.tolist())  # since Python 3.12, `sum` rounds in another way
    kept = _in_first(kept, [len(part) * size for part in shares], group)
    score: Score | None = None
    numbers: Record = {}
    if group.process == 0:
        every = kept.cpu()[: len(dataset)]
        own = every[:, answers:] if keep_logits else None
        score = task.score(dataset, every[:, :answers].long(), own, loss_sum / len(dataset))
        numbers = {name: value for name, value in vars(score).items() if name != "logits"}
    sent = group.broadcast(json.dumps(numbers).encode())
    progress(1.0)
    return score or task.kind_of_score(**json.loads(sent))


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
        unsure = _unsure(task_of(recipe).margins(unmoved), counted)
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


def _unsure(margins: Tensor, counted: Tensor | None) -> Tensor:
    """Return the `counted` rows with the smallest `margins` [b]: int64 [b // 4, at least 1].

    If fewer rows are counted, others fill the result: the network's batch size stays fixed.
    """
    if counted is not None:
        margins = margins.masked_fill(~counted, torch.inf)
    return margins.argsort(stable=True)[: max(1, len(margins) // 4)]
