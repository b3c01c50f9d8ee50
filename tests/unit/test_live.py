"""The redrawn line of a terminal: its parts, and that it is never wider than the terminal."""

import io
import re
from types import SimpleNamespace

import pytest
import rich.console
import torch
from tests.unit.test_evaluate import data, setting
from tests.unit.test_report import STATE, a_log, sums

from lockstep.core.evaluate import Evaluation, evaluate
from lockstep.core.events import EvaluatingEvent
from lockstep.report import console, lines

WIDTHS = (200, 120, 100, 79, 59, 40, 25, 12, 4)


def event(step=190, steps=451, **changes):
    fields = {
        "step": step, "steps": steps, "epoch": 16.9, "loss": 0.5123, "accuracy": 0.984, "learning_rate": 0.0512,
        "images_per_s": 13456.0, "s_per_step": 0.0095, "gpu_utilisation": None,
    }  # fmt: skip
    return SimpleNamespace(**{**fields, **changes})


class Terminal(io.StringIO):
    """Stand-in for the file of a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


def frames(text):
    """Return the successive texts of the line."""
    return [frame for frame in re.split(r"\r\n|\r|\n", re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", text)) if "%  " in frame]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("steps", [20, 451, 100_000])
def test_a_step_fits_and_leaves_out_the_least_important_parts(width, steps):
    line = lines.live_line(event(steps // 2, steps, gpu_utilisation=[97.0, 91.0]), width)
    assert len(line) <= width
    by_importance = ("%", "step", "ETA", "loss", "acc", "img/s", "─", "gpu 94%", "epoch", "lr")
    shown = [part in line for part in by_importance]
    assert shown == sorted(shown, reverse=True), line
    assert shown[0]


def test_eighty_columns_show_bar_loss_accuracy_throughput_and_eta():
    assert lines.live_line(event(), 79) == (
        "━━━━━───────   42%  step 191/451  loss 0.512  acc 98.4%  13,456 img/s  ETA 0:02"
    )
    long = lines.live_line(event(49_999, 100_000, s_per_step=0.1, images_per_s=12852.0), 79)
    assert long == "━━───   50%  step  50000/100000  loss 0.512  acc 98.4%  12,852 img/s  ETA 1h23m"


def test_ascii_only_draws_the_bar_in_ascii():
    assert lines.live_line(event(), 79, ascii_only=True).encode("ascii").startswith(b"#####-------  ")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (7, "0:07"), (754, "12:34"), (3599.6, "1h00m"), (3722, "1h02m")]
)
def test_the_eta_is_in_minutes_or_hours(seconds, text):
    assert lines.live_line(event(0, 2, s_per_step=seconds), 79).endswith(f"ETA {text}")


def test_only_the_last_step_shows_100_percent():
    shares = [line.split("%")[0][-3:].strip() for line in (lines.live_line(event(s, 100), 40) for s in range(100))]
    assert shares == [str(s + 1) for s in range(100)]
    assert "99%" in lines.live_line(event(99_998, 100_000), 79)


@pytest.mark.parametrize("width", WIDTHS)
def test_an_evaluation_fits_and_leaves_out_the_least_important_parts(width):
    line = lines.evaluating_line(EvaluatingEvent(1200, "held-out", 0.5), 7.0, width)
    assert len(line) <= width
    shown = [part in line for part in (" 50%", "evaluating on held-out", "ETA 0:07", "━", "after 1200 steps")]
    assert shown == sorted(shown, reverse=True), line
    assert "ETA" not in lines.evaluating_line(EvaluatingEvent(1200, "test", 0.0), None, width)


@pytest.mark.parametrize("notebook", [False, True])
def test_one_line_shows_the_steps_and_the_progress_of_an_evaluation(monkeypatch, notebook):
    """On a terminal, and by carriage returns alone, as a notebook understands them."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    stream = Terminal()
    terminal = rich.console.Console(file=stream, force_terminal=True, width=80)
    log = a_log([console.for_stream(stream, 10, line_width=79) if notebook else console.Live(terminal)], steps=4)
    log.start([("recipe", "r")])
    with log.monitor.training():
        for step in range(4):
            now[0] += 1.0
            log.step(step, sums(), STATE, 0.1, torch.zeros(0))
    with log.monitor.pausing():
        for k in range(101):
            log.evaluating(4, "test", k / 100)
            now[0] += 0.03
    log.evaluation(4, "test", {"raw": Evaluation(10, 9, 0.1)})
    log.end([("accuracy", "90%")])
    shown = frames(stream.getvalue())
    assert max(map(len, shown)) < 80
    evaluating = [frame for frame in shown if "evaluating on test" in frame]
    percents = [int(re.search(r"(\d+)%", frame)[1]) for frame in evaluating]
    assert percents == sorted(percents)
    assert percents[0] == 0
    assert percents[-1] == 100
    assert 10 < len(set(percents)) < 50  # fewer than the 101 events: one drawing every 0.1 s
    halfway = next(frame for frame in evaluating if " 48%" in frame)
    assert halfway.endswith("ETA 0:02")  # 48 % took 48 x 0.03 s, so the rest takes 1.56 s
    assert [found[1] for frame in shown if (found := re.search(r"step (\d/4)", frame))] == ["1/4", "2/4", "3/4", "4/4"]
    text = stream.getvalue()
    assert text.startswith("  recipe  r")
    assert ("\x1b" in text) != notebook
    above, last = text.rsplit("\r", 1) if notebook else (text, text[text.rindex("\x1b[2K") + 4 :])
    assert [row.split()[-1] for row in last.splitlines()] == ["90.00%", "90%"]
    assert not notebook or above.rsplit("\r", 1)[1].strip() == ""  # spaces cover the line


def test_an_evaluation_whose_first_event_is_not_its_start_has_no_estimate_yet(monkeypatch):
    """Process 0 owns no chunk of a small split that another process evaluates, so its first share is not 0."""
    monkeypatch.setattr("time.perf_counter", lambda: 5400.0)
    stream = io.StringIO()
    console.for_stream(stream, 10, line_width=60).evaluating(EvaluatingEvent(4, "test", 0.5))
    assert "evaluating on test" in stream.getvalue()
    assert "ETA" not in stream.getvalue()


def test_the_cursor_is_never_left_hidden():
    stream = Terminal()
    live = console.Live(rich.console.Console(file=stream, force_terminal=True, width=80))
    live.step(event(), None)
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex(
        "\x1b[?25l"
    )  # as if the program were killed here
    live.close()
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_progress_is_for_terminals_only():
    assert console.progress_on(io.StringIO()) is None
    assert console.progress_on(Terminal()) is not None


@pytest.mark.parametrize("process", [0, 1])
def test_every_process_reports_the_progress_of_an_evaluation(process):
    """The heartbeat of each process shows it. Only process 0 has listeners, which print it."""
    recipe, network, parameters, model = setting(10)
    shares = []

    # Stand-in for two processes, of which the other one counts the same.
    both = SimpleNamespace(process=process, processes=2, gather=lambda table: torch.stack([table, table]))
    evaluate(recipe, network, parameters, dict(model.named_buffers()), data(40), both, shares.append)
    assert shares == [0.0, 0.5, 1.0]
