"""Steps that a GPU computes while the host is a step behind, by stand-ins: the bits of kernels, and
the state that a failure or a request leaves.
"""

from signal import SIGINT

import numpy as np
import pytest
import torch
from benchmarks.gpu.stand_ins import Graph, Stream, graphs_of_a_gpu, operators_of_a_gpu
from tests.helpers import labelled, parts, recipe_with
from tests.images import noise

from lockstep.core.group import Group
from lockstep.core.log import Log
from lockstep.core.loop import updates
from lockstep.core.observer import Observer
from lockstep.core.reduction import Reduction
from lockstep.core.steps import Ahead
from lockstep.core.tower import NonFiniteError
from lockstep.core.vector import Requests

STEPS = 8
DATASET = labelled(noise(0, 96, 32, 32, 3))


@pytest.fixture(autouse=True)
def gpu():
    with operators_of_a_gpu(), graphs_of_a_gpu():
        yield


class Seen(Observer):
    """Keeps the losses of all steps, and the weights before and after those in which they are
    due, if `takes_tensors`.
    """

    def __init__(self, every=1, takes_tensors=False):
        self.every, self.takes_tensors = every, takes_tensors
        self.losses, self.weights = [], {}

    def computed(self, step, state, gradients):
        self.weights[step] = [state.weights.clone()]

    def updated(self, step, state):
        self.weights[step].append(state.weights.clone())

    def step(self, event):
        self.losses.append((event.step, event.cross_entropy, event.decay))


def training(observers=(), changes=(), **options):
    """Return the state, and the generator that trains it a step ahead of the host."""
    small = {
        "model": "digits",
        "model_options": {"widths": [4, 4, 8]},
        "weight_decay": {"logits.weight": 0.004},
        "batch": 8,
        "towers": 2,
        "steps": STEPS,
    }
    recipe = recipe_with("cifar10-tutorial", small | dict(changes))
    tower, state, _ = parts(recipe)
    options = {"ahead": True, "boundary": lambda updates: False, **options}
    reduction, log = Reduction(Group(), recipe.towers), Log(tower.bound, observers)
    return state, updates(DATASET, tower, reduction, state, log, **options)


def trained(steps=STEPS, *args, **options):
    """Return all tensors after `steps` of STEPS steps that the host reads at once."""
    state, items = training(*args, **{"boundary": lambda updates: True} | options)
    for _ in range(steps):
        next(items)
    return state.state_dict()


def same(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"lr_factors.conv1": 0.5},
        {"precision": "bfloat16", "optimizer.momentum": 0.9, "towers": 1},
        {"optimizer": "adam"},
    ],
)
def test_graphs_have_the_bits_of_kernels_and_of_a_host_that_takes_part(changes):
    kernels = trained(changes=changes, as_graph=False)
    assert Graph.replays == 0
    ahead, at_once = Seen(), Seen()
    state, items = training([ahead], changes)
    assert len([*items]) == STEPS
    assert Graph.replays == STEPS - 2  # The first one runs by kernels, the second one is captured.
    assert same(state.state_dict(), kernels)
    assert same(trained(STEPS, [at_once], changes, ahead=False), kernels)
    assert ahead.losses == at_once.losses


def test_towers_side_by_side_have_the_bits_of_one_after_the_other():
    changes = {"towers": 4, "weight_decay": {}}
    in_turn = trained(changes=changes)
    main, replays = Stream.current, Graph.replays
    Stream.waits.clear()
    assert same(trained(changes=changes, side_by_side=True), in_turn)
    assert Graph.replays == 2 * replays
    begun = [stream for stream, other in Stream.waits if stream is not main]
    assert len({*begun}) == 1 + 3  # the stream of the graphs, and those of the towers
    assert {*begun} <= {other for stream, other in Stream.waits}


