"""What the benchmarks share: running the real program, and a record of where and with what it ran."""

import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy
import torch

from lockstep import numerics

RESULTS = Path(__file__).parent / "results"


def train(*args: object, data: Path | None) -> dict[str, Any]:
    """Run `lockstep train ... --json` in a folder that is thrown away; returns its result record."""
    place = ["--data", str(data.absolute())] if data else []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lockstep", "train", *map(str, args), *place, "--json", "--runs", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def spread(values: list[float]) -> dict[str, float]:
    """Number, median, least and most."""
    return {"n": len(values), "median": statistics.median(values), "min": min(values), "max": max(values)}


def save(name: str, record: dict[str, Any]) -> None:
    """Write `record`, with the machine and the versions, to benchmarks/results/<name>.json."""
    machine = {"cpu": numerics.processor(), "cores": numerics.cores(), "system": platform.platform()}
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__}
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
