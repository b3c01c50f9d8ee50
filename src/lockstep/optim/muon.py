"""Muon: filters move by orthogonalised momentum, all other parameters by gradient descent."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 3
_MIN_NORM = 1e-12  # avoids a division by zero for a filter that starts as zeros


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return float32 [n, rows, columns] in which the larger singular values of each matrix are
    roughly 1.

    Singular values above a tenth of the largest become about 0.5 to 1.5; much smaller ones grow
    about 30-fold. The method is three Newton-Schulz iterations of fifth order in bfloat16: the
    update needs directions, not precise lengths. The iterations run on the small matrix x x', so
    the large matrix takes part in two products instead of six.
    Source: Jordan et al. 2024, Muon (kellerjordan.github.io/posts/muon), for iteration and
    coefficients.
    """
    a, b, c = _COEFFICIENTS
    x = matrices.bfloat16()
    # Numbers are added as tensors of bfloat16: a CPU rounds a number to that before it adds, and a
    # GPU does not.
    number = functools.partial(x.new_full, ())
    x = x / (x.norm(dim=(1, 2), keepdim=True) + number(1e-7))  # so that no singular value exceeds 1
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    # Each iteration multiplies x by a polynomial of x x'. These factors commute, so they are
    # multiplied first: they are small.
    square = x @ x.mT
    factors: list[Tensor] = []
    for _ in range(_ITERATIONS):
        square = factors[-1] @ square @ factors[-1] if factors else square
        factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(number(a))
        factors.append(factor)
    product: Tensor = functools.reduce(torch.matmul, reversed(factors))
    x = torch.matmul(product, x)
    return (x.mT if tall else x).float()


def _move(parameters: list[Tensor], directions: list[Tensor], lr: float | Tensor) -> None:
    """Subtract `directions` times `lr`, a number or a tensor on the device."""
    if isinstance(lr, Tensor):
        torch._foreach_mul_(directions, -lr)
        torch._foreach_add_(parameters, directions)
    else:
        torch._foreach_add_(parameters, directions, alpha=-lr)


class Muon(torch.optim.Optimizer):
    """Muon for groups with `orthogonal`, gradient descent with momentum for the others; both with
    Nesterov's momentum.

    A filter [outputs, inputs, kh, kw] is treated as a matrix of `outputs` rows. Before each update
    it is scaled to the norm sqrt(outputs), so that the learning rate is a speed of rotation. A
    group has the keys `lr`, `momentum`, `weight_decay` and `orthogonal`.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply the gradients to the parameters, in place. Call it under `torch.no_grad`, without a
        closure.
        """
        assert closure is None
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            if group["orthogonal"]:
                for shape in dict.fromkeys(p.shape for p in trained):
                    filters = [p for p in trained if p.shape == shape]
                    self._rotate(filters, group["lr"], group["momentum"])
            else:
                directions = self._nesterov(trained, group["momentum"], group["weight_decay"])
                _move(trained, directions, group["lr"])

    def _rotate(self, filters: list[Tensor], lr: float | Tensor, momentum: float) -> None:
        """Update filters of one shape together, so that their matrix products are batched."""
        moved = torch.stack(
            [direction.flatten(1) for direction in self._nesterov(filters, momentum)]
        )
        norms = torch.stack(torch._foreach_norm(filters)).clamp_(min=_MIN_NORM)
        torch._foreach_mul_(filters, list(math.sqrt(len(filters[0])) / norms))
        directions = [rotation.view_as(filters[0]) for rotation in orthogonalised(moved)]
        _move(filters, directions, lr)

    def _nesterov(
        self, parameters: list[Tensor], momentum: float, decay: float = 0.0
    ) -> list[Tensor]:
        """Update the momenta of `parameters` and return the directions of Nesterov's steps.

        Each operation is for all parameters together: a GPU is given one in place of one for each
        of them.
        """
        given = [parameter.grad for parameter in parameters if parameter.grad is not None]
        gradients = list(torch._foreach_mul(given, 1.0))  # copies
        torch._foreach_add_(gradients, parameters, alpha=decay)
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        averages = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        torch._foreach_mul_(averages, momentum)
        torch._foreach_add_(averages, gradients)
        torch._foreach_add_(gradients, averages, alpha=momentum)
        return gradients
