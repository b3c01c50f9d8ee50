"""Towers as CUDA graphs, by a stand-in that computes the operations of the captured call again, as
a graph does.
"""

from unittest import mock

import pytest
import torch
from benchmarks.gpu.stand_ins import Graph, Stream, graphs_of_a_gpu

from lockstep.core import captured
from lockstep.core.captured import Captured, obstacle
from lockstep.recipes import get_recipe

INPUTS = [torch.arange(6.0).view(2, 3) + n for n in range(5)]


@pytest.fixture(autouse=True)
def stand_in():
    with graphs_of_a_gpu():
        yield


@pytest.fixture
def told(monkeypatch):
    messages = []
    monkeypatch.setattr(captured.logger, "warning", messages.append)
    return messages


def called(compute, inputs=INPUTS, **options):
    """Return the results of a Captured of `compute` for `inputs`, one after the other, and its
    calls of `compute`.
    """
    calls = []

    def counted(state, x):
        calls.append(x)
        return [compute(x)]

    captured = Captured("towers", counted, **{"exact": True, **options})
    results = [captured(None, x)[0].clone() for x in inputs]
    assert captured._refused != bool(captured._graphs)  # What is refused holds no memory.
    return results, calls


def test_after_two_calls_only_the_captured_graph_computes(told):
    results, calls = called(lambda x: (x + 1) * 2)
    assert all(torch.equal(one, (x + 1) * 2) for one, x in zip(results, INPUTS, strict=True))
    assert (len(calls), Graph.replays, told) == (3, 4, [])  # The second call is computed both ways.


def test_a_number_of_the_host_is_found_before_the_graph_is_used(told):
    numbers = iter(range(100))
    results, _ = called(lambda x: x + next(numbers))
    used = [float((result - x)[0, 0]) for result, x in zip(results, INPUTS, strict=True)]
    assert used == [0, 2, 3, 4, 5]  # 1 was captured
    assert (Graph.replays, len(told)) == (1, 1)
    assert "other bits" in told[0]


@pytest.mark.parametrize(
    ("in_graph", "in_kernels"), [(1.0, 1.0 + torch.finfo(torch.float32).eps), (0.0, -0.0)]
)
def test_one_bit_of_difference_refuses_the_graph(told, in_graph, in_kernels):
    # the last bit of a float32, then the sign of a zero, which compares as equal
    factors = iter([1.0, in_graph, *[in_kernels] * 4])
    results, _ = called(lambda x: x * next(factors))
    assert torch.equal(results[1].view(torch.int32), (INPUTS[1] * in_kernels).view(torch.int32))
    assert len(told) == 1
    assert "other bits" in told[0]


def test_what_cuda_cannot_capture_runs_kernels_and_is_said_once(told):
    def waiting(x):
        if Graph.capturing:
            raise RuntimeError(
                "operation not permitted when stream is capturing\nCUDA kernel errors ..."
            )
        return x * 2

    results, calls = called(waiting, [*INPUTS, INPUTS[0][:1]])
    assert all(torch.equal(result, x * 2) for result, x in zip(results, INPUTS, strict=False))
    assert len(calls) == 7
    assert [message.count("not permitted") for message in told] == [1]
    assert "\n" not in told[0]


def test_each_size_is_captured_and_compared_once_in_the_same_memory(told):
    inputs = [*INPUTS[:3], *(x[:, :2] for x in INPUTS[:3]), *INPUTS[3:]]
    with mock.patch.object(Graph, "pool", autospec=True, side_effect=Graph.pool) as pool:
        results, calls = called(lambda x: x.square(), inputs)
    assert all(torch.equal(one, x.square()) for one, x in zip(results, inputs, strict=True))
    assert (len(calls), Graph.replays, pool.call_count, told) == (6, 6, 1, [])


def test_what_precedes_a_graph_runs_in_its_stream(told):
    """Else the backward pass would wait for a stream that is not captured, and libraries would make
    their handles during the capture.
    """
    main, used = Stream.current, []
    Stream.waits.clear()
    called(lambda x: used.append(Stream.current) or x * 2)
    (stream,) = {*used}
    assert len(used) == 3
    assert stream is not main
    assert Stream.waits == [(stream, main), (main, stream)] * 2  # of the two calls by kernels
    assert Stream.current is main


class Generator:
    """A stand-in for a GPU's generator. While it is `capturing`, it draws in a capture only."""

    def __init__(self):
        self.capturing = False

    def clone_state(self):
        return Generator()

    def graphsafe_set_state(self, other):
        self.capturing = other.capturing


def test_after_a_failed_capture_stream_and_generator_are_as_before(told):
    main, generator = Stream.current, Generator()

    def drawing(x):
        generator.capturing |= Graph.capturing is not None
        assert generator.capturing == (Graph.capturing is not None)
        if Graph.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        return x * 2

    with mock.patch.object(torch.cuda, "default_generators", (generator,)):
        called(drawing)
    assert Stream.current is main
    assert len(told) == 1


def test_without_exactness_nothing_is_compared():
    numbers = iter(range(100))
    _, calls = called(lambda x: x + next(numbers), exact=False)
    assert (len(calls), Graph.replays) == (2, 4)


def test_what_a_call_changes_is_changed_once(told):
    """A graph that is captured, or compared with kernels, leaves no second update."""
    total = torch.zeros(3)

    def add(state, x):
        total.add_(x.sum(0))
        return [total * 2]

    captured = Captured("towers", add, exact=True, changes=lambda: [total])
    expected = torch.zeros(3)
    for x in INPUTS:
        expected += x.sum(0)
        assert torch.equal(captured(None, x)[0], expected * 2)
        assert torch.equal(total, expected)
    assert (Graph.replays, told) == (4, [])


def test_another_update_refuses_the_graph_and_keeps_that_of_kernels(told):
    total, numbers = torch.zeros(3), iter(range(100))

    def add(state, x):
        total.add_(next(numbers))
        return []

    captured = Captured("towers", add, exact=True, changes=lambda: [total])
    for x in INPUTS:
        captured(None, x)
    assert total.tolist() == [14.0] * 3  # 1 was captured
    assert len(told) == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"model": "tests.helpers:smooth"}, "your own"),
        ({"precision": "float16"}, "scale"),
        ({"arithmetic": "portable", "precision": "float32"}, None),
    ],
)
def test_what_cannot_be_a_graph_is_said_with_the_reason(changes, expected):
    recipe = get_recipe("digits").replace(
        **{"arithmetic": "native", "precision": "float32", **changes}
    )
    found = obstacle(recipe)
    assert found is None if expected is None else expected in found
