"""The arithmetic probe: equal for equal arithmetic. It rejects an unusable model before the first
step.
"""

import math

import pytest
import torch
from tests.helpers import lockstep_error, recipe_with
from torch import nn

from lockstep.config.placement import Placement
from lockstep.jobs.agreement import require_agreement
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica


class Linear(nn.Module):
    """A network of one layer with a counter, which is a part of the state, and with a chosen
    fault.
    """

    def __init__(self, shape, classes, fault=None):
        super().__init__()
        self.layer, self.fault, self.calls = nn.Linear(math.prod(shape), classes), fault, 0
        self.register_buffer("seen", torch.ones(()))
        self.requires_grad_(fault != "frozen")

    def forward(self, images, *more):
        self.seen += 1
        self.calls += 1
        logits = self.layer(images.flatten(1)) / self.seen
        if self.fault == "remembers":
            return logits * self.calls
        return {"numbers": logits.int(), "seven": logits[:, :7]}.get(self.fault, logits)


def replica(model=None, **changes):
    """`model` is the name of one here, or the options of Linear."""
    options = model if isinstance(model, dict) else {}
    name = "Linear" if options else model
    own = (
        {
            "model": f"tests.unit.test_arithmetic:{name}",
            "model_options": options,
            "weight_decay": {},
        }
        if model
        else {}
    )
    recipe = recipe_with("digits", {**own, **changes})
    return Replica(recipe, Placement(), Context())


def probed(*arguments, **changes):
    built = replica(*arguments, **changes)
    return require_agreement(built)["probe"]


def test_the_probe_depends_on_the_recipe_and_changes_no_state():
    built = replica()
    before, step = built.state.digest(), built.state.step
    first = require_agreement(built)["probe"]
    assert (built.state.digest(), built.state.step) == (before, step)
    assert len(first) == 64
    assert probed() == first
    assert (
        len({first, probed(seed=1), probed(precision="bfloat16", portable=False), probed(lr=0.1)})
        == 4
    )


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
        ({"fault": "seven"}, r"returned \[2, 7\], float32, expected \[2, 10\]"),
        ({"fault": "numbers"}, r"returned .*int32, expected \[2, 10\]"),
        ({"fault": "remembers"}, "is not deterministic: a second pass"),
        ({"fault": "frozen"}, "has no parameters to train"),
        ("math", "is a module, expected a function"),
    ],
)
def test_an_unusable_model_is_rejected_with_the_reason(model, message):
    with lockstep_error(message):
        probed(model)


def test_a_model_may_not_repeat_its_bits_without_exactness():
    assert probed({"fault": "remembers"}, exact=False)
