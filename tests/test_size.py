"""No part of the repository grows above its ceiling in CONTRIBUTING.md. What is new pays with what goes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| `([\w/.]+)` \| ([\d,]+) (lines|files|words) \|$", re.M)
CEILINGS = {
    (where, unit): int(number.replace(",", ""))
    for where, number, unit in ROW.findall((ROOT / "CONTRIBUTING.md").read_text())
}


def size(where: str, unit: str) -> int:
    """Return the size of a folder or a file: lines or files of Python, or words or lines of Markdown."""
    path = ROOT / where
    if unit == "words":
        pages = [*path.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        return sum(len(page.read_text().split()) for page in pages)
    files = [path] if path.is_file() else [file for file in path.rglob("*.py") if "__pycache__" not in file.parts]
    return len(files) if unit == "files" else sum(len(file.read_text().splitlines()) for file in files)


def test_every_folder_of_the_source_has_a_ceiling():
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "src/lockstep").glob("*/__init__.py")}
    assert folders <= {where for where, _ in CEILINGS}
    assert {("src/lockstep", "files"), ("tests", "lines"), ("benchmarks", "lines"), ("docs", "words")} <= {*CEILINGS}


@pytest.mark.parametrize(("where", "unit"), CEILINGS)
def test_the_size_is_below_its_ceiling(where, unit):
    assert size(where, unit) <= CEILINGS[where, unit]
