"""The arithmetic probe: equal for equal arithmetic. It rejects an unusable model before the first step."""

import itertools
import math

import pytest
import torch
from torch import nn

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.errors import LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.session import Session
from lockstep.recipes import get_recipe
from lockstep.runs.provenance import fingerprint

CPU = torch.device("cpu")


class Linear(nn.Module):
    """A network of one layer, whose logits a function changes."""

    def __init__(self, shape, classes, change=lambda logits, calls: logits):
        super().__init__()
        self.layer, self.change, self.calls = nn.Linear(math.prod(shape), classes), change, 0

    def forward(self, images):
        self.calls += 1
        return self.change(self.layer(images.flatten(1)), self.calls)


class Two(Linear):
    def forward(self, images, more):
        return self.layer(images.flatten(1))


class Counts(Linear):
    """A network whose forward pass changes its buffer, which is a part of the state."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.register_buffer("seen", torch.ones(()))

    def forward(self, images):
        self.seen += 1
        return super().forward(images) / self.seen


def seven_classes(shape, classes):
    return Linear(shape, 7)


def dictionary(shape, classes):
    return Linear(shape, classes, lambda logits, calls: {"logits": logits})


def numbers(shape, classes):
    return Linear(shape, classes, lambda logits, calls: logits.int())


def remembers(shape, classes):
    return Linear(shape, classes, lambda logits, calls: logits * calls)


def one_argument(shape):
    return Linear(shape, 10)


def frozen(shape, classes):
    return Linear(shape, classes).requires_grad_(False)


def session(model=None, **changes):
    own = {"model": f"tests.unit.test_arithmetic:{model}", "weight_decay": {}} if model else {}
    recipe = make(get_recipe("digits").model_dump(mode="json"), {**own, **changes})
    return Session(recipe, Placement(), Context())


def probed(*arguments, **changes):
    built = session(*arguments, **changes)
    return built.require_agreement()["probe"]


def test_the_probe_is_a_function_of_the_recipe_and_leaves_the_state_unchanged():
    built = session()
    before, step = built.state.digest(), built.state.step
    first = built.require_agreement()["probe"]
    assert (built.state.digest(), built.state.step) == (before, step)
    assert len(first) == 64
    assert probed() == first
    assert len({first, probed(seed=1), probed(precision="bfloat16"), probed(lr=0.1)}) == 4


@pytest.mark.parametrize("change", ["forward", "update"])
def test_one_bit_of_arithmetic_changes_the_probe(monkeypatch, change):
    expected = probed("Linear")
    if change == "forward":
        plain = nn.functional.linear
        nudge = 1.0 + torch.finfo(torch.float32).eps
        monkeypatch.setattr(nn.functional, "linear", lambda *arguments: plain(*arguments) * nudge)
    else:
        from lockstep.core.state import State

        apply = State.apply

        def nudged(self, gradients, buffer_deltas, learning_rate):
            apply(self, gradients, buffer_deltas, learning_rate)
            self._flat[3] = torch.nextafter(self._flat[3], torch.tensor(9.0))

        monkeypatch.setattr(State, "apply", nudged)
    assert probed("Linear") != expected


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("seven_classes", r"returned \[2, 7\], float32, expected \[2, 10\]"),
        ("dictionary", r"returned a dict, expected \[2, 10\]"),
        ("numbers", r"returned .*int32, expected \[2, 10\]"),
        ("remembers", "computes other bits when it is run again"),
        ("one_argument", r"has the arguments \(shape\)\. Give a function of \(shape"),
        ("Two", "fails on images .*missing 1 required positional argument: 'more'"),
        ("frozen", "has no parameters to train"),
        ("math", "is a module, expected a function"),
    ],
)
def test_an_unusable_model_is_rejected_with_the_reason(model, message):
    with pytest.raises(LockstepError, match=message):
        probed(model)


def test_a_model_that_does_not_repeat_its_bits_is_allowed_without_exactness():
    assert probed("remembers", exact=False)


def test_a_model_may_change_its_buffers_in_the_forward_pass():
    assert probed("Counts") == probed("Counts")


def test_variables_that_choose_instructions_are_in_the_fingerprint(monkeypatch):
    for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "DNNL_DEFAULT_FPMATH_MODE"):
        monkeypatch.setenv(name, "x")
        assert fingerprint(CPU)["environment"][name] == "x"
    assert {"onednn", "mkl", "torch"} <= set(fingerprint(CPU)["versions"])


@pytest.mark.parametrize("shape", [(7, 100, 10), (64, 64, 576), (250, 384, 192)])
def test_a_product_does_not_depend_on_where_its_numbers_are_in_memory(shape):
    """MKL_CBWR's branches without STRICT promise this; the number of threads is the recipe's."""
    torch.manual_seed(0)
    rows, inner, columns = shape
    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    expected = a @ b
    for first, second in itertools.product((0, 1, 4, 8, 15), repeat=2):
        assert torch.equal(moved(a, first) @ moved(b, second), expected)


def moved(tensor, values):
    """Return a copy of `tensor` that begins `values` values after a multiple of 64 bytes."""
    memory = torch.empty(tensor.numel() + 32)
    start = -memory.data_ptr() // 4 % 16 + values
    copy = memory[start : start + tensor.numel()].view(tensor.shape)
    return copy.copy_(tensor)
