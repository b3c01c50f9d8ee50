"""The program on a pseudo-terminal of 80 or 60 columns."""

import os
import re

import pytest
from benchmarks.pictures import in_terminal
from tests.conftest import _outside


@pytest.fixture
def terminal(tmp_path, monkeypatch):
    """Run `lockstep` on a terminal: the exit code, and the text of the terminal."""
    for name in os.environ.keys() - _outside().keys():
        monkeypatch.delenv(name)
    for name, value in _outside().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")
    return lambda columns, *args, out=None: in_terminal(
        ["lockstep", *map(str, args)], tmp_path, columns, out
    )


def states(text):
    """Return the successive (percent, text) of the redrawn line."""
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", text)
    return [
        (int(m[1]), row)
        for row in re.split(r"[\r\n]+", plain)
        if (m := re.search(r"^[━╸╺ ]*(\d+)%  ", row))
    ]


def assert_redrawn_line_progresses(shown, columns):
    assert shown
    assert max(len(row) for _, row in shown) <= columns
    percents = [percent for percent, _ in shown]
    assert percents == sorted(percents)
    assert percents[-1] == 100


@pytest.mark.slow
def test_train_shows_the_progress_of_training_and_evaluation(terminal):
    columns = 80
    code, text = terminal(
        columns, "train", "--no-portable", "--steps", 12, "--processes", 1, "--name", "x"
    )
    assert code == 0, text
    shown = states(text)
    evaluating = [state for state in shown if "evaluating on test" in state[1]]
    training = [state for state in shown if state not in evaluating]
    assert_redrawn_line_progresses(training, columns)
    assert_redrawn_line_progresses(evaluating, columns)
    assert all(part in training[-1][1] for part in ("step 12/12", "loss", "acc", "ETA 0:00"))
    assert all("━" in row for _, row in training)
    assert all("img/s" in row for _, row in training)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is shown again
    assert "\x1b" not in text[text.rindex("accuracy  ") :]  # the line is gone before the results
