"""The towers' mean gradient against a plain float64 reference, and the other values in a tower's
vector.
"""

import math

import pytest
import torch
from tests.helpers import cifar_like, labelled, parts, plan, recipe_with, tutorial_recipe
from torch.nn import functional

from lockstep.core.group import Group
from lockstep.core.reduction import Reduction
from lockstep.core.tower import named_towers
from lockstep.core.vector import Requests
from lockstep.recipes import get_recipe


def grey(images=None):
    """128 training images of 8x8: the given ones, or random ones."""
    images = torch.randint(256, (128, 8, 8, 1), dtype=torch.uint8) if images is None else images
    return labelled(images.numpy())


def reduced(recipe, tower, state, dataset):
    p = plan(recipe, 0, len(dataset))
    return summed(tower(state, dataset.shard(p, t), 0) for t in range(recipe.towers))


def summed(vectors):
    vectors = list(vectors)
    reduction = Reduction(Group(), len(vectors))
    for vector in vectors:
        reduction.add(vector)
    return reduction.total()


# Rounding may flip a ReLU or a max-pool of the tutorial's network. One image of 48 where this
# happens changes the first layer's gradient, here a sum of noise, by one percent. A missing tower
# changes it by 30 percent or more.
NETWORKS = [("tests.helpers:smooth", 1e-5), ("tutorial", 3e-2)]


@pytest.mark.parametrize(("network", "tolerance"), NETWORKS)
@pytest.mark.parametrize("towers", [1, 3, 4])
def test_mean_gradient_and_update_equal_a_float64_reference(towers, network, tolerance):
    """SGD on mean cross-entropy of the whole batch plus 0.004/2 ||w||^2 on the weights that
    decay.
    """
    recipe = tutorial_recipe(network, towers)
    tower, state, model = parts(recipe)
    dataset = cifar_like()
    gradients, buffer_deltas, metrics = tower.layout.unpack(reduced(recipe, tower, state, dataset))
    mean = gradients.double() / 48
    state.apply(gradients / 48, buffer_deltas / towers, 0.1)

    model = model.double()
    shards = [dataset.shard(plan(recipe, 0, 96), t) for t in range(towers)]
    labels = torch.cat([s.labels for s in shards])
    logits = model(torch.cat([s.images for s in shards]).double())
    loss = functional.cross_entropy(logits, labels)
    assert metrics.cross_entropy.item() / 48 == pytest.approx(loss.item(), rel=1e-5)
    assert metrics.correct.item() == (logits.argmax(1) == labels).sum()
    own = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    expected = torch.cat([g.flatten() for g in own])
    assert (mean - expected).norm() < tolerance * expected.norm()
    assert expected.abs().max() > 0.01
    decaying = [p for name, p in model.named_parameters() if name in recipe.weight_decay]
    assert decaying
    (loss + sum(0.002 * w.square().sum() for w in decaying)).backward()
    for name, parameter in model.named_parameters():
        moved = state.parameters[name].double() - parameter.detach()
        step = -0.1 * parameter.grad
        # A float32 weight near 1 resolves a change of 6e-8 at best.
        assert (moved - step).norm() < tolerance * step.norm() + 1e-7 * parameter.norm(), name


def test_the_tutorials_total_loss_at_step_0_is_the_originals():
    recipe = get_recipe("cifar10-tutorial")
    tower, state, _ = parts(recipe)
    dataset = cifar_like(256, 32)
    _, _, metrics = tower.layout.unpack(reduced(recipe, tower, state, dataset))
    decay = {name: float(term) for name, term in state.decay_losses().items()}
    assert decay.keys() == {"local3.weight", "local4.weight"}
    assert decay["local3.weight"] == pytest.approx(2.1906, abs=0.01)
    assert decay["local4.weight"] == pytest.approx(0.1825, abs=0.005)
    cross_entropy = metrics.cross_entropy.item() / 128
    assert cross_entropy == pytest.approx(math.log(10), abs=0.015)
    assert cross_entropy + sum(decay.values()) == pytest.approx(4.676, abs=0.02)


def test_the_average_follows_the_formula_after_the_update():
    recipe = recipe_with("cifar10-tutorial", {"batch": 16})
    _, state, _ = parts(recipe)
    shadow = {name: p.double().clone() for name, p in state.parameters.items()}
    gradients = torch.randn(1_068_298)
    for updates in range(1, 13):
        state.apply(gradients, torch.zeros(0), 0.1)
        decay = min(0.9999, (1 + updates) / (10 + updates))
        for name, p in state.parameters.items():
            shadow[name] = decay * shadow[name] + (1 - decay) * p.double()
    for name, average in state.ema.items():
        assert torch.allclose(average.double(), shadow[name], atol=1e-5), name


