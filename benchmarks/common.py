"""Shared by the benchmarks: run the real program, and save a record with the machine and the
versions.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.age import RESULTS, git
from benchmarks.kinds import kind
from lockstep import hardware, numerics

LOCKSTEP = (sys.executable, "-m", "lockstep")


def options(description: str | None, data: str) -> argparse.ArgumentParser:
    """Return a parser with --rounds, and --data for the folder of `data`. See `warn`."""
    warn()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, help=f"folder of {data} (default: LOCKSTEP_DATA)")
    parser.add_argument("--rounds", type=int, default=5)
    return parser


def record_of(command: Sequence[object], **environment: str) -> Any:
    """Run a program and return the JSON in the last line of its stdout. Raises: SystemExit with its
    error.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def lockstep(command: str, *args: object, data: Path | None) -> dict[str, Any]:
    """Run `lockstep COMMAND ... --json` and return its record. Raises: SystemExit with its message
    if it fails.
    """
    record: dict[str, Any] = record_of([*LOCKSTEP, command, *args, *data_option(data), "--json"])
    return record


def train(*args: object, data: Path | None) -> dict[str, Any]:
    """Run `lockstep train` in a temporary folder. Return its result record."""
    with tempfile.TemporaryDirectory() as folder:
        return lockstep("train", *args, "--runs", folder, data=data)


def step_s(
    *args: object, data: Path | None, processes: int = 1, towers: int | None = None, timed: int = 50
) -> float:
    """Train with `towers`, or with a tower in each process. Return the mean seconds of the `timed`
    steps after five others.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "--processes",
            processes,
            "--towers",
            towers or processes,
            "--steps",
            6 + timed,
            "--log-every",
            5,
        ]
        words += ["--summary-every", 0, "--runs", folder, *data_option(data), "--json"]
        run = record_of([*LOCKSTEP, "train", *args, *words])["run"]
        rows = map(json.loads, (Path(run) / "metrics.jsonl").read_text().splitlines())
        return statistics.fmean([row["s_per_step"] for row in rows if row["kind"] == "step"][2:])


def bare(data: Path | None, processes: int, steps: int, precision: str) -> float:
    """Run benchmarks/bare_loop.py. Return its images/s over all processes."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        processes,
        "-m",
        "benchmarks.bare_loop",
        "--steps",
        steps,
        "--precision",
        precision,
        *data_option(data),
    ]
    return float(record_of(command, **numerics.environment(1)))


def data_option(data: Path | None) -> list[str]:
    """Return the option --data for the folder `data`, or nothing."""
    return ["--data", str(data.absolute())] if data else []


def spread(values: list[float]) -> dict[str, float]:
    """Return number, median, minimum and maximum."""
    return {
        "n": len(values),
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
    }


def ranged(found: dict[str, float], form: str = ",.0f") -> str:
    """Return a spread as a table shows it: the median, with the range in brackets."""
    return f"{found['median']:{form}} ({found['min']:{form}} to {found['max']:{form}})"


def tree() -> tuple[str, str] | None:
    """Return the commit of this checkout, and git's list of the files that differ from it, without
    records; None if this is no clone.
    """
    try:
        status = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
        return git("rev-parse", "--short=7", "HEAD").strip(), status
    except (OSError, subprocess.CalledProcessError):
        return None


TREE = tree()  # Of the start: this process has imported its code.


def refusal() -> str:
    """Return why a record of this process does not count; "" if it does."""
    if TREE is None:
        return "this is no git clone, so a record has no commit"
    commit, status = TREE
    if status:
        files = [line[3:] for line in status.splitlines()]
        return f"{len(files)} files differ from commit {commit}, such as {files[0]}"
    return "" if tree() == TREE else f"the files of commit {commit} changed during the measurement"


def warn() -> None:
    """Say before a measurement that its record will not count."""
    if why := refusal():
        print(f"Only for a look: {why}. The record will be in bench-results/.", file=sys.stderr)


def save(name: str, record: dict[str, Any], folder: Path | None = None) -> None:
    """Write `record`, with the command, the commit, the date, the machine and the versions, to
    <name>.json in benchmarks/results/. If the tree has changes that are not committed, or the
    record has fewer rounds or rows than the one that is there, write it to bench-results/ instead,
    which git ignores.

    folder: another folder, for records of a machine without git. They are looked at before they are
    published.

    Its `table`, of a `head` and `rows` of texts, is what docs show.
    """
    machine = {
        "cpu": hardware.processor(),
        "cores": hardware.cores(),
        "system": platform.platform(),
    }
    versions = {
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy")},
    }
    program = (
        Path(sys.argv[0]).resolve().relative_to(Path(__file__).resolve().parent).with_suffix("")
    )
    # a folder of this machine says nothing
    words = [re.sub(r"(?<![^=])\.{0,2}/.*", "DIR", word) for word in sys.argv[1:]]
    command = f"python -m benchmarks.{'.'.join(program.parts)} {shlex.join(words)}".rstrip()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    why, commit = refusal(), TREE[0] if TREE else ""
    made = {"command": command, "commit": commit + "-dirty" * bool(why), "date": date}
    path = (folder or RESULTS) / f"{name}.json"
    known = json.loads(path.read_text()) if path.exists() else record
    if any(new < old for new, old in zip(_extent(record), _extent(known), strict=True)):
        why = "it has fewer rounds or rows than the record that is there"
    if why and not folder:
        path = RESULTS.parents[1] / "bench-results" / f"{name}.json"
        print(f"{name}: {why}, so it is in {path}, and docs do not show it")
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {**made, "kind": kind(), "machine": machine, "versions": versions}
    path.write_text(json.dumps({**head, **record}, indent=1) + "\n")


def _extent(record: dict[str, Any]) -> tuple[int, int]:
    return len(record.get("rounds", ())), len(record["table"]["rows"])
