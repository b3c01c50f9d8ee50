"""One result on 1, 2, 3 and 4 processes: `python -m benchmarks.exactness RECIPE --data DIR --steps N`.

Trains the recipe with 4 towers on each number of processes and prints the SHA-256 of the weights. The exit code is 1
if these differ.
"""

import sys

from benchmarks.common import figure, finish, options, train


def main() -> None:
    parser = options(__doc__, quick="24 steps")
    parser.add_argument("recipe")
    parser.add_argument("--steps", type=int, help="number of steps (default: the whole run)")
    parser.add_argument("--precision", default="float32")
    args = parser.parse_args()
    steps = args.steps or (24 if args.quick else None)
    length = ["--steps", steps] if steps else []
    hashes = {}
    for processes in (1, 2, 3, 4):
        words = ["--towers", 4, "--processes", processes, "--precision", args.precision, *length]
        record = train(args.recipe, *words, data=args.data)
        hashes[processes] = record["weights_sha256"]
        print(f"{processes} processes  {record['weights_sha256']}  {record['train_s']:.1f} s training", flush=True)
    different = len(set(hashes.values()))
    what = f"different weights on 1, 2, 3, 4 processes, {args.recipe}"
    row = figure(what, "", [float(different)], 1.0, at_least=False)
    name = f"exactness-{args.recipe}-{args.precision}"
    finish(name, [row], args.quick, steps=record["steps"], weights_sha256=hashes)
    if different != 1:
        sys.exit("the weights differ between numbers of processes")


if __name__ == "__main__":
    main()
