"""CIFAR-10 to 94% on a GPU, and what a user does with the run: `python -m benchmarks.gpu.cifar10
[WORD...]`.

The second run has no listeners but for a line every 1,000 steps, and must have the bits of the
first. WORDs are options of `lockstep train` for every run, such as --data DIR. The runs are kept in
--runs.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from benchmarks.common import record_of
from benchmarks.gpu.trial import Facts, Table, device

TUTORIAL = ("cifar10-tutorial", "--precision", "bfloat16")
LISTENED, UNLISTENED = "cifar10", "cifar10, without listeners"
# in the order of what a cut-off must not lose
RUNS: dict[str, tuple[object, ...]] = {
    LISTENED: ("cifar10", "--precision", "bfloat16"),
    UNLISTENED: ("cifar10", "--precision", "bfloat16", "--summary-every", 0, "--log-every", 1000),
    "cifar10-tutorial": (*TUTORIAL, "--steps", 3000),
}
LAST_RUNS: dict[str, tuple[object, ...]] = {
    "cifar10": ("cifar10", "--precision", "float32"),
    "cifar10-tutorial, 4 towers": (*TUTORIAL, "--towers", 4, "--steps", 600),
}
LOCKSTEP = (sys.executable, "-m", "lockstep")
HEAD = ["run", "precision", "result", "n"]


def trained(*words: object) -> Facts:
    """Train a run. Return its result, what its recipe says of precision and images, and the mean
    time of a step without the first one, which takes longer.
    """
    result = record_of((*LOCKSTEP, "train", *words, "--json"))
    run = Path(result["run"])
    recipe = json.loads((run / "recipe.json").read_text())
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    first, *others = (row for row in rows if row["kind"] == "step")
    seconds, before = 0.0, first["step"]
    for one in others:
        seconds += one["s_per_step"] * (one["step"] - before)
        before = one["step"]
    step_ms = 1e3 * seconds / (before - first["step"])
    own = {name: recipe[name] for name in ("precision", "dataset")}
    return {**result, **own, "step_ms": step_ms}


def row(facts: Facts) -> list[str]:
    accuracy = facts["accuracy"]["ema"] or facts["accuracy"]["raw"]
    images = "" if facts["dataset"] == "cifar10" else f" of {facts['dataset']}"
    parts = [
        f"{accuracy:.2%}{images} after {facts['steps']:,} steps",
        f"{facts['train_s']:.2f} s of training, {facts['total_s']:.1f} s in all",
        f"{facts['images_per_s']:,.0f} images/s",
        f"hash `{facts['weights_sha256'][:8]}`",
    ]
    return [facts["precision"], "; ".join(parts), "1"]


def cost(listened: Facts, unlistened: Facts) -> Facts:
    """Return the milliseconds that listeners take of a step. Raises: SystemExit if they change a
    bit.
    """
    both = listened["weights_sha256"], unlistened["weights_sha256"]
    if both[0] != both[1]:
        raise SystemExit("with and without listeners, the hashes are {} and {}".format(*both))
    ms = listened["step_ms"] - unlistened["step_ms"]
    return {"ms": ms, "of_ms": listened["step_ms"], "precision": listened["precision"]}


def priced(facts: Facts) -> list[str]:
    return [
        facts["precision"],
        f"{facts['ms']:.3f} of {facts['of_ms']:.3f} ms a step; one hash",
        "1",
    ]


def verified(facts: Facts) -> list[str]:
    return ["", "steps {} to {} have the same bits".format(*facts["parts"][0]), "1"]


def evaluated(facts: Facts) -> list[str]:
    return ["", f"{facts['accuracy']:.2%}", "1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-results"), help="folder of the record"
    )
    args, words = parser.parse_known_args()
    where = device().type
    table = Table("gpu-runs", HEAD, args.out)

    def train(runs: dict[str, tuple[object, ...]]) -> dict[str, Facts]:
        placed = ("--device", where, "--runs", args.runs, *words)
        found = {
            name: table.add([name], partial(trained, *recipe, *placed), row)
            for name, recipe in runs.items()
        }
        return {name: facts for name, facts in found.items() if facts}

    runs = train(RUNS)
    if {LISTENED, UNLISTENED} <= {*runs}:
        measure = partial(cost, runs[LISTENED], runs[UNLISTENED])
        table.add(["what listeners cost"], measure, priced)
    # A dataset of WORDs may be a function of a file, which is called only for a run that is
    # trusted.
    more = ("--trust-code", "--json")
    for facts in [*runs.values()][:1]:
        run = facts["run"]
        command = (*LOCKSTEP, "verify", run, "--device", where, *more)
        table.add(["verify"], partial(record_of, command), verified)
        for place in dict.fromkeys((where, "cpu")):
            command = (*LOCKSTEP, "eval", run, "--device", place, *more)
            table.add([f"eval on {place}"], partial(record_of, command), evaluated)
    train(LAST_RUNS)
    sys.exit(table.failed)


if __name__ == "__main__":
    main()
