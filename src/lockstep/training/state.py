"""State: all a run needs to continue, and the one update. There is no process count in it."""

import hashlib
import itertools
import threading
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lockstep.config.recipe import Recipe
from lockstep.errors import DATA, ENVIRONMENT, LockstepError, unknown
from lockstep.optim.scale import LossScale
from lockstep.optim.settings import by_weight_decay
from lockstep.training.digest import short


class State:
    """Parameters, buffers, optimizer slots, average and step, all float32 (integer buffers aside).

    Parameters and their average are views of one flat vector each, in the model's order, so that a gradient vector
    can be applied and the average moved without a loop over tensors.
    """

    def __init__(
        self, recipe: Recipe, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], device: torch.device
    ) -> None:
        """The state before the first step, with copies of these `parameters` and `buffers`."""
        self._recipe = recipe
        self.step = 0
        # Held by whoever copies the state in another thread: an update waits for it.
        self.unchanged = threading.Lock()
        initial = {name: p.detach() for name, p in parameters.items()}
        self._shapes = {name: p.shape for name, p in initial.items()}
        self._flat = torch.cat([p.reshape(-1).float() for p in initial.values()]).to(device)
        self.parameters = _named_views(self._flat, self._shapes)
        self.buffers = {name: b.detach().clone().to(device) for name, b in buffers.items()}
        self._average = self._flat.clone() if recipe.ema else None
        self.ema = _named_views(self._average, self._shapes) if self._average is not None else None
        self._scale = LossScale(recipe.tower_batch) if recipe.precision == "float16" else None
        self.frozen: frozenset[str] = frozenset()  # the parameters that are not trained at this step
        self.freeze(tuple(recipe.freeze))  # refuses a name that means nothing
        self.freeze(())
        self.optimizer = recipe.optimizer.build(by_weight_decay(self.parameters, recipe.weight_decay))

    @property
    def evaluated(self) -> Mapping[str, Tensor]:
        """The parameters that make the classifier: their average if the recipe keeps one."""
        return self.ema if self.ema is not None else self.parameters

    @property
    def loss_scale(self) -> float:
        """What towers multiply the loss by: 1 but in float16."""
        return self._scale.value if self._scale else 1.0

    @property
    def may_skip(self) -> bool:
        """Whether a step that is not finite may be for the loss scale alone, so that a lower one can mend it."""
        return self._scale is not None and self._scale.value > self._scale.least

    def skip(self) -> None:
        """Count a step that is not applied, and lower the loss scale."""
        assert self._scale is not None
        self._scale.skipped()
        self.step += 1

    def freeze(self, names: Sequence[str]) -> None:
        """Train all parameters but those that have, or are in layers that have, one of `names`.

        Raises: LockstepError for a name that nothing has.
        """
        inside = {name: [p for p in self.parameters if f"{p}.".startswith(f"{name}.")] for name in names}
        for name, found in inside.items():
            if not found:
                raise LockstepError(unknown("layer or parameter in freeze", name, self.parameters))
        self.frozen = frozenset(itertools.chain.from_iterable(inside.values()))

    @torch.no_grad()
    def apply(self, gradients: Tensor, statistics: Tensor, rate: float) -> None:
        """One update, from mean gradients [parameters] and the mean change of the buffers [statistics], at `rate`.

        Waits for `unchanged`.
        """
        with self.unchanged:
            self._apply(gradients, statistics, rate)

    def _apply(self, gradients: Tensor, statistics: Tensor, rate: float) -> None:
        for name, gradient in self.by_name(gradients).items():
            self.parameters[name].grad = None if name in self.frozen else gradient
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        self.optimizer.step()
        self.step += 1
        start = 0
        for name, buffer in self.buffers.items():
            if buffer.is_floating_point():
                buffer.add_(statistics[start : start + buffer.numel()].view_as(buffer))
                start += buffer.numel()
            elif name.endswith("num_batches_tracked"):
                buffer.fill_(self.step)  # every tower would count the same; other integers are constants
        if self._scale is not None:
            self._scale.stepped()
        if self._average is not None and self._recipe.ema is not None:
            self._average.lerp_(self._flat, 1.0 - self._recipe.ema.decay_after(self.step))

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """`flat` [parameters], in the model's order, as views by parameter name."""
        return _named_views(flat, self._shapes)

    def is_finite(self) -> bool:
        """Whether every parameter is finite. Waits for the device."""
        return bool(torch.stack(self._flat.aminmax()).isfinite().all())

    def decay_losses(self) -> dict[str, Tensor]:
        """The loss term of each parameter that decays: coefficient / 2 * ||w||^2, on the device."""
        decay = {name: c for name, c in self._recipe.weight_decay.items() if c}
        flat = {name: self.parameters[name].view(-1) for name in decay}
        return {name: torch.dot(flat[name], flat[name]) * (c / 2) for name, c in decay.items()}

    def digest(self) -> str:
        """18 hexadecimal digits that tell the bits of everything an update changes. Waits for the device."""
        tensors = self.named()
        # Parameters and their average are read as a whole, at the speed of memory.
        flat = [self._flat, *([] if self._average is None else [self._average])]
        others = (tensors[name] for name in sorted(tensors) if name.partition("/")[0] not in ("parameter", "ema"))
        return short(itertools.chain(flat, others))

    def tensors(self) -> dict[str, Tensor]:
        """Everything, by name, copied to the CPU: what a checkpoint holds."""
        return {name: t.cpu().clone() for name, t in self.named().items()}

    def named(self) -> dict[str, Tensor]:
        """Everything, by name: the tensors that updates change in place, and copies of the step and the loss scale."""
        named = {"step": torch.tensor(self.step)}
        if self._scale is not None:
            named["loss_scale"] = torch.tensor([self._scale.value, self._scale.clean], dtype=torch.float64)
        named |= self._members()
        for name, parameter in self.parameters.items():
            slots = self.optimizer.state.get(parameter, {})
            named |= {f"optimizer/{slot}/{name}": t for slot, t in slots.items() if isinstance(t, Tensor)}
        return {name: t.detach() for name, t in named.items()}

    def _members(self) -> dict[str, Tensor]:
        """Parameters, buffers and averages, by the names they have in a checkpoint."""
        groups = {"parameter": self.parameters, "buffer": self.buffers, "ema": self.ema or {}}
        return {f"{group}/{name}": tensor for group, members in groups.items() for name, tensor in members.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors()` returned. Raises: LockstepError if its names or shapes are another model's."""
        own = {name for name in self.named() if not name.startswith("optimizer/")}
        if missing := sorted(own ^ {name for name in tensors if not name.startswith("optimizer/")}):
            raise LockstepError(f"the checkpoint is of another model: {', '.join(missing[:5])} differ", DATA)
        members = self._members()
        for name, tensor in members.items():
            if (there := tensors[name].shape) != tensor.shape:
                raise LockstepError(
                    f"the checkpoint is of another model: {name} has shape {list(there)} in it, and "
                    f"{list(tensor.shape)} in model {self._recipe.model}",
                    DATA,
                )
        self.step = int(tensors["step"])
        if self._scale is not None:
            self._scale.value, self._scale.clean = float(tensors["loss_scale"][0]), int(tensors["loss_scale"][1])
        with torch.no_grad():
            for name, tensor in members.items():
                tensor.copy_(tensors[name])
        for key, tensor in tensors.items():
            kind, _, rest = key.partition("/")
            if kind == "optimizer":
                slot, _, name = rest.partition("/")
                parameter = self.parameters[name]
                self.optimizer.state[parameter][slot] = tensor.to(parameter.device, copy=True)

    def weights_sha256(self) -> str:
        """sha256 over the raw little-endian bytes of parameters, then buffers, each sorted by name."""
        digest = hashlib.sha256()
        for group in (self.parameters, self.buffers):
            for name in sorted(group):
                digest.update(group[name].detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


class PartedError(LockstepError):
    """A process holds other bits than the others."""

    def __init__(self, step: int, digests: Sequence[object]) -> None:
        """`digests`: of every process's state after `step` updates. Those of the largest group are taken for right."""
        right = max(digests, key=lambda digest: (digests.count(digest), digest == digests[0]))
        wrong = [process for process, digest in enumerate(digests) if digest != right]
        who = f"process {wrong[0]}" if len(wrong) == 1 else f"processes {', '.join(map(str, wrong))}"
        super().__init__(
            f"{who} of {len(digests)} parted from the others: after {step} steps the weights, buffers, average or "
            f"optimizer state have other bits there. Nothing was saved since they were last equal. Usual causes: "
            f"faulty memory, or a model that computes by more than its weights and input. Continue from the last "
            f"checkpoint with --resume",
            ENVIRONMENT,
        )


def views(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """`flat` [n] cut into tensors of `shapes`, which have n elements together; they share its memory."""
    parts = torch.split(flat, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _named_views(flat: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    return dict(zip(shapes, views(flat, list(shapes.values())), strict=True))
