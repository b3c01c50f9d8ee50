"""Settings of the optimizers: one class each, which builds the optimizer it describes.

The learning rate is not among them: it is set before every step. Weight decay is the gradient of
coefficient / 2 * ||w||^2, given for each parameter group.
"""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

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
