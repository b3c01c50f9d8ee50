import pytest
import torch

from lockstep.errors import LockstepError
from lockstep.optim import Muon
from lockstep.optim.muon import orthogonalised
from lockstep.optim.settings import parameter_groups


def parameters():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    named = {"a": normal(8, 4, 3, 3), "b": normal(8, 4, 3, 3), "bias": normal(8), "dense": normal(5, 8)}
    for p in named.values():
        p.grad = torch.randn(p.shape, generator=generator)
    return named


def built(named, decay=None, **settings):
    optimizer = Muon(**settings).build(parameter_groups(named, decay or {}))
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
    assert (torch.einsum("nij,nij->n", found, left @ right) > 0.6 * min(shape[1:])).all()  # the directions stay


def test_a_filter_keeps_its_norm_and_moves_by_the_orthogonal_direction():
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


def test_vectors_and_matrices_move_by_gradient_descent_with_nesterovs_momentum():
    found, expected = parameters(), parameters()
    optimizer = built(found, {"dense": 0.3}, vector_scale=2.0, matrix_scale=0.5, other_momentum=0.8)
    groups = ("bias", 0.2, 0.0), ("dense", 0.05, 0.3)
    reference = torch.optim.SGD(
        [{"params": [expected[name]], "lr": lr, "weight_decay": decay} for name, lr, decay in groups],
        momentum=0.8, nesterov=True,
    )  # fmt: skip
    for _ in range(3):
        optimizer.step()
        reference.step()
    for name in ("bias", "dense"):
        assert torch.allclose(found[name], expected[name])


def test_weight_decay_of_a_filter_is_an_error():
    with pytest.raises(LockstepError, match="weight_decay names a filter"):
        built(parameters(), {"a": 0.1})
