"""Settings of the optimizers: one class each, which builds the optimizer it describes.

The learning rate is not among them: it is set before every step, times the group's `scale` if it has one. Weight decay
is the gradient of coefficient / 2 * ||w||^2, given for each parameter group.
"""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from lockstep.errors import LockstepError
from lockstep.optim.eager import eager
from lockstep.settings import Settings

if TYPE_CHECKING:
    import torch


class SGD(Settings):
    """Gradient descent, with momentum (Nesterov's if asked for) when it is not 0."""

    kind: Literal["sgd"] = "sgd"
    momentum: float = Field(0.0, ge=0, lt=1)
    nesterov: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> "SGD":
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0: set optimizer.nesterov=false, too")
        return self

    def build(self, groups: list[dict[str, Any]]) -> "torch.optim.Optimizer":
        """The optimizer over parameter `groups`."""
        from torch.optim import SGD

        return eager(SGD)(groups, lr=0.0, momentum=self.momentum, nesterov=self.nesterov, fused=True)


class Adam(Settings):
    """Adam (Kingma and Ba, 2015). Weight decay joins the gradient: this is not AdamW."""

    kind: Literal["adam"] = "adam"
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    epsilon: float = Field(1e-8, gt=0)

    def build(self, groups: list[dict[str, Any]]) -> "torch.optim.Optimizer":
        """The optimizer over parameter `groups`."""
        from torch.optim import Adam

        return eager(Adam)(groups, lr=0.0, betas=(self.beta1, self.beta2), eps=self.epsilon, fused=True)


class Muon(Settings):
    """Muon for the filters of convolutions, gradient descent for the rest, both with Nesterov's momentum.

    The recipe's learning rate is the filters'; vectors (biases) take `vector_scale` times it, matrices (dense layers)
    `matrix_scale` times it. Weight decay is for vectors and matrices; a filter is kept at one norm instead.
    Source: Jordan et al. 2024, as airbench94_muon uses it.
    """

    kind: Literal["muon"] = "muon"
    momentum: float = Field(0.6, ge=0, lt=1)
    other_momentum: float = Field(0.85, ge=0, lt=1)
    vector_scale: float = Field(1.0, gt=0)
    matrix_scale: float = Field(1.0, gt=0)

    def build(self, groups: list[dict[str, Any]]) -> "torch.optim.Optimizer":
        """The optimizer over parameter `groups`."""
        from lockstep.optim.muon import Muon

        if any(group["weight_decay"] and any(p.ndim > 2 for p in group["params"]) for group in groups):
            raise LockstepError(
                "weight_decay names a filter, which optimizer muon keeps at one norm instead: "
                "name only vectors and matrices, or choose optimizer.kind=sgd"
            )
        kinds = (
            (range(3, 6), self.momentum, 1.0),
            (range(2), self.other_momentum, self.vector_scale),
            (range(2, 3), self.other_momentum, self.matrix_scale),
        )
        divided = [
            {
                "params": [p for p in group["params"] if p.ndim in dimensions],
                "weight_decay": group["weight_decay"],
                "momentum": momentum,
                "scale": scale,
                "orthogonal": 3 in dimensions,
            }
            for group in groups
            for dimensions, momentum, scale in kinds
        ]
        return eager(Muon)([group for group in divided if group["params"]])
