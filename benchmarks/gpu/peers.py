"""The tutorial's speed beside plain PyTorch on the same GPU: `python -m benchmarks.gpu.peers
[WORD...]`.

Lockstep trains the tutorial in bfloat16 as a user does, with all listeners; its speed is the mean
over the second half of the steps. The peer is benchmarks/peers/pytorch_gpu.py, eager and compiled,
whose loop writes and checks nothing. All have random images. What a program takes besides its steps
is its start, the compiler or the capture, and in Lockstep the evaluation and the files. WORDs are
options of `lockstep train`.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path

from benchmarks.common import record_of
from benchmarks.gpu.trial import Facts, Table, device
from lockstep import numerics

HEAD = ["program", "images/s", "ms a step", "besides, s", "n"]
# Without Lockstep's variables: they are in the environment of this program.
PEER = ["env", *chain(*(("-u", name) for name in numerics.environment(1))), sys.executable, "-m"]


def lockstep(steps: int, batch: int, words: list[str]) -> Facts:
    """Train the tutorial in a run with all listeners, and return its result and its speed."""
    command: list[object] = [sys.executable, "-m", "lockstep", "train", "cifar10-tutorial"]
    command += ["--precision", "bfloat16", "--batch", batch, "--steps", steps]
    command += ["--dataset", "benchmarks.gpu_check:colour32", "--device", device().type]
    result = record_of([*command, *words, "--json"])
    rows = map(json.loads, (Path(result["run"]) / "metrics.jsonl").read_text().splitlines())
    speeds = [row["s_per_step"] for row in rows if row["kind"] == "step"]
    mean = statistics.fmean(speeds[len(speeds) // 2 :])
    return {**result, "images_per_s": batch / mean, "step_ms": 1e3 * mean}


def timed(measure: Callable[[], Facts], steps: int) -> Facts:
    """Return what `measure` does, and the seconds that it takes besides its steps."""
    began = time.perf_counter()
    facts = measure()
    seconds = time.perf_counter() - began
    return {**facts, "besides_s": seconds - steps * facts["step_ms"] / 1e3}


def row(facts: Facts) -> list[str]:
    speed = [f"{facts['images_per_s']:,.0f}", f"{facts['step_ms']:.2f}"]
    return [*speed, f"{facts['besides_s']:.1f}", "1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--warm", type=int, default=50, help="steps of PyTorch before these")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-results"), help="folder of the record"
    )
    args, words = parser.parse_known_args()
    table = Table("gpu-peers", HEAD, args.out)
    for batch in args.batches:
        programs: dict[str, Callable[[], Facts]] = {
            "Lockstep, `cifar10-tutorial`": partial(lockstep, args.steps, batch, words)
        }
        for name, options in (("eager", []), ("compiled", ["--compile"])):
            command = [*PEER, "benchmarks.peers.pytorch_gpu", *options]
            command += ["--batch", str(batch), "--steps", str(args.steps), "--warm", str(args.warm)]
            programs[f"PyTorch, {name}"] = partial(record_of, command)
        for name, measure in programs.items():
            labels = [f"{name}, {batch} images a step"]
            table.add(labels, partial(timed, measure, args.steps), row)
    sys.exit(table.failed)


if __name__ == "__main__":
    main()
