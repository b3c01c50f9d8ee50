"""examples/reference.py, which its author wrote from docs/specification.md alone, has the bits of
Lockstep.
"""

import importlib.util
import random
from itertools import chain

import pytest
import torch
from tests.documents import ROOT
from torch.nn import functional

from lockstep.config.placement import Placement
from lockstep.core.log import Log
from lockstep.jobs.agreement import restore
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.kernels.portable import Portable
from lockstep.runs.run import Run

EXAMPLE = ROOT / "examples/verified-digits"


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "examples/reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensor(rows):
    return torch.tensor([[*row] for row in rows])


def test_it_needs_the_standard_library_alone_and_fits_on_five_pages():
    text = (ROOT / "examples/reference.py").read_text()
    assert len(text.splitlines()) <= 300
    assert not {"numpy", "torch", "lockstep"} & {*text.split()}


@pytest.mark.parametrize("name", ["exp", "log"])
def test_functions_have_the_same_bits(reference, name):
    chosen = random.Random(0)
    values = [chosen.uniform(-20, 20) * 2.0 ** chosen.randrange(-30, 5) for _ in range(3000)]
    values = [abs(value) for value in values] if name == "log" else [*values, 0.0, -708.5, -709.0]
    with Portable():
        exact = getattr(torch, name)(torch.tensor(values, dtype=torch.float64))
    assert [getattr(reference, name)(value) for value in values] == exact.tolist()


def test_draws_have_the_same_bits(reference):
    for seed in (0, 5, 2**63 - 1):
        torch.manual_seed(seed)
        with Portable():
            numbers = torch.empty(500).uniform_()
        assert [number / 2**24 for number in reference.draw(seed, 500)] == numbers.tolist()


def test_a_convolution_and_a_product_have_the_same_bits(reference):
    images, channels, size, filters = reference.IMAGES, 3, 4, 5
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, channels, size, size, generator=generator)
    weight = torch.randn(filters, channels, 3, 3, generator=generator)
    with Portable():
        exact = functional.conv2d(x, weight, padding=1)
        product = torch.mm(x.flatten(1), weight.flatten(1).repeat(1, 2)[:, :48].T)
    by_channel = [reference.Tensor(x[:, c].flatten().tolist()) for c in range(channels)]
    (a, k), (b, m) = (
        reference.slices(matrix)
        for matrix in (by_channel, [row.flatten().tolist() for row in weight])
    )
    columns = list(zip(*reference.shifted(a, size), strict=True))
    y = tensor(reference.products(b, columns, -k - m)).view(filters, images, size, size)
    assert torch.equal(y.transpose(0, 1), exact)
    second = weight.flatten(1).repeat(1, 2)[:, :48].T.tolist()
    assert torch.equal(tensor(reference.matmul(x.flatten(1).tolist(), second)), product)


def test_batch_norm_has_the_same_bits(reference):
    size, count = 4, reference.IMAGES * 16
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(reference.IMAGES, 1, size, size, generator=generator).mul_(3).add_(1)
    weight, bias = (
        torch.tensor([1.25], requires_grad=True),
        torch.tensor([-0.5], requires_grad=True),
    )
    x.requires_grad_()
    running = torch.zeros(1), torch.zeros(1)
    gradient = torch.randn(reference.IMAGES, 1, 2, 2, generator=generator)
    with Portable():
        y = functional.batch_norm(x, *running, weight, bias, training=True, momentum=1.0)
        y = functional.max_pool2d(torch.relu(y), 2)
        gradients = torch.autograd.grad(y, [x, weight, bias], gradient)
    values = reference.Tensor(x.detach().flatten().tolist())
    own, mean, variance, backward = reference.activation(values, 1.25, -0.5, size, 2)
    assert [*own] == y.detach().flatten().tolist()
    assert [mean, variance] == [one.item() for one in running]
    g_x, *others = backward(reference.Tensor(gradient.flatten().tolist()))
    assert len(g_x) == count
    for found, exact in zip((g_x, *([one] for one in others)), gradients, strict=True):
        assert torch.equal(torch.tensor([*found], dtype=torch.float32), exact.flatten())


@pytest.mark.slow  # some seconds of plain Python
@pytest.mark.parametrize("step", [0, 200])
def test_one_step_has_the_same_bits_in_every_tensor(reference, step):
    run = Run(EXAMPLE)
    recipe = run.recipe()
    replica = Replica(recipe, Placement(device="cpu"), Context())
    restore(replica, run.read_checkpoint(step))
    next(replica.updates(Log(replica.bound)))
    state = reference.read_checkpoint(run.checkpoints / f"step-{step:09}.safetensors")
    data = reference.read_data(ROOT / "src/lockstep/data/digits.npz")
    found = reference.train(recipe.model_dump(mode="json"), data, replica.bound.steps, state, step)
    exact = replica.state.state_dict()
    assert {*found} == {*exact}
    for name, values in found.items():
        numbers = torch.tensor([*values], dtype=exact[name].dtype)
        assert torch.equal(numbers, exact[name].flatten()), name
    assert len([*chain(*found.values())]) > 2000
