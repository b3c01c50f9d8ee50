"""MNIST's loss over the first steps, in Lockstep and in TensorFlow: `python -m benchmarks.peers.loss_curve`.

Runs `lockstep train mnist` and benchmarks/peers/tensorflow_mnist.py, both in float32 with 2 towers of 1,024 images. The
loss of step n (1, 2, ...) is the mean cross-entropy over the 2,048 images of that step, under dropout and before its
update: the weights have had n - 1 updates. The seed decides initial weights, order and dropout, differently in each
program. The learning rate is constant, so the steps are also the first steps of a longer run.

The record is written after every run. A call makes only the runs that the record lacks, so that a series can be made in
parts.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import earlier, record_of, save
from benchmarks.peers.compare import peer_options, refuse_without
from lockstep.config.overrides import make
from lockstep.recipes import get_recipe

NAME, STEPS = "loss-mnist", 30
OPTIONS = ["--towers", "2", "--precision", "float32", "--seed"]
Run = dict[str, Any]


def lockstep(seed: int, data: Path) -> Run:
    """Run Lockstep. Return {"seed": ..., "losses": STEPS numbers}."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["mnist", *OPTIONS, seed, "--steps", STEPS, "--log-every", 1, "--runs", folder, "--name", "run"]
        common.lockstep("train", *options, data=data)
        rows = [json.loads(line) for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
    losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "step"}
    return {"seed": seed, "losses": [losses[step] for step in range(STEPS)]}


def tensorflow(seed: int, data: Path, python: str) -> Run:
    """Run TensorFlow's program. Return the same as `lockstep`, and the version of TensorFlow."""
    command = [python, "-m", "benchmarks.peers.tensorflow_mnist", *OPTIONS, seed, "--losses", STEPS, "--data", data]
    record = record_of(command)
    return {"seed": seed, "losses": record["losses"], **record["versions"]}


def main() -> None:
    parser = peer_options(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-most", type=int, metavar="N", help="greatest number of runs in this call")
    args = parser.parse_args()
    refuse_without(args.tensorflow)
    digest = make(get_recipe("mnist").model_dump(mode="json"), {"towers": 2, "precision": "float32"}).digest()
    record = earlier(NAME, digest)
    runs: dict[str, list[Run]] = record["runs"] if record else {"lockstep float32": [], "tensorflow float32": []}
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
