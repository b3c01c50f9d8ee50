"""Every measurement as text: `python -m benchmarks.tables` writes docs/results.md, and tables of two other pages.

Each number is read from a record in benchmarks/results/. tests/unit/test_results.py renders both again, and what the
recipes' docstrings say of measurements, and compares: a number that is not its record's fails.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks import originals
from benchmarks.common import RESULTS
from benchmarks.figures import (
    ABOUT,
    COST,
    MEMORY,
    MILLISECONDS,
    MINUTES,
    PERCENT,
    RATE,
    SECONDS,
    SHARE,
    START_SECONDS,
    TIMES,
    WEIGHTS,
    Figure,
    caption,
    evaluations,
    link,
    load,
    machine,
    over,
    rows_of,
    single,
    tables,
)
from lockstep.recipes import RECIPES

ROOT = Path(__file__).parents[1]
DOCUMENT, README = ROOT / "docs/results.md", ROOT / "README.md"
BEGIN, END = "<!-- headlines: python -m benchmarks.tables writes them -->", "<!-- end of headlines -->"

LONG, FOUR_TOWERS = "cifar10-tutorial-100000-bfloat16", "cifar10-tutorial-4-towers-30000-bfloat16"
BY_PRECISION = {  # seeds 0 and 1
    "bfloat16": (LONG, "cifar10-tutorial-10000-bfloat16-seed-1"),
    "float32": ("cifar10-tutorial-10000-float32", "cifar10-tutorial-10000-float32-seed-1"),
}
MNIST, INPUT = "mnist-200-bfloat16", "input-cifar10-tutorial-bfloat16"
LONG_STEPS, CURVE_STEPS = (10_000, 20_000, 30_000, 60_000, 100_000), (1, 2, 4, 6, 10, 15, 20, 25, 30)


def introduction() -> str:
    """How to read the page."""
    records = [load(file.stem) for file in sorted(RESULTS.glob("*.json")) if not file.stem.endswith("-quick")]
    versions = [one.get("result", one).get("versions", {}) for one in records]
    torch = ", ".join(sorted({found["torch"] for found in versions if found}))
    python = ", ".join(sorted({found["python"] for found in versions if found}))
    return f"""# Results

`python -m benchmarks.tables` writes this page from the records in `benchmarks/results/`, and a test compares the two.
Do not edit it by hand. Above each table are the command that reproduces it, the machine and the record. "Same recipe as
today" means that the record and today's code have the same digest of the recipe. The oldest records have a digest of
another kind: of all settings, also those at their default.

A result is the median of n measurements, or the only one, unless it says otherwise. Range is the least to the most.
AMD EPYC is Zen 4 (AVX-512 with bfloat16, no AMX). Intel Xeon has AVX-512 and AMX. Both are shared machines, and the
Xeon was noisy. All figures are of torch {torch} and Python {python}. The commands need the real datasets, which
`lockstep train` downloads; `digits` needs none. PYTHON and tf-python stand for a Python that has tensorflow-cpu.
"""


def accuracy_and_time() -> str:
    """Whole runs of the recipes for use."""
    ten, ports = load("seeds-cifar10"), load("peers-cifar10")["runs"]
    each = ", ".join(PERCENT.bare(run["accuracy"]) for run in ten["runs"])
    deviation = PERCENT.bare(ten["figures"]["accuracy"]["deviation"])
    share = TIMES.span(ten["figures"]["total_s"]["median"] / port["total_s"] for port in ports)
    ported = []
    for port in ports:
        what = f"airbench94_muon, ported to this CPU, with {port['environment']}"
        ported.append(single(f"{what}: test accuracy", PERCENT.of(port["accuracy"]), "bfloat16", "peers-cifar10"))
        ported.append(single(f"{what}: time in all", SECONDS.of(port["total_s"]), "bfloat16", "peers-cifar10"))
    rows = [
        *of_seeds("cifar10", "bfloat16"), *ported, *of_seeds("digits", "float32"),
        *of_run("`digits`", "digits-float16", "float16"), *of_run("`mnist`, 200 steps", MNIST, "bfloat16"),
    ]  # fmt: skip
    return f"""## Accuracy and time

{tables(*rows)}

The seeds of `cifar10`, in %: {each}.
Their standard deviation is {deviation}. The settings were chosen on held-out training images;
[the lab notes](../benchmarks/lab-notes.md) are the log of that search.

The port keeps float32 weights under autocast to bfloat16. It uses two threads in one process and channels last. It took
turns with seeds 4 to 6 of `cifar10`. `cifar10` takes {share} of the port's time. Target: half of it. Missed.

