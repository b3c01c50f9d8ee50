"""Evaluation: every example exactly once, in file order, on any number of processes."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.data.dataset import Dataset
from lockstep.recipe import Recipe
from lockstep.reduce import Reduction, owned
from lockstep.tower import Network


@dataclass(frozen=True)
class Evaluation:
    """Counts over a split. loss: mean cross-entropy. A prediction that is not finite is wrong; ties go to the first."""

    examples: int
    correct: int
    loss: float

    @property
    def accuracy(self) -> float:
        """The share of examples classified right, in [0, 1]."""
        return self.correct / self.examples


@torch.no_grad()
def evaluate(
    recipe: Recipe,
    network: Network,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    dataset: Dataset,
    reduction: Reduction,
) -> Evaluation:
    """Classify `dataset`, not augmented, with the given weights; equal in every process.

    The examples are cut into chunks of `recipe.eval_batch`, which the processes share. The last chunk is filled up
    with repeats that are not counted: a kernel's result may depend on the number of images it is given.
    """
    network.load_parameters(parameters)
    network.load_buffers(buffers)
    network.module.eval()
    size = recipe.eval_batch
    chunks = -(-len(dataset) // size)
    shares = [owned(chunks, reduction.processes, process) for process in range(reduction.processes)]
    own = shares[reduction.process]
    table = torch.zeros(max(map(len, shares)), 3, dtype=torch.float64)
    for row, chunk in enumerate(own):
        index = torch.arange(chunk * size, (chunk + 1) * size, device=dataset.labels.device)
        counted = index < len(dataset)
        index.clamp_(max=len(dataset) - 1)
        labels = dataset.labels[index]
        logits = network(recipe.augmentation.test(dataset.images[index]))
        right = (logits.argmax(1) == labels) & logits.isfinite().all(1) & counted
        losses = functional.cross_entropy(logits, labels, reduction="none").double()
        table[row] = torch.stack([counted.sum(), right.sum(), (losses * counted).sum()])
    tables = reduction.gather(table).cpu()
    rows = [row for share, part in zip(shares, tables, strict=True) for row in part[: len(share)].tolist()]
    examples, correct = int(sum(row[0] for row in rows)), int(sum(row[1] for row in rows))
    assert examples == len(dataset)
    return Evaluation(examples, correct, sum(row[2] for row in rows) / examples)
