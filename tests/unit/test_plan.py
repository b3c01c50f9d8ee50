import numpy as np
import pytest

from lockstep.data import Plain
from lockstep.data.plan import Plan


def plan(step: int, *, batch: int = 12, towers: int = 3, examples: int = 50, seed: int = 0) -> Plan:
    return Plan.at(seed=seed, step=step, batch=batch, towers=towers, examples=examples, augmentation=Plain())


def test_each_example_once_an_epoch_though_batches_straddle():
    stream = np.concatenate([plan(step).examples.ravel() for step in range(25)])  # 300 positions, 6 epochs
    for epoch in range(6):
        assert sorted(stream[epoch * 50 : (epoch + 1) * 50]) == list(range(50))
    assert (stream[:50] != stream[50:100]).any()


def test_epochs_are_those_of_the_positions():
    assert plan(4).epochs.ravel().tolist() == [0, 0] + [1] * 10  # positions 48 to 59


def test_towers_only_divide_the_batch():
    for towers in (1, 2, 3, 4, 6, 12):
        assert plan(3, towers=towers).examples.ravel().tolist() == plan(3).examples.ravel().tolist()


def test_a_batch_larger_than_the_data_set():
    examples = plan(0, batch=120, towers=1).examples.ravel()
    assert np.bincount(examples, minlength=50).min() == 2


def test_another_seed_another_order():
    assert (plan(0).examples != plan(0, seed=1).examples).any()


def test_tower_out_of_range():
    with pytest.raises(IndexError):
        plan(0).keys(3)
