"""The Dockerfile names versions, files that exist and a user without rights; the workflow and the package agree."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def instructions(text):
    """[(instruction, arguments)] of a Dockerfile."""
    joined = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def problems(text):
    """Return what is wrong with a Dockerfile."""
    found, values, user, entry = [], {}, "root", None
    for name, rest in instructions(text):
        if name == "ARG":
            key, _, values[key] = rest.partition("=")
        elif name == "FROM":
            image = re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], rest)
            if not re.fullmatch(r"[\w/.-]+:\d[\w.-]*", image):
                found.append(f"{image} names no version")
        elif name == "COPY":
            *sources, _ = rest.split()
            found += [f"{source} does not exist" for source in sources if not (ROOT / source).exists()]
            found += [f"{source} is ignored" for source in sources if is_ignored(source)]
        elif name == "USER":
            user = rest
        elif name == "ENTRYPOINT":
            entry = rest
        found += [f"{name} has no argument {key}" for key in re.findall(r"\$\{(\w+)\}", rest) if key not in values]
    return found + [f"the user is {user}"] * (user in ("root", "0")) + ["no lockstep"] * (entry != '["lockstep"]')


def is_ignored(source):
    """Whether .dockerignore leaves a path out: the last pattern that matches decides."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and fnmatch(source, line.removeprefix("!")):
            ignored = not line.startswith("!")
    return ignored


def test_the_image_is_sound():
    text = (ROOT / "Dockerfile").read_text()
    assert problems(text) == []
    names = [name for name, _ in instructions(text)]
    assert names.index("USER") > max(i for i, name in enumerate(names) if name == "RUN")
    assert text.count("--constraint constraints.txt") == text.count("pip install") == 2


def test_mistakes_in_the_image_are_found():
    text = (ROOT / "Dockerfile").read_text()
    for right, wrong in (
        ("USER lockstep\n", ""), ("PYTHON=3.13", "PYTHON=latest"), (":${PYTHON}-slim", ""),
        ("LICENSE ./", "LICENSES ./"), ("COPY src", "COPY tests"),
        ('["lockstep"]', '["python"]'), ("ARG TORCH_INDEX", "ARG INDEX"),
    ):  # fmt: skip
        assert right in text
        assert problems(text.replace(right, wrong)), wrong


def test_the_extras_of_the_image_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", (ROOT / "Dockerfile").read_text())
    assert {*extras.split(",")} <= {*project["optional-dependencies"]}
    assert all((ROOT / path).is_file() for path in project["license-files"])


def test_the_workflow_tests_every_version_that_the_package_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    first = jobs["all"]["steps"][1]["with"]["python-version"]
    assert [first, *jobs["test"]["strategy"]["matrix"]["python-version"]] == named
    image = re.search(r"^ARG PYTHON=(.+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert image[1] in named
