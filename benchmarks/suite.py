"""All short benchmarks in one table: `make bench`, or `python -m benchmarks.suite [--quick]`.

Each benchmark is a program (`python -m benchmarks.NAME`) that writes its record to benchmarks/results/. The table shows
figures that miss their target as well. The exit code is 1 only if a benchmark fails.
"""

import json
import subprocess
import sys

from benchmarks.common import HEAD, RESULTS, data_option, line, options

# command -> its record; --quick is added to the command, and -quick to the record's name
BENCHMARKS = {
    "exactness digits": "exactness-digits-float32",
    "start": "start",
    "input_pipeline cifar10-tutorial": "input-cifar10-tutorial-bfloat16",
    "overhead": "overhead",
}
NEEDS_DATA = ("start", "input_pipeline", "overhead")


def main() -> None:
    args = options(__doc__, "CIFAR-10", quick="fewer rounds and steps").parse_args()
    rows, failed = [], []
    for command, record in BENCHMARKS.items():
        name, *words = command.split()
        more = [*words, *data_option(args.data if name in NEEDS_DATA else None), *["--quick"] * args.quick]
        print(f"python -m benchmarks.{' '.join([name, *more])}", file=sys.stderr, flush=True)
        program = [sys.executable, "-m", f"benchmarks.{name}", *more]
        if subprocess.run(program, stdout=sys.stderr, check=False).returncode:
            failed.append(command)
        else:
            rows += json.loads((RESULTS / f"{record}{'-quick' * args.quick}.json").read_text())["rows"]
    print(HEAD, *map(line, rows), sep="\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
