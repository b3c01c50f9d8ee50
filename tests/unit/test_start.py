"""A start does not import torch's compiler, which would take a second."""

import sys

import pytest
import torch

from lockstep import numerics
from lockstep.optim import OPTIMIZERS
from lockstep.optim.settings import eager


@pytest.fixture
def no_compiler(monkeypatch):
    """Make every import of the compiler fail."""
    for name in ("torch._dynamo", "torch._inductor", "torch._inductor.config", "torch.distributed.tensor"):
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
