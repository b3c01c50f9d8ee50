"""Tower: one logical replica, the unit of numerics; and the layout of the flat vector it returns."""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep import rng
from lockstep.config.recipe import Recipe
from lockstep.data.dataset import Shard
from lockstep.data.plan import Plan
from lockstep.errors import CRASH, ENVIRONMENT, LockstepError, unknown
from lockstep.models import MODELS
from lockstep.numerics import GpuUtilisation, configure_compiler, memory_bytes
from lockstep.settings import load_object
from lockstep.training import digest as digests
from lockstep.training.state import State, views

Shape = tuple[int, int, int]

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
BUSY_MODULUS_S = 4096.0  # float32 tells seconds apart to half a millisecond below it
UNKNOWN = -1.0  # of a GPU's utilisation
_CONVOLUTIONS = (nn.modules.conv._ConvNd,)
REQUESTS = ("interrupt", "terminate", "hangup", "save")  # what a process may ask all processes to do after a step
_CAUSES = "Usual causes: a learning rate that is too high (lower --lr), or bad input"


def plan_of(recipe: Recipe, step: int, examples: int) -> Plan:
    """Which examples each tower of `recipe` sees at `step`, of a training set of `examples` examples."""
    return Plan.at(
        seed=recipe.seed,
        step=step,
        batch=recipe.batch,
        towers=recipe.towers,
        examples=examples,
        augmentation=recipe.augmentation,
        size_px=recipe.size_px(step, examples),
    )


def build_model(recipe: Recipe, shape: Shape, classes: int) -> nn.Module:
    """The recipe's network on the CPU, with its initial weights: a function of `recipe.seed`."""
    function = load_object(MODELS.get(recipe.model, recipe.model))
    if not callable(function):
        raise LockstepError(f"model {recipe.model} is a {type(function).__name__}, expected a function")
    options = list(inspect.signature(function).parameters)[2:]  # after the shape and the number of classes
    try:
        inspect.signature(function).bind(shape, classes)
    except TypeError as error:
        raise LockstepError(
            f"model {recipe.model} is called with (shape [C, H, W], classes): {error}. Give a function of these two, "
            f"and of options with defaults"
        ) from None
    if wrong := [name for name in recipe.model_options if name not in options]:
        raise LockstepError(unknown(f"option of model {recipe.model}", wrong[0], options))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.seed_for(recipe.seed, "initial"))
        model = function(shape, classes, **recipe.model_options)
    if not isinstance(model, nn.Module):
        raise LockstepError(f"model {recipe.model} returned {type(model).__name__}, expected a torch.nn.Module")
    if not any(p.requires_grad for p in model.parameters()):
        raise LockstepError(f"model {recipe.model} has no parameters to train")
    return model


class Network:
    """The network in the dtype it is computed in, refreshed from the float32 master weights.

    Parameters and activations have the recipe's precision; torch's norm layers and all statistics stay float32. So do,
    for float16 on a CPU, convolutions: from and to float16 activations. Torch's float16 backward is 100 times slower
    there.
    """

    def __init__(self, recipe: Recipe, module: nn.Module, shape: Shape, device: torch.device) -> None:
        """Take over `module`, for images [C, H, W] of `shape`: it is moved and cast in place."""
        self.dtype = getattr(torch, recipe.precision)
        self.shape = shape
        self.module = module.to(device)
        self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for part in self.module.modules():
            if self.dtype == torch.float16 and device.type == "cpu" and isinstance(part, _CONVOLUTIONS):
                part.register_forward_pre_hook(lambda _, inputs: tuple(x.float() for x in inputs))
                part.register_forward_hook(lambda _, inputs, output: output.half())
            elif not isinstance(part, _NORMS):
                _cast(part, self.dtype)
        self.parameters = dict(self.module.named_parameters())
        self._forward: Callable[[Tensor], Tensor] = self.module
        if recipe.compile:
            configure_compiler(recipe.exact)
            self._forward = torch.compile(self.module, dynamic=False)  # one graph for each size of images that comes
        self._trained = {name for name, p in self.parameters.items() if p.requires_grad}
        self.buffers = persistent_buffers(self.module)

    @torch.no_grad()
    def load_parameters(self, parameters: Mapping[str, Tensor]) -> None:
        """Copy in float32 parameters by name, rounding to the network's dtype."""
        torch._foreach_copy_(list(self.parameters.values()), [parameters[name] for name in self.parameters])

    @torch.no_grad()
    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Copy in buffers by name."""
        for name, buffer in self.buffers.items():
            buffer.copy_(buffers[name])

    def freeze(self, names: Set[str]) -> None:
        """Take the gradients of no parameters of these `names`, nor of those the model itself does not train."""
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(name in self._trained and name not in names)

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Compute operator by operator for as long as the context lasts, also where the recipe says to compile."""
        compiled, self._forward = self._forward, self.module
        try:
            yield
        finally:
            self._forward = compiled

    def __call__(self, images: Tensor) -> Tensor:
        """float32 [b, C, h, w] -> float32 logits [b, classes]."""
        try:
            logits: Tensor = self._forward(images.to(self.dtype)).float()
        except Exception as error:
            if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                problem = str(error).strip().splitlines()[0]
                raise LockstepError(
                    f"torch cannot compile the network: {problem}. Set compile=false", ENVIRONMENT
                ) from None
            raise
        return logits

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """The derivative of `loss` by every parameter; zeros for one that is frozen or has no part in the loss."""
        trained = {name: p for name, p in self.parameters.items() if p.requires_grad}
        found = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True) if trained else ()
        by_name = dict(zip(trained, found, strict=True))
        return [by_name[name] if name in by_name else torch.zeros_like(p) for name, p in self.parameters.items()]


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that are part of the module's state, by name."""
    kept = module.state_dict().keys()
    return {name: buffer for name, buffer in module.named_buffers() if name in kept}


