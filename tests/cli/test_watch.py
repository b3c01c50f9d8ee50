"""`lockstep eval --watch` beside a `lockstep train`, both the real program."""

import json
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def steps_of(lines):
    return [json.loads(line)["step"] for line in lines]


def wait_for(path):
    while not path.exists():
        time.sleep(0.02)


def end(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.splitlines(), err.splitlines()


@pytest.mark.slow
def test_beside_training_that_deletes_what_is_being_read(started, tmp_path):
    train = started("train", "--steps", 60, "--save-every", 1, "--keep", 1, "--processes", 1, "--name", "x", "--json")
    run = tmp_path / "runs/x"
    wait_for(run / "recipe.json")
    lines, words = end(started("eval", "runs/x", "--watch", "--interval", 0.01, "--processes", 2, "--json"))
    (result,), _ = end(train)
    records = [json.loads(line) for line in lines]
    steps = [record["step"] for record in records]
    assert steps == sorted(set(steps))
    assert steps[-1] == 60
    assert records[-1]["accuracy"] == json.loads(result)["accuracy"]["ema"]
    waiting = "runs/x has no checkpoint, or no program trains it now: waiting. Use --once to stop here"
    assert set(words) <= {waiting, "runs/x: all is evaluated, see runs/x/eval/metrics.jsonl"}
    assert steps_of((run / "eval/metrics.jsonl").read_text().splitlines()) == steps
    events = EventAccumulator(str(run / "eval/ema-test-355")).Reload().Scalars("precision@1")
    assert [(event.step, event.value) for event in events] == [
        (record["step"], pytest.approx(record["accuracy"])) for record in records
    ]
