"""No part of the repository grows above its ceiling in CONTRIBUTING.md. What is new pays with what
goes.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documents import ROOT, SOURCE

ROW = re.compile(r"^\| (.+) \| ([\d,.]+) (tokens a line|tokens|lines|words) \|$", re.M)
CEILINGS = {
    (where.replace("`", ""), unit): float(number.replace(",", ""))
    for where, number, unit in ROW.findall((ROOT / "CONTRIBUTING.md").read_text())
}
EACH_FOLDER = "each folder of src/lockstep"
EVENING = "the files of the evening"
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Size(NamedTuple):
    """Python tokens, without comments, docstrings and layout, and the lines on which they stand."""

    tokens: int
    lines: int

    @property
    def density(self) -> float:
        return self.tokens / max(1, self.lines)


def size_of(source: str) -> Size:
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
    }
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in LAYOUT and token.start not in docstrings
    ]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return Size(len(tokens), len(lines))


@cache
def size_of_file(path: Path) -> Size:
    return size_of(path.read_text())


def size_of_all(paths: Iterable[Path]) -> Size:
    sizes = [size_of_file(path) for path in paths]
    return Size(sum(size.tokens for size in sizes), sum(size.lines for size in sizes))


def evening() -> list[Path]:
    """Return the files that docs/design.md lists as those to read."""
    page = (ROOT / "docs/design.md").read_text()
    section = re.search(r"^## The evening\n(.*?)^## ", page, re.M | re.S)
    return [SOURCE / path for path in re.findall(r"^\d+\. `([\w/.]+)`", section[1], re.M)]


def words() -> int:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return sum(len(page.read_text().split()) for page in pages)


def measured(where: str, unit: str) -> float:
    """Return what a row of CONTRIBUTING.md bounds."""
    if unit == "words":
        return words()
    if unit == "lines":
        return len((ROOT / where).read_text().splitlines())
    if where == EVENING:
        return size_of_all(evening()).tokens
    if where == EACH_FOLDER:
        folders = (path for path in SOURCE.iterdir() if path.is_dir())
        return max(size_of_all(folder.rglob("*.py")).density for folder in folders)
    size = size_of_all((ROOT / where).rglob("*.py"))
    return size.tokens if unit == "tokens" else size.density


def test_tokens_count_without_comments_docstrings_and_layout():
    source = '''
"""A page."""


def f(x):  # why
    """Return x."""

    return (
        x
    )
'''
    assert size_of(source) == Size(tokens=10, lines=4)


def test_each_part_has_a_ceiling():
    assert {*CEILINGS} == {
        ("src/lockstep", "tokens"),
        ("src/lockstep", "tokens a line"),
        (EACH_FOLDER, "tokens a line"),
        (EVENING, "tokens"),
        ("tests", "tokens"),
        ("benchmarks", "tokens"),
        ("README.md", "lines"),
        ("docs", "words"),
    }


def test_the_evening_is_files_that_exist():
    paths = evening()
    assert len(paths) >= 20
    assert len({*paths}) == len(paths)
    assert [path for path in paths if not path.is_file()] == []


@pytest.mark.parametrize(("where", "unit"), CEILINGS)
def test_the_size_is_below_its_ceiling(where, unit):
    assert measured(where, unit) <= CEILINGS[where, unit]
