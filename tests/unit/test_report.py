"""The log and its listeners: lines, rows of metrics, means and averages."""

import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
import rich.console
import torch
from tests.helpers import read_json, read_rows, recipe_with

from lockstep.core.log import Log
from lockstep.core.observer import EvaluationEvent, Observer
from lockstep.core.state import State
from lockstep.core.task import MultiLabelScore, Score
from lockstep.core.vector import Metrics, Requests
from lockstep.errors import printable
from lockstep.listeners import console
from lockstep.listeners.metrics import MetricsFile
from lockstep.recipes import get_recipe

CLEAR = "\x1b[2J"  # clears the screen
TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+"
LINE = (
    TIME
    + r": step (\d+), loss = \d+\.\d\d \(\d+\.\d examples/sec; \d+\.\d{3} sec/batch\), accuracy = "
    r"(\d+\.\d)%, epoch = \d+\.\d, lr = \S+, ETA \d:\d\d$"
)


def sums(cross_entropy=256.0, last=80.0, correct=64.0):
    one = [torch.tensor(value) for value in (cross_entropy, last, correct)]
    return Metrics(*one, torch.zeros(len(Requests().flags())), torch.zeros(4))


def a_log(listeners, steps=25):
    recipe = recipe_with("digits", {"steps": steps})
    return Log(recipe.bind(1442), listeners)


def step_of(log, step, metrics=None, decay=None):
    log.step(step, metrics or sums(), {"w": 0.5} if decay is None else decay, 1.0, [])


class Recorder(Observer):
    """A listener that keeps step events."""

    def __init__(self, every):
        self.every, self.events = every, []

    def step(self, event):
        self.events.append(event)


def run(listeners, steps=25):
    log = a_log(listeners, steps)
    log.note(*console.block([("recipe", "digits"), ("run", "runs/x")]))
    for step in range(steps):
        log.begin(step)
        step_of(log, step)
    log.evaluation(steps, "test", {"ema": Score(10, 9, 0.1), "raw": Score(10, 8, 0.2)})
    log.note("a note")
    log.note("  accuracy  90%")


def test_plain_lines_have_the_tutorials_shape_and_cadence():
    stream = io.StringIO()
    plain = console.Plain(stream, 10)
    run([plain])
    assert "90.00%" not in stream.getvalue()  # The end block says it.
    plain.evaluation(
        EvaluationEvent(0.0, 20, "test", {"ema": Score(10, 9, 0.1), "raw": Score(10, 8, 0.2)})
    )
    plain.evaluation(EvaluationEvent(0.0, 10, "test", {"raw": Score(10, 7, 0.2)}))
    text = stream.getvalue()
    assert "after 10 steps, accuracy on 10 test images: 70.00%\n" in text
    assert re.findall(LINE, text, re.M) == [(step, "50.0") for step in ("0", "10", "20", "24")]
    assert "loss = 2.50" in text
    assert "90.00% with averaged weights, 80.00% with the weights of the last step" in text
    assert "\x1b" not in text
    assert all(word in text for word in ("recipe", "a note", "accuracy"))


def test_metrics_rows_have_the_fields_of_their_events(tmp_path):
    run([MetricsFile(tmp_path / "metrics.jsonl", 10)])
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "step"] == [0, 10, 20, 24]
    assert rows[0]["cross_entropy"] == 2.0
    assert rows[0]["decay"] == {"w": 0.5}
    assert rows[0]["loss"] == 256 / 128 + 0.5
    assert rows[0]["last_tower_loss"] == 80 / 32 + 0.5  # 32 images per tower
    assert rows[-3]["loss_average"] == pytest.approx(2.5)
    assert rows[0]["accuracy"] == 0.5
    assert rows[-1].pop("time") > 1.7e9
    assert rows[-1] == {
        "kind": "evaluation",
        "step": 25,
        "split": "test",
        "weights": "raw",
        "accuracy": 0.8,
        "examples": 10,
        "correct": 8,
        "loss": 0.2,
    }


