"""Steps: how a process computes a step, from the plan of its examples to the update.

`AtOnce` reads the flags of a step before its update: on CPUs. `Ahead` queues whole steps on a GPU,
and the flags of a step are read while the next one is computed. Both make the same update.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.core.captured import Captured
from lockstep.core.log import Log
from lockstep.core.readback import ReadBack
from lockstep.core.reduction import Reduction
from lockstep.core.state import State
from lockstep.core.tower import NonFiniteError, Tower, named_towers
from lockstep.core.vector import Metrics, Requests, copy_each, excess
from lockstep.data.dataset import Dataset, Plan
from lockstep.data.transforms import Packing, Tensors, to_device
from lockstep.kernels.portable import arithmetic
from lockstep.kernels.portable.layers import adam_rates

# The host draws the values of several steps together: those of this many examples, or steps.
_EXAMPLES, _STEPS = 4096, 32
_LANES = 8  # towers that a GPU computes side by side


class Steps:
    """The steps of this process for the tower's bound recipe. `state` is trained in place."""

    def __init__(
        self,
        dataset: Dataset,
        tower: Tower,
        reduction: Reduction,
        state: State,
        log: Log,
        poll_requests: Callable[[], Requests],
    ) -> None:
        self._dataset, self._tower, self._reduction = dataset, tower, reduction
        self._state, self._log, self._poll_requests = state, log, poll_requests
        self._bound, self._recipe = tower.bound, tower.bound.recipe
        self._plans: list[Plan] = []
        self._first = 0  # the step of the first of them
        self._decay: list[str] = []  # the names of the decay terms

    def _row(self, step: int) -> int:
        """Return which of the plans is that of `step`. The host draws several steps together: new
        ones with the first of them.
        """
        if not 0 <= step - self._first < len(self._plans):
            count = max(1, min(_STEPS, _EXAMPLES // self._recipe.batch))
            steps = range(step, min(step + count, self._bound.steps))
            self._plans, self._first = self._bound.plans(steps), step
            self._drawn = self._dataset.draw(self._plans, self._reduction.owned)
        return step - self._first

    def _numbers(self, total: Tensor) -> Tensor:
        """Return what the host reads of a step: its metrics, the excess of the weights and of the
        sums, and the terms of weight decay in the loss.
        """
        state = self._state
        decay = state.decay_losses() if self._log.observers else {}
        self._decay = [*decay]
        numbers = excess(state.weights), excess(total), *decay.values()
        return torch.cat([total[: self._tower.layout.metric_length], torch.stack(numbers)])

    def _read(self, step: int, numbers: Tensor) -> tuple[Metrics, Requests, list[int]]:
        """Return metrics, requests and the towers that are not finite, if these may be skipped."""
        end = self._tower.layout.metric_length
        metrics = Metrics.views(numbers[:end])
        requested, non_finite = metrics.read()
        of_weights, of_sum = numbers[end : end + 2].tolist()
        if of_weights:
            # The last update made them so, although its gradients were finite.
            raise NonFiniteError(f"a weight is not finite after {step} steps")
        what = "the loss or a gradient of"
        if of_sum and not non_finite:
            non_finite = [*range(self._recipe.towers)]
            what = "the sum of the losses or gradients of"
        if non_finite and not self._state.may_skip:
            raise NonFiniteError(f"{what} {named_towers(non_finite)} is not finite at step {step}")
        return metrics, requested, non_finite

    def _means(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean gradients and changes of buffers, in the memory of `total`."""
        gradients, buffer_deltas, _ = self._tower.layout.unpack(total)
        with torch.no_grad(), arithmetic(self._recipe.arithmetic):
            gradients.div_(self._recipe.batch * self._state.loss_scale)
            buffer_deltas.div_(self._recipe.towers)
        return gradients, buffer_deltas

    def _report(
        self, step: int, metrics: Metrics, numbers: Tensor, scale: float, skipped: list[int]
    ) -> None:
        terms = numbers[self._tower.layout.metric_length + 2 :].tolist()
        decay = dict(zip(self._decay, terms, strict=True))
        with self._log.monitor.doing("report"):
            self._log.step(step, metrics, decay, scale, skipped)


class AtOnce(Steps):
    """Steps whose flags the host reads before their update: on CPUs, and on GPUs where the host
    takes part in a step.
    """

    def compute(self, step: int) -> Callable[[], Requests]:
        """Compute all of `step` but its update. Return a function that makes and reports it, and
        returns the combined requests of all processes.

        It raises NonFiniteError, in every process at the same step; `state` is then as before it.
        """
        monitor, reduction = self._log.monitor, self._reduction
        with monitor.doing("data", step):
            if not (row := self._row(step)):
                self._values = to_device(self._drawn, self._dataset.labels.device)
        for place, number in enumerate(reduction.owned):
            with monitor.doing("data"):
                own = {name: values[row, place] for name, values in self._values.items()}
                shard = self._dataset.shard(self._plans[row], number, own)
            with monitor.doing("compute"):
                in_parts = reduction.in_parts and number == reduction.owned[-1]
                on_part = reduction.begin_part if in_parts else None
                vector = self._tower(self._state, shard, step, self._poll_requests(), on_part)
            with monitor.doing("communication"):
                reduction.add(vector)
        with monitor.doing("communication"):
            total = reduction.total().to(self._state.device)
        return partial(self._updated, step, total)

    def _updated(self, step: int, total: Tensor) -> Requests:
        log, state = self._log, self._state
        with log.monitor.doing("communication"):
            # The only wait for the device in a step; the device may wait for other processes.
            numbers = self._numbers(total).cpu()
        metrics, requested, non_finite = self._read(step, numbers)
        gradients, buffer_deltas = self._means(total)
        scale = state.loss_scale
        with log.monitor.doing("report"):
            log.computed(step, state, gradients)
        if non_finite:
            state.skip()
        else:
            state.apply(gradients, buffer_deltas, self._bound.learning_rate(step))
        with log.monitor.doing("report"):
            log.updated(step, state)
        self._report(step, metrics, numbers, scale, non_finite)
        return requested


class Ahead(Steps):
    """Steps that a GPU computes without the host, which is a step ahead of it: one CUDA graph for a
    step on one process, one before and one after the exchange on several.

    No number of the host is in a graph. What differs from step to step lies in a row of bytes,
    which is copied to the device before each step: the examples, the values of their augmentation,
    learning rates, the requests of this process. The update of a step that is not finite is undone
    when the host has read its flags, from a copy of the state: at most one more step is then
    computed.
    """

    def __init__(self, *args: Any, as_graph: bool, side_by_side: bool) -> None:
        """Compute kernel by kernel, with the same bits, unless `as_graph`; and one tower after the
        other unless `side_by_side`: then in lanes, each with a stream and a copy of the network.
        """
        super().__init__(*args)
        recipe, owned = self._recipe, self._reduction.owned
        others = owned[1:_LANES] if side_by_side else ()
        self._towers = [self._tower, *(self._tower.copy() for _ in others)]
        self._streams = [torch.cuda.Stream() for _ in others]  # type: ignore[no-untyped-call]
        captured = partial(Captured, "steps", exact=recipe.exact, as_graph=as_graph)
        self._whole = captured(self._compute_all, changes=self._changes)
        update = captured(self._update, changes=self._changes_and_total)
        self._parts = captured(self._node_sums), update
        self._is_whole = len(owned) == recipe.towers
        flags = torch.zeros(len(owned), len(Requests().flags()), dtype=torch.bool)
        marks = torch.eye(recipe.towers, dtype=torch.bool)[owned.start : owned.stop]
        self._flags = torch.cat((flags, marks), 1).numpy()
        self._packing: Packing | None = None
        self._values: Tensors = {}  # of the present step, on the device
        self._pixels: Tensor | None = None  # of its examples, if the dataset is not on the device
        self._total = torch.empty(0)
        self._observed = False
        # the state before the newest step, and before the one that is a step older
        self._before: Sequence[Sequence[Tensor]] = ()

    def _pack(self, first: int) -> None:
        """Pack what the plans from step `first` on need besides the examples."""
        bound, average, owned = self._bound, self._recipe.ema, self._reduction.owned
        steps = range(first, first + len(self._plans))
        groups = self._state.optimizer.param_groups
        rates: list[list[Any]] = [
            [bound.learning_rate(step) * one["scale"] for one in groups] for step in steps
        ]
        if self._recipe.arithmetic == "portable" and "betas" in groups[0]:
            for step, of_step in zip(steps, rates, strict=True):
                for number, one in enumerate(groups):
                    momentum, scale = one["betas"]
                    numbers = of_step[number], momentum, scale, one["weight_decay"], step + 1
                    of_step[number] = adam_rates(*numbers)
        weights = [1.0 - average.decay_after(step + 1) if average else 0.0 for step in steps]
        rows = self._drawn | {
            "rates": np.array(rates, np.float32),
            "weight": np.array(weights, np.float32),
            "updates": np.arange(steps.start + 1, steps.stop + 1),
            "flags": np.stack([self._flags] * len(steps)),
            "keys": np.stack([[self._tower.keys(s, t) for t in owned] for s in steps]),
        }
        device = self._state.device
        if self._packing is None:
            self._packing = Packing(rows)
            self._present = torch.empty(self._packing.bytes, dtype=torch.uint8, device=device)
            self._values = self._packing.views(self._present)
        self._rows = self._packing.packed(rows, device)

    def compute(self, step: int) -> Callable[[], Requests]:
        """Queue `step` with its update. Return a function that waits for it, and then does as that
        of `AtOnce`.
        """
        log, state, reduction = self._log, self._state, self._reduction
        with log.monitor.doing("data", step):
            if not (number := self._row(step)):
                self._pack(step)
            self._plan, row = self._plans[number], self._rows[number]
            if (requests := self._poll_requests()) != Requests():
                flags = torch.tensor(requests.flags(), dtype=torch.bool)
                assert self._packing is not None
                self._packing.views(row)["flags"][:, : len(flags)] = flags
            self._present.copy_(row, non_blocking=True)
            if self._dataset.images.device != state.device:
                examples = torch.from_numpy(self._plan.examples[reduction.owned].ravel())
                pixels = self._dataset.pixels(examples)
                pixels = pixels.view(len(reduction.owned), -1, *pixels.shape[1:])
                self._pixels = pixels if self._pixels is None else self._pixels.copy_(pixels)
        self._step, self._observed = step, bool(log.takers(step))
        size, capture = self._plan.size_px, bool(self._before) and not self._observed
        with log.monitor.doing("compute"), state.update_lock:
            if self._is_whole:
                numbers = self._whole(state, key=size, capture=capture)
            else:
                node_sums, update = self._parts
                total = self._reduction.total_of(node_sums(state, key=size, capture=capture))
                if self._total.shape != total.shape:
                    self._total = total.to(state.device)
                elif self._total.data_ptr() != total.data_ptr():
                    self._total.copy_(total)
                numbers = update(state, key=size, capture=capture)
            read_back = ReadBack(numbers)
        return partial(self._told, step, read_back)

    def _told(self, step: int, read_back: ReadBack) -> Requests:
        with self._log.monitor.doing("communication"):
            (numbers,) = read_back.tensors()
        try:
            metrics, requested, skipped = self._read(step, numbers)
        except NonFiniteError:
            copy_each(self._before[self._step - step], self._state.tensors())
            raise
        self._state.step = step + 1
        self._report(step, metrics, numbers, 1.0, skipped)
        return requested

    # No number of the host that differs from step to step may enter what follows, or a graph would
    # repeat it.

    def _compute_all(self, state: State) -> list[Tensor]:
        self._total = self._reduction.total_of(self._node_sums(state))
        return self._update(state)

    def _node_sums(self, state: State) -> list[Tensor]:
        return self._reduction.node_sums(self._vectors(state))

    def _vectors(self, state: State) -> Iterator[Tensor]:
        main = torch.cuda.current_stream()
        lanes = [*zip(self._towers, [main, *self._streams], strict=True)]
        for tower, stream in lanes:
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                tower.load_parameters(state)
        for place, number in enumerate(self._reduction.owned):
            tower, stream = lanes[place % len(lanes)]
            # The main stream still adds the vector of the tower before in this lane, whose memory
            # is free again. And what a first step keeps for all towers may not be computed yet.
            if place >= len(lanes) or not self._before:
                stream.wait_stream(main)
            with torch.cuda.stream(stream):
                own = {name: self._values[name][place] for name in self._drawn}
                if self._pixels is not None:
                    own["pixels"] = self._pixels[place]
                shard = self._dataset.shard(self._plan, number, own)
                flags, keys = (self._values[name][place] for name in ("flags", "keys"))
                vector = tower.vector(state, shard, flags, keys)
            main.wait_stream(stream)
            yield vector

    def _update(self, state: State) -> list[Tensor]:
        values, total = self._values, self._total
        numbers = self._numbers(total)
        if not self._before:  # the first step of a session, before which there may be no slots
            self._read(self._step, numbers.cpu())
        gradients, buffer_deltas = self._means(total)
        if self._observed:
            self._log.computed(self._step, state, gradients)
        if self._before:
            newer, older = self._before
            copy_each(newer, older)
            copy_each(state.tensors(), newer)
        rates = values["rates"].unbind()
        state.update(gradients, buffer_deltas, rates, values["weight"], values["updates"])
        if self._observed:
            self._log.updated(self._step, state)
        if not self._before:
            self._before = [[one.clone() for one in state.tensors()] for _ in range(2)]
        return [numbers]

    def _changes(self) -> list[Tensor]:
        return [*self._state.tensors(), *(one for copies in self._before for one in copies)]

    def _changes_and_total(self) -> list[Tensor]:
        return [*self._changes(), self._total]  # The means are computed in the memory of the total.
