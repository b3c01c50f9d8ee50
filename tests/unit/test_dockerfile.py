"""The Dockerfile names versions, files that exist and a user without rights; the workflow and the package agree."""

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]


TEXT = (ROOT / "Dockerfile").read_text()


def is_ignored(source):
    """Whether .dockerignore leaves a path out: the last pattern that matches decides."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and fnmatch(source, line.removeprefix("!")):
            ignored = not line.startswith("!")
    return ignored


def test_the_image_copies_what_exists_names_versions_and_has_no_rights():
    lines = re.sub(r"\\\n", " ", TEXT).splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert copied
    assert [source for source in copied if not (ROOT / source).exists() or is_ignored(source)] == []
    assert [line for line in lines if line.startswith("FROM ")] == ["FROM python:${PYTHON}-slim"]
    users = [number for number, line in enumerate(lines) if line.startswith("USER ")]
    assert lines[users[-1]] not in ("USER root", "USER 0")
    assert users[-1] > max(number for number, line in enumerate(lines) if line.startswith("RUN "))
    assert 'ENTRYPOINT ["lockstep"]' in lines
    assert TEXT.count("--constraint constraints.txt") == TEXT.count("pip install") == 2
