"""The log and its listeners: lines, rows of metrics, means and averages."""

import io
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lockstep.commands.output import line_width
from lockstep.config.overrides import make
from lockstep.core.evaluate import Evaluation
from lockstep.core.events import Listener
from lockstep.core.log import Log
from lockstep.core.vector import ControlFlags, Metrics
from lockstep.recipes import get_recipe
from lockstep.report import console, lines
from lockstep.report.metrics import MetricsFile

TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+"
LINE = TIME + r": step (\d+), loss = \d+\.\d\d \(\d+\.\d examples/sec; \d+\.\d{3} sec/batch\), accuracy = (\d+\.\d) %$"
STATE = SimpleNamespace(
    step=0, decay={}, decay_losses=lambda: {"w": torch.tensor(0.5)}, loss_scale=1.0, parameters={},
    by_name=lambda flat: {},
)  # fmt: skip
TOWERS = 4


def sums(
    cross_entropy=256.0, last=80.0, correct=64.0, memory=(100.0,) * TOWERS, busy=(1.0,) * TOWERS, gpu=(0.0,) * TOWERS
):
    one = [torch.tensor(value) for value in (cross_entropy, last, correct)]
    flags, digest = (torch.zeros(len(ControlFlags().flags())), torch.zeros(TOWERS)), torch.zeros(TOWERS, 3)
    return Metrics(*one, *flags, torch.tensor(memory), torch.tensor(busy), torch.tensor(gpu), digest)


def a_log(listeners, steps=25, processes=1):
    recipe = make(get_recipe("digits").model_dump(mode="json"), {"steps": steps})
    return Log(recipe.bind(1442), listeners, processes=processes)


class Recorder(Listener):
    """A listener that keeps step events and notes."""

    def __init__(self, every):
        self.every, self.events, self.notes = every, [], []

    def step(self, event, tensors):
        self.events.append(event)

    def note(self, text):
        self.notes.append(text)


def run(listeners, steps=25):
    log = a_log(listeners, steps)
    log.start([("recipe", "digits"), ("run", "runs/x")])
    for step in range(steps):
        log.begin(step)
        log.step(step, sums(), STATE, 0.1, torch.zeros(0))
        log.updated(step, STATE)
    log.evaluation(steps, "test", {"ema": Evaluation(10, 9, 0.1), "raw": Evaluation(10, 8, 0.2)})
    log.note("a note")
    log.end([("accuracy", "90%")])
    return log


def test_plain_lines_have_the_tutorials_shape_and_cadence():
    stream = io.StringIO()
    run([console.for_stream(stream, 10)])
    text = stream.getvalue()
    assert re.findall(LINE, text, re.M) == [(step, "50.0") for step in ("0", "10", "20", "24")]
    assert "loss = 2.50" in text
    assert "ema 90.00%, raw 80.00%" in text
    assert "\x1b" not in text
    assert all(word in text for word in ("recipe", "a note", "accuracy"))


def test_metrics_rows_have_the_fields_of_their_events(tmp_path):
    run([MetricsFile(tmp_path / "metrics.jsonl", 10)])
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "step"] == [0, 10, 20, 24]
    assert rows[0]["cross_entropy"] == 2.0
    assert rows[0]["decay"] == {"w": 0.5}
    assert rows[0]["loss"] == 2.5
    for row in (rows[0], rows[-3]):
        assert row["loss_average"] == pytest.approx(2.5)
        assert row["cross_entropy_average"] == pytest.approx(2.0)
        assert row["decay_average"] == {"w": pytest.approx(0.5)}
        assert row["gpu_utilisation"] is None
    assert rows[0]["accuracy"] == 0.5
    assert rows[-1].pop("time") > 1.7e9
    assert rows[-1] == {
        "kind": "evaluation", "step": 25, "split": "test", "weights": "raw",
        "accuracy": 0.8, "examples": 10, "correct": 8, "loss": 0.2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("every", "seconds"), [(10, {0: 1.0, 10: 6.5, 20: 16.5, 24: 23.5}), (1, {step: step + 1.0 for step in range(25)})]
)
def test_a_line_states_the_mean_of_the_steps_since_the_previous_line(monkeypatch, every, seconds):
    """The first line covers one step. With an interval of 1 every line covers a single step."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    stream = io.StringIO()
    log = a_log([console.Plain(stream, every)])
    log.start([])
    with log.monitor.training():
        for step in range(25):
            now[0] += step + 1.0
            log.step(step, sums(), STATE, 0.1, torch.zeros(0))
    stated = re.findall(r"step (\d+), .*\((\S+) examples/sec; (\S+) sec/batch", stream.getvalue())
    assert {int(step): (float(rate), float(s)) for step, rate, s in stated} == {
        step: (pytest.approx(128 / s, abs=0.05), s) for step, s in seconds.items()
    }


def test_a_listener_that_overrides_nothing_ignores_every_event():
    listener = Listener()
    listener.every = 1
    log = run([listener], steps=2)
    log.digest(2, "0" * 18)
    log.evaluating(2, "test", 0.5)
    listener.close()
    assert vars(listener) == {"every": 1}


def test_a_closed_pipe_does_not_end_training():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    run([console.Plain(Closed(), 10)])


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_cannot_encode_a_name_gets_it_escaped(stream):
    """A folder named in Cyrillic, with PYTHONIOENCODING=ascii, in the start-up block."""
    code = f"""
