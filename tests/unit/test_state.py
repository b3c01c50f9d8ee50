"""The state: updates, checkpoints, the SHA-256 of the weights, and the digest that processes
compare.
"""

import hashlib

import pytest
import torch
from tests.helpers import CPU, lockstep_error, recipe_with

from lockstep.core.build import build_model
from lockstep.core.digest import digest
from lockstep.core.network import persistent_buffers
from lockstep.core.state import State
from lockstep.errors import DATA


def state(**changes):
    recipe = recipe_with("digits", changes)
    model = build_model(recipe, (1, 8, 8), 10)
    return State(recipe, dict(model.named_parameters()), persistent_buffers(model), CPU)


def advance(s, steps, first=0):
    parameters = sum(p.numel() for p in s.parameters.values())
    buffer_deltas = sum(b.numel() for b in s.buffers.values() if b.is_floating_point())
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        gradient = torch.randn(parameters, generator=generator)
        s.apply(gradient, torch.rand(buffer_deltas, generator=generator), 0.01)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_resumed_state_continues_with_the_same_bits(optimizer):
    uninterrupted, first, second = (state(**{"optimizer.kind": optimizer}) for _ in range(3))
    advance(uninterrupted, 5)
    advance(first, 3)
    second.load_state_dict(first.state_dict())
    assert second.step == 3
    advance(second, 2, first=3)
    assert second.weights_sha256() == uninterrupted.weights_sha256()
    resumed, expected = second.state_dict(), uninterrupted.state_dict()
    assert resumed.keys() == expected.keys()
    assert all(torch.equal(resumed[name], expected[name]) for name in resumed)


def test_names_come_from_the_model_and_order_its_sha256():
    s = state()
    digest = hashlib.sha256()
    for group in (s.parameters, s.buffers):
        for name in sorted(group):
            digest.update(group[name].numpy().tobytes())
    assert s.weights_sha256() == digest.hexdigest()
    names = s.state_dict().keys()
    assert {
        "step",
        "parameter/conv1.weight",
        "ema/conv1.weight",
        "buffer/norm1.running_mean",
    } <= names
    assert not any("process" in name or "module." in name for name in names)


@pytest.mark.parametrize(
    "name", ["parameter/logits.bias", "buffer/norm1.running_mean", "ema/conv1.weight"]
)
def test_a_checkpoint_of_another_model_is_rejected_unloaded(name):
    s, tensors = state(), state(seed=1).state_dict()
    before = s.weights_sha256()
    tensors[name] = tensors[name].flatten()[:1]  # a shape that copy_ would broadcast
    with lockstep_error(
        rf"{name} is \[1, torch.float32\] in the checkpoint and \[.* in model digits"
    ):
        s.load_state_dict(tensors)
    del tensors[name]
    with lockstep_error(rf"{name} is None in the checkpoint", DATA):
        s.load_state_dict(tensors)
    assert (s.weights_sha256(), s.step) == (before, 0)


@pytest.mark.parametrize("size", [0, 1, 1023, 2048, 2049, 100_003])
def test_one_changed_bit_changes_the_digest(size):
    tensor = torch.randn(size)
    same = digest([tensor.clone()])
    assert digest([tensor]) == same
    for index in {0, size // 2, size - 1} if size else ():
        other = tensor.clone()
        other.view(torch.int32)[index] ^= 1
        assert digest([other]) != same


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_the_digest_covers_values_and_shape_in_every_dtype(dtype):
    tensor = (torch.randn(3, 70, 50) > 0).to(dtype)
    others = [1 - tensor.to(torch.int8), tensor.flatten(), tensor.to(torch.int16)]
    assert digest([tensor]) not in [
        digest([others[0].to(dtype)]),
        digest([others[1]]),
        digest([others[2]]),
    ]


def test_the_digest_does_not_depend_on_the_position_in_memory():
    whole = torch.randn(50_001)
    part = whole[1:]  # its address is not a multiple of 8
    assert digest([part]) == digest([part.clone()])
    transposed = torch.randn(200, 300).t()
    assert digest([transposed]) == digest([transposed.contiguous()])
