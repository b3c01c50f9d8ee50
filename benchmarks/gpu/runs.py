"""Real runs on a GPU, and other programs on the same one: `python -m benchmarks.gpu.runs PART
[WORD...]`.

    peers     the tutorial's speed in bfloat16 beside benchmarks/peers/pytorch_gpu.py, eager and
              compiled, whose loop writes and checks nothing. All have random images. What a program
              takes besides its steps is its start, the compiler or the capture, and in Lockstep the
              evaluation and the files
    cifar10   CIFAR-10 to 94%, and what a user does with the run. The second run has no listeners
              but for a line every 1,000 steps, and must have the bits of the first
    airbench  the fastest public program for CIFAR-10, eager and compiled, if --airbench names it:
              see `python -m benchmarks.peers.airbench --help`

WORDs are options of every `lockstep train`, such as --data DIR. The runs are kept in --kept.
"""

import json
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

from benchmarks.common import LOCKSTEP, record_of, spread
from benchmarks.gpu.trial import Facts, Table, device, options
from lockstep import numerics

# Without Lockstep's variables: they are in the environment of this program.
PEER = ["env", *chain(*(("-u", name) for name in numerics.environment(1))), sys.executable, "-m"]


def trained(*words: object) -> Facts:
    """Train a run. Return its result, some settings of its recipe, and the mean time of a step
    without the first ones, which take longer.
    """
    result = record_of([*LOCKSTEP, "train", *words, "--device", device().type, "--json"])
    run = Path(result["run"])
    recipe = json.loads((run / "recipe.json").read_text())
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    steps = [row for row in rows if row["kind"] == "step"]
    counts = [row["step"] - before["step"] for before, row in pairwise(steps)]
    seconds = statistics.fmean([row["s_per_step"] for row in steps[1:]], counts)
    own = {name: recipe[name] for name in ("precision", "dataset")}
    return {**result, **own, "step_ms": 1e3 * seconds, "images_per_s": recipe["batch"] / seconds}


def peers(table: Table, args: Namespace, words: list[str]) -> None:
    """Add the speed of the tutorial in Lockstep and in PyTorch, for each batch."""

    def timed(measure: Callable[[], Facts]) -> Facts:
        began = time.perf_counter()
        facts = measure()
        seconds = time.perf_counter() - began
        return {**facts, "besides_s": seconds - args.peer_steps * facts["step_ms"] / 1e3}

    def row(facts: Facts) -> list[str]:
        speed = f"{facts['images_per_s']:,.0f}", f"{facts['step_ms']:.2f}"
        return [*speed, f"{facts['besides_s']:.1f}", "1"]

    for batch in args.batches:
        sizes = ("--batch", batch, "--steps", args.peer_steps)
        own = ["cifar10-tutorial", "--precision", "bfloat16", *sizes]
        own += ["--dataset", "benchmarks.gpu_check:colour32", "--runs", args.kept, *words]
        programs = {"Lockstep, `cifar10-tutorial`": partial(trained, *own)}
        for name, more in (("eager", []), ("compiled", ["--compile"])):
            command = [*PEER, "benchmarks.peers.pytorch_gpu", *more, *sizes, "--warm", args.warm]
            programs[f"PyTorch, {name}"] = partial(record_of, command)
        for name, measure in programs.items():
            table.add([f"{name}, {batch} images a step"], partial(timed, measure), row)


def cifar10(table: Table, args: Namespace, words: list[str]) -> None:
    """Add runs of `cifar10`, and what follows from the first."""

    def row(facts: Facts) -> list[str]:
        images = "" if facts["dataset"] == "cifar10" else f" of {facts['dataset']}"
        parts = [
            f"{facts['accuracy']['ema'] or facts['accuracy']['raw']:.2%}{images}",
            f"{facts['steps']:,} steps in {facts['train_s']:.2f} s of {facts['total_s']:.1f} s",
            f"hash `{facts['weights_sha256'][:8]}`",
        ]
        return [facts["precision"], "; ".join(parts), "1"]

    def train(name: str, *more: object) -> Facts | None:
        command = partial(trained, "cifar10", *more, "--runs", args.kept, *words)
        return table.add([name], command, row)

    bfloat16 = ("--precision", "bfloat16")
    first = train("cifar10", *bfloat16)
    unlistened = ("--summary-every", 0, "--log-every", 1000)
    second = train("cifar10, without listeners", *bfloat16, *unlistened)
    if first and second:
        hashes = {facts["weights_sha256"] for facts in (first, second)}
        cost = f"{first['step_ms'] - second['step_ms']:.3f} of {first['step_ms']:.3f} ms a step"
        table.add(["what listeners cost"], dict, lambda facts: [first["precision"], cost, "1"])
        if len(hashes) > 1:
            table.fail(f"with and without listeners, the hashes differ: {hashes}")
    if first:
        # A dataset of WORDs may be a function of a file, which is called only for a run that is
        # trusted.
        commands = {"verify": ("verify", device().type)}
        commands |= {f"eval on {place}": ("eval", place) for place in (device().type, "cpu")}
        for name, (command, place) in commands.items():
            line = [*LOCKSTEP, command, first["run"], "--device", place, "--trust-code", "--json"]
            table.add([name], partial(record_of, line), followed)
    train("cifar10", "--precision", "float32")


def followed(facts: Facts) -> list[str]:
    """Return the row of a record of verify or eval."""
    if "parts" in facts:
        return ["", "steps {} to {} have the same bits".format(*facts["parts"][0]), "1"]
    return ["", f"{facts['accuracy']:.2%}", "1"]


def airbench(table: Table, args: Namespace, words: list[str]) -> None:
    """Add accuracy and time of airbench94_muon."""

    def row(facts: Facts) -> list[str]:
        seconds = spread(facts["seconds"])
        times = f"{seconds['median']:.2f}", f"{facts['total_s']:.1f}"
        return [f"{statistics.fmean(facts['accuracies']):.2%}", *times, str(seconds["n"])]

    for name, more in (("eager", []), ("compiled", ["--compile"])):
        command = [*PEER, "benchmarks.peers.airbench", *args.airbench, *more, *words]
        table.add([f"airbench94_muon, {name}"], partial(record_of, command), row)


PARTS = {  # name -> what adds its rows, the record, the head of its table
    "peers": (peers, "gpu-peers", ["program", "images/s", "ms a step", "besides, s", "n"]),
    "cifar10": (cifar10, "gpu-runs", ["run", "precision", "result", "n"]),
    "airbench": (
        airbench,
        "gpu-airbench",
        ["program", "mean accuracy", "s of training", "s in all", "n"],
    ),
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--kept", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 1024], help="of peers")
    parser.add_argument("--peer-steps", type=int, default=3000, help="of peers")
    parser.add_argument("--warm", type=int, default=50, help="steps of PyTorch before these")
    parser.add_argument("--airbench", nargs=2, metavar=("FILE", "FOLDER"), help="of CIFAR-10")
    args, words = parser.parse_known_args()
    add, name, head = PARTS[args.part]
    table = Table(name, head, args.out)
    add(table, args, words)
    sys.exit(table.failed)


if __name__ == "__main__":
    main()