The MNIST notebook's log states a test accuracy of {load("stated")["notebook"]["accuracy"]}, a mean of chunks' means.
float16 has not been measured on CIFAR-10.
"""


def of_seeds(recipe: str, precision: str) -> list[Figure]:
    """Accuracy and time of `recipe` over its seeds."""
    record = f"seeds-{recipe}"
    found = load(record)["figures"]
    accuracies = {"accuracy": "test accuracy", "accuracy_one_view": "test accuracy by each image alone"}
    times = {"total_s": "time in all, evaluation included", "train_s": "time of training"}
    return [
        *(
            over(f"`{recipe}`: {what}", found[name], PERCENT, precision, record, "mean")
            for name, what in accuracies.items()
            if name in found
        ),
        *(over(f"`{recipe}`: {what}", found[name], SECONDS, precision, record) for name, what in times.items()),
    ]


def of_run(what: str, record: str, precision: str) -> list[Figure]:
    """Accuracy, times and throughput of one run."""
    found = load(record)["result"]
    time = MINUTES if found["total_s"] > 60 else SECONDS
    accuracies = [f"{PERCENT.of(value)} ({WEIGHTS[kind]})" for kind, value in found["accuracy"].items() if value]
    return [
        single(f"{what}: test accuracy", ", ".join(accuracies), precision, record),
        single(f"{what}: time in all", time.of(found["total_s"]), precision, record),
        single(f"{what}: time of training", time.of(found["train_s"]), precision, record),
        single(f"{what}: throughput of this run", RATE.of(found["images_per_s"]), precision, record),
    ]


def long_runs() -> str:
    """The tutorial's network for as long as the tutorial states its accuracy."""
    stated = load("stated")["tutorial"]["accuracy"]
    claims = " and ".join(f"about {ABOUT.of(value)} ({where})" for where, value in stated.items())
    runs = [
        *of_run("`cifar10-tutorial`", LONG, "bfloat16"),
        *of_run("`cifar10-tutorial`, 4 towers", FOUR_TOWERS, "bfloat16"),
    ]
    compared = [
        single(f"seed {seed}, {WEIGHTS[kind]} after 10,000 steps", PERCENT.of(accuracy), precision, record)
        for precision, records in BY_PRECISION.items()
        for seed, record in enumerate(records)
        for kind, accuracy in evaluations(record)[10_000].items()
    ]
    means = {
        (precision, kind): PERCENT.of(statistics.mean(evaluations(record)[10_000][kind] for record in records))
        for precision, records in BY_PRECISION.items()
        for kind in WEIGHTS
    }
    return f"""## The tutorial's accuracy

The tutorial states {claims}.
The runs below were made before convolution, pool and ReLU became one operation: the same model, other low-order bits,
slower. The machine was busy and once paused, so their times are no benchmark.

{tables(*runs)}

Test accuracy in % by averaged / raw weights, bfloat16, n 1. The first row is of {link(LONG)},
the second of {link(FOUR_TOWERS)}.

| after | {" | ".join(f"{step:,} steps" for step in LONG_STEPS)} |
|---{"|---" * len(LONG_STEPS)}|
| 1 tower (batch 128) | {" | ".join(by_step(LONG))} |
| 4 towers (batch 512) | {" | ".join(by_step(FOUR_TOWERS))} |

![Test accuracy by averaged and raw weights, and training loss, over the steps](cifar10-tutorial.svg)

`python -m benchmarks.plot OUT.svg LABEL=RUN/metrics.jsonl ...` drew it from the metrics beside the two records.

### bfloat16 against float32

After 10,000 steps the means of two seeds are, by averaged weights, {means["bfloat16", "ema"]} in bfloat16 and
{means["float32", "ema"]} in float32; by raw weights, {means["bfloat16", "raw"]} and {means["float32", "raw"]}.

{tables(*compared)}
"""


def by_step(record: str) -> list[str]:
    """`averaged / raw` at each of LONG_STEPS, in %; empty where the run had ended."""
    found = evaluations(record)
    pairs = [[found[step][kind] for kind in WEIGHTS] if step in found else [] for step in LONG_STEPS]
    return [" / ".join(map(PERCENT.bare, pair)) for pair in pairs]