@dataclass(frozen=True)
class Metrics:
    """Sums over the batch, as tensors on the device: reading one waits for it.

    cross_entropy: sum over the examples. last: the last tower's part of it. correct: how many are classified right.
    flags: [4 + towers], for each of REQUESTS the number of towers whose process made it; then for each tower 1 if its
    loss or gradient is not finite. memory, busy: [towers], what the tower's process holds, in MiB, and the CPU time it
    has used, in seconds modulo BUSY_MODULUS_S; gpu: [towers], how busy its GPU is, in percent, or UNKNOWN. digest:
    [towers, 3], of the process's state, where it was taken. All four are known for the first tower of a process only.
    """

    cross_entropy: Tensor
    last: Tensor
    correct: Tensor
    flags: Tensor
    memory: Tensor
    busy: Tensor
    gpu: Tensor
    digest: Tensor

    @property
    def requests(self) -> Tensor:
        """[4], the first part of `flags`."""
        return self.flags[: len(REQUESTS)]

    @property
    def broken(self) -> Tensor:
        """[towers], the rest of `flags`."""
        return self.flags[len(REQUESTS) :]


class Layout:
    """Where things are in the flat float32 vector: [gradient sums | statistics | metric sums].

    Statistics are what a step adds to the floating-point buffers (batch norm's running averages).
    """

    def __init__(self, parameters: Mapping[str, Tensor], statistics: Mapping[str, Tensor], towers: int) -> None:
        self.sizes = [sum(t.numel() for t in group.values()) for group in (parameters, statistics)]
        # the sizes of the fields of Metrics
        self._metrics = [1, 1, 1, len(REQUESTS) + towers, towers, towers, towers, towers * digests.VALUES]
        self.sizes.append(sum(self._metrics))
        self.length = sum(self.sizes)
        self._shapes = [[t.shape for t in group.values()] for group in (parameters, statistics)]

    def pack(self, out: Tensor, gradients: Sequence[Tensor], statistics: Sequence[Tensor], metrics: Tensor) -> None:
        """Fill the vector `out`, converting to float32."""
        parts = torch.split(out, self.sizes)
        for part, shapes, tensors in zip(parts, self._shapes, (gradients, statistics), strict=False):
            if tensors:
                torch._foreach_copy_(views(part, shapes), list(tensors))
        parts[2].copy_(metrics)

    def split(self, total: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        """(gradient sums, statistics sums, metrics) as views of `total`."""
        gradients, statistics, sums = torch.split(total, self.sizes)
        return gradients, statistics, self.metrics(sums)

    def metrics(self, sums: Tensor) -> Metrics:
        """The fields of a vector's last part, as views of it."""
        cross_entropy, last, correct, flags, memory, busy, gpu, digest = torch.split(sums, self._metrics)
        digest = digest.view(-1, digests.VALUES)
        return Metrics(cross_entropy[0], last[0], correct[0], flags, memory, busy, gpu, digest)


class Tower:
    """Maps (state, shard, step) to one flat float32 vector; see `Layout`.

    All towers of a process share this object and its copy of the network: they run one after the other, each from
    the same weights and buffers.
    """

    def __init__(self, recipe: Recipe, network: Network) -> None:
        self._recipe = recipe
        self._network = network
        self._averaged = {name: b for name, b in network.buffers.items() if b.is_floating_point()}
        self._loaded_step: int | None = None
        self.layout = Layout(network.parameters, self._averaged, recipe.towers)
        device = next(iter(network.parameters.values())).device
        self._utilisation = GpuUtilisation(device) if device.type == "cuda" else None

    def __call__(
        self, state: State, shard: Shard, step: int, requests: Sequence[bool] = (), digest: Sequence[float] = ()
    ) -> Tensor:
        """The tower's vector for `shard`.

        `requests` says which of REQUESTS this process makes; `digest` is `State.digest`'s, if it was taken.
        Pure in (state, shard, step) but for what the process tells of itself (requests, memory, time, digest): equal
        bits in every process. No host synchronisation.
        """
        network, recipe = self._network, self._recipe
        if first := self._loaded_step != step:  # the towers of a process share the copy
            network.load_parameters(state.parameters)
            network.freeze(state.frozen)
            self._loaded_step = step
        network.load_buffers(state.buffers)  # which the tower before this one has moved on
        network.module.train()
        torch.manual_seed(rng.seed_for(recipe.seed, "dropout", step, shard.tower))
        logits = network(shard.images)
        loss = functional.cross_entropy(logits, shard.labels, reduction="sum", label_smoothing=recipe.label_smoothing)
        gradients = network.gradients(loss * state.loss_scale if recipe.precision == "float16" else loss)
        with torch.no_grad():
            statistics = [buffer - state.buffers[name] for name, buffer in self._averaged.items()]
            out = torch.empty(self.layout.length, device=loss.device)
            sums = torch.zeros(self.layout.sizes[2], device=loss.device)
            metrics = self.layout.metrics(sums)
            metrics.cross_entropy.copy_(loss)
            if shard.tower == recipe.towers - 1:
                metrics.last.copy_(loss)
            metrics.correct.copy_((logits.argmax(1) == shard.labels).sum())
            for i, asked in enumerate(requests):
                if asked:
                    metrics.requests[i] = 1.0
            if first:
                metrics.memory[shard.tower] = memory_bytes(loss.device) / 2**20
                metrics.busy[shard.tower] = time.process_time() % BUSY_MODULUS_S
                if digest:
                    metrics.digest[shard.tower] = torch.tensor(digest, device=loss.device)
                if self._utilisation:
                    percent = self._utilisation()
                    metrics.gpu[shard.tower] = UNKNOWN if percent is None else percent
            self.layout.pack(out, gradients, statistics, sums)
            # Least and greatest are both finite exactly if all elements are; isfinite() of each costs 16 times as much.
            finite = torch.stack(out.aminmax()).isfinite().all()
            self.layout.split(out)[2].broken[shard.tower] = (~finite).float()
        return out


class NonFiniteError(LockstepError):
    """A tower's loss or gradient is infinite or not a number; the update was not applied, in any process."""

    def __init__(self, towers: Sequence[int], step: int) -> None:
        names = f"tower {towers[0]}" if len(towers) == 1 else f"towers {', '.join(map(str, towers))}"
        super().__init__(f"the loss or a gradient of {names} is not finite at step {step}. {_CAUSES}", CRASH)


class OverflowedError(NonFiniteError):
    """An update made a weight infinite or not a number, though all gradients were finite."""

    def __init__(self, steps: int) -> None:
        LockstepError.__init__(self, f"a weight is not finite after {steps} steps. {_CAUSES}", CRASH)


def _cast(part: nn.Module, dtype: torch.dtype) -> None:
    """Cast, in place, the floating-point parameters and constant buffers that `part` itself holds."""
    for parameter in part.parameters(recurse=False):
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for name, buffer in part.named_buffers(recurse=False):
        if buffer.is_floating_point() and name in part._non_persistent_buffers_set:
            setattr(part, name, buffer.to(dtype))
