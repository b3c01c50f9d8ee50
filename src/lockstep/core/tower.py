"""Tower: one equal share of each batch, computed with the same weights; the unit of numerics."""

from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import rng
from lockstep.config.recipe import BoundRecipe
from lockstep.core.network import Network
from lockstep.core.state import State
from lockstep.core.task import task_of
from lockstep.core.vector import Layout, Requests, VectorBuilder
from lockstep.data.dataset import Shard
from lockstep.errors import CRASH, LockstepError, option
from lockstep.kernels.portable import arithmetic, draws

# of a tower that a CUDA graph can have; a network with more is computed kernel by kernel
_DRAWS = 64
_NO_KEYS = torch.empty(0)


class Tower:
    """Computes the towers of a process for a `bound` recipe: from (state, shard, step) one flat
    float32 vector, in the order of `layout`.

    A tower is one of T equal shares of the batch, computed alone. Towers that share
    this object and its copy of the network run one after the other, and each starts from the same
    weights and buffers.
    """

    def __init__(self, bound: BoundRecipe, network: Network) -> None:
        self.bound = bound
        self._network = network
        self._task = task_of(bound.recipe)
        self._float_buffers = {
            name: b for name, b in network.buffers.items() if b.is_floating_point()
        }
        self._loaded: State | None = None
        self._loaded_step = 0
        self._flags_and_tower: dict[tuple[int, Requests], Tensor] = {}
        self.layout = Layout(network.parameters, self._float_buffers, bound.recipe.towers)

    def __call__(
        self,
        state: State,
        shard: Shard,
        step: int,
        requests: Requests = Requests(),  # noqa: B008  a frozen constant
        on_part: Callable[[Tensor, slice], None] | None = None,
    ) -> Tensor:
        """Return the tower's vector for `shard`.

        The gradients and buffer_deltas are a pure function of (state, shard, step), so they are
        equal in every process. The metrics also carry this process's `requests`. `on_part` is
        called during the backward pass, with the vector and one part after the other of
        `layout.parts`: it may change the values of a part.
        """
        recipe = self.bound.recipe
        device = shard.images.device
        # Later towers of the step use the same weights.
        if self._loaded is not state or self._loaded_step != step:
            self.load_parameters(state)
            self._loaded = state
            self._loaded_step = step
        key = shard.tower, requests
        if key not in self._flags_and_tower:
            towers = [float(tower == shard.tower) for tower in range(recipe.towers)]
            self._flags_and_tower[key] = torch.tensor(
                [*requests.flags(), *towers], dtype=torch.bool, device=device
            )
        if self._network.draws:
            _seed_generators(self._seed(step, shard.tower), device)
        return self.vector(state, shard, self._flags_and_tower[key], _NO_KEYS, on_part)

    def copy(self) -> "Tower":
        """Return a tower with a copy of the network, which computes beside this one."""
        return Tower(self.bound, deepcopy(self._network))

    def keys(self, step: int, tower: int) -> NDArray[np.int64]:
        """Return the keys of the random numbers that a tower draws, for `vector`: int64 [n]."""
        if not self._network.draws:
            return np.empty(0, np.int64)
        generator = torch.Generator().manual_seed(self._seed(step, tower))
        return draws.keys(_DRAWS, generator)

    def _seed(self, step: int, tower: int) -> int:
        return rng.seed_for(self.bound.recipe.seed, "dropout", step, tower)

    def load_parameters(self, state: State) -> None:
        """Copy the parameters of `state` into the network, before the towers of a step."""
        self._network.load_parameters(state.parameters)

    def vector(
        self,
        state: State,
        shard: Shard,
        flags_and_tower: Tensor,
        keys: Tensor,
        on_part: Callable[[Tensor, slice], None] | None = None,
    ) -> Tensor:
        """Return the vector, with the parameters that are loaded. It may depend on no number of the
        host that differs between steps, because a CUDA graph repeats such a number.

        `flags_and_tower` is bool [flags of the requests + towers], of which one tower is marked.
        `keys` are those of the first draws, int64 [n].
        """
        network = self._network
        recipe = self.bound.recipe
        with draws.keyed(keys), arithmetic(recipe.arithmetic):
            network.load_buffers(state.buffers)  # The tower before this one changed them.
            network.train()
            logits = network(shard.images)
            loss = self._task.loss(
                logits if shard.priors is None else logits + shard.priors,
                shard.labels,
                label_smoothing=recipe.label_smoothing,
            )
            vector = VectorBuilder(self.layout, loss.device, on_part)
            scaled = loss * state.loss_scale if recipe.precision == "float16" else loss
            gradients = network.gradients(scaled, vector.add_gradient if on_part else None)
            with torch.no_grad():
                buffer_deltas: Sequence[Tensor] = ()
                if self._float_buffers:
                    before = [state.buffers[name] for name in self._float_buffers]
                    # For all buffers together, as two operations for a GPU. Portable arithmetic has
                    # no _foreach_sub.
                    buffer_deltas = torch._foreach_mul(before, -1.0)
                    torch._foreach_add_(buffer_deltas, list(self._float_buffers.values()))
                tower = flags_and_tower[-recipe.towers :]
                metrics = vector.metrics
                metrics.cross_entropy.copy_(loss)
                metrics.last_cross_entropy.masked_fill_(tower[-1], loss)
                metrics.correct.copy_(self._task.correct(logits, shard.labels).sum())
                metrics.requests.copy_(flags_and_tower[: -recipe.towers])
                vector.finish(gradients, buffer_deltas, tower)
        return vector.values


def _seed_generators(seed: int, device: torch.device) -> None:
    # torch.manual_seed keeps a stack for each backend that is not there, which takes as long as a
    # small layer.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def named_towers(towers: Sequence[int]) -> str:
    """Return in words which towers are not finite."""
    return f"tower {towers[0]}" if len(towers) == 1 else f"towers {', '.join(map(str, towers))}"


class NonFiniteError(LockstepError):
    """A loss, a gradient or a weight is infinite or not a number. Every process raises it at the
    same step.
    """

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where}. Usual causes: a learning rate that is too high (lower {option('lr')}), or "
            f"bad input",
            CRASH,
        )
