"""Settings of the optimizers and of the average of the weights. Needs no torch until something is
built.

Each optimizer has one settings class, which builds the optimizer that it describes. The learning
rate is no setting here: `State.apply` sets it before every step, times the group's `scale`, so
every group has one. Weight decay has one coefficient for each parameter group. It is the gradient
of coefficient / 2 * ||w||^2, except in AdamW. What an optimizer keeps for a parameter, its slots,
are tensors of the parameter's shape or scalars: checkpoints are checked for that
(`State._require_form_of`).
"""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import Field, model_validator

from lockstep.errors import LockstepError, option, unknown
from lockstep.schema import Settings

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)

# torch's form: "params", and the values that hold for these parameters
ParameterGroup = dict[str, Any]

DEFAULT = "default"  # the key of weight_decay that stands for all matrices it does not name

_GUARDED = ("step", "add_param_group", "state_dict", "load_state_dict", "zero_grad")


class OptimizerSettings(Settings):
    """The base of all optimizers' settings.

    Attributes:
        decays_in_loss: True if weight decay is the gradient of a term of the loss.
        decays_by_default: numbers of dimensions of the parameters that `weight_decay.default` is
            for.
    """

    decays_in_loss: ClassVar[bool] = True
    decays_by_default: ClassVar[range] = range(2, 100)


class SGD(OptimizerSettings):
    """Gradient descent, with momentum if `momentum` is not 0; `nesterov` selects Nesterov's form of
    it.
    """

    kind: Literal["sgd"] = "sgd"
    momentum: float = Field(0.0, ge=0, lt=1)
    nesterov: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> "SGD":
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0: set optimizer.nesterov=false, too")
        return self

    def build(self, groups: list[ParameterGroup]) -> "Optimizer":
        """Return the optimizer of the parameter `groups`."""
        from torch.optim import SGD

        return eager(SGD)(
            groups, lr=0.0, momentum=self.momentum, nesterov=self.nesterov, fused=True
        )


class Adam(OptimizerSettings):
    """Adam (Kingma and Ba, 2015). Weight decay is added to the gradient; AdamW separates it."""

    kind: Literal["adam"] = "adam"
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    epsilon: float = Field(1e-8, gt=0)

    def build(self, groups: list[ParameterGroup]) -> "Optimizer":
        """Return the optimizer of the parameter `groups`."""
        from torch import optim

        kind = optim.Adam if self.decays_in_loss else optim.AdamW
        return eager(kind)(
            groups,
            lr=0.0,
            betas=(self.beta1, self.beta2),
            eps=self.epsilon,
            fused=True,
            capturable=any(parameter.is_cuda for group in groups for parameter in group["params"]),
        )


class AdamW(Adam):
    """Adam with decoupled weight decay: each update first multiplies a parameter by 1 - learning
    rate * coefficient.

    The decay is no term of the loss. Source: Loshchilov and Hutter, 2019 (arXiv:1711.05101).
    """

    decays_in_loss: ClassVar[bool] = False

    kind: Literal["adamw"] = "adamw"  # type: ignore[assignment]


class Muon(OptimizerSettings):
    """Muon for the filters of convolutions, gradient descent for all other parameters, both with
    Nesterov's momentum.

    The recipe's learning rate applies to filters. Vectors (biases) take `vector_scale` times the
    learning rate, and matrices (dense layers) take `matrix_scale` times it. Weight decay is for
    vectors and matrices only, because Muon keeps the norm of each filter constant. Source: Jordan
    et al. 2024, with the settings of airbench94_muon.
    """

    decays_by_default: ClassVar[range] = range(2, 3)

    kind: Literal["muon"] = "muon"
    momentum: float = Field(0.6, ge=0, lt=1)
    other_momentum: float = Field(0.85, ge=0, lt=1)
    vector_scale: float = Field(1.0, gt=0)
    matrix_scale: float = Field(1.0, gt=0)

    def build(self, groups: list[ParameterGroup]) -> "Optimizer":
        """Return the optimizer of the parameter `groups`. Raises: LockstepError if a filter has
        weight decay.
        """
        from lockstep.optim.muon import Muon

        if any(
            group["weight_decay"] and any(p.ndim > 2 for p in group["params"]) for group in groups
        ):
            raise LockstepError(
                "weight_decay names a filter, but optimizer muon keeps the norm of filters "
                "constant: "
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
                "scale": scale * group["scale"],
                "orthogonal": 3 in dimensions,
            }
            for group in groups
            for dimensions, momentum, scale in kinds
        ]
        return eager(Muon)([group for group in divided if group["params"]])


