"""Towers as CUDA graphs, by a stand-in that computes the operations of the captured call again, as
a graph does.
"""

from unittest import mock

import pytest
import torch
from benchmarks.gpu.stand_ins import Graph, Stream, graphs_of_a_gpu, operators_of_a_gpu
from tests.helpers import cifar_like, labelled, parts, plan, recipe_with, tutorial_recipe
from tests.images import noise

from lockstep.core import captured
from lockstep.core.captured import Captured, obstacle
from lockstep.core.tower import Tower
from lockstep.core.vector import Requests
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


def seed():
    torch.manual_seed(3)


def called(compute, inputs=INPUTS, **options):
    """Return the results of a Captured of `compute` for `inputs`, one after the other, and its
    calls of `compute`.
    """
    calls = []

    def counted(state, x):
        calls.append(x)
        return compute(x)

    captured = Captured("towers", counted, **{"exact": True, **options})
    results = [captured(seed, None, x) for x in inputs]
    assert captured._refused != bool(captured._graphs)  # What is refused holds no memory.
    return results, calls


def test_after_two_calls_only_the_captured_graph_computes(told):
    results, calls = called(lambda x: (x + torch.rand(3)) * 2)
    expected = []
    for x in INPUTS:
        seed()
        expected.append((x + torch.rand(3)) * 2)
    assert all(torch.equal(one, other) for one, other in zip(results, expected, strict=True))
    assert (len(calls), Graph.replays, told) == (3, 4, [])  # The second call is computed both ways.
    assert len({result.data_ptr() for result in results}) == len(results)


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


def test_a_tower_has_the_same_vectors_and_flags_as_a_graph(
    told,
):
    recipe = tutorial_recipe("tutorial", 2)
    plain, state, _ = parts(recipe)
    network = plain._network
    as_graph = Tower(plain.bound, network, as_graph=True)
    dataset = cifar_like()
    for step in range(3):
        for tower in range(2):
            shard = dataset.shard(plan(recipe, step, len(dataset)), tower)
            if step == 2 and tower == 1:
                shard.images[0] = torch.nan
            requests = Requests(save=step == 1)
            vectors = [one(state, shard, step, requests) for one in (plain, as_graph)]
            assert torch.equal(*(vector.view(torch.int32) for vector in vectors))
        assert plain.layout.unpack(vectors[1])[2].read()[:2] == (requests, [1] if step == 2 else [])
        state.apply(*plain.layout.unpack(vectors[0])[:2], 1e-3)
    assert (Graph.replays, told) == (5, [])


def test_each_tower_of_a_graph_has_its_own_masks_of_dropout(told):
    """They are the masks of kernels, which take their keys from torch's generator one by one."""
    recipe = recipe_with("digits", {"arithmetic": "native"})
    plain, state, _ = parts(recipe, (1, 8, 8))
    as_graph = Tower(plain.bound, plain._network, as_graph=True)
    dataset = labelled(noise(0, 96, 8, 8, 1))
    shard = dataset.shard(plan(recipe, 0, 96), 0)
    with operators_of_a_gpu():
        found = [
            [tower(state, shard._replace(tower=number), 5) for number in range(3)]
            for tower in (plain, as_graph)
        ]
    gradients = [plain.layout.unpack(vector)[0] for vector in found[0]]
    assert not torch.equal(gradients[1], gradients[2])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert (Graph.replays, told) == (2, [])


def test_an_observer_of_the_network_sees_a_pass_without_graph():
    recipe = tutorial_recipe("tutorial", 2)
    tower, state, _ = parts(recipe)
    as_graph = Tower(tower.bound, tower._network, as_graph=True)
    shard = cifar_like().shard(plan(recipe, 0, 96), 0)
    seen = []
    for call in range(4):
        with (
            tower._network.module.register_forward_hook(lambda *_: seen.append(1))
            if call == 3
            else mock.MagicMock()
        ):
            as_graph(state, shard, 0)
    assert (Graph.replays, len(seen)) == (2, 1)


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