import sys
from lockstep.files import reserve_standard_streams
from lockstep.report.console import Plain
reserve_standard_streams()
Plain(sys.{stream}, 1).start([("run", "\u0424\u043e\u0442\u043e")])
"""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, getattr(done, stream)) == (0, "  run  \\u0424\\u043e\\u0442\\u043e\n")


def test_a_stream_without_isatty_is_no_terminal():
    """As the object that an IDE or a test tool puts in place of sys.stdout."""
    stream = SimpleNamespace(write=lambda text: None, flush=lambda: None)
    assert line_width(stream) is None
    assert isinstance(console.for_stream(stream, 10), console.Plain)
    assert console.progress_on(stream) is None


def test_a_terminal_gets_one_live_line():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    import rich.console

    live = console.Live(rich.console.Console(file=stream, force_terminal=True, width=100))
    run([live])
    text = stream.getvalue()
    assert "step 25/25  epoch 2.1  loss 2.500  acc 50.0%" in text
    assert not re.search(LINE, text, re.M)
    assert text.rstrip().endswith("accuracy  90%")


def test_without_listeners_no_metric_is_read_from_the_device():
    unreadable = Metrics(*[SimpleNamespace()] * 9)
    log = a_log([])
    log.begin(0)
    log.step(0, unreadable, STATE, 0.1, torch.zeros(0))


def test_the_last_towers_loss_which_the_original_printed_is_in_the_event():
    recorder = Recorder(1)
    a_log([recorder]).step(0, sums(), STATE, 0.1, torch.zeros(0))
    (event,) = recorder.events
    assert (event.loss, event.last_tower_loss) == (256 / 128 + 0.5, 80 / 32 + 0.5)  # 32 images per tower
    assert "loss = 2.50 (" in lines.step_line(event)


@pytest.mark.parametrize(("terms", "passed"), [({"w": torch.tensor(0.5)}, {"w": 0.1}), ({}, {})])
def test_listeners_get_the_coefficients_of_decay_that_is_in_the_loss(terms, passed):
    """AdamW's is not: its state has coefficients, but no terms of the loss."""
    seen = []
    recorder = Recorder(1)
    recorder.step = lambda event, tensors: seen.append(tensors.decay)
    log = a_log([recorder])
    log.begin(0)
    state = SimpleNamespace(**{**vars(STATE), "decay": {"w": 0.1}, "decay_losses": lambda: terms})
    log.step(0, sums(), state, 0.1, torch.zeros(0))
    assert seen == [passed]


def test_running_averages_cover_every_step_and_each_term():
    recorder = Recorder(10)
    log = a_log([recorder], steps=41)
    expected, weight = np.zeros(4), 0.0
    for step in range(41):
        terms = np.array([3.0 / (1 + step), 0.5 + step % 3, 0.25])
        decay = {"a": torch.tensor(terms[1]), "b": torch.tensor(terms[2])}
        state = SimpleNamespace(**{**vars(STATE), "decay_losses": lambda decay=decay: decay})
        log.step(step, sums(cross_entropy=terms[0] * 128), state, 0.1, torch.zeros(0))
        expected, weight = 0.9 * expected + 0.1 * np.array([terms.sum(), *terms]), 0.9 * weight + 0.1
        if step % 10 == 0:
            last = recorder.events[-1]
            averages = [last.loss_average, last.cross_entropy_average, *last.decay_average.values()]
            assert averages == pytest.approx((expected / weight).tolist(), rel=1e-5)
            assert list(last.decay_average) == ["a", "b"]
    assert recorder.events[0].decay_average == {"a": 0.5, "b": 0.25}  # the first average is the first value


def test_a_skipped_first_step_has_no_averages_and_its_row_is_json(tmp_path):
    state = SimpleNamespace(**{**vars(STATE), "loss_scale": 1024.0})
    log = a_log([MetricsFile(tmp_path / "metrics.jsonl", 1)])
    broken = sums(cross_entropy=float("inf"))
    broken.non_finite[0] = 1.0
    log.step(0, broken, state, 0.1, torch.zeros(0), skipped=True)
    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert row["loss"] is row["loss_average"] is row["cross_entropy_average"] is None
    assert row["decay_average"] == {"w": None}


def test_an_event_has_memory_and_cpu_use_of_every_process(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    recorder = Recorder(2)
    log = a_log([recorder], steps=5, processes=2)  # process 0 has towers 0 and 1
    log.start([])
    for step in range(5):
        busy = (step * 1.0, step * 1.1, step * 0.5, step * 0.6)
        log.step(step, sums(memory=(100.0, 101.0, 50.0, 51.0), busy=busy), STATE, 0.1, torch.zeros(0))
        now[0] += 2.0
    last = recorder.events[-1]
    assert last.memory_bytes == [100 * 2**20, 50 * 2**20]
    assert last.cpu_utilisation == pytest.approx([0.5, 0.25])
