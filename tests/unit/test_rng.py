"""Random words, a fixed function of seed, stream, epoch and example; and the plan of a step."""

import numpy as np
from hypothesis import given, strategies as st

from lockstep import rng
from lockstep.data import Plain
from lockstep.data.dataset import Pipeline, Plan

GOLDEN_WORD = 12629228696511295478


def test_words_never_change_and_an_arrays_are_its_elements():
    """Other words would change the order, the augmentation and the weights of every run."""
    assert int(rng.bits(0, "order", 0, 0)) == GOLDEN_WORD
    assert rng.bits(0, "order", 0, np.arange(3)).tolist() == [
        int(rng.bits(0, "order", 0, i)) for i in range(3)
    ]


@given(st.integers(0, 2**63 - 1), st.lists(st.integers(0, 2**63 - 1), max_size=3))
def test_a_seed_is_the_upper_part_of_the_word(seed, keys):
    assert rng.seed_for(seed, "s", *keys) == int(rng.bits(seed, "s", *keys)) >> 1


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000), st.integers(0, 1000))
def test_seed_and_epoch_are_not_interchangeable(seed, a, b):
    if a != b:
        assert rng.bits(seed, "s", a, b) != rng.bits(seed, "s", b, a)
        assert rng.bits(a, "s", b) != rng.bits(b, "s", a)


def test_streams_are_independent():
    a, b = (rng.uniform(rng.bits(1, name, np.arange(20_000))) for name in ("crop_x", "crop_y"))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.03
    assert abs(a.mean() - 0.5) < 0.01
    assert abs(a.std() - 12**-0.5) < 0.01


def test_uniform_and_below_stay_in_their_ranges():
    words = rng.bits(3, "x", np.arange(50_000))
    u = rng.uniform(words, -63, 63)
    assert u.min() >= -63
    assert u.max() < 63
    counts = np.bincount(rng.below(words, 9), minlength=9)
    assert counts.min() > 50_000 / 9 * 0.95


def test_permutations_are_complete_differ_and_move_any_distance():
    first, second = (rng.permutation(0, "order", epoch, 10_000) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(10_000))
    assert (first == second).sum() < 10
    # 1/3, and less from a small buffer
    assert 0.32 < np.abs(first - np.arange(10_000)).mean() / 10_000 < 0.345


def test_seeds_fit_torch_generators():
    assert all(0 <= rng.seed_for(0, "dropout", step, 0) < 2**63 for step in range(100))


def plan(step: int, *, batch: int = 12, towers: int = 3, examples: int = 50, seed: int = 0) -> Plan:
    return Plan.at(
        seed=seed,
        steps=range(step, step + 1),
        batch=batch,
        towers=towers,
        examples=examples,
        pipeline=Pipeline(Plain()),
        sizes_px=[None],
    )[0]


def test_each_example_is_seen_once_an_epoch():
    # 300 positions, 6 epochs
    stream = np.concatenate([plan(step).examples.ravel() for step in range(25)])
    for epoch in range(6):
        assert sorted(stream[epoch * 50 : (epoch + 1) * 50]) == list(range(50))
    assert (stream[:50] != stream[50:100]).any()


def test_a_batch_over_two_epochs_states_each_examples_epoch():
    assert plan(4).epochs.ravel().tolist() == [0, 0] + [1] * 10  # positions 48 to 59


def test_the_number_of_towers_does_not_change_the_batch():
    for towers in (1, 2, 3, 4, 6, 12):
        assert plan(3, towers=towers).examples.ravel().tolist() == plan(3).examples.ravel().tolist()


def test_a_batch_may_be_larger_than_the_dataset():
    examples = plan(0, batch=120, towers=1).examples.ravel()
    assert np.bincount(examples, minlength=50).min() == 2


def test_another_seed_gives_another_order():
    assert (plan(0).examples != plan(0, seed=1).examples).any()
