"""Confidence: the probability from which on a linear head is right as often as asked for. It is
found by cross-validation on the training images. `outliers.py` tells images that are unfamiliar.

A head is trained as the recipe says, without one fifth of the training images (a fold), and then
classifies this fold. This is done for as many folds as have 1,000 images together, for all at once;
each class counts as many images as the smallest. A model file holds these answers, so that the
threshold of confident answers can be derived for any share of right ones.

With multi-label data, all five folds are classified, and each label that is found is an answer. The
threshold of a class, from which probability on its label is found, is half of the best F1 on these
images: for calibrated probabilities, no other threshold has a better F1 (Lipton, Elkan and
Narayanaswamy, 2014, arXiv:1402.1892). The threshold that happens to be the best on these images
would follow their noise.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lockstep.config.recipe import BoundRecipe, Recipe
from lockstep.core.backbone import Backbone
from lockstep.core.state import State
from lockstep.core.task import THRESHOLDS, Task, task_of
from lockstep.data.dataset import Dataset
from lockstep.errors import LockstepError
from lockstep.head.outliers import LEAST_IMAGES, Outliers, divided, every_view
from lockstep.kernels.portable import arithmetic
from lockstep.messages import progress

# In a model file: float32 [n, 3], for each image that was held out its label, the predicted class,
# and the probability of this class. With multi-label data there is a row for each label that was
# found; if the image does not have it, the number of classes stands in place of the label.
ANSWERS = "confident/answers"
SHARE = 0.95  # of right answers among confident ones, unless another one is asked for
FOLDS = 5
_ENOUGH = 1_000
_ENOUGH_OF_CLASS = 10  # answers, whatever their weights
_FINE = 2.0**30  # parts of a squared error that count, so that a sum of 2^33 errors is an int64
# A less probable answer is never confident: all other classes together are more than half as
# probable.
_LEAST = 2 / 3


def confidence_tensors(bound: BoundRecipe, state: State, train_set: Dataset) -> dict[str, Tensor]:
    """Return the tensors that a model file needs to tell confident answers; {} if there are too few
    images, or the head is not linear.

    `train_set` has features in place of images. The result depends on recipe and data alone, see
    `held_out`.
    """
    if len(train_set) < LEAST_IMAGES or not is_linear(bound.recipe, state):
        return {}
    classes, task = len(train_set.classes), task_of(train_set)
    folds = task.folds(task.counts(train_set.labels, classes), FOLDS, _ENOUGH)
    rows, probabilities = held_out(bound, state, train_set, folds)
    return answer_tensors(task, probabilities.cpu(), train_set.labels[rows].cpu(), classes)


def answer_tensors(
    task: Task, probabilities: Tensor, labels: Tensor, classes: int
) -> dict[str, Tensor]:
    """Return the tensors of `confidence_tensors` for held-out images, by their `probabilities`,
    float32 [n, classes], and their `labels`, both on the CPU.
    """
    tensors = task.best_thresholds(probabilities, labels)
    thresholds = task.thresholds(tensors.get(THRESHOLDS), classes)
    images, found = task.found(probabilities, thresholds).nonzero().unbind(1)
    own = task.true_classes(labels, images, found, classes)
    answers = torch.stack([own.float(), found.float(), probabilities[images, found]], 1)
    return {ANSWERS: answers, **tensors}


def is_linear(recipe: Recipe, state: State) -> bool:
    """Return whether the head is one linear layer with a bias, as `held_out` takes it to be."""
    names = [f"{recipe.head}.weight", f"{recipe.head}.bias"]
    return [*state.parameters] == names and state.parameters[names[0]].ndim == 2


def with_best_decay(bound: BoundRecipe, state: State, train_set: Dataset) -> BoundRecipe:
    """Return the recipe with its weight decay multiplied by the best of its `decay_factors`: the
    one with the least mean squared difference between probabilities of `held_out` and labels.

    Raises: LockstepError unless the head is one linear layer with a bias.
    """
    recipe, trials = bound.recipe, dict[int, BoundRecipe]()
    if not is_linear(recipe, state):
        raise LockstepError(
            f"decay_factors need a head that is one linear layer with a bias, and {recipe.head} "
            f"is not: leave them out"
        )
    with progress("choosing the weight decay", len(recipe.decay_factors)) as advance:
        for factor in recipe.decay_factors:
            decay = {name: c * factor for name, c in recipe.weight_decay.items()}
            trial = replace(bound, recipe=recipe.replace(weight_decay=decay, decay_factors=()))
            rows, probabilities = held_out(trial, state, train_set, FOLDS)
            own = task_of(train_set).own(train_set.labels[rows], len(train_set.classes))
            errors = (probabilities.double() - own.double()).square()
            # A sum of integers is the same in any order, so on every machine.
            trials[int((errors * _FINE).long().sum())] = trial
            advance(1)
    return trials[min(trials)] if trials else bound


def held_out(
    bound: BoundRecipe,
    state: State,
    train_set: Dataset,
    folds: int,
    numbers: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Classify the images of `folds` fifths of the `train_set`, each with a head that was trained
    without its fifth; or the images of all `folds`, of which `numbers`, int64 [N], has that of
    each image.

    Copies and groups are in one fifth. Only the names and shapes of the head's parameters in
    `state` count. Return the rows of the images, int64 [n], and their probabilities, float32 [n,
    classes]; 0 where not finite.
    """
    recipe = bound.recipe
    parts = FOLDS if numbers is None else folds
    own = _fifth_of(train_set) if numbers is None else numbers
    own = own.to(train_set.labels.device)
    rows = [(own == fold).nonzero()[:, 0] for fold in range(folds)]
    used = 1 if recipe.test_time_augmentation == "off" else 2
    probabilities = []
    with arithmetic(recipe.arithmetic):
        heads = _trained(bound, state, train_set, own, folds, parts)
        weights, biases = heads.parameters_of(recipe.own_weights).values()
        heads_of = zip(rows, weights.chunk(folds), biases.chunk(folds), strict=True)
        for fold_rows, weight, bias in heads_of:
            if not len(fold_rows):  # fewer groups than folds; the first fold has images
                continue
            views = every_view(train_set.pixels(fold_rows))[:, :used]
            logits = functional.linear(views.mean(1), weight, bias)
            probabilities.append(task_of(train_set).shares(logits))
    return torch.cat(rows), torch.cat(probabilities).nan_to_num(0.0)


