"""CONTRIBUTING.md, CHANGELOG.md, the Makefile and the Dockerfile agree with the repository."""

import re
import subprocess
import tomllib
from fnmatch import fnmatch

from tests.documents import ROOT

from lockstep import __version__

PATH = re.compile(r"`((?:src|tests|docs|benchmarks|\.ci)/[\w./-]*)`|\]\(((?!http)[^)#]+)\)")


def text(name):
    return (ROOT / name).read_text()


def test_every_path_in_contributing_exists():
    paths = [next(filter(None, found)) for found in PATH.findall(text("CONTRIBUTING.md"))]
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


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
    assert re.search(r"^## \[(\S+)\]", text("CHANGELOG.md"), re.M)[1] == __version__


def test_every_extra_that_is_named_exists():
    extras = tomllib.loads(text("pyproject.toml"))["project"]["optional-dependencies"]
    named = (
        r"""(?:lockstep-images|'\.)\[([a-z,]+)\]|require_extra\("(\w+)"|Needs the extra "(\w+)"""
    )
    lines = subprocess.check_output(["git", "grep", "-hIP", named], cwd=ROOT, text=True)
    names = ",".join(",".join(groups) for groups in re.findall(named, lines)).split(",")
    assert {"export", "serve", ""} < {*names} <= {*extras, ""}


def is_ignored(source):
    """Whether .dockerignore leaves a path out: the last pattern that matches decides."""
    ignored = False
    for line in text(".dockerignore").splitlines():
        if line and not line.startswith("#") and fnmatch(source, line.removeprefix("!")):
            ignored = not line.startswith("!")
    return ignored


def test_the_image_copies_what_exists_and_has_no_rights():
    lines = re.sub(r"\\\n", " ", text("Dockerfile")).splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert copied
    assert [source for source in copied if not (ROOT / source).exists() or is_ignored(source)] == []
    assert [line for line in lines if line.startswith("FROM ")] == ["FROM python:${PYTHON}-slim"]
    users = [number for number, line in enumerate(lines) if line.startswith("USER ")]
    assert lines[users[-1]] not in ("USER root", "USER 0")
    assert users[-1] > max(number for number, line in enumerate(lines) if line.startswith("RUN "))
    assert 'ENTRYPOINT ["lockstep"]' in lines
    assert (
        text("Dockerfile").count("--constraint constraints.txt")
        == text("Dockerfile").count("pip install")
        == 2
    )
