"""Muon: filters move by orthogonalised momentum, everything else by gradient descent."""

import functools
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 3
_LEAST_NORM = 1e-12  # a filter that starts as zeros has none


def orthogonalised(matrices: Tensor) -> Tensor:
    """float32 [n, rows, columns] with the larger singular values of each matrix brought near 1, roughly.

    Those above a tenth of the largest come to about 0.5 to 1.5; much smaller ones grow about 30-fold.
    Three Newton-Schulz iterations of fifth order, in bfloat16; only directions matter to the step that is taken. Two
    products with the matrix itself instead of six, as the iterations are followed in the space of its rows (or columns,
    if they are fewer). Source: Jordan et al. 2024, Muon (kellerjordan.github.io/posts/muon), for iteration and
    coefficients.
    """
    a, b, c = _COEFFICIENTS
    x = matrices.bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)  # so that no singular value is above 1
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    # Each iteration multiplies x by a polynomial of x x'. They all commute, so only their small product is followed.
    square = x @ x.mT
    factors: list[Tensor] = []
    for _ in range(_ITERATIONS):
        square = factors[-1] @ square @ factors[-1] if factors else square
        factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        factors.append(factor)
    product: Tensor = functools.reduce(torch.matmul, reversed(factors))
    x = torch.matmul(product, x)
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """One step of Muon for groups with `orthogonal`, of gradient descent with momentum for the others; Nesterov's both.

    A filter [outputs, inputs, kh, kw] is taken as a matrix of `outputs` rows. Before it moves it is scaled to the norm
    sqrt(outputs), so that the rate is a rate of rotation. Groups have `lr`, `momentum`, `weight_decay`, `orthogonal`.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})

    def step(self, closure: Any = None) -> Any:
        """Apply the parameters' gradients, in place, under `torch.no_grad`; no closure is called."""
        assert closure is None
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            if group["orthogonal"]:
                for alike in _by_shape(trained):
                    self._rotate(alike, group["lr"], group["momentum"])
            else:
                for parameter in trained:
                    direction = self._nesterov(parameter, group["momentum"], group["weight_decay"])
                    parameter.sub_(direction, alpha=group["lr"])

    def _rotate(self, filters: list[Tensor], rate: float, momentum: float) -> None:
        """Move filters of one shape together: their matrix products are one."""
        moved = torch.stack([self._nesterov(f, momentum).flatten(1) for f in filters])
        for filter_, direction in zip(filters, orthogonalised(moved), strict=True):
            filter_.mul_(len(filter_) ** 0.5 / filter_.norm().clamp_(min=_LEAST_NORM))
            filter_.sub_(direction.view_as(filter_), alpha=rate)

    def _nesterov(self, parameter: Tensor, momentum: float, decay: float = 0.0) -> Tensor:
        assert parameter.grad is not None
        gradient = parameter.grad.add(parameter, alpha=decay)
        slots = self.state[parameter]
        if "momentum_buffer" not in slots:
            slots["momentum_buffer"] = torch.zeros_like(parameter)
        average = slots["momentum_buffer"].mul_(momentum).add_(gradient)
        return gradient.add(average, alpha=momentum)


def _by_shape(parameters: list[Tensor]) -> list[list[Tensor]]:
    shapes = dict.fromkeys(p.shape for p in parameters)
    return [[p for p in parameters if p.shape == shape] for shape in shapes]
