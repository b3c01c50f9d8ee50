"""The program on a pseudo-terminal of 80 or 60 columns."""

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from tests.conftest import _outside


def on_terminal(cwd, columns, *args, result_on_terminal=True):
    """Run the program with stderr, and by default stdout, on a terminal.

    Return the exit code, the text of the terminal, and the text of stdout if that is not on the terminal.
    """
    own_end, program_end = pty.openpty()
    fcntl.ioctl(program_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    hints = ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE")
    environment = {name: value for name, value in _outside().items() if name not in hints}
    environment |= {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "lockstep", *map(str, args)]
    out = program_end if result_on_terminal else subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=program_end
    )
    os.close(program_end)
    text = b""
    with contextlib.suppress(OSError):  # Linux raises it when the program has closed its end
        while part := os.read(own_end, 65536):
            text += part
    os.close(own_end)
    out, _ = process.communicate(timeout=240)
    return process.returncode, text.decode(), (out or b"").decode()


def states(text):
    """Return the successive (percent, text) of the redrawn line."""
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", text)
    return [(int(m[1]), row) for row in re.split(r"[\r\n]+", plain) if (m := re.search(r"^[━─ ]*(\d+)%  ", row))]


def assert_redrawn_line_progresses(shown, columns):
    assert shown
    assert max(len(row) for _, row in shown) < columns
    percents = [percent for percent, _ in shown]
    assert percents == sorted(percents)
    assert percents[-1] == 100


def test_train_shows_the_progress_of_training_and_evaluation(tmp_path):
    columns = 80
    code, text, _ = on_terminal(tmp_path, columns, "train", "--steps", 30, "--processes", 1, "--name", "x")
    assert code == 0, text
    shown = states(text)
    evaluating = [state for state in shown if "evaluating on test" in state[1]]
    training = [state for state in shown if state not in evaluating]
    assert_redrawn_line_progresses(training, columns)
    assert_redrawn_line_progresses(evaluating, columns)
    assert all(part in training[-1][1] for part in ("step 30/30", "loss", "acc", "ETA 0:00"))
    assert all("━" in row or "─" in row for _, row in training)
    assert all("img/s" in row for _, row in training)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is shown again
    assert "\x1b" not in text[text.rindex("after 30 steps, accuracy") :]  # the line is gone before the results


@pytest.mark.slow
def test_eval_shows_progress_on_stderr_and_results_on_stdout(tmp_path, program):
    trained = program("train", "--steps", 2, "--set", "eval_batch=10", "--name", "x")
    assert trained.returncode == 0, trained.stderr
    silent = program("eval", "runs/x", "--split", "train", "--json")
    assert silent.stderr == ""
    code, text, out = on_terminal(
        tmp_path, 60, "eval", "runs/x", "--split", "train", "--json", "--processes", 2, result_on_terminal=False
    )
    assert code == 0, text
    assert out == silent.stdout
    assert json.loads(out)["examples"] == 1442
    assert_redrawn_line_progresses(states(text), 60)
    assert "evaluating on train" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    code, text, _ = on_terminal(tmp_path, 80, "eval", "runs/x", "--split", "train")
    assert code == 0, text
    assert_redrawn_line_progresses(states(text), 80)
    results = text[text.index("runs/x after 2 steps") :]
    assert "evaluating" not in results
    assert "\x1b" not in results
