"""CONTRIBUTING.md, CHANGELOG.md, the Makefile and the pinned versions agree with the repository."""

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"`((?:src|tests|docs|benchmarks|\.ci)/[\w./-]*)`|\]\(((?!http)[^)#]+)\)")


def text(name):
    return (ROOT / name).read_text()


def missing(page):
    paths = {next(filter(None, found)) for found in PATH.findall(page)}
    return sorted(path for path in paths if not (ROOT / path).exists())


def test_every_path_in_contributing_exists():
    assert len(PATH.findall(text("CONTRIBUTING.md"))) > 30
    assert missing(text("CONTRIBUTING.md")) == []
    assert missing("`tests/x.py` [x](docs/x.md)") == ["docs/x.md", "tests/x.py"]


def test_every_registry_in_contributing_is_in_its_file():
    """Each row says "`NAME`, `src/lockstep/folder/file.py`"."""
    named = re.findall(r"`(\w+)`, `((?:src|tests)/[\w/]+\.py)`", text("CONTRIBUTING.md"))
    assert len(named) >= 7
    for name, path in named:
        assert re.search(rf"^(?:class |def )?{name}\b", text(path), re.M), (name, path)


def test_make_lists_every_target():
    shown = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = re.findall(r"^\.PHONY: (.+)$", text("Makefile"), re.M)[0].split()
    assert re.findall(r"^  make ([a-z-]+)  +\S", shown, re.M) == targets
    named = re.findall(r"(?:^|`)make ([a-z-]+)", text("CONTRIBUTING.md") + text(".ci/run"), re.M)
    assert {"test", "lint", "pictures"} <= set(named) <= set(targets)


def test_the_changelog_has_todays_version():
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    assert re.search(r"^## \[(\S+)\]", text("CHANGELOG.md"), re.M)[1] == version
