"""Sure: from which probability on a linear head is right as often as asked for, by training images that it left out.

A head is trained as the recipe says, without a fifth of the training images, and then classifies these. This is done
for as many fifths as have 1,000 images together, for all at once. A model file holds the probability of each answer,
so that the least probability of a sure answer can be derived for any share of right answers.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lockstep.config.recipe import Course
from lockstep.core.state import State
from lockstep.core.unlike import LEAST_IMAGES, every_view
from lockstep.data.dataset import Dataset
from lockstep.kernels.portable import arithmetic
from lockstep.optim.settings import parameter_groups

ANSWERS = "sure/answers"  # in a model file: float32 [n], each answer's probability, negative if the answer is wrong
_FOLDS, _ENOUGH = 5, 1_000


def facts(course: Course, state: State, train_set: Dataset) -> dict[str, Tensor]:
    """Return the tensors that a model file needs to tell sure answers; {} for too few images, or no linear head.

    `train_set` has features in place of images. Of `state` only the names, shapes and decay of the head count, so the
    result depends on recipe and data alone.
    """
    recipe = course.recipe
    names = [f"{recipe.head}.{kind}" for kind in ("weight", "bias")]
    linear = [*state.parameters] == names and state.parameters[names[0]].ndim == 2
    if len(train_set) < LEAST_IMAGES or not linear:
        return {}
    fold_of = _fold_of(train_set).to(train_set.labels.device)
    folds = min(_FOLDS, -(-_ENOUGH * _FOLDS // len(train_set)))
    with arithmetic(recipe.arithmetic):
        heads = _trained(course, state, train_set, fold_of, folds)
    answers = []
    for fold, (weight, bias) in enumerate(heads):
        rows = (fold_of == fold).nonzero()[:, 0]
        views = every_view(train_set.pixels(rows))[:, : 1 if recipe.test_views == "one" else 2]
        with arithmetic(recipe.arithmetic):
            probabilities = functional.linear(views.mean(1), weight, bias).softmax(1)
        found = probabilities.nan_to_num(0.0).max(1)
        answers.append(torch.where(found.indices == train_set.labels[rows], found.values, -found.values))
    return {ANSWERS: torch.cat(answers).cpu()}


def threshold(answers: Tensor, share: float) -> float:
    """Return the least probability from which on at least `share` of the `answers` are right; infinity if none is.

    One more wrong answer is counted than there are, so that few answers promise little.
    Raises: ValueError if `answers` cannot be those of `facts`.
    """
    if answers.dtype != torch.float32 or answers.ndim != 1 or not (answers.abs() <= 1.001).all():
        raise ValueError(f"its tensor {ANSWERS} has no probabilities")
    ordered = answers[answers.abs().argsort(descending=True, stable=True)]
    wrong = (ordered < 0).cumsum(0) + 1
    fits = (wrong <= (1 - share) * torch.arange(2, len(ordered) + 2)).nonzero()
    return float(ordered[fits[-1]].abs()) if len(fits) else float("inf")


def _fold_of(train_set: Dataset) -> Tensor:
    """Return the fold of each image, int64 [N]: an equal share of each class. Copies and groups stay together."""
    labels, numbers = train_set.labels.cpu().numpy(), dict[bytes, int]()
    units = train_set.groups
    if units is None:
        rows = (train_set.pixels(slice(row, row + 1)).cpu().numpy() for row in range(len(train_set)))
        units = torch.tensor([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows])
    _, firsts, unit_of = np.unique(units.numpy(), return_index=True, return_inverse=True)
    folds = np.empty(len(firsts), np.int64)
    folds[np.argsort(labels[firsts], kind="stable")] = np.arange(len(firsts)) % _FOLDS
    return torch.from_numpy(folds[unit_of])


def _trained(
    course: Course, state: State, train_set: Dataset, fold_of: Tensor, folds: int
) -> list[tuple[Tensor, Tensor]]:
    """Return the weight [classes, D] and bias of a head for each of the `folds`, trained without its images.

    All begin with zeros and see the batches of the run, and each leaves its images out of them.
    """
    recipe, labels = course.recipe, train_set.labels
    weights, biases = ([torch.zeros_like(t).requires_grad_() for _ in range(folds)] for t in state.parameters.values())
    names = [name for name in state.parameters for _ in range(folds)]
    heads = {
        f"{name}.{number}": tensor for number, (name, tensor) in enumerate(zip(names, [*weights, *biases], strict=True))
    }
    decay = {key: state.decay.get(name, 0.0) for key, name in zip(heads, names, strict=True)}
    optimizer = recipe.optimizer.build(parameter_groups(heads, decay))
    for step in range(course.steps):
        plan = course.plan(step)
        rows, epochs = (torch.from_numpy(part.reshape(-1)).to(labels.device) for part in (plan.examples, plan.epochs))
        views = every_view(train_set.pixels(rows))
        # Mirrored in every other epoch, as in training.
        features = views[torch.arange(len(rows)), (rows + epochs) % views.shape[1]]
        logits = functional.linear(features, torch.cat(weights), torch.cat(biases)).view(len(rows) * folds, -1)
        losses = functional.cross_entropy(
            logits, labels[rows].repeat_interleave(folds), reduction="none", label_smoothing=recipe.label_smoothing
        )
        kept = fold_of[rows, None] != torch.arange(folds, device=labels.device)
        loss = (losses.view(kept.shape) * kept).sum() * (_FOLDS / (_FOLDS - 1) / len(rows))
        for parameter, gradient in zip(heads.values(), torch.autograd.grad(loss, [*heads.values()]), strict=True):
            parameter.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = course.learning_rate(step) * group["scale"]
        with torch.no_grad():
            optimizer.step()
    return [(weight.detach(), bias.detach()) for weight, bias in zip(weights, biases, strict=True)]