def beside_others() -> str:
    """Throughput beside TensorFlow and a DDP script."""
    return f"""## Throughput beside other programs

All programs train the same network on the same two cores, in turn. Lockstep and the DDP script use two processes of one
thread each. TensorFlow computes two towers in one process with the threads it chooses. Each record lists the settings
of every program. Only equal precisions are divided. A ratio is that of the medians; its range is that of single rounds.

{tables(*of_peers("cifar10-tutorial"), *of_peers("mnist"))}

Targets: 3 times TensorFlow's throughput (`mnist`: 4 times), 5 times that of the DDP script. Missed.
"""


def of_peers(model: str) -> list[Figure]:
    """Each program's throughput and the ratios to it, float32 first."""
    record = f"peers-{model}"
    found, figures = load(record), []
    for precision in ("float32", "bfloat16"):
        for name, rate in found["images_per_s"].items():
            if name.endswith(precision):
                figures.append(over(f"`{model}`, 2 towers: {name}", rate, RATE, precision, record))
        for name, ratio in found["lockstep_over"].items():
            if name.endswith(precision):
                what = f"`{model}`, 2 towers: lockstep {precision} over {name}"
                figures.append(over(what, ratio, TIMES, precision, record, "of_medians"))
    return figures


def prices() -> str:
    """What the loop, exactness, the start, the input and summaries cost."""
    loop, exact, summaries = rows_of("overhead"), load("throughput"), load("summaries")
    today = [
        *(over(name, row, TIMES, "bfloat16", "overhead") for name, row in loop.items()),
        *(over(name, row, START_SECONDS, "bfloat16", "start") for name, row in rows_of("start").items()),
        over("`import torch` alone", load("start")["import_torch_s"], START_SECONDS, "none", "start"),
        *(over(name, row, TIMES, "bfloat16", INPUT) for name, row in rows_of(INPUT).items()),
    ]
    rates, told = exact["images_per_s"], summaries["images_per_s"]
    runs = sum(rate["n"] for name, rate in rates.items() if name != "bare loop")
    memory = MEMORY.of(exact["peak_memory_bytes"])
    older = [
        *(over(f"2 towers on two processes, {name}", rates[name], RATE, "bfloat16", "throughput") for name in rates),
        Figure("memory of a process of Lockstep", memory, runs, "the most of all runs", "bfloat16", "throughput"),
        *(over(f"1 tower, summaries: {name}", told[name], RATE, "bfloat16", "summaries") for name in told),
    ]
    second = loop["two processes / one, a thread each"]
    target = f"{second['target'].removeprefix('>= ')} times. {'Met' if second['met'] else 'Missed'}"
    cost = {name: COST.of(value) for name, value in exact["cost"].items()}
    return f"""## What the loop, a second process, the start and the input cost

`cifar10-tutorial` in towers of 128 images, distortions included, the variants in turn. A ratio is the median of the
ratios of single rounds. "loop" is Lockstep's training loop; "bare loop" is a plain PyTorch loop over the same network
and data. Input is counted per core.

{tables(*today)}

Target for two processes over one: {target}.

## What exactness and summaries cost

Measured before convolution, pool and ReLU became one operation (same model, other low-order bits, slower). Exact `tree`
costs {cost["allreduce"]} of the throughput of the backend's `allreduce`, and {cost["bare loop"]} of that of a bare
PyTorch loop. TensorBoard summaries every 100 steps, the default, cost {COST.of(summaries["cost"])} of the throughput
without summaries. These are ratios of medians.

{tables(*older)}
"""


def safety() -> str:
    """What keeps one result, and the work of a run, costs."""
    found, units = load("safety"), {"s": START_SECONDS, "%": SHARE, "ms": MILLISECONDS}
    figures = [over(row["figure"], row, units[row["unit"]], row["precision"], "safety") for row in found["rows"]]
    missed = ", ".join(row["figure"] for row in found["rows"] if not row["met"])
    verdict = f"Missed: {missed}" if missed else "Met"
    return f"""## What the checks and the checkpoints cost

On random images in the shape of each dataset, one process of one thread. The arithmetic probe is computed once a
session, before the first step. The digest of the state is taken every 100 steps. A checkpoint of `mnist` (242 MB with
Adam's slots) is written by a thread of its own in {START_SECONDS.of(found["write_s"])}. The wait is that of the
training loop, at the save and before the next update.

{tables(*figures)}

Targets: a probe within 0.3 s, a digest within 1 %, a wait within 50 ms. {verdict}.
"""


