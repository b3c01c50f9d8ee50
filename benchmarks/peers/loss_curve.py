"""MNIST's loss over the first steps, in Lockstep and in TensorFlow: `python -m benchmarks.peers.loss_curve`.

Runs `lockstep train mnist` and benchmarks/peers/tensorflow_mnist.py, both in float32 with 2 towers of 1,024 images. The
loss of step n (1, 2, ...) is the mean cross-entropy over the 2,048 images of that step, under dropout and before its
update: the weights have had n - 1 updates. The seed decides initial weights, order and dropout, differently in each
program. The learning rate is constant, so the steps are also the first steps of a longer run.

The record is written after every run. A call makes only the runs that the record lacks, so that a series can be made in
parts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, save
from benchmarks.peers.compare import refuse_without
from lockstep.config.overrides import make
from lockstep.recipes import named

NAME, STEPS = "loss-mnist", 30
OPTIONS = ["--towers", "2", "--precision", "float32", "--seed"]
Run = dict[str, Any]


def lockstep(seed: int, data: Path) -> Run:
    """Run Lockstep. Return {"seed": ..., "losses": STEPS numbers}."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lockstep", "train", "mnist", *OPTIONS, str(seed), "--steps", str(STEPS)]
        command += ["--log-every", "1", "--data", str(data.absolute()), "--runs", folder, "--name", "run"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        rows = [json.loads(line) for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
    losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "step"}
    return {"seed": seed, "losses": [losses[step] for step in range(STEPS)]}


def tensorflow(seed: int, data: Path, python: str) -> Run:
    """Run TensorFlow's program. Return the same as `lockstep`, and the version of TensorFlow."""
    command = [python, "-m", "benchmarks.peers.tensorflow_mnist", *OPTIONS, str(seed), "--losses", str(STEPS)]
    done = subprocess.run([*command, "--data", str(data)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    record = json.loads(done.stdout.splitlines()[-1])
    return {"seed": seed, "losses": record["losses"], **record["versions"]}


def recorded(digest: str) -> dict[str, list[Run]]:
    """Return the runs in the record. Raises: SystemExit if they are of another recipe."""
    file = RESULTS / f"{NAME}.json"
    if not file.exists():
        return {"lockstep float32": [], "tensorflow float32": []}
    record = json.loads(file.read_text())
    if record["digest"] != digest:
        raise SystemExit(f"{file} holds runs of another recipe: move it away")
    runs: dict[str, list[Run]] = record["runs"]
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("LOCKSTEP_DATA"),
        help="folder of the dataset (default: LOCKSTEP_DATA)",
    )
    parser.add_argument("--tensorflow", default=sys.executable, metavar="PYTHON", help="a Python with tensorflow")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-most", type=int, metavar="N", help="greatest number of runs in this call")
    args = parser.parse_args()
    if args.data is None:
        parser.error("no folder of the dataset: give --data FOLDER, or set LOCKSTEP_DATA")
    refuse_without(args.tensorflow)
    digest = make(named("mnist").model_dump(mode="json"), {"towers": 2, "precision": "float32"}).digest()
    runs = recorded(digest)
    lacking = [
        (program, seed)
        for seed in range(args.seeds)
        for program in runs
        if seed not in {run["seed"] for run in runs[program]}
    ]
    for program, seed in lacking[: args.at_most]:
        is_lockstep = program.startswith("lockstep")
        run = lockstep(seed, args.data) if is_lockstep else tensorflow(seed, args.data, args.tensorflow)
        runs[program].append(run)
        print(f"{program} seed {seed}: {' '.join(f'{loss:.3f}' for loss in run['losses'])}", flush=True)
        command = f"python -m benchmarks.peers.loss_curve --tensorflow PYTHON --seeds {args.seeds}"
        save(NAME, {"command": command, "digest": digest, "towers": 2, "runs": runs})


if __name__ == "__main__":
    main()