def least_confident(
    answers: Tensor, classes: int, share: float, balanced: bool, task: Task
) -> Tensor:
    """Return the least probability of a confident answer for each predicted class, float64
    [classes].

    It is the least one from which on at least `share` of the `answers` are right, or infinity. For
    a class with fewer than half as many images as classes have on average, that must also hold
    among the answers that predict this class, and these must be 10 or more. If `balanced`, every
    class has the same weight, however many images it has. One wrong answer is added, with the
    largest weight of all answers, so that a few right answers are not enough. With multi-label
    data, the answers that predict a class count in place of its images.

    Raises: ValueError if `answers` cannot be those of `confidence_tensors`.
    """
    most = torch.tensor([classes + task.other_classes, classes, 1.001], dtype=torch.float64)
    sound = (
        answers.dtype == torch.float32
        and answers.shape[1:] == (3,)
        and bool(((answers >= 0) & (answers < most)).all())
    )
    if not sound:
        raise ValueError(f"its tensor {ANSWERS} has no classes and probabilities")
    labels, predicted = answers[:, :2].long().unbind(1)
    counts = task.weighed(labels, predicted).bincount(minlength=classes).double()
    weights = torch.ones(len(labels), dtype=torch.float64)
    if balanced:
        weights = counts.mean() / counts[labels]
    every = _least(answers, weights, share, more=max([1.0, *weights.tolist()]))
    least = torch.full([classes], every, dtype=torch.float64)
    for label in (counts < counts.mean() / 2).nonzero().flatten().tolist():
        of_class = predicted == label
        threshold = _least(answers[of_class], weights[of_class], share, 1.0, _ENOUGH_OF_CLASS)
        least[label] = max(every, threshold)
    return least


def _least(answers: Tensor, weights: Tensor, share: float, more: float, enough: int = 1) -> float:
    """Return the least probability, `_LEAST` or more, from which on there are `enough` answers, and
    a `share` of them is right; or infinity.

    `weights` are those of the answers. One wrong answer is added, with the weight `more`.
    """
    probabilities, order = answers[:, 2].sort(descending=True, stable=True)
    labels, predicted, _ = answers[order].unbind(1)
    every = weights[order].cumsum(0) + more
    wrong = (weights[order] * (labels != predicted)).cumsum(0) + more
    # Answers of one probability are confident together, so a threshold counts all of them.
    last = probabilities.diff(append=torch.zeros(1)) < 0
    few_wrong = wrong <= (1 - share) * every * (1 + 1e-9)
    counted = torch.arange(1, len(answers) + 1) >= enough
    fitting = probabilities[last & few_wrong & counted & (probabilities >= _LEAST)]
    return float(fitting[-1]) if len(fitting) else float("inf")


