import numpy as np
import pytest

from lockstep.data import Plain
from lockstep.data.dataset import Pipeline, Plan


def plan(step: int, *, batch: int = 12, towers: int = 3, examples: int = 50, seed: int = 0) -> Plan:
    return Plan.at(seed=seed, step=step, batch=batch, towers=towers, examples=examples, pipeline=Pipeline(Plain()))


def test_each_example_is_seen_once_an_epoch():
    stream = np.concatenate([plan(step).examples.ravel() for step in range(25)])  # 300 positions, 6 epochs
    for epoch in range(6):
        assert sorted(stream[epoch * 50 : (epoch + 1) * 50]) == list(range(50))
    assert (stream[:50] != stream[50:100]).any()


def test_a_batch_that_spans_two_epochs_states_the_epoch_of_each_example():
    assert plan(4).epochs.ravel().tolist() == [0, 0] + [1] * 10  # positions 48 to 59


def test_the_number_of_towers_does_not_change_the_batch():
    for towers in (1, 2, 3, 4, 6, 12):
        assert plan(3, towers=towers).examples.ravel().tolist() == plan(3).examples.ravel().tolist()


def test_a_batch_may_be_larger_than_the_dataset():
    examples = plan(0, batch=120, towers=1).examples.ravel()
    assert np.bincount(examples, minlength=50).min() == 2


def test_another_seed_gives_another_order():
    assert (plan(0).examples != plan(0, seed=1).examples).any()


def test_a_tower_out_of_range_is_an_error():
    with pytest.raises(IndexError):
        plan(0).keys(3)