class EMA(Settings):
    """The exponential moving average of the parameters, usually the better classifier.

    After each update: average <- d * average + (1 - d) * parameter. The average starts as the
    initial parameters. d is `decay`; with `warmup`, d is min(decay, (1 + n) / (10 + n)) after n
    updates, so that the average forgets early weights. Source: tf.train.ExponentialMovingAverage
    with num_updates.
    """

    decay: float = Field(0.9999, ge=0, lt=1)
    warmup: bool = True

    def decay_after(self, updates: int) -> float:
        """Return d for the average that is taken after update number `updates` (1 for the
        first).
        """
        return min(self.decay, (1 + updates) / (10 + updates)) if self.warmup else self.decay


def decay_by_name(
    parameters: "Mapping[str, Tensor]", decay: Mapping[str, float], optimizer: OptimizerSettings
) -> dict[str, float]:
    """Return the weight-decay coefficient of each parameter that has one, by name, in the order of
    `decay`.

    DEFAULT in `decay` is for the `parameters` with `optimizer.decays_by_default` dimensions which
    `decay` does not name. They come last, in the model's order. A parameter that the model marks as
    not trainable is not one of them.
    Raises: LockstepError if `decay` names a parameter that the model does not have, or does not
    train.
    """
    named = {name: coefficient for name, coefficient in decay.items() if name != DEFAULT}
    for name in named:
        if name not in parameters:
            hint = (
                f"for a model with other names: {option('settings', 'weight_decay={}')}, and "
                f"{option('settings', 'weight_decay.default=C')} for decay"
            )
            raise LockstepError(
                f"{unknown('parameter in weight_decay', name, parameters)} ({hint})"
            )
        if not parameters[name].requires_grad:
            raise LockstepError(
                f"weight_decay names {name}, which the model marks as not trainable: leave it out"
            )
    dimensions = optimizer.decays_by_default if DEFAULT in decay else ()
    others = [
        n
        for n, p in parameters.items()
        if n not in named and p.requires_grad and p.ndim in dimensions
    ]
    return named | dict.fromkeys(others, decay.get(DEFAULT, 0.0))


def parameter_groups(
    parameters: "Mapping[str, Tensor]", decay: Mapping[str, float], factors: Mapping[str, float]
) -> list[ParameterGroup]:
    """Return one group for each weight decay and factor on the learning rate (`scale`), in the
    model's order.

    `decay` and `factors` are by name. A parameter with factor 0 is in no group, so nothing moves
    it.
    """
    kinds = {name: (decay.get(name, 0.0), factors.get(name, 1.0)) for name in parameters}
    return [
        {
            "params": [p for n, p in parameters.items() if kinds[n] == (c, f)],
            "weight_decay": c,
            "scale": f,
        }
        for c, f in sorted(set(kinds.values()))
        if f
    ]


def eager(kind: "type[AnyOptimizer]") -> "type[AnyOptimizer]":
    """Return the optimizer class `kind` without torch's guards against being compiled; its bits are
    the same.

    The guards import the compiler, which takes a second of every start. One of the guards turns off
    gradients during `step`, so call `step` under `torch.no_grad`, as `State.apply` does.
    """
    unguarded = {name: inspect.unwrap(getattr(kind, name)) for name in _GUARDED}
    return type(kind.__name__, (kind,), unguarded)
