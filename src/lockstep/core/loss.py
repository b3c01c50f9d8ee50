"""Loss: what training minimizes, and which examples count as correct, with single-label and
multi-label data.
"""

import torch
from torch import Tensor
from torch.nn import functional


def loss_of(
    logits: Tensor,
    labels: Tensor,
    *,
    label_smoothing: float = 0.0,
    each: bool = False,
) -> Tensor:
    """Return the sum of the losses of all examples, float32 []; of `each` example, float32 [b].

    `logits` is float32 [b, classes]. With single labels, int64 [b], the loss is the cross-entropy.
    With multi-label data, uint8 [b, classes] of 0 and 1, it is the sum over the classes of the
    binary cross-entropies, without `label_smoothing`.
    """
    if labels.ndim == 1:
        return functional.cross_entropy(
            logits,
            labels,
            reduction="none" if each else "sum",
            label_smoothing=label_smoothing,
        )
    losses = functional.binary_cross_entropy_with_logits(
        logits,
        labels.to(logits.dtype),
        reduction="none",
    )
    return losses.sum(1) if each else losses.sum()


def is_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return whether each example is classified correctly, bool [b]: its most probable class is its
    label, or with multi-label data the classes with a probability of 0.5 or more are exactly its
    labels.
    """
    if labels.ndim == 1:
        return logits.argmax(1) == labels
    return ((logits >= 0) == labels.bool()).all(1)


def probabilities_of(logits: Tensor, multi_label: bool) -> Tensor:
    """Return the probabilities, float64 [n, classes]; NaN where logits are not finite.

    They are softmaxes over the classes, or with `multi_label` data the sigmoid of each logit.
    """
    wide = logits.double()
    probabilities = wide.sigmoid() if multi_label else wide.softmax(1)
    unclassified = ~logits.isfinite().all(1, keepdim=True)
    return probabilities.masked_fill(unclassified, torch.nan)
