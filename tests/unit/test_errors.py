"""Text from foreign files reaches the terminal without control codes."""

import io
import tomllib

import pytest
from rich.console import Console

from lockstep.commands.evaluate import table_lines
from lockstep.config.overrides import make
from lockstep.config.recipe import Recipe
from lockstep.core.evaluate import Evaluation
from lockstep.errors import LockstepError, printable
from lockstep.jobs.evaluate import record_of
from lockstep.listeners.console import Live, Plain
from lockstep.recipes import get_recipe
from lockstep.settings import validated

CLEAR = "\x1b[2J"  # clears the screen
DIGITS = get_recipe("digits").model_dump(mode="json")


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (CLEAR, "\\x1b[2J"),
        ("a\rb\nc\td\x7f\x00", "a\\rb\\nc\\td\\x7f\\x00"),
        # a C1 code, a right-to-left mark, an undecodable byte of a file name
        ("\x9b2J \u202e \udcff", "\\x9b2J \\u202e \\udcff"),
        ("größe 猫 …", "größe 猫 …"),
        ("\\x1b", "\\x1b"),
    ],
)
def test_characters_that_do_not_print_are_escaped(text, escaped):
    assert printable(text) == escaped
    assert printable(escaped) == escaped


def test_console_and_log_escape_control_codes():
    plain, live = io.StringIO(), io.StringIO()
    for listener in (Plain(plain, 10), Live(Console(file=live, force_terminal=True, width=80))):
        listener.start([("run", f"runs/{CLEAR}")])
        listener.note(f"a\rb{CLEAR}")
        listener.end([("next", CLEAR)])
    for stream in (plain, live):
        assert CLEAR not in stream.getvalue()
        assert stream.getvalue().count("\\x1b[2J") == 3
        assert "a\\rb" in stream.getvalue()


def test_the_table_of_an_evaluation_escapes_class_names():
    counts = Evaluation(2, 1, 0.5, (1, 1), ((1, 0), (1, 0)))
    record = record_of(counts, (f"cat{CLEAR}", "dog\n"))
    lines = table_lines(record["classes"], record["confusion"])
    assert all(printable(line) == line for line in lines)
    assert lines[1].startswith("  cat\\x1b[2J ")
    assert len(lines) == 3


NAMES = ["../x", "", ".", "a b", f"x{CLEAR}", "größe", "a\n", 5]
MODELS = ["a:", ":b", "a..b:c", "a:b.c", "../a:b", f"a:b{CLEAR}"]


@pytest.mark.parametrize(("field", "value"), [*(("name", name) for name in NAMES), *(("model", m) for m in MODELS)])
def test_a_name_that_is_not_plain_and_a_model_that_is_no_path_of_identifiers_are_rejected(field, value):
    messages = {
        "name": r"recipe setting name: got .*(letters, digits|valid string)",
        "model": r"unknown model .*, or package\.module:function of your own",
    }
    with pytest.raises(LockstepError, match=messages[field]) as error:
        make(DIGITS, {field: value})
    assert CLEAR not in str(error.value)


def test_plain_names_and_paths_of_identifiers_are_accepted():
    for name in ("a", "cifar10-tutorial", "A_1.b-2", "7", "_", "-x"):
        assert make(DIGITS, {"name": name}).name == name
    for model in ("mnist", "a:b", "a.b_c.d1:_e", "größe:bauen"):
        assert make(DIGITS, {"model": model}).model == model


def test_a_recipe_can_be_printed_and_read_again():
    odd = f'{CLEAR}\x9b\u202e\n"\\é'
    recipe = make(DIGITS, {"model_options": {odd: odd}, "weight_decay": {odd: 0.5}})
    text = recipe.toml()
    assert printable(text, keep="\n") == text
    assert validated(Recipe, tomllib.loads(text)) == recipe
