"""The arithmetic probe: a fingerprint of the bits that a process computes, taken before the first step of a session."""

from collections.abc import Mapping

import torch
from torch import Tensor

from lockstep import rng
from lockstep.config.recipe import Recipe
from lockstep.core.digest import digest
from lockstep.core.network import Network, failure
from lockstep.core.state import State
from lockstep.core.tower import Tower
from lockstep.data.dataset import Dataset
from lockstep.errors import LockstepError
from lockstep.messages import logger

# The probe uses the vectorised paths of all kernels, and takes a fraction of a second. A large network gets less work.
_IMAGES, _IMAGES_OF_LARGE, _LARGE_PARAMETERS = 16, 4, 4_000_000
_IMAGES_OF_CHECK = 2
_UPDATED_VALUES, _MATRIX_ROWS = 2**20, 64  # parameters in the probe's update, and rows of each matrix among them


def probe(recipe: Recipe, network: Network, state: State, dataset: Dataset) -> str:
    """Return the probe of the initial `state`, which stays unchanged: the SHA-256 of one small update, in hex.

    It is equal where, as far as the probe can tell, the run's bits are.

    The probe computes the vector of a tower of 16 images of step 0 twice, then one update of about a million
    parameters of `state`: whole filters, and the first rows of matrices. For a network of over 4 million parameters it
    computes the vector of 4 images once. Every session probes the same step, so a resumed run notices other hardware.
    Raises: LockstepError if the model does not fit the recipe, or computes other bits when it is repeated.
    """
    course = recipe.bind(len(dataset))
    large = sum(parameter.numel() for parameter in network.parameters.values()) > _LARGE_PARAMETERS
    shard = dataset.shard(course.plan(0).first(_IMAGES_OF_LARGE if large else _IMAGES), 0)
    _check_output(recipe, network, shard.images[:_IMAGES_OF_CHECK], len(dataset.classes))
    tower, digests = Tower(course, network), []
    for _ in range(1 if large else 2):
        vector = tower(state, shard, 0)
        gradients, buffer_deltas, metrics = tower.layout.unpack(vector)
        digests.append(digest([gradients, buffer_deltas, metrics.cross_entropy, metrics.correct]))
    if digests[0] != digests[-1] and recipe.exact:
        raise _not_repeatable(recipe)
    mean = state.by_name(gradients.div_(len(shard.labels) * state.loss_scale))
    part = _some_parameters(state.marked())
    decay = {name: coefficient for name, coefficient in state.decay.items() if name in part}
    small = State(recipe.replace(weight_decay=decay, lr_factors={}), part, state.buffers, gradients.device)
    flat = torch.cat([_first_rows(mean[name]).flatten() for name in part])
    small.apply(flat, buffer_deltas, course.learning_rate(0))
    return digest([torch.frombuffer(bytearray(digests[0]), dtype=torch.uint8), *small.named().values()]).hex()


def _some_parameters(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the first rows of trained parameters that fit in _UPDATED_VALUES values, and of the first in any case."""
    chosen: dict[str, Tensor] = {}
    values = 0
    for name, parameter in ((name, _first_rows(p)) for name, p in parameters.items() if p.requires_grad):
        if not chosen or values + parameter.numel() <= _UPDATED_VALUES:
            chosen[name] = parameter
            values += parameter.numel()
    return chosen


def _first_rows(tensor: Tensor) -> Tensor:
    """Return the first rows of a matrix, which every optimizer updates value by value; other tensors whole."""
    return tensor[:_MATRIX_ROWS] if tensor.ndim == 2 else tensor


def _check_output(recipe: Recipe, network: Network, images: Tensor, classes: int) -> None:
    """Raise a LockstepError unless the model returns logits [b, classes] for `images` [b, C, H, W], twice the same."""
    buffers = {name: buffer.clone() for name, buffer in network.buffers.items()}

    def compute(training: bool, images: Tensor = images) -> Tensor:
        network.load_buffers(buffers)  # A forward pass in training mode changes them.
        network.module.train(training)
        torch.manual_seed(rng.seed_for(recipe.seed, "dropout", 0, 0))
        try:
            with torch.no_grad():
                output = network.module(images.to(network.dtype))
        except LockstepError:
            raise
        except Exception as error:
            raise LockstepError(
                f"model {recipe.model} fails on images [channels, height, width] {list(images.shape[1:])}: "
                f"{failure(error)}. Correct the model, or give it images of the size that it takes"
            ) from None
        return _require_logits(recipe.model, output, [len(images), classes], training)

    if digest([compute(training=True)]) != digest([compute(training=True)]) and recipe.exact:
        raise _not_repeatable(recipe)
    _check_integer_buffers(recipe, network, buffers)
    compute(training=False)
    if recipe.progressive and not hasattr(network.module, "min_px"):  # It may take the size of the first steps only.
        for size in recipe.progressive.sizes_px:
            compute(training=False, images=images.new_zeros(len(images), images.shape[1], size, size))


def _check_integer_buffers(recipe: Recipe, network: Network, before: Mapping[str, Tensor]) -> None:
    """Raise a LockstepError if the forward pass changed an integer or boolean buffer; without exactness, warn.

    Towers add up the changes of floating-point buffers only. Others have their initial values in every forward pass,
    except num_batches_tracked, which counts the steps.
    """
    for name, buffer in network.buffers.items():
        counts = buffer.is_floating_point() or name.endswith("num_batches_tracked")
        if counts or torch.equal(buffer, before[name]):
            continue
        text = (
            f"model {recipe.model} changes its buffer {name} in the forward pass, and Lockstep keeps such changes of "
            f"floating-point buffers only: it has its initial value in every step. Register it as a float buffer, "
            f"whose mean change over the towers is kept"
        )
        if recipe.exact:
            raise LockstepError(f"{text}, or accept the initial value with --set exact=false")
        logger.warning(text)


def _require_logits(model: str, output: object, expected: list[int], training: bool) -> Tensor:
    """Return `output` if it is a floating-point tensor of the shape `expected`. Raises: LockstepError."""
    if isinstance(output, Tensor) and list(output.shape) == expected and output.is_floating_point():
        return output
    got, hint = f"a {type(output).__name__}", ""
    if isinstance(output, Tensor):
        got = f"{list(output.shape)}, {output.dtype}".replace("torch.", "")
    elif training:
        hint = ". Turn auxiliary outputs in training off, as in --set model_options.aux_logits=false"
    mode = "training" if training else "evaluation"
    raise LockstepError(
        f"model {model} returned {got}, expected {expected}: float logits, [images, classes], in {mode} mode{hint}"
    )


def _not_repeatable(recipe: Recipe) -> LockstepError:
    return LockstepError(
        f"model {recipe.model} computes other bits when it is run again on the same images. Its output may depend only "
        f"on its weights, its buffers, its input and torch's generator. Remove other random numbers and stored state, "
        f"or give up exactness with --set exact=false"
    )
