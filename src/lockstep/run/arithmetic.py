"""Arithmetic: a probe of the bits that a process computes, taken before the first step of every session."""

import inspect
import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lockstep import rng
from lockstep.config.recipe import Recipe
from lockstep.data.dataset import Dataset, Shard
from lockstep.errors import LockstepError
from lockstep.training.digest import digest
from lockstep.training.state import State
from lockstep.training.tower import Network, Tower, plan_of

# Enough for the vectorised paths of kernels, and done in a fraction of a second; the larger the network, the fewer.
_IMAGES, _FEWER_IMAGES, _LARGE = 16, 4, 4_000_000
_FEW = 2
_VALUES, _ROWS = 2**20, 64  # of the weights that are updated, and of a matrix among them
_CALLS = 3


def probe(recipe: Recipe, network: Network, state: State, dataset: Dataset) -> str:
    """The sha256, in hex, of one small update: equal where the whole run has equal bits, as far as it can tell.

    The vector of a tower of 16 images of step 0, computed twice, and a part of the weights of `state` after one update
    by it: about a million, whole filters and the first rows of matrices. Of a network of over 4 million parameters it
    is the vector of 4 images, computed once. `state`, which is the initial one, is not changed. In every session it is
    the same step, so that a session on other hardware shows when a run is resumed. A network that torch compiles is
    computed uncompiled here, as its compilation for so many images would take a minute.
    Raises: LockstepError if the model does not fit the recipe, or gives other bits when it is computed again.
    """
    shard = _some_images(recipe, network, dataset)
    with network.uncompiled():
        _check_output(recipe, network, shard.images[:_FEW], len(dataset.classes))
        tower, found = Tower(recipe, network), []
        for _ in range(1 if _is_large(network) else 2):
            vector = tower(state, shard, 0)
            gradients, statistics, metrics = tower.layout.split(vector)
            found.append(digest([gradients, statistics, metrics.cross_entropy, metrics.correct]))
    if found[0] != found[-1] and recipe.exact:
        raise _impure(recipe)
    mean = state.by_name(gradients.div_(len(shard.labels) * state.loss_scale))
    part = {name: _part(parameter) for name, parameter in _chosen(state.parameters).items()}
    decay = {name: coefficient for name, coefficient in recipe.weight_decay.items() if name in part}
    changes = recipe.model_copy(update={"weight_decay": decay, "freeze": {}})
    scratch = State(changes, part, state.buffers, gradients.device)
    scratch.apply(torch.cat([_part(mean[name]).flatten() for name in part]), statistics, recipe.rate(0, len(dataset)))
    return digest([torch.frombuffer(bytearray(found[0]), dtype=torch.uint8), *scratch.named().values()]).hex()


def _chosen(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The first of `parameters` that have _VALUES values together, as far as they are updated, and all smaller ones."""
    chosen: dict[str, Tensor] = {}
    values = 0
    for name, parameter in parameters.items():
        size = _part(parameter).numel()
        if not chosen or values + size <= _VALUES:
            chosen[name] = parameter
            values += size
    return chosen


def _part(tensor: Tensor) -> Tensor:
    """The first rows of a matrix, which every optimizer moves value by value; anything else as a whole."""
    return tensor[:_ROWS] if tensor.ndim == 2 else tensor


def slowdown(
    recipe: Recipe, network: Network, plain: Recipe, model: nn.Module, state: State, dataset: Dataset
) -> float:
    """How many times as long `recipe`'s towers take as those of `plain`, which is `recipe` in float32 of `model`."""
    shard = _some_images(recipe, network, dataset)
    other = Network(plain, model, network.shape, shard.images.device)
    with network.uncompiled(), other.uncompiled():
        times = [_seconds(Tower(*pair), state, shard) for pair in ((recipe, network), (plain, other))]
    return times[0] / times[1]


def _seconds(tower: Tower, state: State, shard: Shard) -> float:
    """The least time of a few calls of `tower`, after one that loads its weights."""
    found = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        tower(state, shard, 0).sum().item()  # which waits for a GPU
        found.append(time.perf_counter() - began)
    return min(found[1:])


def _some_images(recipe: Recipe, network: Network, dataset: Dataset) -> Shard:
    """The first images of tower 0 at step 0."""
    plan = plan_of(recipe, 0, len(dataset))
    return dataset.shard(plan.first(_FEWER_IMAGES if _is_large(network) else _IMAGES), 0)


def _check_output(recipe: Recipe, network: Network, images: Tensor, classes: int) -> None:
    """Raise a LockstepError unless the model gives logits [b, classes] for `images` [b, C, H, W], twice the same."""
    takes_images(recipe.model, network.module)
    network.module.train()
    buffers = {name: buffer.clone() for name, buffer in network.buffers.items()}

    def computed() -> object:
        network.load_buffers(buffers)  # which a pass in training moves on
        torch.manual_seed(rng.seed_for(recipe.seed, "dropout", 0, 0))
        with torch.no_grad():
            return network.module(images.to(network.dtype))

    output = computed()
    expected = [len(images), classes]
    if not isinstance(output, Tensor):
        got = f"a {type(output).__name__}"
    elif list(output.shape) != expected:
        got = str(list(output.shape))
    elif not output.is_floating_point():
        got = f"{output.dtype}".removeprefix("torch.")
    else:
        again = computed()
        assert isinstance(again, Tensor)
        if recipe.exact and digest([output]) != digest([again]):
            raise _impure(recipe)
        return
    raise LockstepError(f"model {recipe.model} returned {got}, expected {expected}: float logits, [images, classes]")


def _is_large(network: Network) -> bool:
    return sum(parameter.numel() for parameter in network.parameters.values()) > _LARGE


def _impure(recipe: Recipe) -> LockstepError:
    return LockstepError(
        f"model {recipe.model} gives other bits when it is computed a second time on the same images: it must be a "
        f"function of its weights, its buffers, its input and torch's generator alone. Remove what else it draws "
        f"from or remembers, or give exactness up with --set exact=false"
    )


def takes_images(name: str, module: nn.Module) -> None:
    """Raise a LockstepError unless `module`, the model called `name`, can be called with one tensor of images."""
    try:
        inspect.signature(module.forward).bind(None)
    except TypeError as error:
        raise LockstepError(f"model {name}: forward takes one tensor of images [b, C, H, W], but {error}") from None
