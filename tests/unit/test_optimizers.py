"""Optimizers and the update: references, weight decay by default, what is not trained, no import of
the compiler.
"""

import sys

import pytest
import torch
from tests.helpers import lockstep_error, recipe_with
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep import numerics
from lockstep.core.state import State
from lockstep.optim import OPTIMIZERS, SGD, AdamW, Muon
from lockstep.optim.muon import orthogonalised
from lockstep.optim.optimizers import DEFAULT, decay_by_name, eager, parameter_groups


def parameters():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    named = {
        "a": normal(8, 4, 3, 3),
        "b": normal(8, 4, 3, 3),
        "bias": normal(8),
        "dense": normal(5, 8),
    }
    for p in named.values():
        p.grad = torch.randn(p.shape, generator=generator)
    return named


def built(named, decay=None, **settings):
    optimizer = Muon(**settings).build(parameter_groups(named, decay or {}, {}))
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * group["scale"]
    return optimizer


@pytest.mark.parametrize("shape", [(1, 16, 144), (2, 64, 64), (1, 100, 20)])
def test_singular_values_become_roughly_one(shape):
    matrices = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    found = orthogonalised(matrices)
    assert found.dtype == torch.float32
    values = torch.linalg.svdvals(found)
    assert values.max() < 1.6
    assert values.median() > 0.5
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    assert (
        torch.einsum("nij,nij->n", found, left @ right) > 0.6 * min(shape[1:])
    ).all()  # the directions stay


class SumsWithNumbers(TorchDispatchMode):
    """Counts the sums of a tensor of half precision and a number of the host, of which a GPU rounds
    only the sum.
    """

    found = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # True would import torch's compiler, which takes seconds.

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.name().startswith("aten::add") and args[0].dtype == torch.bfloat16:
            self.found += not isinstance(args[1], torch.Tensor)
        return operation(*args, **(kwargs or {}))


def test_muon_adds_no_number_that_gpus_would_round_differently():
    with SumsWithNumbers() as sums:
        torch.ones(2).bfloat16() + 0.1
        assert sums.found == 1
        orthogonalised(torch.ones(1, 4, 8))
    assert sums.found == 1


def test_a_filter_keeps_its_norm_and_moves_orthogonally():
    named = parameters()
    named["zeros"] = torch.zeros(8, 4, 3, 3)
    named["zeros"].grad = named["a"].grad.flip(0)
    before = {name: p.clone() for name, p in named.items()}
    built(named, momentum=0.5).step()
    for name in ("a", "b"):
        start = before[name] * (8**0.5 / before[name].norm())
        moved = (start - named[name]) / 0.1
        direction = orthogonalised((1.5 * named[name].grad).flatten(1)[None])[0]
        assert torch.allclose(moved, direction.view_as(moved), atol=1e-5)
    assert 0.1 < named["zeros"].norm() < torch.inf


def test_vectors_and_matrices_move_by_sgd_with_nesterov_momentum():
    found, expected = parameters(), parameters()
    optimizer = built(found, {"dense": 0.3}, vector_scale=2.0, matrix_scale=0.5, other_momentum=0.8)
    groups = ("bias", 0.2, 0.0), ("dense", 0.05, 0.3)
    reference = eager(torch.optim.SGD)(
        [
            {"params": [expected[name]], "lr": lr, "weight_decay": decay}
            for name, lr, decay in groups
        ],
        momentum=0.8,
        nesterov=True,
    )
    with torch.no_grad():
        for _ in range(3):
            optimizer.step()
            reference.step()
    for name in ("bias", "dense"):
        assert torch.allclose(found[name], expected[name])


def test_weight_decay_of_a_filter_is_an_error():
    with lockstep_error("weight_decay names a filter"):
        built(parameters(), {"a": 0.1})


def digits(**changes):
    return recipe_with("digits", {"steps": 12, **changes})


def layers():
    """Parameters of 4, 2 and 1 dimensions, and a matrix that the model does not train."""
    shapes = {"conv": (2, 3, 3, 3), "dense": (4, 5), "bias": (4,), "fixed": (2, 2)}
    return {
        name: torch.nn.Parameter(torch.ones(shape), name != "fixed")
        for name, shape in shapes.items()
    }


def test_adamw_shrinks_the_weights_apart_from_the_gradient():
    found, expected = parameters(), parameters()
    decay = {"a": 0.1, "dense": 0.3}
    optimizer = AdamW(beta1=0.8, beta2=0.9, epsilon=1e-6).build(parameter_groups(found, decay, {}))
    slots = {
        name: (torch.zeros_like(p).double(), torch.zeros_like(p).double())
        for name, p in expected.items()
    }
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
            p.sub_(
                0.1 / step * (first / (1 - 0.8**step)) / ((second / (1 - 0.9**step)).sqrt() + 1e-6)
            )
    for name, p in found.items():
        assert torch.allclose(p.double(), values[name], atol=1e-6), name


