"""Shared by the benchmarks: run the real program, and save a record with the machine and the versions."""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockstep import hardware, numerics

RESULTS = Path(__file__).parent / "results"


def train(*args: object, data: Path | None) -> dict[str, Any]:
    """Run `lockstep train ... --json` in a temporary folder. Return its result record."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "lockstep",
            "train",
            *map(str, args),
            *data_option(data),
            "--json",
            "--runs",
            folder,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def spread(values: list[float]) -> dict[str, float]:
    """Return number, median, minimum and maximum."""
    return {"n": len(values), "median": statistics.median(values), "min": min(values), "max": max(values)}


def data_option(data: Path | None) -> list[str]:
    """Return the option --data for the folder `data`, or nothing."""
    return ["--data", str(data.absolute())] if data else []


def bench(*args: object, data: Path | None) -> dict[str, Any]:
    """Run `lockstep bench ... --only --table --json`, which runs only the training loop. Return its one record."""
    command = [sys.executable, "-m", "lockstep", "bench", *map(str, args), *data_option(data)]
    command += ["--only", "--table", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    record: dict[str, Any] = json.loads(done.stdout)["records"][0]
    return record


def bare(data: Path | None, processes: int, steps: int) -> float:
    """Run benchmarks/bare_loop.py. Return its images/s over all processes."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
        "-m", "benchmarks.bare_loop", "--steps", str(steps), *data_option(data),
    ]  # fmt: skip
    environment = {**os.environ, **numerics.environment(1)}
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def figure(name: str, unit: str, values: list[float], target: float, *, at_least: bool) -> dict[str, Any]:
    """Return a row of the table of `benchmarks.suite`, which compares the median of `values` with a target."""
    met = statistics.median(values) >= target if at_least else statistics.median(values) <= target
    sign = ">=" if at_least else "<="
    return {"figure": name, "unit": unit, **spread(values), "target": f"{sign} {target:g}", "met": met}


def line(row: dict[str, Any]) -> str:
    """Return the row as text."""
    values = f"{row['median']:>8.4g}  {row['target']:>9}  {'yes' if row['met'] else 'NO':>3}"
    return f"{row['figure']:<58} {row['unit']:<5} {values}  {row['n']:>2}  {row['min']:.4g} to {row['max']:.4g}"


HEAD = f"{'figure':<58} {'unit':<5} {'median':>8}  {'target':>9}  {'met':>3}  {'n':>2}  spread"


def save(name: str, record: dict[str, Any]) -> None:
    """Write `record`, with the machine and the versions, to benchmarks/results/<name>.json."""
    machine = {"cpu": hardware.processor(), "cores": hardware.cores(), "system": platform.platform()}
    versions = {"python": platform.python_version(), **{name: version(name) for name in ("torch", "numpy")}}
    program = Path(sys.argv[0]).resolve().relative_to(Path(__file__).resolve().parent).with_suffix("")
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(
        {
            "command": " ".join([f"python -m benchmarks.{'.'.join(program.parts)}", *sys.argv[1:]]),
            "machine": machine,
            "versions": versions,
            **record,
        },
        indent=1,
    )
    (RESULTS / f"{name}.json").write_text(text + "\n")
