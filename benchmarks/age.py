"""How old a record is: whether the code that decides its figures is still what it was.

`python -m benchmarks.age WHY` marks all records of other code as known, with the reason why they
are not made again: that no bit and no time can have moved, or what a new record would take. It
belongs to the commit that changes the code.
"""

import hashlib
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_ALWAYS = ("core", "data", "head", "kernels", "models", "optim", "numerics.py", "rng.py")
# What decides no figure: of any record, as these two refuse and copy what a user gives, and of the
# records that begin so.
_NOT = {
    "data/arrays.py": "",
    "data/fetch.py": "",
    # of networks that are trained whole
    "head/": "cifar10 folder links loss mnist overhead peers portable-configurations portable-cost "
    "portable-digits seeds split versions",
    # of native arithmetic
    "kernels/portable/": "cifar10-tutorial-10000-float32 cifar10-tutorial-100000 "
    "cifar10-tutorial-4 "
    "fit folder labels links loss million networks overhead peers photos seeds-cifar10 "
    "seeds-mnist-precision several split unequal unlike",
}
_ALSO = {
    "export": ("classify",),
    "links": ("launch",),
    "million": ("jobs", "pictures"),
    "serve": ("classify",),
    "start": ("commands", "jobs", "launch"),
    "survival": ("files.py", "jobs", "launch", "runs"),
}


@cache
def code(record: str) -> str:
    """Return the SHA-256, in hex, of the source files that decide the figures of a record."""
    digest = hashlib.sha256()
    for part in (*_ALWAYS, *_ALSO.get(record.partition("-")[0], ())):
        place = ROOT / "src/lockstep" / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            name = path.relative_to(ROOT / "src/lockstep").as_posix()
            records = [begin for part, begin in _NOT.items() if name.startswith(part)]
            if any(record.startswith(tuple(begin.split(" "))) for begin in records):
                continue
            digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes())
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
            content["older"] = {"code": code(path.stem), "why": sys.argv[1]}
            path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
