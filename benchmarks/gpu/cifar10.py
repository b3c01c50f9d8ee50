"""CIFAR-10 to 94 % on a GPU, and what a user does with the run: `python -m benchmarks.gpu.cifar10
[WORD...]`.

WORDs are options of `lockstep train` for every run, such as --data DIR. The runs are kept in
--runs.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from benchmarks.common import record_of
from benchmarks.gpu.trial import Facts, Table, device

TUTORIAL = ("cifar10-tutorial", "--precision", "bfloat16")
RUNS = {
    "cifar10, bfloat16": ("cifar10", "--precision", "bfloat16"),
    "cifar10, float32": ("cifar10", "--precision", "float32"),
    "cifar10-tutorial, bfloat16, 3,000 steps": (*TUTORIAL, "--steps", 3000),
    "cifar10-tutorial, bfloat16, 4 towers, 600 steps": (*TUTORIAL, "--towers", 4, "--steps", 600),
}
LOCKSTEP = (sys.executable, "-m", "lockstep")


def trained(facts: Facts) -> list[str]:
    accuracy = facts["accuracy"]["ema"] or facts["accuracy"]["raw"]
    times = f"{facts['train_s']:.1f} s of training, {facts['total_s']:.1f} s in all"
    speed = f"{facts['images_per_s']:,.0f} images/s"
    return [f"{accuracy:.2%}; {times}; {speed}; hash `{facts['weights_sha256'][:8]}`", "1"]


def verified(facts: Facts) -> list[str]:
    return ["steps {} to {} have the same bits".format(*facts["parts"][0]), "1"]


def evaluated(facts: Facts) -> list[str]:
    return [f"{facts['accuracy']:.2%}", "1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-results"), help="folder of the record"
    )
    args, words = parser.parse_known_args()
    where = device().type
    table = Table("gpu-runs", ["run", "result", "n"], args.out)
    runs = []
    for name, recipe in RUNS.items():
        command = (
            *LOCKSTEP,
            "train",
            *recipe,
            "--device",
            where,
            "--runs",
            args.runs,
            *words,
            "--json",
        )
        if facts := table.add([name], partial(record_of, command), trained):
            runs.append(facts["run"])
    # A dataset of WORDs may be a function of a file, which is called only for a run that is
    # trusted.
    more = ("--trust-code", "--json")
    for run in runs[:1]:
        table.add(
            ["verify"],
            partial(record_of, (*LOCKSTEP, "verify", run, "--device", where, *more)),
            verified,
        )
        for place in dict.fromkeys((where, "cpu")):
            command = (*LOCKSTEP, "eval", run, "--device", place, *more)
            table.add([f"eval on {place}"], partial(record_of, command), evaluated)
    sys.exit(table.failed)


if __name__ == "__main__":
    main()