def one_result() -> str:
    """The weights on each number of processes."""
    figures = []
    for name in ("digits-float32", "cifar10-bfloat16", "cifar10-tutorial-float32", "mnist-bfloat16"):
        recipe, _, precision = name.rpartition("-")
        found = load(f"exactness-{name}")
        hashes = found["weights_sha256"]
        what = f"`{recipe}`, 4 towers, {found['steps']} steps: sha256 of the weights on {', '.join(hashes)} processes"
        different = ", ".join(sorted({sha[:16] for sha in hashes.values()}))
        figures.append(Figure(what, different, len(hashes), "one run each", precision, f"exactness-{name}"))
    return f"""## One result

The weights are the same on every number of processes. The run of `digits` is a whole one. That of `cifar10` has steps
of all three image sizes. The runs on the Intel Xeon are of older code.

{tables(*figures)}
"""


def loss_of_mnist() -> str:
    """MNIST's loss beside that of TensorFlow's program and of the notebook's log."""
    found, notebook, longer = load("loss-mnist"), load("stated")["notebook"]["loss"], dict(load(MNIST)["losses"])
    ours, theirs = found["runs"]["lockstep float32"], found["runs"]["tensorflow float32"]
    lines = [
        f"| {step} | {curve(theirs, step)} | {curve(ours, step)} | {notebook.get(str(step), '')} |"
        for step in CURVE_STEPS
    ]
    states = ", ".join(f"{loss} at step {step}" for step, loss in notebook.items())
    same = ", ".join(f"{longer[int(step)]:.3f} at step {step}" for step in notebook)
    return f"""## MNIST's loss over the first steps

`lockstep train mnist` and [TensorFlow's program](../benchmarks/peers/tensorflow_mnist.py) (TensorFlow
{theirs[0]["tensorflow"]}), both in float32 with 2 towers of 1,024 images, n {len(ours)} seeds each.
The loss of step n is the mean cross-entropy of that step's 2,048 images, under dropout, before the step's update: the
weights have had n - 1 updates. A cell is the mean over the seeds and their range. The seed decides weights, order and
dropout, in each program in its own way.

{caption("loss-mnist")}

| step | TensorFlow | Lockstep | the notebook's log |
|---|---|---|---|
{chr(10).join(lines)}

The notebook's log states the last GPU's loss after the update of the step: {states}.
The run {link(MNIST)} (bfloat16, n 1) has, after as many updates, {same}.

TensorFlow's program falls as fast as Lockstep or faster, and both fall faster than the notebook's log. So the log is
slower, not Lockstep's arithmetic. Why it is slower is not known: its TensorFlow and its GPUs were not available.
{compared(theirs, ours)}
"""


