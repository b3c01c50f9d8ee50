"""One result on 1, 2, 3 and 4 processes: `python -m benchmarks.exactness RECIPE --data DIR --steps N`.

Trains the recipe with 4 towers on each number of processes and prints the SHA-256 of the weights. The exit code is 1
if these differ.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.common import figure, save, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--data", type=Path, help="folder of the dataset (default: LOCKSTEP_DATA)")
    parser.add_argument("--steps", type=int, help="number of steps (default: the whole run)")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--quick", action="store_true", help="24 steps, for a first look")
    args = parser.parse_args()
    steps = args.steps or (24 if args.quick else None)
    length = ["--steps", steps] if steps else []
    hashes = {}
    for processes in (1, 2, 3, 4):
        options = ["--towers", 4, "--processes", processes, "--precision", args.precision, *length]
        record = train(args.recipe, *options, data=args.data)
        hashes[processes] = record["weights_sha256"]
        print(f"{processes} processes  {record['weights_sha256']}  {record['train_s']:.1f} s training", flush=True)
    different = len(set(hashes.values()))
    rows = [
        figure(f"different weights on 1, 2, 3, 4 processes, {args.recipe}", "", [float(different)], 1.0, at_least=False)
    ]
    name = f"exactness-{args.recipe}-{args.precision}{'-quick' * args.quick}"
    save(name, {"rows": rows, "steps": record["steps"], "weights_sha256": hashes})
    if different != 1:
        sys.exit("the weights differ between numbers of processes")


if __name__ == "__main__":
    main()
