"""Time from the start of the program to its first step: `python -m benchmarks.start [--quick] [--data DIR]`.

Runs `lockstep train cifar10-tutorial` until it prints the line of step 0, on one and on two processes, with all files
in the page cache. Then it stops the run and deletes it. `import torch` alone is measured for comparison: it is the
least time of any program with torch.
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import data_option, figure, finish, options, parsed, spread


def first_step_s(processes: int, data: Path | None) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "lockstep", "train", "cifar10-tutorial", "--precision", "bfloat16",
            *data_option(data), "--towers", str(processes), "--processes", str(processes),
            "--log-every", "1", "--runs", folder,
        ]  # fmt: skip
        began = time.perf_counter()
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        if not any(" step 0," in text for text in program.stdout):
            raise SystemExit(f"no first step: {' '.join(command)}")
        took = time.perf_counter() - began
        program.send_signal(signal.SIGTERM)
        program.communicate()
    return took


def torch_s() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def main() -> None:
    args = parsed(options(__doc__, "CIFAR-10"))
    times: dict[str, list[float]] = {"one process": [], "two processes": [], "import torch": []}
    first_step_s(1, args.data)  # reads the files into the page cache
    for _ in range(args.rounds):
        times["one process"].append(first_step_s(1, args.data))
        times["two processes"].append(first_step_s(2, args.data))
        times["import torch"].append(torch_s())
    floor = spread(times.pop("import torch"))
    rows = [figure(f"start to first step, {name}", "s", taken, 4.0, at_least=False) for name, taken in times.items()]
    print(f"import torch alone: {floor['median']:.2f} s ({floor['min']:.2f} to {floor['max']:.2f}, n {floor['n']})")
    finish("start", rows, args.quick, import_torch_s=floor)


if __name__ == "__main__":
    main()
