"""The generator `train`: it yields once per update, and ends after a request to stop or after the
last step.
"""

from signal import SIGTERM

from tests.helpers import parts

from lockstep.core.group import Group
from lockstep.core.loop import updates
from lockstep.core.reduction import Reduction
from lockstep.core.vector import Requests
from lockstep.data.readers import load_digits
from lockstep.listeners.log import Log
from lockstep.recipes import get_recipe

RECIPE = get_recipe("digits").replace(epochs=None, steps=6, arithmetic="native")


def loop(**options):
    """Return the state, and the generator that trains it."""
    tower, state, _ = parts(RECIPE, (1, 8, 8))
    dataset = load_digits(None)["train"].first(200)
    return state, updates(
        dataset,
        tower,
        Reduction(Group(), RECIPE.towers),
        state,
        Log(RECIPE.bind(200), []),
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
