"""The pictures in docs/pictures: replayed as a terminal shows them, drawn by the repository, and free of paths."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks import pictures
from rich.text import Text

import lockstep


def shown(text, columns=20):
    screen = pictures.Screen(columns)
    screen.feed(text)
    return [Text.from_ansi(line).plain for line in screen.lines()]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("10%\r\x1b[2K20%\r\x1b[2K30%", ["30%"]),
        ("10%\n\x1b[1A\x1b[2Kdone", ["done"]),
        ("a\nbb\x1b[1A\rc", ["c", "bb"]),
        ("\x1b[?25l\x1b]0;title\x07x\x1b[?25h", ["x"]),
        ("\x1b[1;31mred\x1b[0m plain", ["red plain"]),
        ("x" * 25, ["x" * 20, "x" * 5]),
    ],
)
def test_a_screen_shows_what_a_terminal_does(text, lines):
    assert shown(text) == lines


def test_a_screen_keeps_styles():
    screen = pictures.Screen(20)
    screen.feed("\x1b[1mbold\x1b[0m")
    assert "bold" in str(Text.from_ansi(screen.lines()[0]).markup)


def test_a_program_in_a_terminal_is_heard_piece_by_piece(tmp_path):
    code = "import sys, os; print(os.get_terminal_size().columns, sys.stdout.isatty(), chr(9473))"
    text = "".join(pictures.run_in_terminal([sys.executable, "-c", code], 77, tmp_path))
    assert text == "77 True \u2501\r\n"


def test_a_piece_ends_within_neither_a_code_nor_a_character():
    data = "ab\x1b[2Kc\u2501".encode()
    for cut in range(len(data) + 1):
        whole = pictures._whole(data[:cut])
        data[:whole].decode()
        assert not re.search(rb"\x1b(\[[?\d;]*)?$", data[:whole])
        assert cut - whole < 4


def test_the_live_line_stands_between_the_blocks():
    assert pictures.composed(["start", "60%"], ["start", "end"]) == ["start", "60%", "end"]
    with pytest.raises(SystemExit, match="live line"):
        pictures.composed([], ["start", "end"])


@pytest.mark.parametrize("name", ["layers", "step"])
def test_a_diagram_is_what_the_repository_draws(name):
    assert (pictures.FOLDER / f"{name}.svg").read_text() == pictures.PICTURES[name](), "run: make pictures"


def test_the_layers_are_the_folders():
    named = {name for row in pictures.LAYERS for name, _ in row} - {"top-level modules"}
    folders = {path.parent.name for path in Path(lockstep.__file__).parent.glob("*/__init__.py")}
    assert named == folders


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_whole_and_names_no_path_host_or_address(name):
    text = (pictures.FOLDER / f"{name}.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(
        r"(?<![\w.])/(?:[a-z]+/)+|https?:|@import|@font-face", text.replace("http://www.w3.org/2000/svg", "")
    )


def test_the_terminal_shows_a_whole_run():
    text = (pictures.FOLDER / "train.svg").read_text()
    words = " ".join(ElementTree.fromstring(text).itertext()).replace("\xa0", " ")
    assert pictures.COMMAND in words
    for part in (
        "recipe",
        "towers x",
        "step",
        "ETA",
        "accuracy",
        "averaged weights",
        "runs/digits-1/model.safetensors",
    ):
        assert part in words, part


def test_a_command_ends_with_the_stated_exit_code(tmp_path):
    command = [sys.executable, "-c", "import os; print(os.getcwd()); raise SystemExit(3)"]
    assert "".join(pictures.run_in_terminal(command, 77, tmp_path, status=3)) == f"{tmp_path}\r\n"
    with pytest.raises(SystemExit, match="exit code 3"):
        list(pictures.run_in_terminal(command, 77, tmp_path))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("own-images", [pictures.TRAIN_PHOTOS, pictures.PREDICT, "ETA", "runs/photos/model.safetensors", "more/1.jpg"]),
        ("data-check", [pictures.CHECK, *pictures.PHOTOS, "truncated", "copy of 0007.jpg"]),
    ],
)
def test_the_pictures_of_own_images_show_their_commands(name, parts):
    words = " ".join(ElementTree.fromstring((pictures.FOLDER / f"{name}.svg").read_text()).itertext())
    for part in parts:
        assert part in words.replace("\xa0", " "), part
