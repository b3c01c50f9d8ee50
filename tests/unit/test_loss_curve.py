"""The record that compares MNIST's loss with TensorFlow's: made in parts, with a single recipe."""

import json

import pytest
from benchmarks import common
from benchmarks.peers import loss_curve


@pytest.fixture
def made(monkeypatch, tmp_path):
    """The (program, seed) of each run. Stand-ins replace both programs, which would take minutes."""
    calls = []

    def run(program):
        return lambda seed, *_: calls.append((program, seed)) or {"seed": seed, "losses": [1.0] * loss_curve.STEPS}

    monkeypatch.setattr(common, "RESULTS", tmp_path)
    for program in ("lockstep", "tensorflow"):
        monkeypatch.setattr(loss_curve, program, run(program))
    monkeypatch.setattr(loss_curve, "refuse_without", lambda python: None)
    return calls


def call(monkeypatch, *options):
    monkeypatch.setattr("sys.argv", [loss_curve.__file__, "--data", "x", "--seeds", "2", *options])
    loss_curve.main()


def test_a_call_makes_only_the_runs_that_the_record_lacks(monkeypatch, tmp_path, made):
    call(monkeypatch, "--at-most", "1")
    call(monkeypatch, "--at-most", "1")
    call(monkeypatch)
    call(monkeypatch)
    assert made == [("lockstep", 0), ("tensorflow", 0), ("lockstep", 1), ("tensorflow", 1)]
    record = json.loads((tmp_path / "loss-mnist.json").read_text())
    assert [run["seed"] for run in record["runs"]["tensorflow float32"]] == [0, 1]
    assert record["command"] == "python -m benchmarks.peers.loss_curve --tensorflow PYTHON --seeds 2"
