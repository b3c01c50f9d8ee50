"""The pictures in docs/pictures: replayed as a terminal shows them, drawn by the repository, and free of paths."""

import re
from xml.etree import ElementTree

import pytest
from benchmarks import pictures


@pytest.mark.parametrize("name", ["layers", "step"])
def test_a_diagram_is_what_the_repository_draws(name):
    assert (pictures.FOLDER / f"{name}.svg").read_text() == pictures.PICTURES[name](), "run: make pictures"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_whole_and_names_no_path_host_or_address(name):
    text = (pictures.FOLDER / f"{name}.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    text = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(?<![\w.])/(?:[a-z]+/)+|https?:|@import|@font-face", text)
