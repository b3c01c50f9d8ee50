"""The files around the package agree with it: CONTRIBUTING.md, CHANGELOG.md, CITATION.cff, the
Makefile, the Dockerfile and the workflows.
"""

import re
import subprocess
import tomllib
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, requires

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.documents import ROOT
from tests.helpers import read_json

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
    tools = {"pytest", "mypy", "mkdocs", "ruff", "playwright"}
    readers = frozenset({"export", "serve"})
    assert not tools & installed_by("lockstep-images", readers)
    assert tools <= installed_by("lockstep-images", frozenset({"dev"}))
    for target, dev in (("train", False), ("test", True), ("lint", True), ("docs", True)):
        words = ["make", "--dry-run", f"VENV={tmp_path}", target]
        said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert "--constraint constraints.txt --editable '.[export,serve]'" in said
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


def test_the_citation_names_this_package():
    cited, project = yaml.safe_load(text("CITATION.cff")), tomllib.loads(text("pyproject.toml"))
    assert cited["version"] == __version__
    assert cited["abstract"] == project["project"]["description"]
    assert cited["repository-code"] == project["project"]["urls"]["Homepage"]
    assert cited["license"] == project["project"]["license"]


def test_the_workflow_hash_checks_the_published_hash():
    workflow = yaml.safe_load(text(".github/workflows/hash.yml"))
    published = read_json(ROOT / "tests/golden/portable_sha256.json")["digits"]
    assert workflow["env"]["DIGITS_SHA256"] == published
    runs = "\n".join(step.get("run", "") for step in workflow["jobs"]["hash"]["steps"])
    assert 'grep "sha256 *$DIGITS_SHA256"' in runs
    assert "pipefail" in text(".github/workflows/hash.yml")


def test_workflows_call_what_exists_and_pin_their_actions():
    made, used = set(), set()
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            for step in job["steps"]:
                made |= {*re.findall(r"^(?:make [a-z-]+|\.ci/run)", step.get("run", ""), re.M)}
                used |= {step.get("uses", "none@v0")}
    assert {".ci/run", "make train", "make test", "make docs"} == made
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@v\d+", action)] == []


def test_issue_forms_ask_for_the_doctor():
    forms = {path.stem: path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")}
    assert {*forms} == {"bug", "feature", "config"}
    bug = yaml.safe_load(forms["bug"].read_text())
    asked = {one["id"]: one for one in bug["body"]}
    assert "`lockstep doctor`" in asked["doctor"]["attributes"]["label"]
    assert asked["doctor"]["validations"]["required"]


def test_pre_commit_runs_the_ruff_of_the_constraints():
    pinned = re.search(r"^ruff==(\S+)$", text("constraints.txt"), re.M)[1]
    hooks = yaml.safe_load(text(".pre-commit-config.yaml"))
    assert hooks["repos"][0]["rev"] == f"v{pinned}"


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
