"""The update: decoupled weight decay, weight decay by default, and clipping."""

import pytest
import torch
from tests.runs import fit_here
from tests.unit.test_muon import parameters
from tests.unit.test_tower import grey, parts, reduced

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core.state import State, clipped
from lockstep.errors import LockstepError
from lockstep.kernels.portable import arithmetic
from lockstep.optim import OPTIMIZERS, SGD, AdamW, Muon
from lockstep.optim.settings import DEFAULT, by_weight_decay, decay_by_name
from lockstep.recipes import get_recipe
from lockstep.runs.folder import Run


def digits(**changes):
    return make(get_recipe("digits").model_dump(mode="json"), {"steps": 12, **changes})


def layers():
    """Parameters of 4, 2 and 1 dimensions, and a matrix that the model does not train."""
    shapes = {"conv": (2, 3, 3, 3), "dense": (4, 5), "bias": (4,), "fixed": (2, 2)}
    return {name: torch.nn.Parameter(torch.ones(shape), name != "fixed") for name, shape in shapes.items()}


def test_adamw_shrinks_the_weights_apart_from_the_gradient():
    found, expected = parameters(), parameters()
    decay = {"a": 0.1, "dense": 0.3}
    optimizer = AdamW(beta1=0.8, beta2=0.9, epsilon=1e-6).build(by_weight_decay(found, decay))
    slots = {name: (torch.zeros_like(p).double(), torch.zeros_like(p).double()) for name, p in expected.items()}
    values = {name: p.double() for name, p in expected.items()}
    for step in range(1, 4):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / step
        optimizer.step()
        for name, p in values.items():
            gradient = expected[name].grad.double()
            first, second = slots[name]
            first.mul_(0.8).add_(0.2 * gradient)
            second.mul_(0.9).add_(0.1 * gradient**2)
            p.mul_(1 - 0.1 / step * decay.get(name, 0.0))
            p.sub_(0.1 / step * (first / (1 - 0.8**step)) / ((second / (1 - 0.9**step)).sqrt() + 1e-6))
    for name, p in found.items():
        assert torch.allclose(p.double(), values[name], atol=1e-6), name


def test_decoupled_decay_is_no_term_of_the_loss():
    recipe = digits(optimizer="adamw", **{"weight_decay.default": 0.1})
    _, state, _ = parts(recipe, (1, 8, 8))
    assert state.decay_losses() == {}
    assert state.decay
    _, state, _ = parts(recipe.replace(optimizer="sgd"), (1, 8, 8))
    assert state.decay_losses().keys() == {*get_recipe("digits").weight_decay}  # every matrix is named there


def test_default_is_for_the_matrices_that_are_not_named():
    assert decay_by_name(layers(), {DEFAULT: 0.5}, SGD()) == {"conv": 0.5, "dense": 0.5}
    assert decay_by_name(layers(), {DEFAULT: 0.5, "conv": 0.0, "bias": 0.2}, AdamW()) == {
        "conv": 0.0, "bias": 0.2, "dense": 0.5,
    }  # fmt: skip
    assert decay_by_name(layers(), {DEFAULT: 0.5}, Muon()) == {"dense": 0.5}
    assert decay_by_name(layers(), {"bias": 0.2}, SGD()) == {"bias": 0.2}
    with pytest.raises(LockstepError, match=r"'dens': did you mean dense.*weight_decay\.default=C"):
        decay_by_name(layers(), {DEFAULT: 0.5, "dens": 1.0}, SGD())


