"""Shared by the benchmarks: run the real program, and save a record with the machine and the versions."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockstep import hardware, numerics

RESULTS = Path(__file__).parent / "results"


def options(description: str | None, data: str = "the dataset", quick: str = "2 rounds") -> argparse.ArgumentParser:
    """Return a parser with --rounds, --quick (which says what it does) and, if `data` says of what, --data."""
    parser = argparse.ArgumentParser(description=description)
    if data:
        parser.add_argument("--data", type=Path, help=f"folder of {data} (default: LOCKSTEP_DATA)")
    parser.add_argument("--rounds", type=int, help="default: 5, or 2 with --quick")
    parser.add_argument("--quick", action="store_true", help=f"{quick}, for a first look")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the command line, with the number of rounds filled in."""
    args = parser.parse_args()
    args.rounds = args.rounds or (2 if args.quick else 5)
    return args


def record_of(command: Sequence[object], **environment: str) -> Any:
    """Run a program and return the JSON in the last line of its stdout. Raises: SystemExit with its error."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def lockstep(command: str, *args: object, data: Path | None) -> dict[str, Any]:
    """Run `lockstep COMMAND ... --json` and return its record. Raises: SystemExit with its message if it fails."""
    record: dict[str, Any] = record_of([sys.executable, "-m", "lockstep", command, *args, *data_option(data), "--json"])
    return record


def train(*args: object, data: Path | None) -> dict[str, Any]:
    """Run `lockstep train` in a temporary folder. Return its result record."""
    with tempfile.TemporaryDirectory() as folder:
        return lockstep("train", *args, "--runs", folder, data=data)


def bench(*args: object, data: Path | None) -> dict[str, Any]:
    """Run `lockstep bench --only`. Return its one record."""
    record: dict[str, Any] = lockstep("bench", *args, "--only", data=data)["records"][0]
    return record


def bare(data: Path | None, processes: int, steps: int) -> float:
    """Run benchmarks/bare_loop.py. Return its images/s over all processes."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes,
        "-m", "benchmarks.bare_loop", "--steps", steps, *data_option(data),
    ]  # fmt: skip
    return float(record_of(command, **numerics.environment(1)))


def data_option(data: Path | None) -> list[str]:
    """Return the option --data for the folder `data`, or nothing."""
    return ["--data", str(data.absolute())] if data else []


def earlier(name: str, digest: str) -> dict[str, Any] | None:
    """Return the record `name`, to which runs may be added; None if there is none.

    Raises: SystemExit if it holds runs of a recipe with another `digest`.
    """
    file = RESULTS / f"{name}.json"
    if not file.exists():
        return None
    record: dict[str, Any] = json.loads(file.read_text())
    if record.get("digest") != digest:
        raise SystemExit(f"{file} holds runs of another recipe: move it away")
    return record


def spread(values: list[float]) -> dict[str, float]:
    """Return number, median, minimum and maximum."""
    return {"n": len(values), "median": statistics.median(values), "min": min(values), "max": max(values)}


def spreads(rounds: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the spread of each variant over the rounds."""
    return {name: spread([each[name] for each in rounds]) for name in rounds[0]}


def show(figures: dict[str, dict[str, float]], unit: str = "images/s") -> None:
    """Print a line for each of `figures`, which are spreads."""
    for name, f in figures.items():
        print(f"{name:25} {f['median']:8.0f} {unit} ({f['min']:.0f} to {f['max']:.0f}, n {f['n']})")


def figure(name: str, unit: str, values: list[float], target: float, *, at_least: bool) -> dict[str, Any]:
    """Return a row of a record, which compares the median of `values` with a target."""
    met = statistics.median(values) >= target if at_least else statistics.median(values) <= target
    sign = ">=" if at_least else "<="
    return {"figure": name, "unit": unit, **spread(values), "target": f"{sign} {target:g}", "met": met}


def line(row: dict[str, Any]) -> str:
    """Return the row as text."""
    values = f"{row['median']:>8.4g}  {row['target']:>9}  {'yes' if row['met'] else 'NO':>3}"
    return f"{row['figure']:<58} {row['unit']:<5} {values}  {row['n']:>2}  {row['min']:.4g} to {row['max']:.4g}"


def finish(name: str, rows: list[dict[str, Any]], quick: bool, **more: object) -> None:
    """Print the table of `rows`. Save them with `more` as the record `name`, or `name`-quick."""
    print(HEAD, *map(line, rows), sep="\n")
    save(f"{name}{'-quick' * quick}", {"rows": rows, **more})


HEAD = f"{'figure':<58} {'unit':<5} {'median':>8}  {'target':>9}  {'met':>3}  {'n':>2}  spread"


def save(name: str, record: dict[str, Any]) -> None:
    """Write `record`, with the machine and the versions, to benchmarks/results/<name>.json."""
    machine = {"cpu": hardware.processor(), "cores": hardware.cores(), "system": platform.platform()}
    versions = {"python": platform.python_version(), **{name: version(name) for name in ("torch", "numpy")}}
    program = Path(sys.argv[0]).resolve().relative_to(Path(__file__).resolve().parent).with_suffix("")
    words = ["DIR" if word.startswith("/") else word for word in sys.argv[1:]]  # a folder of this machine says nothing
    command = " ".join([f"python -m benchmarks.{'.'.join(program.parts)}", *words])
    RESULTS.mkdir(exist_ok=True)
    head = {"command": command, **commit(), "machine": machine, "versions": versions}
    text = json.dumps({**head, **record}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def commit() -> dict[str, str]:
    """Return the commit of this checkout as {"commit": ...}, "-dirty" if files were changed; {} elsewhere."""
    command = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return {}
    return {} if done.returncode else {"commit": done.stdout.strip()}
