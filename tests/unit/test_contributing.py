"""CONTRIBUTING.md, CHANGELOG.md, the Makefile and the Dockerfile agree with the repository."""

import re
import subprocess
import tomllib
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
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


def installed_by(name, extras=frozenset(), seen=None):
    """Return the names of the distributions that pip installs for a requirement."""
    seen = {} if seen is None else seen
    name = canonicalize_name(name)
    if extras <= seen.get(name, set()) and name in seen:
        return {*seen}
    seen[name] = seen.get(name, set()) | extras
    try:
        lines = requires(name) or []
    except PackageNotFoundError:  # for another platform or Python
        return {*seen}
    for line in map(Requirement, lines):
        if line.marker is None or any(line.marker.evaluate({"extra": e}) for e in ("", *extras)):
            installed_by(line.name, frozenset(line.extras), seen)
    return {*seen}


def test_only_the_targets_of_developers_install_tools(tmp_path):
    tools = {"pytest", "mypy", "mkdocs", "ruff", "playwright", "onnx"}
    assert not tools & installed_by("lockstep-images")
    assert tools <= installed_by("lockstep-images", frozenset({"dev"}))
    for target, dev in (("train", False), ("test", True), ("lint", True), ("docs", True)):
        words = ["make", "--dry-run", f"VENV={tmp_path}", target]
        said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert "--constraint constraints.txt --editable ." in said
        assert ("'.[dev]'" in said) == dev


@pytest.mark.parametrize("uv", [False, True])
def test_make_installs_with_uv_where_it_is_found(tmp_path, monkeypatch, uv):
    """Either way into the same folder, with the same constraints."""
    if uv:
        (tmp_path / "uv").touch(mode=0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://a.org/cpu")
    words = ["make", "--dry-run", f"VENV={tmp_path}/venv", "train"]
    if not uv:
        words.append("UV=")
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (f"{tmp_path}/uv venv" in said, f"{tmp_path}/uv pip install" in said) == (uv, uv)
    assert ("python -m pip install" in said) == (not uv)


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
