"""Text from foreign files reaches the terminal without control codes."""

import io
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from lockstep.config.overrides import make
from lockstep.config.recipe import Recipe
from lockstep.core.evaluate import Evaluation
from lockstep.errors import LockstepError, printable
from lockstep.recipes import named
from lockstep.report.console import Live, Plain
from lockstep.report.evaluation import CheckpointEvaluation, table_lines
from lockstep.settings import validated

CLEAR = "\x1b[2J"  # clears the screen
DIGITS = named("digits").model_dump(mode="json")


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (CLEAR, "\\x1b[2J"),
        ("a\rb\nc\td\x7f\x00", "a\\rb\\nc\\td\\x7f\\x00"),
        (
            "\x9b2J \u202e \udcff",
            "\\x9b2J \\u202e \\udcff",
        ),  # a C1 code, a right-to-left mark, an undecodable byte of a file name
        ("größe 猫 …", "größe 猫 …"),
        ("\\x1b", "\\x1b"),
    ],
)
def test_characters_that_do_not_print_are_escaped(text, escaped):
    assert printable(text) == escaped
    assert printable(escaped) == escaped


def test_lines_of_an_error_may_be_kept():
    assert printable(f"one\ntwo{CLEAR}", keep="\n") == "one\ntwo\\x1b[2J"


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
    lines = table_lines(CheckpointEvaluation(Path("x"), 0.0, 1, "test", "raw", (f"cat{CLEAR}", "dog\n"), counts))
    assert all(printable(line) == line for line in lines)
    assert lines[1].startswith("  cat\\x1b[2J ")
    assert len(lines) == 3


@pytest.mark.parametrize("name", ["../../x", "a/b", "", ".", "..", ".hidden", "a b", f"x{CLEAR}", "größe", "a\n", 5])
def test_a_recipe_name_that_is_not_plain_is_rejected(name):
    with pytest.raises(LockstepError, match=r"recipe setting name: got .*(letters, digits|valid string)") as error:
        make(DIGITS, {"name": name})
    assert CLEAR not in str(error.value)


@pytest.mark.parametrize("name", ["a", "cifar10-tutorial", "A_1.b-2", "7", "_", "-x"])
def test_a_plain_recipe_name_is_accepted(name):
    assert make(DIGITS, {"name": name}).name == name


@pytest.mark.parametrize(
    "model", ["a:", ":b", "a b:c", "a..b:c", ".a:b", "a:b.c", "a:b:c", "../a:b", f"a:b{CLEAR}", "1a:b"]
)
def test_a_model_that_is_no_name_or_path_of_identifiers_is_rejected(model):
    with pytest.raises(LockstepError, match=r"unknown model .*, or package\.module:function of your own") as error:
        make(DIGITS, {"model": model})
    assert CLEAR not in str(error.value)


@pytest.mark.parametrize("model", ["mnist", "a:b", "a.b_c.d1:_e", "größe:bauen"])
def test_a_name_or_a_path_of_identifiers_is_accepted_as_a_model(model):
    assert make(DIGITS, {"model": model}).model == model


def test_a_recipe_can_be_printed_and_read_again():
    odd = f'{CLEAR}\x9b\u202e\n"\\é'
    recipe = make(DIGITS, {"model_options": {odd: odd}, "weight_decay": {odd: 0.5}})
    text = recipe.toml()
    assert printable(text, keep="\n") == text
    assert validated(Recipe, tomllib.loads(text)) == recipe
