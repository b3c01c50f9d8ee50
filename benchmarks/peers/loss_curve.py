"""MNIST's loss over the first steps, in Lockstep and in TensorFlow: `python -m
benchmarks.peers.loss_curve`.

Runs `lockstep train mnist` and benchmarks/peers/tensorflow_mnist.py, both in float32 with 2 towers
of 1,024 images. The loss of step n (1, 2, ...) is the mean cross-entropy over the 2,048 images of
that step, under dropout and before its update: the weights have had n - 1 updates. The seed decides
initial weights, order and dropout, differently in each program. The learning rate is constant, so
the steps are also the first steps of a longer run.
"""

import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import record_of, save
from benchmarks.peers.compare import peer_options, refuse_without
from lockstep.config.overrides import make
from lockstep.recipes import get_recipe

NAME, STEPS, SHOWN = "loss-mnist", 30, (1, 2, 4, 6, 10, 15, 20, 25, 30)
OPTIONS = ["--towers", "2", "--precision", "float32", "--seed"]
Run = dict[str, Any]


def lockstep(seed: int, data: Path) -> Run:
    """Run Lockstep. Return {"seed": ..., "losses": STEPS numbers}."""
    with tempfile.TemporaryDirectory() as folder:
        options = [
            "mnist",
            *OPTIONS,
            seed,
            "--steps",
            STEPS,
            "--log-every",
            1,
            "--runs",
            folder,
            "--name",
            "run",
        ]
        common.lockstep("train", *options, data=data)
        rows = [
            json.loads(line)
            for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()
        ]
    losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "step"}
    return {"seed": seed, "losses": [losses[step] for step in range(STEPS)]}


def tensorflow(seed: int, data: Path, python: str) -> Run:
    """Run TensorFlow's program. Return the same as `lockstep`, and the version of TensorFlow."""
    command = [
        python,
        "-m",
        "benchmarks.peers.tensorflow_mnist",
        *OPTIONS,
        seed,
        "--losses",
        STEPS,
        "--data",
        data,
    ]
    record = record_of(command)
    return {"seed": seed, "losses": record["losses"], **record["versions"]}


def table(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Return mean and range of some steps' losses over the seeds, as docs show them."""

    def cell(program: str, step: int) -> str:
        losses = [run["losses"][step - 1] for run in runs[program]] or [math.nan]
        return f"{statistics.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})"

    rows = [
        [str(step), *(cell(f"{name} float32", step) for name in ("tensorflow", "lockstep"))]
        for step in SHOWN
    ]
    return {"head": ["step", "TensorFlow", "Lockstep"], "rows": rows}


def main() -> None:
    parser = peer_options(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    refuse_without(args.tensorflow)
    digest = make(
        get_recipe("mnist").model_dump(mode="json"), {"towers": 2, "precision": "float32"}
    ).digest()
    runs: dict[str, list[Run]] = {"lockstep float32": [], "tensorflow float32": []}
    for seed in range(args.seeds):
        runs["lockstep float32"].append(lockstep(seed, args.data))
        runs["tensorflow float32"].append(tensorflow(seed, args.data, args.tensorflow))
        print(
            *(f"{program} seed {seed}: {of[-1]['losses']}" for program, of in runs.items()),
            sep="\n",
            flush=True,
        )
    sys.argv[1:] = ["--data", "DIR", "--tensorflow", "PYTHON", "--seeds", str(args.seeds)]
    save(NAME, {"digest": digest, "towers": 2, "runs": runs, "table": table(runs)})


if __name__ == "__main__":
    main()
