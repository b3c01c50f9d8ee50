"""Which records may be out of date: `python -m benchmarks.age`, for maintainers.

A record is measured for a release, and holds for it. This prints for each record its commit, its
date, and the files that decide its figures and have changed since that commit. If a change may have
moved a figure, measure the record again or remove it.
"""

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# What decides any figure: files and folders of src/lockstep.
_ALWAYS = (
    "config/precision.py",
    "config/recipe.py",
    "config/schedule.py",
    "core",
    "data",
    "head",
    "jobs/replica.py",
    "jobs/splits.py",
    "jobs/weights.py",
    "kernels",
    "models",
    "numerics.py",
    "optim",
    "recipes/built_in.py",
    "rng.py",
)
# These two refuse and copy what a user gives.
_NEVER = ("data/arrays.py", "data/fetch.py")
_PORTABLE = "kernels/portable/"
# The first words of the names of records of native arithmetic, unless "portable" is in the name.
_NATIVE = (
    "fit",
    "folder",
    "labels",
    "links",
    "million",
    "networks",
    "overhead",
    "parquet",
    "peers",
    "photos",
    "seeds-cifar10",
    "seeds-mnist-precision",
    "multi-label",
    "unequal",
    "unfamiliar",
)
_HEAD = "head/"
# The same of records of networks that are trained whole.
_WHOLE = (
    "cifar10",
    "folder",
    "links",
    "mnist",
    "overhead",
    "peers",
    "portable-cost",
    "portable-digits",
    "seeds-cifar10",
    "seeds-digits",
    "seeds-mnist",
    "versions",
)
_OF_PICTURES = ("pictures", "recipes/fitting.py")
_OF_ANSWERS = (*_OF_PICTURES, "classify", "jobs/judge.py", "jobs/report.py")
# What else decides the records whose names begin so.
_ALSO = {
    "fit": _OF_PICTURES,
    "folder": _OF_PICTURES,
    "labels": (*_OF_PICTURES, "jobs/labels.py"),
    "links": ("launch",),
    "million": (*_OF_PICTURES, "jobs", "launch", "benchmarks/million.py"),
    "multi": _OF_ANSWERS,
    "networks": _OF_ANSWERS,
    "overhead": ("benchmarks/bare_loop.py",),
    "parquet": (*_OF_PICTURES, "jobs", "launch", "benchmarks/million.py"),
    "peers": ("benchmarks/peers",),
    "photos": _OF_ANSWERS,
    "serve": ("classify",),
    "start": ("commands", "jobs", "launch"),
    "survival": ("files.py", "jobs", "launch", "runs"),
    "unequal": _OF_ANSWERS,
    "unfamiliar": _OF_ANSWERS,
}


def decides(record: str, file: str) -> bool:
    """Return whether a file of the repository decides figures of a record."""
    name = file.removeprefix("src/lockstep/")
    parts = (*_ALWAYS, *_ALSO.get(record.partition("-")[0], ()))
    if name in _NEVER or not any(name == part or name.startswith(f"{part}/") for part in parts):
        return False
    if name.startswith(_PORTABLE):
        return "portable" in record or not record.startswith(_NATIVE)
    return not (name.startswith(_HEAD) and record.startswith(_WHOLE))


def git(*words: str) -> str:
    """Return what git prints about this repository. Raises: OSError, CalledProcessError."""
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@cache
def changes(commit: str) -> tuple[str, ...] | None:
    """Return the files that differ from a commit; None if the clone does not have the commit."""
    try:
        return tuple(git("diff", "--name-only", "--no-renames", commit, "--").splitlines())
    except (OSError, subprocess.CalledProcessError):
        return None


def age(record: str, content: Any) -> str:
    """Return the line about a record."""
    files = changes(content["commit"])
    if files is None:
        since = "this clone does not have the commit, so what changed since is unknown"
    else:
        found = [file for file in files if decides(record, file)]
        since = (
            f"{len(found)} changed since: {' '.join(found)}" if found else "nothing changed since"
        )
    return f"{record}  {content['commit']}  {content['date']}  {since}"


def lines() -> Iterator[str]:
    """Yield the lines about all records."""
    for path in sorted(RESULTS.glob("*.json")):
        yield age(path.stem, json.loads(path.read_text()))


if __name__ == "__main__":
    print(*lines(), sep="\n")