@pytest.mark.parametrize(
    ("every", "seconds"),
    [(10, {0: 1.0, 10: 6.5, 20: 16.5, 24: 23.5}), (1, {step: step + 1.0 for step in range(25)})],
)
def test_a_line_states_the_mean_of_the_steps_since_the_last_line(monkeypatch, every, seconds):
    """The first line covers one step. With an interval of 1 every line covers a single step."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    stream = io.StringIO()
    log = a_log([console.Plain(stream, every)])
    with log.monitor.training():
        for step in range(25):
            now[0] += step + 1.0
            step_of(log, step)
    stated = re.findall(r"step (\d+), .*\((\S+) examples/sec; (\S+) sec/batch", stream.getvalue())
    assert {int(step): (float(rate), float(s)) for step, rate, s in stated} == {
        step: (pytest.approx(128 / s, abs=0.05), s) for step, s in seconds.items()
    }


def test_a_closed_pipe_does_not_end_training():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    run([console.Plain(Closed(), 10)])


class Terminal(io.StringIO):
    """Stand-in for the file of a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


def live(stream, width=80):
    return console.Live(rich.console.Console(file=stream, force_terminal=True, width=width))


def frames(text):
    """Return the successive texts of the line."""
    return [
        frame
        for frame in re.split(r"\r\n|\r|\n", re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", text))
        if "%  " in frame
    ]


def test_a_terminal_gets_one_redrawn_line_and_others_plain_lines(monkeypatch):
    """As the object that an IDE or a test tool puts in place of sys.stdout."""
    stream = Terminal()
    run([live(stream, 120)])
    text = stream.getvalue()
    assert "step 25/25  ETA 0:00  loss 2.500  acc 50.0%" in text
    assert not re.search(LINE, text, re.M)
    assert text.rstrip().endswith("accuracy  90%")
    assert type(console.listener_on(SimpleNamespace(write=print, flush=print))) is console.Plain
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a build system
    assert type(console.listener_on(io.StringIO())) is console.Plain
    assert isinstance(console.listener_on(Terminal()), console.Live)


@pytest.mark.parametrize(
    ("every", "steps"), [(None, [0, 3, 6, 9, 12, 15, 18, 21, 24]), (7, [0, 7, 14, 21, 24])]
)
def test_a_stream_gets_a_line_every_ten_seconds_or_as_asked_for(monkeypatch, every, steps):
    """A step takes 4 s. Details go to the log file, and to the console with --verbose."""
    now, stream, asked = [0.0], io.StringIO(), io.StringIO()
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    log = a_log([console.listener_on(stream, every), console.listener_on(asked, 10, verbose=True)])
    log.note("a detail", detail=True)
    with log.monitor.training():
        for step in range(25):
            now[0] += 4.0
            step_of(log, step)
    found = [
        [int(step) for step, _ in re.findall(LINE, each.getvalue(), re.M)]
        for each in (stream, asked)
    ]
    assert found == [steps, [0, 10, 20, 24]]
    assert ["a detail" in each.getvalue() for each in (stream, asked)] == [False, True]


def test_a_stream_and_a_terminal_say_the_same_facts(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    stream, line = io.StringIO(), Terminal()
    log = a_log([console.Plain(stream, 1), live(line, 160)])
    with log.monitor.training():
        now[0] += 0.5
        step_of(log, 0)
    for k in range(1, 5):  # A process without a share of the images begins later.
        now[0] += 5.0
        log.evaluating(9, "test", k / 4)
    step, *evaluating = stream.getvalue().splitlines()
    *_, shown = [frame for frame in frames(line.getvalue()) if "step" in frame and "loss" in frame]
    facts = ["256.0 examples/sec", "loss = 2.50", "accuracy = 50.0%", "epoch = 0.0", ", lr = 0."]
    assert [fact for fact in [*facts, "ETA 0:12"] if fact not in step] == []
    facts = ["256 img/s", "loss 2.500", "acc 50.0%", "epoch 0.0", "  lr 0.", "ETA 0:12"]
    assert [fact for fact in facts if fact not in shown] == []
    assert [text.partition(": ")[2] for text in evaluating] == [
        "evaluating on test after 9 steps, 75% done"
    ]
    assert "75%  evaluating on test  after 9 steps" in line.getvalue()


def test_steps_on_features_count_no_images():
    stream, line = io.StringIO(), Terminal()
    recipe = get_recipe("photos").replace(batch=128, precision="float32")
    log = Log(recipe.bind(1442), [console.Plain(stream, 1), live(line, 120)])
    step_of(log, 0)
    assert re.search(r"\(0 steps/sec; 0.000 sec/batch\)", stream.getvalue())
    assert "  0 steps/s  " in line.getvalue()


def test_lines_of_several_labels_count_exact_matches(tmp_path):
    stream, line, rows = io.StringIO(), Terminal(), tmp_path / "metrics.jsonl"
    changes = {"dataset": "any:function", "multi_label": True, "batch": 128}
    recipe = recipe_with("folder", changes | {"precision": "float32"})
    plain = console.Plain(stream, 1)
    log = Log(recipe.bind(1442), [plain, live(line, 120), MetricsFile(rows, 1)])
    step_of(log, 0)
    labels = torch.tensor([[1, 1], [1, 1], [1, 1], [0, 1]])
    log.evaluation(1, "test", {"raw": MultiLabelScore.of(torch.zeros(4, 2), labels, 0.2)})
    assert "exact matches = 50.0%, epoch" in stream.getvalue()
    assert "exact matches on 4 test images: 75.00%\n" in stream.getvalue()
    assert "exact 50.0%" in line.getvalue()
    assert "accuracy" not in stream.getvalue()
    step, evaluation = read_rows(rows)
    assert (step["multi_label"], step["accuracy"], evaluation["accuracy"]) == (True, 0.5, 0.75)


def a_step(step, steps, **changes):
    return SimpleNamespace(
        **{
            "step": step,
            "gpus": {},
            "multi_label": False,
            "steps": steps,
            "epoch": 16.9,
            "loss": 0.5123,
            "accuracy": 0.984,
            "learning_rate": 0.0512,
            "images_per_s": 13456.0,
            "s_per_step": 0.0095,
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (7, "0:07"), (754, "12:34"), (3599.6, "1h00m"), (3722, "1h02m")],
)
def test_the_eta_is_in_minutes_or_hours(seconds, text):
    stream = Terminal()
    live(stream).step(a_step(0, 2, s_per_step=seconds))
    assert f"ETA {text} " in stream.getvalue()


@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_the_line_fits_and_its_end_is_cut(width):
    stream = Terminal()
    live(stream, width).step(a_step(99_998, 100_000))
    (frame,) = frames(stream.getvalue())
    assert len(frame.rstrip()) <= width
    shown = [
        part in frame
        for part in (" 99%", "step  99999", "ETA 0:0", "loss", "acc", "img/s", "epoch")
    ]
    assert shown == sorted(shown, reverse=True), frame
    assert shown[0]


def test_the_line_shows_an_evaluations_progress_and_keeps_cursor(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    stream = Terminal()
    line = live(stream)
    for k in range(101):
        line.evaluating(4, "test", k / 100)
        now[0] += 0.03
    text = stream.getvalue()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # if it were killed here
    shown = frames(text)
    percents = [int(re.search(r"(\d+)%", frame)[1]) for frame in shown]
    assert percents == sorted(percents)
    assert (percents[0], percents[-1]) == (0, 100)
    assert 10 < len(set(percents)) < 50  # fewer than the 101 events: one drawing every 0.1 s


def test_without_listeners_no_metric_is_read_from_the_device():
    step_of(a_log([]), 0, Metrics(*[SimpleNamespace()] * 5))


@pytest.mark.parametrize(("optimizer", "in_loss"), [("sgd", {"w": 0.1}), ("adamw", {})])
def test_observers_get_the_coefficients_of_decay_in_the_loss(optimizer, in_loss):
    """AdamW's is not: its state has coefficients, but no terms of the loss."""
    seen, recorder = [], Recorder(2)
    recorder.computed = lambda step, state, gradients: seen.append((step, state, gradients))
    changes = {"optimizer": optimizer, "weight_decay": {"w": 0.1}}
    recipe = recipe_with("digits", changes)
    weights = torch.zeros(2, requires_grad=True)
    state = State(recipe, {"w": weights}, {}, torch.device("cpu"))
    log = Log(recipe.bind(1442), [recorder])
    log.computed(0, state, torch.zeros(2))
    assert seen == []
    recorder.takes_tensors = True
    assert [log.takers(step) for step in range(3)] == [[recorder], [], [recorder]]
    for step in range(3):
        log.computed(step, state, torch.zeros(2))
    assert [step for step, _, _ in seen] == [0, 2]
    assert [*seen[0][2]] == ["w"]
    assert seen[0][1].decay_in_loss == in_loss


def test_running_averages_cover_every_step_and_each_term():
    recorder = Recorder(10)
    log = a_log([recorder], steps=41)
    expected, weight = np.zeros(4), 0.0
    for step in range(41):
        terms = np.array([3.0 / (1 + step), 0.5 + step % 3, 0.25])
        decay = {"a": terms[1], "b": terms[2]}
        step_of(log, step, sums(cross_entropy=terms[0] * 128), decay)
        expected, weight = (
            0.9 * expected + 0.1 * np.array([terms.sum(), *terms]),
            0.9 * weight + 0.1,
        )
        if step % 10 == 0:
            last = recorder.events[-1]
            averages = [last.loss_average, last.cross_entropy_average, *last.decay_average.values()]
            assert averages == pytest.approx((expected / weight).tolist(), rel=1e-5)
            assert list(last.decay_average) == ["a", "b"]
    # the first average is the first value
    assert recorder.events[0].decay_average == {"a": 0.5, "b": 0.25}


def test_a_skipped_first_step_has_no_averages_and_a_row_of_json(tmp_path):
    log = a_log([MetricsFile(tmp_path / "metrics.jsonl", 1)])
    broken = sums(cross_entropy=float("inf"))
    log.step(0, broken, {"w": 0.5}, 1.0, [0])
    row = read_json(tmp_path / "metrics.jsonl")
    assert row["loss"] is row["loss_average"] is row["cross_entropy_average"] is None
    assert row["decay_average"] == {"w": None}


def test_an_event_has_the_memory_of_process_0(monkeypatch):
    monkeypatch.setattr("lockstep.core.log.memory_bytes", lambda device: 100)
    recorder = Recorder(1)
    step_of(Log(get_recipe("digits").bind(1442), [recorder]), 0)
    assert recorder.events[0].memory_bytes == 100


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (CLEAR, "\\x1b[2J"),
        ("a\rb\nc\td\x7f\x00", "a\\rb\\nc\\td\\x7f\\x00"),
        # a C1 code, a right-to-left mark, an undecodable byte of a file name
        ("\x9b2J \u202e \udcff", "\\x9b2J \\u202e \\udcff"),
        ("größe 猫 …", "größe 猫 …"),
    ],
)
def test_characters_that_do_not_print_are_escaped(text, escaped):
    assert printable(text) == escaped
    assert printable(escaped) == escaped


def test_console_and_log_escape_control_codes():
    plain, terminal = io.StringIO(), Terminal()
    for listener in (console.Plain(plain, 10), live(terminal)):
        listener.note(*console.block([("run", f"runs/{CLEAR}")]))
        listener.note(f"a\rb{CLEAR}")
        listener.note(CLEAR)
    for stream in (plain, terminal):
        assert CLEAR not in stream.getvalue()
        assert stream.getvalue().count("\\x1b[2J") == 3
        assert "a\\rb" in stream.getvalue()
