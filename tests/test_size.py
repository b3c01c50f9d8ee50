"""No part of the repository grows above its ceiling in CONTRIBUTING.md. What is new pays with what
goes.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| `([\w/.]+)` \| ([\d,]+) (tokens|lines|words) \|$", re.M)
CEILINGS = {
    (where, unit): int(number.replace(",", ""))
    for where, number, unit in ROW.findall((ROOT / "CONTRIBUTING.md").read_text())
}
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def tokens(source: str) -> int:
    """Return the number of Python tokens, without comments, docstrings and layout: what a reader
    must take in.
    """
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstrings.add((node.body[0].lineno, node.body[0].col_offset))
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type not in LAYOUT and token.start not in docstrings for token in found)


def size(where: str, unit: str) -> int:
    """Return the size of a folder or a file: tokens of Python, lines, or words of Markdown."""
    path = ROOT / where
    if unit == "words":
        pages = [*path.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        return sum(len(page.read_text().split()) for page in pages)
    if unit == "lines":
        return len(path.read_text().splitlines())
    files = [file for file in path.rglob("*.py") if "__pycache__" not in file.parts]
    return sum(tokens(file.read_text()) for file in files)


def test_tokens_count_without_comments_docstrings_and_layout():
    assert (
        tokens(
            '"""A page."""\n\n\ndef f(x):  # why\n    """Return x."""\n    return (\n        x\n   '
            " )\n"
        )
        == 10
    )


def test_each_part_has_a_ceiling():
    assert {*CEILINGS} == {
        ("src/lockstep", "tokens"),
        ("tests", "tokens"),
        ("benchmarks", "tokens"),
        ("README.md", "lines"),
        ("docs", "words"),
    }


@pytest.mark.parametrize(("where", "unit"), CEILINGS)
def test_the_size_is_below_its_ceiling(where, unit):
    assert size(where, unit) <= CEILINGS[where, unit]