def test_default_is_one_term_of_the_loss_and_a_named_one_its_own():
    recipe = digits(optimizer="sgd", weight_decay={DEFAULT: 0.5, "bias": 0.25})
    state = State(recipe, layers(), {}, torch.device("cpu"))
    terms = state.decay_losses()
    assert terms.keys() == {"bias", DEFAULT}
    assert float(terms["bias"]) == pytest.approx(0.125 * 4)
    assert float(terms[DEFAULT]) == pytest.approx(0.25 * (54 + 20))
    before = {name: p.clone() for name, p in state.parameters.items()}
    state.apply(torch.zeros(sum(p.numel() for p in before.values())), torch.zeros(0), 0.1)
    for name, factor in {"conv": 0.95, "dense": 0.95, "bias": 0.975, "fixed": 1.0}.items():
        assert torch.allclose(state.parameters[name], before[name] * factor), name


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_no_optimizer_moves_what_the_model_does_not_train(kind):
    """A filter, a matrix and a vector stay to the bit, with their averages, also in a state that starts again."""
    shapes = {"filter": (2, 3, 3, 3), "matrix": (4, 5), "vector": (4,)}
    model = {
        f"{mark}.{name}": torch.nn.Parameter(torch.full(shape, 0.125), mark == "trained")
        for mark in ("fixed", "trained")
        for name, shape in shapes.items()
    }
    recipe = digits(optimizer=kind, portable=False, weight_decay={DEFAULT: 0.5}, lr_factors={"fixed": 2.0})
    first = State(recipe, model, {}, torch.device("cpu"))
    for state in (first, first.fresh()):
        assert state.decay == first.decay
        assert {name.partition(".")[0] for name in state.decay} == {"trained"}
        for _ in range(2):
            state.apply(torch.ones(sum(p.numel() for p in model.values())), torch.zeros(0), 0.1)
        for values in (state.parameters, state.ema):
            still = {name for name, p in model.items() if torch.equal(values[name], p)}
            assert still == {f"fixed.{name}" for name in shapes}


def test_weight_decay_of_what_the_model_does_not_train_is_an_error():
    with pytest.raises(LockstepError, match="weight_decay names fixed, which the model marks as not trainable"):
        decay_by_name(layers(), {"fixed": 0.5}, SGD())


def test_the_default_equals_all_matrices_named():
    named, model = get_recipe("digits").weight_decay, parts(digits(), (1, 8, 8))[2]
    assert decay_by_name(dict(model.named_parameters()), {DEFAULT: 5e-4}, SGD()) == named


def test_a_gradient_is_shortened_to_the_norm_and_never_lengthened():
    gradient = torch.tensor([3.0, -4.0])
    assert torch.allclose(clipped(gradient, 1.0), torch.tensor([0.6, -0.8]))
    assert torch.equal(clipped(gradient, 5.0), gradient)
    assert torch.equal(clipped(gradient, 7.0), gradient)
    assert torch.equal(clipped(torch.zeros(3), 1.0), torch.zeros(3))


@pytest.mark.parametrize("kind", ["native", "portable"])
def test_a_gradient_whose_norm_is_beyond_the_range_of_float32_keeps_its_direction(kind):
    largest = torch.finfo(torch.float32).max
    for gradient, norm, expected in (
        ([3e30, -4e30, 1e-30], 1.0, [0.6, -0.8, 0.0]),
        ([largest] * 64, 2.0, [0.25] * 64),
        ([3e30, -4e30], 6e30, [3e30, -4e30]),
    ):
        with arithmetic(kind):
            found = clipped(torch.tensor(gradient), norm)
        assert torch.allclose(found, torch.tensor(expected))
    with arithmetic(kind):
        found = clipped(torch.tensor([1.0, torch.inf]), 1.0)
    assert found.isnan().any()


@pytest.mark.parametrize("towers", [1, 4])
def test_the_mean_gradient_of_the_whole_batch_is_clipped(towers):
    recipe = digits(towers=towers, batch=32, clip=0.01, optimizer="sgd", weight_decay={}, ema=None, lr=1.0)
    tower, state, _ = parts(recipe, (1, 8, 8))
    gradients, buffer_deltas, _ = tower.layout.unpack(reduced(recipe, tower, state, grey()))
    before = state._flat.clone()
    assert gradients.div_(32).norm() > 0.1
    state.apply(gradients, buffer_deltas / towers, 1.0)
    moved = before - state._flat
    assert moved.norm() == pytest.approx(0.01, rel=1e-4)
    assert torch.nn.functional.cosine_similarity(moved, gradients, dim=0) > 0.9999


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_norm_before_clipping_is_in_the_metrics_without_the_loss_scale(tmp_path, precision):
    recipe = digits(clip=0.5, steps=3, precision=precision)
    norms = []
    for number, each in enumerate((recipe, recipe.replace(clip=None))):
        fit_here(each, tmp_path / str(number), Placement(log_every=1, summary_every=0))
        rows = Run(tmp_path / str(number)).metrics()
        norms.append([row["gradient_norm"] for row in rows if row["kind"] == "step"])
    assert all(0.1 < norm < 10 for norm in norms[0])
    assert norms[1] == [None] * 3
