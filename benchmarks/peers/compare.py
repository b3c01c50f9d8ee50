"""Lockstep beside its peers, in turn: `python -m benchmarks.peers.compare MODEL --data FOLDER --tensorflow PYTHON`.

MODEL is cifar10-tutorial or mnist. Each round runs every program once, on two cores: Lockstep and the DDP script as
two processes of one thread, TensorFlow with two towers in one process with the threads it chooses. The settings are
those found best for each peer, and are in the record; XLA is slower than none.
A program's figure is its median over the rounds, a round's the median of its intervals.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import save, spread, train

Record = dict[str, Any]


def lockstep(args: argparse.Namespace, precision: str) -> Callable[[], Record]:
    def run() -> Record:
        steps = 12 if args.model == "mnist" else 150
        options = ["--towers", 2, "--processes", 2, "--precision", precision, "--steps", steps]
        record = train(args.model, *options, data=args.data)
        return {"rate": record["images_per_s"], "settings": {"options": " ".join(map(str, options))}, "versions": {}}

    return run


def other(command: list[str], args: argparse.Namespace) -> Callable[[], Record]:
    def run() -> Record:
        intervals = ["--steps", "2", "--intervals", "4"] if args.model == "mnist" else ["--steps", "20"]
        whole = [*command, "--data", str(args.data), *intervals]
        done = subprocess.run(whole, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        record = json.loads(done.stdout.splitlines()[-1])
        kept = {key: record[key] for key in ("settings", "versions")}
        return {"rate": record["images_per_s"]["median"], **kept}

    return run


def programs(args: argparse.Namespace) -> dict[str, Callable[[], Record]]:
    module = {"mnist": "mnist", "cifar10-tutorial": "tutorial"}[args.model]
    peer = [args.tensorflow, "-m", f"benchmarks.peers.tensorflow_{module}", "--towers", "2"]
    ddp = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    ddp += ["benchmarks.peers.pytorch_ddp"]
    found: dict[str, Callable[[], Record]] = {}
    for precision in ("bfloat16", "float32"):
        found[f"lockstep {precision}"] = lockstep(args, precision)
        found[f"tensorflow {precision}"] = other([*peer, "--precision", precision], args)
    if args.model == "cifar10-tutorial":
        found["pytorch ddp float32"] = other(ddp, args)
        found["pytorch ddp bfloat16"] = other([*ddp, "--channels-last", "--precision", "bfloat16"], args)
    return found


def refuse_without(python: str) -> None:
    """End with what to do if `python` cannot import tensorflow."""
    try:
        done = subprocess.run([python, "-c", "import tensorflow"], capture_output=True, text=True, check=False)
        fault = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except OSError as error:
        fault = [str(error)]
    if fault:
        raise SystemExit(
            f"--tensorflow {python}: {fault[0]}. Give a Python that has it: python3 -m venv DIR && "
            "DIR/bin/pip install tensorflow-cpu, then --tensorflow DIR/bin/python"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("cifar10-tutorial", "mnist"))
    parser.add_argument("--data", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--tensorflow", default=sys.executable, metavar="PYTHON", help="one that has tensorflow")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    refuse_without(args.tensorflow)
    runs = programs(args)
    records: dict[str, list[Record]] = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            records[name].append(run())
            print(f"{name:22} {records[name][-1]['rate']:7.0f} images/s", flush=True)
    figures = {name: spread([one["rate"] for one in found]) for name, found in records.items()}
    ours = figures["lockstep bfloat16"]["median"]
    ratios = {name: ours / figure["median"] for name, figure in figures.items()}
    for name, figure in figures.items():
        rate = f"{figure['median']:7.0f} images/s ({figure['min']:.0f} to {figure['max']:.0f}, n {figure['n']})"
        print(f"{name:22} {rate}: lockstep bfloat16 is {ratios[name]:.2f} times that")
    settings = {name: {key: found[-1][key] for key in ("settings", "versions")} for name, found in records.items()}
    save(f"peers-{args.model}", {"images_per_s": figures, "lockstep_bfloat16_over": ratios, "programs": settings})


if __name__ == "__main__":
    main()
