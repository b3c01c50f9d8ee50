"""Signals to the real program before it has imported what it needs: one sentence, whatever the
command.
"""

import os
import pty
import signal
import sys
import time

import pytest
from benchmarks.survival import HOOK
from tests.conftest import NATIVE, popen

SLOW = pytest.mark.slow
SENTENCE = "stopped by {}: start again with the same command\n"
DIGITS = ("train", "digits", "--processes", 2)


@pytest.fixture(autouse=True)
def _as_in_a_terminal():
    """Let the programs handle SIGHUP, which nohup may have made the tests ignore."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def waiting(folder, phase, *args):
    """Start the program, and return it when it has reached the phase, where it would stay for
    ever.
    """
    variables = {"PYTHONPATH": str(HOOK), "PHASE": phase, "PHASE_FOLDER": str(folder)}
    process = popen("-m", "lockstep", *args, cwd=folder, **variables)
    while not (folder / "at-0").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


def ended(process, number):
    """Send a signal, and return how the program ends, with what it prints."""
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def expected(number):
    return 128 + number, "", SENTENCE.format("Ctrl-C" if number == signal.SIGINT else number.name)


@pytest.mark.parametrize(
    ("phase", "number", "words"),
    [
        ("program", signal.SIGINT, ("train", "digits")),
        ("program", signal.SIGTERM, ("recipes",)),
        ("import", signal.SIGINT, DIGITS),
        pytest.param("import", signal.SIGTERM, ("train", "digits", "--processes", 1), marks=SLOW),
        pytest.param("import", signal.SIGHUP, DIGITS, marks=SLOW),
        pytest.param("program import", signal.SIGTERM, ("train", "digits", "--inline"), marks=SLOW),
        pytest.param("program import", signal.SIGINT, ("doctor",), marks=SLOW),
        pytest.param("program", signal.SIGHUP, ("data", "check", "digits"), marks=SLOW),
    ],
)
def test_a_program_that_still_imports_is_stopped(tmp_path, phase, number, words):
    assert ended(waiting(tmp_path, phase, *words), number) == expected(number)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("phase", "number", "words"),
    [
        ("program import", signal.SIGINT, ("predict", "RUN", "a.png")),
        pytest.param("program import", signal.SIGTERM, ("serve", "RUN", "--port", 0), marks=SLOW),
        pytest.param("program import", signal.SIGHUP, ("export", "RUN"), marks=SLOW),
        pytest.param("import", signal.SIGINT, ("eval", "RUN"), marks=SLOW),
        pytest.param("import", signal.SIGTERM, ("report", "RUN"), marks=SLOW),
        pytest.param("import", signal.SIGINT, ("verify", "RUN"), marks=SLOW),
        pytest.param("import", signal.SIGTERM, ("eval", "RUN", "--processes", 2), marks=SLOW),
    ],
)
def test_commands_on_a_run_are_stopped_while_they_import(tmp_path, alone_run, phase, number, words):
    words = [alone_run if word == "RUN" else word for word in words]
    assert ended(waiting(tmp_path, phase, *words), number) == expected(number)


@pytest.fixture
def alone_run(trained_once):
    return trained_once(*NATIVE)[0]


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_is_one_sentence(tmp_path):
    """The terminal sends the signal to all processes of its group; a second one follows at once, as
    a key repeats.
    """
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.environ |= {"PYTHONPATH": str(HOOK), "PHASE": "import", "PHASE_FOLDER": str(tmp_path)}
        os.execv(sys.executable, [sys.executable, "-m", "lockstep", *map(str, DIGITS)])
    while not (tmp_path / "at-0").exists():
        time.sleep(0.01)
    os.write(terminal, b"\x03\x03")
    text = b""
    try:
        while part := os.read(terminal, 1 << 12):
            text += part
    except OSError:  # The terminal is closed.
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 130
    assert text.replace(b"^C", b"").replace(b"\x1b[?25h", b"").decode() == SENTENCE.format(
        "Ctrl-C"
    ).replace("\n", "\r\n")