class Confidence:
    """Tells which answers of a classifier are confident, and which images are unfamiliar.

    Attributes:
        share: the share of right answers among confident ones.
        confident_from: the result of `least` for this share.
        outliers: tells the images that are unfamiliar; None if the model file has
            none of these.
        found_from: with multi-label data, the least probability of a found label of each class,
            0.5 if the model file has no other. Else None.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        recipe: Recipe,
        backbone: Backbone | None,
        classes: int,
        share: float = SHARE,
    ) -> None:
        """Use the tensors of a model file, from here and head/outliers.py, for
        the features that `backbone` computes. Other tensors do not matter. See `least_confident`.

        Raises: ValueError if they are not sound.
        """
        self.share = share
        self.outliers = None
        _, known = divided(tensors)
        self.found_from = task_of(recipe).thresholds(known.pop(THRESHOLDS, None), classes)
        self._recipe, self._classes = recipe, classes
        self._answers = known.pop(ANSWERS, None)
        self.confident_from = self.least(share)
        if known:
            self.outliers = Outliers(known, backbone.output[0] if backbone else 0)

    def least(self, share: float) -> list[float] | None:
        """Return the result of `least_confident` for this `share` of right answers; None if the
        model file has no answers.
        """
        if self._answers is None:
            return None
        task, balanced = task_of(self._recipe), self._recipe.balanced
        least = least_confident(self._answers, self._classes, share, balanced, task)
        thresholds: list[float] = least.tolist()
        return thresholds

    def unfamiliar(self, features: Tensor) -> Tensor:
        """Return which images are unfamiliar, bool [n]: they have no confident answer. False where
        the model file cannot tell.

        `features` is uint8 [n, 1, views, 4 * D], on the CPU.
        """
        if self.outliers is None:
            return torch.zeros(len(features), dtype=torch.bool)
        return self.outliers(every_view(features)[:, 0])


def _fifth_of(train_set: Dataset) -> Tensor:
    """Return the fifth of each image, int64 [N]. Copies and groups stay together."""
    groups = train_set.groups
    if groups is None:
        number_of = dict[bytes, int]()  # in the order of the images, on which the folds depend
        numbers = []
        for row in range(len(train_set)):
            content = train_set.pixels(slice(row, row + 1)).cpu().numpy().tobytes()
            numbers.append(number_of.setdefault(content, len(number_of)))
        groups = torch.tensor(numbers)
    return fold_of(groups, train_set.labels, FOLDS)


def fold_of(groups: Tensor, labels: Tensor, folds: int) -> Tensor:
    """Return the fold of each image, int64 [N], by `groups`, int64 [N], and its `labels`. Each of
    the `folds` has an equal share of the groups of each class.
    """
    _, first_rows, group_of = np.unique(groups.numpy(), return_index=True, return_inverse=True)
    of_groups = labels.cpu().numpy()[first_rows]
    kinds = np.unique(of_groups, axis=0, return_inverse=True)[1].reshape(-1)
    by_class = np.argsort(kinds, kind="stable")
    numbers = np.empty(len(first_rows), np.int64)
    numbers[by_class] = np.arange(len(first_rows)) % folds
    return torch.from_numpy(numbers[group_of])


# This does not use the loop of core/, which trains one network in towers of equal size and adds
# their vectors across processes. Here one linear layer holds the heads of all folds, on features
# that are in memory. All heads see the batches of the run's plan, and a mask removes each head's
# own fold from its loss, which a tower cannot do. The update is `State.apply`, as everywhere.
def _trained(
    bound: BoundRecipe,
    state: State,
    train_set: Dataset,
    numbers: Tensor,
    folds: int,
    parts: int,
) -> State:
    """Return one linear layer with the outputs of `folds` heads one after the other, each trained
    without its fold. All start from zeros. `numbers` has the fold of each image, of `parts` folds.
    """
    recipe = bound.recipe
    device = train_set.labels.device
    outputs = folds * len(train_set.classes)
    initial = {}
    for name, parameter in state.parameters.items():
        zeros = parameter.new_zeros(outputs, *parameter.shape[1:])
        initial[name] = zeros.requires_grad_()
    heads = State(recipe.replace(precision="float32"), initial, {}, device)
    no_buffers = torch.zeros(0, device=device)
    priors = train_set.priors if recipe.balanced else None
    for step in range(bound.steps):
        plan = bound.plan(step)
        rows = torch.from_numpy(plan.examples.ravel()).to(device)
        epochs = torch.from_numpy(plan.epochs.ravel()).to(device)
        views = every_view(train_set.pixels(rows))
        # Mirrored in every other epoch, as in training.
        shown = (rows + epochs) % views.shape[1]
        features = views[torch.arange(len(rows)), shown]
        layer = [parameter.detach().requires_grad_() for parameter in heads.parameters.values()]
        logits = functional.linear(features, *layer)
        logits = logits.view(len(rows) * folds, -1)
        if priors is not None:
            logits = logits + priors
        losses = task_of(train_set).loss(
            logits,
            train_set.labels[rows].repeat_interleave(folds, 0),
            label_smoothing=recipe.label_smoothing,
            each=True,
        )
        kept = numbers[rows, None] != torch.arange(folds, device=device)
        weight = parts / (parts - 1) / len(rows)
        loss = (losses.view(kept.shape) * kept).sum() * weight
        gradients = torch.autograd.grad(loss, layer)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        heads.apply(flat, no_buffers, bound.learning_rate(step))
    return heads