def test_default_is_for_the_matrices_that_are_not_named():
    assert decay_by_name(layers(), {DEFAULT: 0.5}, SGD()) == {"conv": 0.5, "dense": 0.5}
    assert decay_by_name(layers(), {DEFAULT: 0.5, "conv": 0.0, "bias": 0.2}, AdamW()) == {
        "conv": 0.0,
        "bias": 0.2,
        "dense": 0.5,
    }
    assert decay_by_name(layers(), {DEFAULT: 0.5}, Muon()) == {"dense": 0.5}
    assert decay_by_name(layers(), {"bias": 0.2}, SGD()) == {"bias": 0.2}
    with lockstep_error(r"'dens': did you mean dense.*weight_decay\.default=C"):
        decay_by_name(layers(), {DEFAULT: 0.5, "dens": 1.0}, SGD())
    with lockstep_error("weight_decay names fixed, which the model marks as not trainable"):
        decay_by_name(layers(), {"fixed": 0.5}, SGD())


def test_default_and_named_decay_are_terms_and_decoupled_is_none():
    recipe = digits(optimizer="sgd", weight_decay={DEFAULT: 0.5, "bias": 0.25})
    assert (
        State(recipe.replace(optimizer="adamw"), layers(), {}, torch.device("cpu")).decay_losses()
        == {}
    )
    state = State(recipe, layers(), {}, torch.device("cpu"))
    terms = {name: float(term) for name, term in state.decay_losses().items()}
    assert terms == pytest.approx({"bias": 0.125 * 4, DEFAULT: 0.25 * (54 + 20)})
    before = {name: p.clone() for name, p in state.parameters.items()}
    state.apply(torch.zeros(sum(p.numel() for p in before.values())), torch.zeros(0), 0.1)
    for name, factor in {"conv": 0.95, "dense": 0.95, "bias": 0.975, "fixed": 1.0}.items():
        assert torch.allclose(state.parameters[name], before[name] * factor), name


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_no_optimizer_moves_what_the_model_does_not_train(kind):
    """A filter, a matrix and a vector stay to the bit, with their averages, also in a state that
    starts again.
    """
    shapes = {"filter": (2, 3, 3, 3), "matrix": (4, 5), "vector": (4,)}
    model = {
        f"{mark}.{name}": torch.nn.Parameter(torch.full(shape, 0.125), mark == "trained")
        for mark in ("fixed", "trained")
        for name, shape in shapes.items()
    }
    recipe = digits(
        optimizer=kind, portable=False, weight_decay={DEFAULT: 0.5}, lr_factors={"fixed": 2.0}
    )
    first = State(recipe, model, {}, torch.device("cpu"))
    for state in (first, first.fresh()):
        assert state.decay == first.decay
        assert {name.partition(".")[0] for name in state.decay} == {"trained"}
        for _ in range(2):
            state.apply(torch.ones(sum(p.numel() for p in model.values())), torch.zeros(0), 0.1)
        for values in (state.parameters, state.ema):
            still = {name for name, p in model.items() if torch.equal(values[name], p)}
            assert still == {f"fixed.{name}" for name in shapes}


@pytest.fixture
def no_compiler(monkeypatch):
    """Make every import of torch's compiler fail, which would take a start a second."""
    for name in (
        "torch._dynamo",
        "torch._inductor",
        "torch._inductor.config",
        "torch.distributed.tensor",
    ):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_do_not_import_the_compiler(no_compiler, name):
    weight = torch.ones(3)
    optimizer = OPTIMIZERS[name]().build([{"params": [weight], "weight_decay": 0.0, "scale": 1.0}])
    weight.grad = torch.ones(3)
    with torch.no_grad():
        optimizer.param_groups[0]["lr"] = 0.5
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    assert weight.max() < 1


@pytest.mark.slow
def test_an_eager_optimizer_has_the_same_bits():
    kinds = (torch.optim.SGD, eager(torch.optim.SGD))
    weights = [torch.linspace(-1, 1, 7).requires_grad_() for _ in kinds]
    for kind, weight in zip(kinds, weights, strict=True):
        optimizer = kind([weight], lr=0.1, momentum=0.9, weight_decay=0.01)
        for _ in range(3):
            weight.grad = weight.detach().sin()
            with torch.no_grad():
                optimizer.step()
    assert torch.equal(*weights)
    assert kinds[1].__name__ == "SGD"  # the name in profiles


def test_deterministic_mode_does_not_import_the_compiler(no_compiler):
    assert torch.are_deterministic_algorithms_enabled()
    numerics.configure(1, exact=False)
    assert not torch.are_deterministic_algorithms_enabled()
    numerics.configure(1, exact=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
