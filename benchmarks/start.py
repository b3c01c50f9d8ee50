"""Time from the start of the program to its first step: `python -m benchmarks.start [--quick] [--data DIR]`.

Runs `lockstep train` until it prints the line of step 0: digits as a newcomer starts it, and cifar10-tutorial on one
and on two processes, with all files in the page cache. Then it stops the run and deletes it. `import torch` alone is
measured for comparison, as the least time of any program with torch, and `import lockstep`.
"""

import signal
import subprocess
import sys
import tempfile
import time

from benchmarks.common import data_option, figure, finish, options, parsed, spread


def first_step_s(*words: object) -> float:
    """Return the seconds until `lockstep train WORDS` prints the line of step 0."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lockstep", "train", *map(str, words), "--log-every", "1", "--runs", folder]
        began = time.perf_counter()
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        if not any(" step 0," in text for text in program.stdout):
            raise SystemExit(f"no first step: {' '.join(command)}")
        took = time.perf_counter() - began
        program.send_signal(signal.SIGTERM)
        program.communicate()
    return took


def import_s(name: str) -> float:
    """Return the seconds that importing a package takes in a new Python."""
    code = f"import time; began = time.perf_counter(); import {name}; print(time.perf_counter() - began)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    args = parsed(options(__doc__, "CIFAR-10"))
    tutorial: list[object] = ["cifar10-tutorial", "--precision", "bfloat16", *data_option(args.data)]
    commands: dict[str, list[object]] = {
        "start to first step, digits": ["digits"],
        "start to first step, one process": [*tutorial, "--towers", 1, "--processes", 1],
        "start to first step, two processes": [*tutorial, "--towers", 2, "--processes", 2],
    }
    targets = {"start to first step, digits": 3.0, "import lockstep": 0.06}
    times: dict[str, list[float]] = {name: [] for name in (*commands, "import lockstep", "import torch")}
    first_step_s(*commands["start to first step, one process"])  # reads the files into the page cache
    for _ in range(args.rounds):
        for name, words in commands.items():
            times[name].append(first_step_s(*words))
        for name in ("import lockstep", "import torch"):
            times[name].append(import_s(name.split()[1]))
    floor = spread(times.pop("import torch"))
    rows = [figure(name, "s", taken, targets.get(name, 4.0), at_least=False) for name, taken in times.items()]
    print(f"import torch alone: {floor['median']:.2f} s ({floor['min']:.2f} to {floor['max']:.2f}, n {floor['n']})")
    finish("start", rows, args.quick, import_torch_s=floor)


if __name__ == "__main__":
    main()
