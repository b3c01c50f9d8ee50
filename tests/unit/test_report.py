import io
import json
import re
from types import SimpleNamespace

import pytest
import torch

from lockstep.evaluate import Evaluation
from lockstep.overrides import make
from lockstep.recipes import named
from lockstep.report import console
from lockstep.report.log import Log
from lockstep.report.metrics import MetricsFile
from lockstep.tower import Metrics

TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+"
LINE = TIME + r": step (\d+), loss = \d+\.\d\d \(\d+\.\d examples/sec; \d+\.\d{3} sec/batch\)$"
STATE = SimpleNamespace(step=0, decay_losses=lambda: {"w": torch.tensor(0.5)})


def run(listeners, steps=25):
    recipe = make(named("digits").model_dump(mode="json"), {"steps": steps})
    log = Log(recipe, 1442, listeners)
    log.start([("recipe", "digits"), ("run", "runs/x")])
    for step in range(steps):
        metrics = Metrics(torch.tensor(256.0), torch.tensor(64.0), torch.zeros(2), torch.zeros(4))
        log.step(step, metrics, STATE, 0.1)
    log.evaluation(steps, "test", {"ema": Evaluation(10, 9, 0.1), "raw": Evaluation(10, 8, 0.2)})
    log.note("a note")
    log.end([("accuracy", "90%")])
    return log


def test_plain_lines_have_the_tutorials_shape_and_cadence():
    stream = io.StringIO()
    run([console.for_stream(stream, 10)])
    text = stream.getvalue()
    assert re.findall(LINE, text, re.M) == ["0", "10", "20", "24"]
    assert "loss = 2.50" in text
    assert "ema 90.00%, raw 80.00%" in text
    assert "\x1b" not in text
    assert all(word in text for word in ("recipe", "a note", "accuracy"))


def test_metrics_rows(tmp_path):
    run([MetricsFile(tmp_path / "metrics.jsonl", 10)])
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "step"] == [0, 10, 20, 24]
    assert rows[0]["cross_entropy"] == 2.0
    assert rows[0]["decay"] == {"w": 0.5}
    assert rows[0]["loss"] == 2.5
    assert rows[0]["accuracy"] == 0.5
    assert rows[-1].pop("time") > 1.7e9
    assert rows[-1] == {
        "kind": "evaluation", "step": 25, "split": "test", "weights": "raw",
        "accuracy": 0.8, "examples": 10, "correct": 8, "loss": 0.2,
    }  # fmt: skip


def test_rates_leave_out_untimed_work(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    recipe = make(named("digits").model_dump(mode="json"), {"steps": 30})
    log = Log(recipe, 1442, [console.Plain(io.StringIO(), 10)])
    log.start([])
    for step in range(30):
        now[0] += 10.0 if step < 5 else 0.5  # the first steps are slow
        metrics = Metrics(torch.tensor(1.0), torch.tensor(1.0), torch.zeros(2), torch.zeros(4))
        log.step(step, metrics, STATE, 0.1)
        with log.untimed():
            now[0] += 100.0
    assert log.train_s == pytest.approx(62.5)
    assert log.images_per_s == pytest.approx(128 / 0.5)


def test_a_reader_that_went_away_does_not_end_training():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    run([console.Plain(Closed(), 10)])


def test_a_terminal_gets_one_live_line():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    import rich.console

    live = console.Live(rich.console.Console(file=stream, force_terminal=True, width=100))
    run([live])
    text = stream.getvalue()
    assert "step 25/25  epoch 2.1  loss 2.500  acc 50.0%  lr 0.1" in text
    assert not re.search(LINE, text, re.M)
    assert text.rstrip().endswith("accuracy  90%")


def test_without_listeners_nothing_is_read():
    unreadable = Metrics(*[SimpleNamespace()] * 4)
    Log(named("digits"), 1442, []).step(0, unreadable, STATE, 0.1)