def test_batch_norm_statistics_are_the_mean_of_the_towers():
    recipe, dataset = get_recipe("digits"), grey()
    tower, state, model = parts(recipe, (1, 8, 8))
    before = {name: b.clone() for name, b in state.buffers.items()}
    gradients, buffer_deltas, _ = tower.layout.unpack(reduced(recipe, tower, state, dataset))
    state.apply(gradients / 128, buffer_deltas / 4, 0.1)
    expected = []
    for t in range(4):
        model.load_state_dict(before, strict=False)
        model.train()(dataset.shard(plan(recipe, 0, 128), t).images)
        expected.append(model.norm1.running_var.clone())
    assert torch.allclose(
        state.buffers["norm1.running_var"], torch.stack(expected).mean(0), rtol=1e-5
    )
    assert state.buffers["norm1.num_batches_tracked"] == 1


def test_dropout_differs_by_tower_and_step_and_repeats():
    recipe = get_recipe("digits")
    shard = grey().shard(plan(recipe, 0, 128), 0)
    tower, state, _ = parts(recipe, (1, 8, 8))
    first, again, other_tower, other_step = (
        tower.layout.unpack(tower(state, shard._replace(tower=t), step))[0]
        for t, step in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other_tower)
    assert not torch.equal(first, other_step)


def test_only_a_network_that_may_draw_is_seeded():
    for recipe, shape, dataset in (
        (tutorial_recipe("tutorial", 4), (3, 24, 24), cifar_like()),
        (tutorial_recipe("tests.helpers:smooth", 4), (3, 24, 24), cifar_like()),
        (get_recipe("digits"), (1, 8, 8), grey()),
    ):
        tower, state, _ = parts(recipe, shape)
        torch.manual_seed(1)
        before = torch.get_rng_state()
        tower(state, dataset.shard(plan(recipe, 0, len(dataset)), 0), 0)
        assert torch.equal(before, torch.get_rng_state()) == (recipe.model == "tutorial")


def test_a_tower_computes_with_the_state_that_it_gets():
    recipe = tutorial_recipe("tests.helpers:smooth", 1)
    tower, state, _ = parts(recipe)
    other = parts(recipe.replace(seed=1)).state
    shard = cifar_like().shard(plan(recipe, 0, 96), 0)
    first, second, again = (tower(one, shard, 0).clone() for one in (state, other, state))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_bfloat16_keeps_weights_vector_and_norms_in_float32():
    recipe = get_recipe("digits").replace(precision="bfloat16", arithmetic="native")
    tower, state, _ = parts(recipe, (1, 8, 8))
    dtypes = {name: p.dtype for name, p in tower._network.parameters.items()}
    assert (dtypes["conv1.weight"], dtypes["norm1.weight"]) == (torch.bfloat16, torch.float32)
    tensors = [
        *state.parameters.values(),
        *state.ema.values(),
        reduced(recipe, tower, state, grey()),
    ]
    assert {t.dtype for t in tensors} == {torch.float32}


def test_a_tower_that_is_not_finite_is_named():
    recipe, dataset = get_recipe("digits"), grey()
    tower, state, _ = parts(recipe, (1, 8, 8))
    shards = [dataset.shard(plan(recipe, 7, 128), t) for t in range(4)]
    shards[2].images[0, 0, 0, 0] = math.inf
    _, _, metrics = tower.layout.unpack(summed(tower(state, shard, 7) for shard in shards))
    assert metrics.read() == (Requests(), [2])
    assert named_towers([2]) == "tower 2"
    tower._network.gradients = lambda loss, each: [
        torch.full_like(p, math.nan) for p in state.parameters.values()
    ]
    _, _, metrics = tower.layout.unpack(reduced(recipe, tower, state, dataset))
    assert torch.isfinite(metrics.cross_entropy)  # only the gradient is not
    assert metrics.read()[1] == [0, 1, 2, 3]


def test_the_last_towers_loss_is_recorded_separately():
    recipe, dataset = get_recipe("digits"), grey()
    tower, state, _ = parts(recipe, (1, 8, 8))
    last = tower.layout.unpack(tower(state, dataset.shard(plan(recipe, 0, 128), 3), 0))[2]
    total = tower.layout.unpack(reduced(recipe, tower, state, dataset))[2]
    assert (
        float(total.last_cross_entropy)
        == float(last.cross_entropy)
        < float(total.cross_entropy) / 3
    )
