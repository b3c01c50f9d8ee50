"""The fastest public program for CIFAR-10 on the same GPU, eager and compiled: `python -m
benchmarks.gpu.airbench FILE FOLDER`. See `python -m benchmarks.peers.airbench --help`.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from benchmarks.common import record_of, spread
from benchmarks.gpu.peers import PEER
from benchmarks.gpu.trial import Facts, Table

HEAD = ["program", "mean accuracy", "s of training", "s in all", "n"]


def row(facts: Facts) -> list[str]:
    accuracies, seconds = facts["accuracies"], spread(facts["seconds"])
    mean = sum(accuracies) / len(accuracies)
    times = [f"{seconds['median']:.2f}", f"{facts['total_s']:.1f}"]
    return [f"{mean:.2%}", *times, str(seconds["n"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path, help="of CIFAR-10's binary files")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-results"), help="folder of the record"
    )
    args = parser.parse_args()
    table = Table("gpu-airbench", HEAD, args.out)
    program = [*PEER, "benchmarks.peers.airbench", args.file, args.folder, "--runs", args.runs]
    for name, options in (("eager", []), ("compiled", ["--compile"])):
        command = [*program, *options]
        table.add([f"airbench94_muon, {name}"], partial(record_of, command), row)
    sys.exit(table.failed)


if __name__ == "__main__":
    main()