def compared(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> str:
    """At which of CURVE_STEPS the two programs differ."""
    higher, apart = 0, []
    for step in CURVE_STEPS:
        one, other = ([run["losses"][step - 1] for run in runs] for runs in (ours, theirs))
        higher += statistics.mean(one) > statistics.mean(other)
        if min(one) > max(other) or max(one) < min(other):
            apart.append(str(step))
    return (
        f"Lockstep's mean is the higher one at {higher} of {len(CURVE_STEPS)} steps. The two ranges do not overlap at "
        f"steps {' and '.join(apart) or 'none'}."
    )


def curve(runs: list[dict[str, Any]], step: int) -> str:
    """Mean and range, over the seeds, of the loss at `step`."""
    losses = [run["losses"][step - 1] for run in runs]
    return f"{statistics.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})"


def not_measured() -> str:
    """What has no figure, and why."""
    return """## Not measured

Nothing has been run on a GPU, as none was available. `cifar10-record` and `cifar10-96` are meant for one and have no
figures. `cifar100` has not been measured.
"""


def document() -> str:
    """The text of docs/results.md."""
    parts = (accuracy_and_time, long_runs, beside_others, prices, safety, one_result, loss_of_mnist, not_measured)
    return "\n".join([introduction(), *(part() for part in parts)])


def headlines() -> str:
    """The rows of README.md, from its first marker to its second."""
    ten, long, mnist = load("seeds-cifar10")["figures"], load(LONG)["result"], load(MNIST)["result"]
    stated = ABOUT.of(load("stated")["tutorial"]["accuracy"]["one GPU, 60 000 to 100 000 steps"])
    exact = rows_of("overhead")["exact tree / allreduce, two processes"]
    ours = f"**{PERCENT.of(ten['accuracy']['mean'])}** in {SECONDS.of(ten['total_s']['median'])}"
    title = f"`cifar10-tutorial`, {long['steps']:,} steps: test accuracy (the original states about {stated})"
    rows = [
        ("`cifar10`: test accuracy (mean), time in all (median)", ours, ten["accuracy"]["n"], "seeds-cifar10"),
        (title, PERCENT.of(long["accuracy"]["ema"]), 1, LONG),
        (f"`mnist`, {mnist['steps']} steps: test accuracy", PERCENT.of(mnist["accuracy"]["raw"]), 1, MNIST),
        ratios("cifar10-tutorial", {"tensorflow": "TensorFlow", "pytorch ddp": "PyTorch DDP"}),
        ratios("mnist", {"tensorflow": "TensorFlow"}),
        (
            "throughput with the exact sum, two processes",
            f"{TIMES.of(exact['median'])} `allreduce`",
            exact["n"],
            "overhead",
        ),
    ]
    lines = [f"| {what} | {value} | {n} | {machine(record)} | {link(record, '')} |" for what, value, n, record in rows]
    return "\n".join([BEGIN, "| what | result | n | machine | record |", "|---|---|---|---|---|", *lines, END])


def ratios(model: str, programs: dict[str, str]) -> tuple[str, str, int, str]:
    """The headline of `model`: throughput over other programs, each in float32 and in bfloat16."""
    found = load(f"peers-{model}")["lockstep_over"]
    pairs = {
        title: [found[f"{program} {precision}"] for precision in ("float32", "bfloat16")]
        for program, title in programs.items()
    }
    values = [
        f"{' / '.join(TIMES.bare(one['of_medians']) for one in pair)} times {title}" for title, pair in pairs.items()
    ]
    (n,) = {one["n"] for pair in pairs.values() for one in pair}
    what = f"`{model}`, 2 towers: throughput in float32 / bfloat16"
    return what, ", ".join(values), n, f"peers-{model}"


def with_headlines(readme: str) -> str:
    """`readme` with the headlines of today's records between its markers."""
    before, rest = readme.split(BEGIN)
    return before + headlines() + rest.split(END)[1]


def measured(recipe: str) -> str:
    """What the docstring of `recipe` says of measurements, on one line."""
    if recipe in ("cifar10", "digits"):
        found = load(f"seeds-{recipe}")["figures"]
        accuracy, alone = found["accuracy"], found.get("accuracy_one_view")
        span = PERCENT.span((accuracy["min"], accuracy["max"]))
        views = f"; {PERCENT.of(alone['mean'])} by each image alone" if alone else ""
        return (
            f"Measured: {PERCENT.of(accuracy['mean'])} (mean; {span} over {accuracy['n']} seeds{views}) in "
            f"{SECONDS.of(found['total_s']['median'])} (median), {SECONDS.of(found['train_s']['median'])} of them "
            f"training, on {place(f'seeds-{recipe}')}."
        )
    if recipe == "mnist":
        found = load(MNIST)["result"]
        accuracy, time = PERCENT.of(found["accuracy"]["raw"]), MINUTES.of(found["total_s"])
        return f"Measured: {accuracy} of all test images (one seed, bfloat16, {time} on {place(MNIST)})."
    if recipe == "cifar10-tutorial":
        averaged, four = evaluations(LONG), evaluations(FOUR_TOWERS)
        each = ", ".join(f"{PERCENT.of(averaged[step]['ema'])} after {step:,}" for step in LONG_STEPS)
        losses = ", ".join(f"{mean_loss(LONG, step):.2f} around {step:,}" for step in (2_000, 4_000, 10_000))
        return (
            f"Measured: by averaged weights {each} steps; by raw weights {PERCENT.of(averaged[100_000]['raw'])} then; "
            f"with 4 towers {PERCENT.of(four[30_000]['ema'])} after 30,000 (one seed, bfloat16, {place(LONG)}). Total "
            f"loss {mean_loss(LONG, 0):.2f} at step 0, {losses}."
        )
    return "Measured: not yet"


def place(record: str) -> str:
    """The machine of a record, in a sentence."""
    cpu, cores = machine(record).split(", ")
    found = load(record)
    alone = found.get("result", found)["processes"] == 1
    return f"one process on an {cpu}" if alone else f"{cores} of an {cpu}"


def mean_loss(record: str, step: int) -> float:
    """The mean of the logged losses from 500 steps before `step` to 500 after; of step 0, its own."""
    lines = (RESULTS / f"{record}.metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "step"]
    near = 500 if step else 0
    return statistics.mean(float(row["loss"]) for row in rows if abs(row["step"] - step) <= near)


def main() -> None:
    DOCUMENT.write_text(document())
    README.write_text(with_headlines(README.read_text()))
    originals.PAGE.write_text(originals.with_table(originals.PAGE.read_text()))
    for recipe in RECIPES:
        print(f"{recipe}: {measured(recipe)}")


if __name__ == "__main__":
    main()
