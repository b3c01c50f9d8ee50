"""Parameter groups: which parameter decays by how much."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lockstep.errors import LockstepError, unknown


def by_weight_decay(parameters: Mapping[str, Tensor], decay: Mapping[str, float]) -> list[dict[str, Any]]:
    """One group for each weight-decay coefficient in use, parameters in the model's order within each.

    Raises: LockstepError if `decay` names a parameter the model has not.
    """
    for name in decay:
        if name not in parameters:
            hint = ". For a model with other names: --set weight_decay={}"
            raise LockstepError(unknown("parameter in weight_decay", name, parameters) + hint)
    coefficients = sorted({decay.get(name, 0.0) for name in parameters})
    return [
        {"params": [p for name, p in parameters.items() if decay.get(name, 0.0) == c], "weight_decay": c}
        for c in coefficients
    ]
