"""The flat vector carries requests, gradients and buffer_deltas, and returns them as they were."""

from signal import SIGHUP, SIGINT, SIGTERM

import pytest
import torch
from tests.closeness import require_close
from tests.helpers import CPU, lockstep_error

from lockstep.core import vector
from lockstep.core.network import Network
from lockstep.core.vector import Layout, Requests, VectorBuilder
from lockstep.recipes import get_recipe


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([Requests(SIGHUP), Requests(SIGTERM), Requests(SIGINT)], Requests(SIGINT)),
        ([Requests(), Requests(SIGHUP), Requests(save=True)], Requests(SIGHUP, save=True)),
        ([Requests(save=True)] * 3, Requests(save=True)),
        ([Requests()] * 3, Requests()),
    ],
)
def test_of_several_requests_sigint_precedes_sigterm_and_sighup(requests, expected):
    sums = torch.tensor([each.flags() for each in requests]).sum(0).tolist()
    assert Requests.of(sums) == expected


def test_a_vector_returns_what_was_packed_metrics_in_one_piece():
    layout = Layout(
        {"w": torch.zeros(2, 3), "b": torch.zeros(3)}, {"mean": torch.zeros(4)}, towers=3
    )
    gradients, buffer_deltas = [torch.randn(2, 3), torch.randn(3).bfloat16()], [torch.randn(4)]
    builder = VectorBuilder(layout, CPU)
    builder.metrics.requests[:] = torch.tensor(Requests(SIGTERM, save=True).flags())
    gradients[0][1, 1] = torch.nan
    builder.finish(gradients, buffer_deltas, tower=torch.tensor([False, False, True]))
    of_gradients, of_buffer_deltas, metrics = layout.unpack(builder.values)
    expected = torch.cat([gradients[0].flatten(), gradients[1].float()])
    require_close(of_gradients, expected, 0, 0)
    assert torch.equal(of_buffer_deltas, buffer_deltas[0])
    assert metrics.read() == (Requests(SIGTERM, save=True), [2])
    assert layout.length == 9 + 4 + layout.metric_length


@pytest.fixture
def in_parts(monkeypatch):
    """A layout of 5 parameters, whose vector has a part of parameters 3 and 4, one of 2, and one of
    the rest.
    """
    monkeypatch.setattr(vector, "MIN_PART", 5)
    monkeypatch.setattr(vector, "MAX_PARTS", 100)
    return Layout(
        {str(n): torch.zeros(n) for n in (1, 2, 6, 4, 3)}, {"mean": torch.zeros(4)}, towers=2
    )


def test_parts_cover_a_vector_from_its_end_and_are_few_and_large(in_parts, monkeypatch):
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


@pytest.mark.parametrize("bad", [None, 0, 2, 4])
@pytest.mark.parametrize(
    ("order", "then"),
    [
        ([4, 3, 2, 1, 0], [2, 3, 5]),
        ([3, 2, 4], [3, 3, 3]),
        ([0, 1, 2, 3, 4], [5, 5, 5]),
        ([], [0, 0, 0]),
    ],
)
def test_a_part_with_all_gradients_is_complete_and_may_change(in_parts, order, then, bad):
    """`bad` is the number of a gradient that is not finite: noted, whichever part it is in."""
    gradients = [torch.full((n,), float(n)) for n in (1, 2, 6, 4, 3)]
    if bad is not None:
        gradients[bad][-1] = torch.inf
    told, found = [], []

    def complete(values, part):
        told.append((len(found), part))
        values[part] *= 2  # as a reduction does, beside the backward pass

    builder = VectorBuilder(in_parts, CPU, complete)
    for number in order:
        found.append(number)
        builder.add_gradient(number, gradients[number])
    builder.finish(gradients, [torch.ones(4)], tower=torch.tensor([False, True]))
    assert told == list(zip(then, [part.values for part in in_parts.parts], strict=True))
    values, buffer_deltas, metrics = in_parts.unpack(builder.values)
    assert torch.equal(values, 2 * torch.cat(gradients))
    assert torch.equal(buffer_deltas, torch.full((4,), 2.0))
    assert metrics.read()[1] == ([] if bad is None else [1])


class Twice(torch.autograd.Function):
    """x * w * w, whose backward pass adds a part of the gradient of w by itself."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w * w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        with torch.enable_grad():
            (x.detach() * w * gradient * w.detach()).sum().backward()
        return gradient * w * w, gradient * x * w


class Net(torch.nn.Module):
    def __init__(self, product):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.ones(3))
        self.first = torch.nn.Parameter(torch.ones(64))
        self.w = torch.nn.Parameter(torch.full((64,), 2.0))
        self.product = product

    def forward(self, images):
        return self.product(images.flatten(1) * self.first, self.w)


@pytest.mark.parametrize("each", [None, lambda number, gradient: None])
def test_a_gradient_added_by_a_layer_is_refused_and_none_is_zero(each):
    network = Network(get_recipe("digits"), Net(lambda x, w: x * w * w), (1, 8, 8), CPU)
    images = torch.ones(2, 1, 8, 8)
    unused, first, w = network.gradients(network(images).sum(), each)
    assert [unused.sum(), first.sum(), w.sum()] == [0, 64 * 8, 64 * 8]
    network = Network(get_recipe("digits"), Net(Twice.apply), (1, 8, 8), CPU)
    with lockstep_error(r"gradient of w by a backward pass of its own"):
        network.gradients(network(images).sum(), each)
