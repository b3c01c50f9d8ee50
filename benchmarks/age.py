"""How old a record is: whether the code that decides its figures is still what it was.

`python -m benchmarks.age WHY` marks all records of other code as known, with the reason why they
are not made again: that no bit and no time can have moved, or what a new record would take. Reasons
that it had before stay. It belongs to the commit that changes the code.
"""

import hashlib
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# What decides any figure, below src/lockstep.
_ALWAYS = (
    "config/precision.py",
    "config/recipe.py",
    "config/schedule.py",
    "core",
    "data",
    "head",
    "jobs/replica.py",
    "jobs/weights.py",
    "kernels",
    "models",
    "numerics.py",
    "optim",
    "rng.py",
)
# These two refuse and copy what a user gives.
_NEVER = ("data/arrays.py", "data/fetch.py")
_PORTABLE = "kernels/portable/"
# The first words of the names of records of native arithmetic, unless "portable" is in the name.
_NATIVE = (
    "cifar10-tutorial-10000-float32",
    "cifar10-tutorial-100000",
    "fit",
    "folder",
    "labels",
    "links",
    "loss",
    "million",
    "networks",
    "overhead",
    "peers",
    "photos",
    "seeds-cifar10",
    "seeds-mnist-precision",
    "multi_label",
    "split",
    "unequal",
    "unfamiliar",
)
_HEAD = "head/"
# The same of records of networks that are trained whole.
_WHOLE = (
    "cifar10",
    "folder",
    "links",
    "loss",
    "mnist",
    "overhead",
    "peers",
    "portable-configurations",
    "portable-cost",
    "portable-digits",
    "seeds-cifar10",
    "seeds-digits",
    "seeds-mnist",
    "split",
    "versions",
)
_OF_PICTURES = ("pictures", "recipes/fitting.py")
_OF_ANSWERS = (*_OF_PICTURES, "classify", "jobs/report.py")
# What else decides the records whose names begin so; with "../../benchmarks/", their own program.
_ALSO = {
    "export": ("classify",),
    "fit": _OF_PICTURES,
    "folder": _OF_PICTURES,
    "labels": (*_OF_PICTURES, "jobs/labels.py"),
    "links": ("launch",),
    "million": (*_OF_PICTURES, "jobs", "launch", "../../benchmarks/million.py"),
    "networks": _OF_ANSWERS,
    "overhead": ("../../benchmarks/bare_loop.py",),
    "photos": _OF_ANSWERS,
    "serve": ("classify",),
    "multi_label": _OF_ANSWERS,
    "split": ("../../benchmarks/split.py",),
    "start": ("commands", "jobs", "launch"),
    "survival": ("files.py", "jobs", "launch", "runs"),
    "unequal": _OF_ANSWERS,
    "unfamiliar": _OF_ANSWERS,
}


def _counts(record: str, name: str) -> bool:
    """Return whether the file `name` of src/lockstep can decide a record."""
    if name.startswith(_PORTABLE):
        return "portable" in record or not record.startswith(_NATIVE)
    if name.startswith(_HEAD):
        return not record.startswith(_WHOLE)
    return name not in _NEVER


@cache
def code(record: str) -> str:
    """Return the SHA-256, in hex, of the source files that decide the figures of a record."""
    digest = hashlib.sha256()
    source = ROOT / "src/lockstep"
    for part in sorted({*_ALWAYS, *_ALSO.get(record.partition("-")[0], ())}):
        place = (source / part).resolve()
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            name = path.relative_to(ROOT).as_posix()
            if _counts(record, name.removeprefix("src/lockstep/")):
                digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def is_of_today(record: str, content: Any) -> bool:
    """Return whether today's code made the `content` of a record."""
    return bool(content.get("code") == code(record))


def is_known(record: str, content: Any) -> bool:
    """Return whether today's code made it, or a reason is given for today's code."""
    return is_of_today(record, content) or content.get("older", {}).get("code") == code(record)


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text())
        if not is_known(path.stem, content):
            reasons = content.get("older", {}).get("why", [])
            content["older"] = {
                "code": code(path.stem),
                "why": [*dict.fromkeys([*reasons, sys.argv[1]])],
            }
            path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