def test_a_lane_waits_before_its_next_tower(monkeypatch):
    """The memory of the vector before is free again, and the main stream may still add it."""
    monkeypatch.setattr("lockstep.core.steps._LANES", 2)
    main, changes = Stream.current, {"towers": 4, "batch": 8}
    Stream.waits.clear()
    assert same(trained(changes=changes, side_by_side=True), trained(changes=changes))
    lanes = {stream for stream, other in Stream.waits if stream is not main}
    assert len(lanes) == 2 + 1  # also the stream of the second training's graphs


def test_portable_adam_has_the_bits_of_a_host_that_takes_part():
    changes = {"optimizer": "adamw", "arithmetic": "portable", "weight_decay": {"default": 0.1}}
    assert same(
        trained(3, changes=changes, as_graph=False), trained(3, changes=changes, ahead=False)
    )


def test_each_size_of_images_has_its_graph():
    sizes = {"sizes_px": [16, 24], "shares": [0.5, 0.5]}
    changes = {"model": "residual", "model_options": {"widths": [4]}, "progressive": sizes}
    state, items = training(changes=changes)
    assert len([*items]) == STEPS
    assert Graph.replays == 2 + 3  # of the second size, no first step runs by kernels
    assert same(state.state_dict(), trained(changes=changes, as_graph=False))


def test_a_step_that_is_observed_runs_by_kernels_with_the_same_bits():
    seen = Seen(5, takes_tensors=True)  # steps 0, 5 and the last one
    state, items = training([seen])
    assert len([*items]) == STEPS
    assert Graph.replays == STEPS - 4
    assert same(state.state_dict(), trained())
    expected = [trained(steps)["parameter/conv1.weight"] for steps in (0, 1, 5, 6, 7, 8)]
    found = [weights for of_step in seen.weights.values() for weights in of_step]
    for weights, one in zip(found, expected, strict=True):
        assert torch.equal(weights[: one.numel()], one.flatten())


@pytest.mark.parametrize("bad", [0, 2, 5])
@pytest.mark.parametrize("boundary", [True, False])
def test_a_step_that_is_not_finite_leaves_the_state_before_it(monkeypatch, bad, boundary):
    draw = type(DATASET).draw

    def poisoned(dataset, plans, towers):
        values = draw(dataset, plans, towers)
        values["contrast"][bad, 1] = np.nan
        return values

    good = trained(bad)
    monkeypatch.setattr(type(DATASET), "draw", poisoned)
    state, items = training(boundary=lambda updates: boundary)
    with pytest.raises(NonFiniteError, match=f"tower 1 is not finite at step {bad}"):
        list(items)
    assert state.step == bad
    found = state.state_dict()
    assert same({name: found[name] for name in good}, good)


def test_a_request_acts_one_step_later_on_the_state_of_that_step():
    state, items = training(
        poll_requests=lambda: Requests(SIGINT if state.step >= 3 else None, save=state.step == 1)
    )
    seen = []
    for requested in items:
        seen.append((state.step, requested))
        if requested != Requests():
            assert same(state.state_dict(), trained(state.step))
    none = Requests()
    assert seen == [
        (1, none),
        (2, none),
        (3, none),
        (4, Requests(save=True)),
        (5, none),
        (6, Requests(SIGINT)),
    ]


def test_the_state_is_that_of_a_boundary():
    state, items = training(boundary=lambda updates: updates in (3, 4, 6))
    for requested in items:
        assert requested == Requests()
        if state.step in (3, 4, 6, STEPS):
            assert same(state.state_dict(), trained(state.step))


def test_where_processes_exchange_a_graph_ends_before_it_and_another_begins_after(monkeypatch):
    class Divided(Ahead):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self._is_whole = False

    monkeypatch.setattr("lockstep.core.loop.Ahead", Divided)
    state, items = training()
    assert len([*items]) == STEPS
    assert Graph.replays == 2 * (STEPS - 2)
    monkeypatch.undo()
    assert same(state.state_dict(), trained())
