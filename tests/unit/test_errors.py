"""Text from foreign files reaches the terminal without control codes."""

import io

import pytest
from rich.console import Console

from lockstep.errors import printable
from lockstep.listeners.console import Live, Plain, block

CLEAR = "\x1b[2J"  # clears the screen


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
    plain, live = io.StringIO(), io.StringIO()
    for listener in (Plain(plain, 10), Live(Console(file=live, force_terminal=True, width=80))):
        listener.note(*block([("run", f"runs/{CLEAR}")]))
        listener.note(f"a\rb{CLEAR}")
        listener.note(CLEAR)
    for stream in (plain, live):
        assert CLEAR not in stream.getvalue()
        assert stream.getvalue().count("\\x1b[2J") == 3
        assert "a\\rb" in stream.getvalue()
