"""The flat vector carries requests, gradients and buffer_deltas, and returns them as they were."""

from signal import SIGHUP, SIGINT, SIGTERM

import pytest
import torch

from lockstep.core import vector
from lockstep.core.network import Network
from lockstep.core.vector import ControlFlags, Layout, VectorBuilder
from lockstep.errors import LockstepError
from lockstep.recipes import get_recipe


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([ControlFlags(SIGHUP), ControlFlags(SIGTERM), ControlFlags(SIGINT)], ControlFlags(SIGINT)),
        ([ControlFlags(SIGHUP), ControlFlags(SIGTERM)], ControlFlags(SIGTERM)),
        ([ControlFlags(), ControlFlags(SIGHUP), ControlFlags(save=True)], ControlFlags(SIGHUP, save=True)),
        ([ControlFlags(save=True)] * 3, ControlFlags(save=True)),
        ([ControlFlags(SIGTERM)] * 3, ControlFlags(SIGTERM)),
        ([ControlFlags()] * 3, ControlFlags()),
    ],
)
def test_of_several_requests_sigint_precedes_sigterm_and_sighup(requests, expected):
    sums = torch.tensor([each.flags() for each in requests]).sum(0).tolist()
    assert ControlFlags.of(sums) == expected


def test_a_vector_returns_what_was_packed_and_its_metrics_are_read_in_one_piece():
    layout = Layout({"w": torch.zeros(2, 3), "b": torch.zeros(3)}, {"mean": torch.zeros(4)}, towers=3)
    gradients = [torch.randn(2, 3), torch.randn(3).bfloat16()]
    buffer_deltas, sums = [torch.randn(4)], torch.zeros(layout.metric_length)
    metrics = layout.metrics(sums)
    metrics.requests[:] = torch.tensor(ControlFlags(SIGTERM, save=True).flags())
    metrics.non_finite[2] = 1.0
    metrics.digest[1] = torch.tensor([1.0, 2.0, 3.0])
    values = torch.empty(layout.length)
    layout.pack(values, layout.whole, gradients)
    layout.pack_rest(values, buffer_deltas, sums)
    of_gradients, of_buffer_deltas, of_metrics = layout.unpack(values)
    assert torch.equal(of_gradients, torch.cat([gradients[0].flatten(), gradients[1].float()]))
    assert torch.equal(of_buffer_deltas, buffer_deltas[0])
    assert of_metrics.read() == (ControlFlags(SIGTERM, save=True), [2])
    assert of_metrics.digest.tolist() == [[0.0] * 3, [1.0, 2.0, 3.0], [0.0] * 3]
    assert layout.length == 9 + 4 + layout.metric_length


@pytest.fixture
def in_parts(monkeypatch):
    """A layout of 5 parameters, whose vector has a part of parameters 3 and 4, one of 2, and one of the rest."""
    monkeypatch.setattr(vector, "MIN_PART", 5)
    monkeypatch.setattr(vector, "MAX_PARTS", 100)
    return Layout({str(n): torch.zeros(n) for n in (1, 2, 6, 4, 3)}, {"mean": torch.zeros(4)}, towers=2)


def test_parts_cover_a_vector_from_its_end_and_are_not_small_or_many(in_parts, monkeypatch):
    first = in_parts.length - 7
    assert in_parts.parts == [
        (slice(first, in_parts.length), range(3, 5)),
        (slice(first - 6, first), range(2, 3)),
        (slice(0, first - 6), range(2)),
    ]
    assert in_parts.whole == (slice(0, in_parts.length), range(5))
    monkeypatch.setattr(vector, "MIN_PART", 1 << 18)
    small = Layout({"v": torch.zeros(9), "w": torch.zeros(9)}, {}, towers=1)
    assert small.parts == [small.whole]
    monkeypatch.setattr(vector, "MIN_PART", 1)
    monkeypatch.setattr(vector, "MAX_PARTS", 4)
    assert len(Layout({str(n): torch.zeros(100) for n in range(50)}, {}, towers=1).parts) == 4


@pytest.mark.parametrize("order", [[4, 3, 2, 1, 0], [0, 1, 2, 3, 4], [3, 2, 4], []], ids=str)
def test_a_part_is_complete_when_all_its_gradients_are_there_and_may_change_at_once(in_parts, order):
    gradients = [torch.full((n,), float(n)) for n in (1, 2, 6, 4, 3)]
    told = []

    def complete(values, part):
        told.append((len(found), part))
        values[part] *= 2  # as a reduction does, beside the backward pass

    filling, found = VectorBuilder(in_parts, torch.device("cpu"), complete), []
    for number in order:
        found.append(number)
        filling.found(number, gradients[number])
    filling.finish(gradients, [torch.ones(4)], torch.zeros(in_parts.metric_length), tower=1)
    assert [part for _, part in told] == [part.values for part in in_parts.parts]
    then = {"[4, 3, 2, 1, 0]": [2, 3, 5], "[3, 2, 4]": [3, 3, 3]}.get(str(order), [len(order)] * 3)
    assert [count for count, _ in told] == then
    values, buffer_deltas, metrics = in_parts.unpack(filling.values)
    assert torch.equal(values, 2 * torch.cat(gradients))
    assert torch.equal(buffer_deltas, torch.full((4,), 2.0))
    assert metrics.non_finite.tolist() == [0, 0]


@pytest.mark.parametrize("bad", [0, 2, 4])
def test_a_gradient_that_is_not_finite_is_noted_whichever_part_it_is_in(in_parts, bad):
    gradients = [torch.ones(n) for n in (1, 2, 6, 4, 3)]
    gradients[bad][-1] = torch.inf
    for complete in (None, lambda values, part: values[part].zero_() if part.start else None):
        filling = VectorBuilder(in_parts, torch.device("cpu"), complete)
        for number in reversed(range(5)):
            filling.found(number, gradients[number])
        filling.finish(gradients, [torch.ones(4)], torch.zeros(in_parts.metric_length), tower=1)
        assert in_parts.unpack(filling.values)[2].non_finite.tolist() == [0, 1]


class Pieces(torch.autograd.Function):
    """x * w * w, whose backward pass asks autograd for the gradient of w on its way."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w * w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        with torch.enable_grad():
            torch.autograd.grad((x.detach() * w).sum(), w)  # one of its two factors
        return gradient * w * w, gradient * 2 * x * w


def test_a_gradient_that_is_computed_in_pieces_is_refused_and_one_that_is_none_is_zero(in_parts):
    recipe = get_recipe("digits")
    network = Network(recipe, Nested(), (1, 8, 8), torch.device("cpu"))
    layout = Layout(network.parameters, {}, 1)
    assert len(layout.parts) == 2
    filling = VectorBuilder(layout, torch.device("cpu"), lambda values, part: None)
    gradients = network.gradients(network(torch.ones(2, 1, 8, 8)).sum(), filling.found)
    with pytest.raises(LockstepError, match=r"parameter 1 \(from 0\) in several pieces.*--reduction central"):
        filling.finish(gradients, [], torch.zeros(layout.metric_length), 0)
    filling = VectorBuilder(in_parts, torch.device("cpu"), lambda values, part: None)
    filling.found(4, None)
    filling.finish([torch.ones(n) for n in (1, 2, 6, 4, 3)], [], torch.zeros(in_parts.metric_length), 0)


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.ones(64))
        self.w = torch.nn.Parameter(torch.full((64,), 2.0))

    def forward(self, images):
        return Pieces.apply(images.flatten(1) * self.first, self.w)
