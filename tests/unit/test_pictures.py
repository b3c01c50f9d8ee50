"""The pictures in docs/pictures: replayed as a terminal shows them, drawn by the repository, and free of paths."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks import pictures

import lockstep


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("10%\r\x1b[2K20%\r\x1b[2K30%", ["30%"]),
        ("above\r\n10%\r\x1b[?25h\n\x1b[1A\x1b[2Kdone", ["above", "done"]),
        ("\x1b[?25l\x1b]0;title\x07x\x1b[?25h", ["x"]),
        ("\x1b[1;31mred\x1b[0m plain", ["\x1b[1;31mred\x1b[0m plain"]),
        ("x" * 105, ["x" * 100, "x" * 5]),
    ],
)
def test_the_rows_are_those_that_a_terminal_shows(text, rows):
    assert pictures.shown(text) == rows


def test_a_program_runs_in_a_terminal_and_ends_with_the_stated_exit_code(tmp_path):
    (tmp_path / "shows.py").write_text(
        "import os, sys; print(os.get_terminal_size().columns, sys.stdout.isatty(), chr(9473)); sys.exit(0)"
    )
    assert pictures.run_in_terminal("shows", tmp_path) == "100 True \u2501\r\n"


@pytest.mark.parametrize("name", ["layers", "step"])
def test_a_diagram_is_what_the_repository_draws(name):
    assert (pictures.FOLDER / f"{name}.svg").read_text() == pictures.PICTURES[name](), "run: make pictures"


def test_the_layers_are_the_folders():
    named = {name for row in pictures.LAYERS for name, _ in row} - {"top-level modules"}
    assert named == {path.parent.name for path in Path(lockstep.__file__).parent.glob("*/__init__.py")}


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_whole_and_names_no_path_host_or_address(name):
    text = (pictures.FOLDER / f"{name}.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    text = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(?<![\w.])/(?:[a-z]+/)+|https?:|@import|@font-face", text)
