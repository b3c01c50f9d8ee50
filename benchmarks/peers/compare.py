"""Throughput of Lockstep and its peers, in turn: `python -m benchmarks.peers.compare MODEL --tensorflow PYTHON`.

MODEL is cifar10-tutorial or mnist. Each round runs every program once, on two cores: Lockstep and the DDP script as two
processes with one thread each, TensorFlow with two towers in one process and its default number of threads. The
settings of a peer are the fastest of those that were tried, once each. The record lists them. XLA was slower than no
XLA.

The throughput of a program is the median over the rounds. In a round it is the median over intervals, or for Lockstep
the mean without the first five steps. Only programs of equal precision are compared. --more adds rounds to those in the
record, so that a series can be made while the machine is quiet.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, record_of, save, show, spread, spreads, train

Record = dict[str, Any]


def lockstep(args: argparse.Namespace, precision: str) -> Callable[[], Record]:
    def run() -> Record:
        steps = 10 if args.model == "mnist" else 100
        options = ["--towers", 2, "--processes", 2, "--precision", precision, "--steps", steps]
        record = train(args.model, *options, data=args.data)
        return {"rate": record["images_per_s"], "settings": {"options": " ".join(map(str, options))}, "versions": {}}

    return run


def peer(command: list[str], args: argparse.Namespace) -> Callable[[], Record]:
    def run() -> Record:
        intervals = ["--steps", "1", "--intervals", "4"] if args.model == "mnist" else ["--steps", "10"]
        record = record_of([*command, "--data", args.data, *intervals])
        kept = {key: record[key] for key in ("settings", "versions")}
        return {"rate": record["images_per_s"]["median"], **kept}

    return run


def programs(args: argparse.Namespace) -> dict[str, Callable[[], Record]]:
    module = {"mnist": "mnist", "cifar10-tutorial": "tutorial"}[args.model]
    tensorflow = [args.tensorflow, "-m", f"benchmarks.peers.tensorflow_{module}", "--towers", "2"]
    ddp = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    ddp += ["benchmarks.peers.pytorch_ddp"]
    runs: dict[str, Callable[[], Record]] = {}
    for precision in ("bfloat16", "float32"):
        runs[f"lockstep {precision}"] = lockstep(args, precision)
        runs[f"tensorflow {precision}"] = peer([*tensorflow, "--precision", precision], args)
    if args.model == "cifar10-tutorial":
        runs["pytorch ddp float32"] = peer(ddp, args)
        runs["pytorch ddp bfloat16"] = peer([*ddp, "--channels-last", "--precision", "bfloat16"], args)
    return runs


def earlier(args: argparse.Namespace, names: list[str]) -> list[dict[str, float]]:
    """Return the rounds in the record with --more, else none. Raises: SystemExit if they are of other programs."""
    file = RESULTS / f"peers-{args.model}.json"
    if not args.more or not file.exists():
        return []
    rounds: list[dict[str, float]] = json.loads(file.read_text())["rounds"]
    if any(sorted(each) != sorted(names) for each in rounds):
        raise SystemExit(f"{file} holds rounds of other programs: remove it, or leave out --more")
    return rounds


def peer_options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with --data, which is required unless LOCKSTEP_DATA names a folder, and --tensorflow."""
    parser, known = argparse.ArgumentParser(description=description), os.environ.get("LOCKSTEP_DATA")
    parser.add_argument("--data", type=Path, default=known, required=not known, help="default: LOCKSTEP_DATA")
    parser.add_argument("--tensorflow", default=sys.executable, metavar="PYTHON", help="a Python with tensorflow")
    return parser


def refuse_without(python: str) -> None:
    """Raise a SystemExit that says what to do, if `python` cannot import tensorflow."""
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


def summary(rounds: list[dict[str, float]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the images/s of each program over the `rounds`, and the ratios of Lockstep to each other program.

    A program is called "NAME PRECISION". Lockstep is compared only with programs of its precision: by the ratio of the
    medians, with n and the range of the ratios of single rounds.
    """
    figures = spreads(rounds)
    ratios = {}
    for name in figures:
        program, _, precision = name.rpartition(" ")
        lockstep_name = f"lockstep {precision}"
        if program != "lockstep" and lockstep_name in figures:
            by_round = spread([each[lockstep_name] / each[name] for each in rounds])
            of_medians = figures[lockstep_name]["median"] / figures[name]["median"]
            ratios[name] = {"of_medians": of_medians, **{key: by_round[key] for key in ("n", "min", "max")}}
    return {"images_per_s": figures, "lockstep_over": ratios}


def main() -> None:
    parser = peer_options(__doc__)
    parser.add_argument("model", choices=("cifar10-tutorial", "mnist"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--more", action="store_true", help="add rounds to those in the record")
    args = parser.parse_args()
    refuse_without(args.tensorflow)
    runs = programs(args)
    rounds, programs_run = earlier(args, list(runs)), {}
    for _ in range(args.rounds):
        rounds.append({})
        for name, run in runs.items():
            record = run()
            rounds[-1][name], programs_run[name] = record.pop("rate"), record
            print(f"{name:22} {rounds[-1][name]:7.0f} images/s", flush=True)
    figures = summary(rounds)
    show(figures["images_per_s"])
    for name, ratio in figures["lockstep_over"].items():
        span = f"{ratio['min']:.2f} to {ratio['max']:.2f}"
        print(f"lockstep is {ratio['of_medians']:.2f} times as fast as {name} ({span})")
    save(f"peers-{args.model}", {**figures, "rounds": rounds, "programs": programs_run})


if __name__ == "__main__":
    main()
