"""The generator `train`: it yields once per update, and ends after a request to stop or after the
last step.
"""

from signal import SIGTERM

from tests.helpers import parts

from lockstep.core.group import Group
from lockstep.core.log import Log
from lockstep.core.loop import updates
from lockstep.core.reduction import Reduction
from lockstep.core.vector import Requests
from lockstep.data.readers import load_digits
from lockstep.recipes import get_recipe

RECIPE = get_recipe("digits").replace(epochs=None, steps=6, arithmetic="native")


def loop(recipe=RECIPE, kind=Reduction, **options):
    """Return the state, and the generator that trains it."""
    tower, state, _ = parts(recipe, (1, 8, 8))
    dataset = load_digits(None)["train"].first(200)
    return state, updates(
        dataset,
        tower,
        kind(Group(), recipe.towers),
        state,
        Log(recipe.bind(200), []),
        **options,
    )


def test_it_yields_once_after_each_update():
    state, items = loop()
    weights = [state.weights_sha256()]
    for number, requested in enumerate(items, 1):
        assert requested == Requests()
        assert state.step == number
        weights.append(state.weights_sha256())
    assert state.step == 6
    assert len(set(weights)) == 7


def test_it_ends_after_a_step_with_a_request_to_stop_not_to_save():
    state, items = loop(
        poll_requests=lambda: Requests(SIGTERM if state.step == 2 else None, save=state.step == 1)
    )
    assert list(items) == [Requests(), Requests(save=True), Requests(SIGTERM)]
    assert state.step == 3


def test_it_yields_nothing_for_a_state_that_has_all_its_steps():
    state, items = loop()
    state.step = 6
    assert list(items) == []


def test_how_many_steps_are_drawn_together_changes_no_bit(monkeypatch):
    weights = set()
    for steps in (
        1,
        4,
        32,
    ):  # A block of 4 has examples of two epochs, and the last one is shorter.
        monkeypatch.setattr("lockstep.core.steps._STEPS", steps)
        state, items = loop(RECIPE.replace(augmentation="shift", steps=10))
        assert len([*items]) == 10
        weights.add(state.weights_sha256())
    assert len(weights) == 1


class Overflowing(Reduction):
    """A reduction whose first sum overflows, of towers that are finite."""

    left = 1

    def total(self):
        total = super().total()
        if self.left:
            self.left -= 1
            total[-1] = float("inf")
        return total


def test_float16_skips_a_sum_that_overflows():
    state, items = loop(RECIPE.replace(precision="float16"), Overflowing)
    before, scale = state.weights_sha256(), state.loss_scale
    next(items)
    assert (state.weights_sha256(), state.step, state.loss_scale) == (before, 1, scale / 2)
    next(items)
    assert state.weights_sha256() != before
