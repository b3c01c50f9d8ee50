"""The arithmetic probe: a fingerprint of the bits that a process computes, taken before the first
step of a session.
"""

import torch
from torch import Tensor

from lockstep import rng
from lockstep.config.recipe import Recipe
from lockstep.core.digest import digest
from lockstep.core.network import Network, failure
from lockstep.core.state import State
from lockstep.core.tower import Tower
from lockstep.data.dataset import Dataset
from lockstep.errors import LockstepError, option
from lockstep.kernels import portable
from lockstep.kernels.portable import arithmetic

_IMAGES = 16  # use the vectorised paths of all kernels, in a fraction of a second
_IMAGES_OF_CHECK = 2


def probe(recipe: Recipe, network: Network, state: State, dataset: Dataset) -> str:
    """Return the probe of the initial `state`, which stays unchanged: the digest of one small
    update, in hex.

    It is equal where, as far as the probe can tell, the run's bits are.

    The probe computes the vector of a tower of 16 images of step 0, twice, and one update with it.
    Every session probes the same step, so a resumed run notices other hardware.
    Raises: LockstepError if the model does not fit the recipe, or computes other bits when it is
    repeated.
    """
    if recipe.arithmetic == "portable":
        portable.check(dataset.labels.device)
    bound = recipe.bind(len(dataset))
    shard = dataset.shard(bound.plan(0).first(_IMAGES), 0)
    _check_model(recipe, network, shard.images[:_IMAGES_OF_CHECK], len(dataset.classes))
    tower = Tower(bound, network)
    first, vector = digest([tower(state, shard, 0)]), tower(state, shard, 0)
    if digest([vector]) != first and recipe.exact:
        raise LockstepError(
            f"model {recipe.model} is not deterministic: a second pass over the same images has "
            f"other bits. Its output may depend only on its weights, its buffers, its input and "
            f"torch's "
            f"generator. Remove other random numbers and stored state, or give up exactness with "
            f"{option('settings', 'exact=false')}"
        )
    gradients, buffer_deltas, _ = tower.layout.unpack(vector)
    updated = state.fresh()
    with arithmetic(recipe.arithmetic):
        gradients.div_(len(shard.labels) * state.loss_scale)
    updated.apply(gradients, buffer_deltas, bound.learning_rate(0))
    return digest(
        [torch.frombuffer(bytearray(first), dtype=torch.uint8), *updated.state_dict().values()]
    ).hex()


def _check_model(recipe: Recipe, network: Network, images: Tensor, classes: int) -> None:
    """Raise a LockstepError unless the model returns logits [b, classes] for `images` [b, C, H, W].

    Towers add up the changes of floating-point buffers only. So it may change no other buffer,
    except num_batches_tracked, which counts the steps.
    """
    buffers = {name: buffer.clone() for name, buffer in network.buffers.items()}

    def compute(training: bool, images: Tensor) -> None:
        network.load_buffers(buffers)  # A forward pass in training mode changes them.
        network.module.train(training)
        torch.manual_seed(rng.seed_for(recipe.seed, "dropout", 0, 0))
        try:
            with torch.no_grad():
                output = network.module(images.to(network.dtype))
        except LockstepError:
            raise
        except Exception as error:
            remedy = "Correct the model, or give it images of the size that it takes"
            if training and "more than 1 value per channel" in str(error):
                remedy = (
                    f"Batch norm needs several values of a channel, and a tower computes only one "
                    f"image a step: give {option('tower_batch', 2)} or more"
                )
            raise LockstepError(
                f"model {recipe.model} fails on images [channels, height, width] "
                f"{list(images.shape[1:])}: {failure(error)}. {remedy}"
            ) from None
        got = f"a {type(output).__name__}"
        if isinstance(output, Tensor):
            got = f"{list(output.shape)}, {output.dtype}".replace("torch.", "")
            if list(output.shape) == [len(images), classes] and output.is_floating_point():
                return
        raise LockstepError(
            f"model {recipe.model} returned {got}, expected {[len(images), classes]}: float "
            f"logits, [images, classes], in {'training' if training else 'evaluation'} mode. Turn "
            f"auxiliary outputs off, as in {option('settings', 'model_options.aux_logits=false')}"
        )

    compute(training=True, images=images)
    for name, buffer in network.buffers.items():
        kept = buffer.is_floating_point() or name.endswith("num_batches_tracked")
        if not kept and not torch.equal(buffer, buffers[name]):
            raise LockstepError(
                f"model {recipe.model} changes its buffer {name} in the forward pass, and Lockstep "
                f"keeps such changes of floating-point buffers only. Register it as a float "
                f"buffer: Lockstep averages its change over the towers"
            )
    compute(training=False, images=images)
    # It may take the size of the first steps only.
    if recipe.progressive and not hasattr(network.module, "min_px"):
        for size in recipe.progressive.sizes_px:
            compute(
                training=False, images=images.new_zeros(len(images), images.shape[1], size, size)
            )
