"""State: everything a run needs to continue, and the one update. Nothing in it depends on the
number of processes.
"""

import hashlib
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor

from lockstep.config.recipe import Recipe
from lockstep.core.digest import digest
from lockstep.core.network import lr_factors, untrained_layers
from lockstep.core.vector import excess, named_views
from lockstep.errors import DATA, LockstepError
from lockstep.kernels.portable import arithmetic
from lockstep.optim.optimizers import DEFAULT, decay_by_name, parameter_groups
from lockstep.optim.scale import LossScale

NamedTensors = Mapping[str, Tensor]


class State:
    """Parameters, buffers, optimizer slots, average and step. All float32, except integer buffers.

    The parameters are views of one flat vector, in the model's order, and so are their averages. So
    a gradient vector is applied, and the average is moved, without a loop over tensors.

    Attributes:
        step: number of updates so far. The steps that float16 skips count too.
        parameters, buffers: the tensors, by name. The optimizer gets only the parameters that
            require a gradient in the model and whose factor on the learning rate is not 0, so no
            update moves the others.
        frozen: the tensors before the head of a recipe with `head`, by name. No update changes
            them.
        ema: the exponential moving average of the parameters, by name; None if the recipe keeps
            none.
        decay: the weight-decay coefficient of each parameter that has one, by name.
        update_lock: a thread that copies the state holds it, so that no update changes the state
            meanwhile.
    """

    def __init__(
        self,
        recipe: Recipe,
        parameters: NamedTensors,
        buffers: NamedTensors,
        device: torch.device,
        frozen: NamedTensors = MappingProxyType({}),
    ) -> None:
        """Make the state before the first step, from copies of `parameters` and `buffers`; `frozen`
        is not copied.
        """
        self._recipe, self.frozen = recipe, frozen
        self.step = 0
        self.update_lock = threading.Lock()
        initial = {name: p.detach() for name, p in parameters.items()}
        self._shapes = {name: p.shape for name, p in initial.items()}
        self._flat = torch.cat([p.reshape(-1).float() for p in initial.values()]).to(device)
        self.parameters = named_views(self._flat, self._shapes)
        self._trained = {
            name: self.parameters[name] for name, p in parameters.items() if p.requires_grad
        }
        self.buffers = {name: b.detach().clone().to(device) for name, b in buffers.items()}
        self._average = self._flat.clone() if recipe.ema else None
        self.ema = named_views(self._average, self._shapes) if self._average is not None else None
        self._scale = LossScale(recipe.tower_batch) if recipe.precision == "float16" else None
        self.decay = decay_by_name(parameters, recipe.weight_decay, recipe.optimizer)
        still = untrained_layers(
            recipe, {name.rpartition(".")[0] for name in self.buffers}, self.parameters
        )
        self._moved = {
            name: b for name, b in self.buffers.items() if name.rpartition(".")[0] not in still
        }

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer. It is made when it is first needed, because an evaluation needs none."""
        factors = lr_factors(self._recipe, self.parameters)
        return self._recipe.optimizer.build(parameter_groups(self._trained, self.decay, factors))

    def fresh(self, **changes: object) -> "State":
        """Return a state before its first step, from copies of the weights and buffers of this
        one, for its recipe with `changes`.
        """
        marked = {
            name: p.detach().requires_grad_(name in self._trained)
            for name, p in self.parameters.items()
        }
        recipe = self._recipe.replace(**changes)
        return State(recipe, marked, self.buffers, self.device, self.frozen)

    @property
    def device(self) -> torch.device:
        """Return the device of all tensors."""
        return self._flat.device

    @property
    def loss_scale(self) -> float:
        """Return the factor on the loss in towers: 1, except in float16."""
        return self._scale.value if self._scale else 1.0

    @property
    def may_skip(self) -> bool:
        """Return True if a non-finite step is skipped, because a lower loss scale may fix the next
        one.
        """
        return self._scale is not None and self._scale.value > self._scale.least

    def skip(self) -> None:
        """Count a step without applying its update, and lower the loss scale. Waits for
        `update_lock`.
        """
        assert self._scale is not None
        with self.update_lock:
            self._scale.skipped()
            self.step += 1

    @torch.no_grad()
    def apply(self, gradients: Tensor, buffer_deltas: Tensor, learning_rate: float) -> None:
        """Make one update, in place. Waits for `update_lock`.

        `gradients` is the mean gradient, float32 [parameters], and `buffer_deltas` the mean change
        of the floating-point buffers, float32 [their elements].
        """
        rates = [learning_rate * group["scale"] for group in self.optimizer.param_groups]
        with self.update_lock:
            self.step += 1
            weight = 1.0 - self._recipe.ema.decay_after(self.step) if self._recipe.ema else 0.0
            self.update(gradients, buffer_deltas, rates, weight, self.step)
            if self._scale is not None:
                self._scale.stepped()

    @torch.no_grad()
    def update(
        self,
        gradients: Tensor,
        buffer_deltas: Tensor,
        rates: Sequence[float | Tensor],
        weight: float | Tensor,
        updates: int | Tensor,
    ) -> None:
        """Make the update number `updates` without counting it. Hold `update_lock`.

        `rates` are the learning rates of the optimizer's groups (in portable Adam, tensors of all
        `adam_rates`), and `weight` is that of the new parameters in their average. They are
        numbers, or tensors [] of the device, float32 and int64, which a CUDA graph reads anew each
        time.
        """
        with arithmetic(self._recipe.arithmetic):
            # As views of the vector, the gradients reach torch's optimizers without a copy.
            for name, gradient in self.by_name(gradients).items():
                self.parameters[name].grad = gradient
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            self.optimizer.step()
            self._update_buffers(buffer_deltas, updates)
            if self._average is not None:
                self._average.lerp_(self._flat, weight)

    def tensors(self) -> list[Tensor]:
        """Return all tensors that an update changes."""
        slots = [slot for slots in self.optimizer.state.values() for slot in slots.values()]
        average = [] if self._average is None else [self._average]
        tensors = [slot for slot in slots if isinstance(slot, Tensor)]
        return [self._flat, *average, *tensors, *self._moved.values()]

    def _update_buffers(self, deltas: Tensor, updates: int | Tensor) -> None:
        floating = {
            name: buffer.shape
            for name, buffer in self.buffers.items()
            if buffer.is_floating_point()
        }
        changes = named_views(deltas, floating)
        if moved := [name for name in self._moved if name in changes]:
            torch._foreach_add_(
                [self._moved[name] for name in moved], [changes[name] for name in moved]
            )
        # Every tower counts the same. Other integer buffers are constants.
        if counts := [
            buffer for name, buffer in self._moved.items() if name.endswith("num_batches_tracked")
        ]:
            torch._foreach_zero_(counts)
            # A tensor alone would be read by the host, as a number.
            of_each = [updates] * len(counts) if isinstance(updates, Tensor) else updates
            torch._foreach_add_(counts, of_each)

    def parameters_of(self, kind: str) -> dict[str, Tensor]:
        """Return the "raw" weights, or their average, "ema", by parameter name."""
        if kind == "raw":
            return self.parameters
        assert self.ema is not None
        return self.ema

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """Return `flat` [parameters], in the model's order, as views by parameter name."""
        return named_views(flat, self._shapes)

    @property
    def weights(self) -> Tensor:
        """Return the vector of all parameters, in the model's order."""
        return self._flat

    def is_finite(self) -> bool:
        """Return whether every parameter is finite. Waits for the device."""
        return not excess(self._flat)

    @property
    def decay_in_loss(self) -> Mapping[str, float]:
        """Return the coefficients of `decay` that are in the loss: all, or none if the optimizer
        decouples decay from it.
        """
        return self.decay if self._recipe.optimizer.decays_in_loss else {}

    def decay_losses(self) -> dict[str, Tensor]:
        """Return each weight-decay term of the loss, coefficient / 2 * ||w||^2, by parameter, on
        the device.

        The parameters that `weight_decay.default` is for share one term, "default". Decay that the
        optimizer decouples from the loss has no terms.
        """
        recipe = self._recipe
        if not self.decay_in_loss:
            return {}
        with arithmetic(recipe.arithmetic):
            terms = {}
            for name, c in recipe.weight_decay.items():
                if c and name != DEFAULT:
                    flat = self.parameters[name].view(-1)
                    terms[name] = torch.dot(flat, flat) * (c / 2)
            others = [
                self.parameters[name] for name in self.decay if name not in recipe.weight_decay
            ]
            if others and (c := recipe.weight_decay[DEFAULT]):
                terms[DEFAULT] = torch.stack(torch._foreach_norm(others)).square().sum() * (c / 2)
        return terms

    def digest(self) -> str:
        """Return 18 hexadecimal digits that depend on every bit an update changes. Waits for the
        device.
        """
        tensors = self.state_dict()
        # The flat vectors are read whole, at the speed of memory, in place of many small tensors.
        vectors = [self._flat] if self._average is None else [self._flat, self._average]
        others = [name for name in tensors if not name.startswith(("parameter/", "ema/"))]
        return digest([*vectors, *(tensors[name] for name in sorted(others))]).hex()[:18]

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors of the state by name: the content of a checkpoint.

        Updates change them in place, except counts and the loss scale.
        """
        tensors = {"step": torch.tensor(self.step)}
        if self._scale is not None:
            scale = [self._scale.value, self._scale.clean]
            tensors["loss_scale"] = torch.tensor(scale, dtype=torch.float64)
        tensors |= self._model_tensors()
        for name, parameter in self.parameters.items() if "optimizer" in vars(self) else ():
            slots = self.optimizer.state.get(parameter, {})
            tensors |= {
                f"optimizer/{slot}/{name}": t for slot, t in slots.items() if isinstance(t, Tensor)
            }
        return {name: t.detach() for name, t in tensors.items()}

    def _model_tensors(self) -> dict[str, Tensor]:
        """Return all weights, buffers and averages, by their names in a checkpoint."""
        groups = {
            "frozen": self.frozen,
            "parameter": self.parameters,
            "buffer": self.buffers,
            "ema": self.ema or {},
        }
        return {
            f"{group}/{name}": tensor
            for group, members in groups.items()
            for name, tensor in members.items()
        }

    @torch.no_grad()
    def load_state_dict(self, tensors: NamedTensors) -> None:
        """Load copies of what `state_dict()` returned. Raises: LockstepError if names or shapes are
        another model's.
        """
        self._require_form_of(tensors)
        self.step = int(tensors["step"])
        if self._scale is not None:
            value, clean = tensors["loss_scale"].tolist()
            self._scale.value = value
            self._scale.clean = int(clean)
        # In place, because parameters and averages are views of the flat vectors.
        for name, tensor in self._model_tensors().items():
            tensor.copy_(tensors[name])
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, slot, parameter = name.split("/", 2)
                slots = self.optimizer.state[self.parameters[parameter]]
                slots[slot] = tensor.to(self.device, copy=True)

    def _require_form_of(self, tensors: NamedTensors) -> None:
        """Raise a LockstepError unless `tensors` have the names, shapes and types of this
        state's.
        """
        needed = {
            name: tensor
            for name, tensor in self.state_dict().items()
            if not name.startswith("optimizer/")
        }
        for name, tensor in tensors.items():
            parameter = self.parameters.get(name.split("/", 2)[-1])
            if name.startswith("optimizer/") and parameter is not None:
                # Adam's number of updates is a slot of one value.
                needed[name] = parameter if tensor.ndim else parameter.new_empty(())
        for name in sorted({*tensors, *needed}):
            in_file, in_model = _form(tensors.get(name)), _form(needed.get(name))
            if in_file != in_model:
                raise LockstepError(
                    f"the checkpoint is of another model: {name} is {in_file} in the checkpoint "
                    f"and {in_model} in model {self._recipe.model}",
                    DATA,
                )

    def weights_sha256(self) -> str:
        """Return the SHA-256, in hex, that names the result of a run: see `weights_sha256`."""
        return weights_sha256(self.state_dict())


def _form(tensor: Tensor | None) -> list[object] | None:
    return None if tensor is None else [*tensor.shape, tensor.dtype]


def classifier_weights(tensors: NamedTensors) -> dict[str, Tensor]:
    """Return the weights of a classifier by the model's names, from a `state_dict`.

    They are the averaged ones if the state has an average, else the raw ones: for the model file,
    predictions and exports of a checkpoint, and `--init`. `Recipe.own_weights` is the same choice
    for evaluations, by name. `tensors` of another file are returned unchanged.
    """
    groups = _by_group(tensors)
    if "parameter" not in groups:
        return dict(tensors)
    return {**groups["frozen"], **(groups["ema"] or groups["parameter"]), **groups["buffer"]}


def weights_sha256(tensors: NamedTensors) -> str:
    """Return the SHA-256, in hex, of the raw weights in a `state_dict`.

    It is that of the little-endian bytes of all tensors, sorted by name, parameters first.
    """
    groups = _by_group(tensors)
    result = hashlib.sha256()
    for members in ({**groups["frozen"], **groups["parameter"]}, groups["buffer"]):
        for name in sorted(members):
            result.update(members[name].detach().cpu().contiguous().numpy().tobytes())
    return result.hexdigest()


def _by_group(tensors: NamedTensors) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a `state_dict` by the first part of their names, and by the rest."""
    groups = defaultdict[str, dict[str, Tensor]](dict)
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        groups[group][name] = tensor
    return groups
