"""All measurements as text: `python -m benchmarks.tables` writes docs/results.md and tables of other pages.

Each number comes from a record in benchmarks/results/. tests/unit/test_results.py renders both again, and the
measurements in the recipes' docstrings, and fails if a published number differs from its record.
"""

import math
import statistics
from pathlib import Path
from typing import Any

from benchmarks import manual, originals, portable_page
from benchmarks.figures import (
    ABOUT,
    COST,
    FOUR_TOWERS,
    LONG,
    MINUTES,
    MNIST,
    PERCENT,
    RATE,
    SECONDS,
    START_SECONDS,
    TIMES,
    WEIGHTS,
    Figure,
    Unit,
    caption,
    command,
    evaluations,
    link,
    load,
    machine,
    names,
    over,
    replaced,
    rows_of,
    single,
    tables,
)
from benchmarks.image_folders import CASES
from benchmarks.peers import by_kind
from lockstep.recipes import RECIPES

ROOT = Path(__file__).parents[1]
DOCUMENT, README = ROOT / "docs/results.md", ROOT / "README.md"
RELIABILITY = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- headlines: python -m benchmarks.tables writes them -->", "<!-- end of headlines -->"
BEGIN_SURVIVAL, END_SURVIVAL = "<!-- survival: python -m benchmarks.tables writes it -->", "<!-- end of survival -->"

BY_PRECISION = {  # seeds 0 and 1
    "bfloat16": (LONG, "cifar10-tutorial-10000-bfloat16-seed-1"),
    "float32": ("cifar10-tutorial-10000-float32", "cifar10-tutorial-10000-float32-seed-1"),
}
NOT_MEASURED = """## Not measured

No GPU was available, so nothing has been measured on one. `examples/cifar10-record.toml` is made for a GPU and has no
figures.
"""
PHOTO_SETS = ("photos-hymenoptera", "photos-flowers", "photos-grocery")
TUNED_SETS = ("photos-tuned-hymenoptera", "photos-tuned-flowers")
LABEL_SETS = ("labels-hymenoptera", "labels-flowers")
LONG_STEPS, CURVE_STEPS = (10_000, 20_000, 30_000, 60_000, 100_000), (1, 2, 4, 6, 10, 15, 20, 25, 30)


def introduction() -> str:
    """Return the text on how to read the page."""
    records = [load(name) for name in names("*")]
    versions = [versions for record in records if (versions := record.get("result", record).get("versions"))]
    torch = ", ".join(sorted({version["torch"] for version in versions}))
    python = ", ".join(sorted({version["python"] for version in versions}))
    return f"""# Results

`python -m benchmarks.tables` writes this page from the records in `benchmarks/results/`, and a test compares the two.
Do not edit the page by hand. The line above each table has the command that reproduces it, the machine and the record.
"Same recipe as today" means that the record and today's code have the same digest of the recipe. The oldest records
computed their digest differently, over all settings including defaults: "same settings as today" refers to these.

A result is the median of n measurements, unless it says otherwise. The range is from the least to the greatest. All
measurements use torch {torch} and Python {python}. AMD EPYC is Zen 4 (AVX-512 with bfloat16, no AMX). Intel Xeon has
AVX-512 and AMX. Both are shared machines, and the Xeon was noisy.

The commands need the real datasets, which `lockstep train` downloads. `digits` needs no download. PYTHON and tf-python
stand for a Python with tensorflow-cpu.
"""


def accuracy_and_time() -> str:
    """Return the section on complete runs."""
    ten, ports = load("seeds-cifar10"), load("peers-cifar10")["runs"]
    each = ", ".join(PERCENT.bare(run["accuracy"]) for run in ten["runs"])
    deviation = PERCENT.bare(ten["figures"]["accuracy"]["deviation"])
    share = TIMES.span(ten["figures"]["total_s"]["median"] / port["total_s"] for port in ports)
    ported = [
        single(f"airbench94_muon, ported to this CPU, with {port['environment']}: {what}", unit.of(port[key]),
               "bfloat16", "peers-cifar10")
        for port in ports
        for what, key, unit in (("test accuracy", "accuracy", PERCENT), ("total time", "total_s", SECONDS))
    ]  # fmt: skip
    rows = [
        *of_seeds("cifar10", "bfloat16"), *ported, *of_seeds("digits", "float32"),
        *of_run("`mnist`, 200 steps", MNIST, "bfloat16"),
    ]  # fmt: skip
    return f"""## Accuracy and time

{tables(*rows)}

Test accuracy of `cifar10` by seed, in %: {each}.
The standard deviation is {deviation}. The settings were chosen on held-out training images:
[the lab notes](../benchmarks/lab-notes.md) say what that search found.

The port keeps float32 weights under autocast to bfloat16. It uses two threads in one process and channels-last memory.
Its runs alternated with seeds 4 to 6 of `cifar10`. Target: half of the port's time. Missed: {share} of it.

The log of the MNIST notebook states a test accuracy of {load("stated")["notebook"]["accuracy"]}, the mean of the
accuracies of chunks.
"""


def of_seeds(recipe: str, precision: str) -> list[Figure]:
    """Return accuracy and time of `recipe` over its seeds."""
    record = f"seeds-{recipe}"
    figures = load(record)["figures"]
    accuracies = {"accuracy": "test accuracy", "accuracy_one_view": "test accuracy, one view per image"}
    times = {"total_s": "total time, with evaluation", "train_s": "training time"}
    return [
        *(
            over(f"`{recipe}`: {what}", figures[name], PERCENT, precision, record, "mean")
            for name, what in accuracies.items()
            if name in figures
        ),
        *(over(f"`{recipe}`: {what}", figures[name], SECONDS, precision, record) for name, what in times.items()),
    ]


def of_run(what: str, record: str, precision: str) -> list[Figure]:
    """Return accuracy, times and throughput of one run."""
    result = load(record)["result"]
    time = MINUTES if result["total_s"] > 60 else SECONDS
    accuracies = [f"{PERCENT.of(value)} ({WEIGHTS[kind]})" for kind, value in result["accuracy"].items() if value]
    return [
        single(f"{what}: test accuracy", ", ".join(accuracies), precision, record),
        single(f"{what}: total time", time.of(result["total_s"]), precision, record),
        single(f"{what}: training time", time.of(result["train_s"]), precision, record),
        single(f"{what}: throughput of this run", RATE.of(result["images_per_s"]), precision, record),
    ]


def photos() -> str:
    """Return the section on the recipes for photos."""
    figures = []
    for record in PHOTO_SETS:
        content = load(record)
        precision, what = content["precision"], f"`photos` on {content['set']}"
        figures += [
            over(f"{what}: test accuracy", content["accuracy"], PERCENT, precision, record, "mean"),
            single(f"{what}: total time of the first start", SECONDS.of(content["first_s"]), precision, record),
            over(f"{what}: total time with another seed", content["again_s"], SECONDS, precision, record),
        ]
        if "logistic" in content:
            what, value = f"logistic regression on {content['set']}", content["logistic"]["accuracy"]
            figures.append(single(f"{what}: test accuracy", PERCENT.of(value), "float32", record))
    for record in TUNED_SETS:
        content = load(record)
        accuracy = f"{PERCENT.of(content['result']['accuracy']['raw'])}, from {PERCENT.of(content['start'])}"
        what = f"`photos-tuned` on {content['set']}: test accuracy, and that of the run of `photos` before"
        figures.append(single(what, accuracy, "float32", record))
    for record in LABEL_SETS:
        found = load(record)["figures"]
        what = record.removeprefix("labels-")
        figures += [
            over(f"wrong labels in {what}: {name}", found[name], ABOUT, "bfloat16", record, "mean")
            for name in ("precision", "recall")
        ]
        figures.append(over(f"wrong labels in {what}: total time", found["total_s"], SECONDS, "bfloat16", record))
    shares = load("unlike")["shares"]
    for trained, marked in shares.items():
        for name, (count, number) in marked.items():
            whose = "its own held-out images" if name == trained else name
            what = f"trained on {trained}: marked as unlike, of {whose}"
            figures.append(Figure(what, COST.of(count / number), number, "images", "bfloat16", "unlike"))
    sets = "\n".join(
        f"- {content['set']}: {content['images']['train']:,} training and {content['images']['test']:,} test images of "
        f"{content['classes']} classes"
        for content in map(load, PHOTO_SETS)
    )
    return f"""## Photos

Public sets, each with the split of its source. hymenoptera are the ants and bees of PyTorch's tutorial of transfer
learning (github.com/sayheyhey/hymenoptera_data), flowers is TensorFlow's flower_photos
(github.com/Oldpel/flower_photos), grocery are the coarse classes of github.com/marcusklasson/GroceryStoreDataset.

{sets}

The first start has empty caches: it reads all files and computes all features. The times are those of the whole
program. Logistic regression is scikit-learn's (C = 1) on the features of the published network, of each training image
and its mirror image. For wrong labels, 5 % of the images were moved to another class.

{tables(*figures)}
"""


def image_folders() -> str:
    """Return the section on the recipe `folder`."""
    figures = []
    for name, case in CASES.items():
        figures += of_run(f"`folder` on {case.what}", f"folder-{name}", "bfloat16")
    special = load("seeds-cifar10")["figures"]["accuracy"]["mean"]
    own = load("folder-cifar10-jpeg")["result"]["accuracy"]
    return f"""## Folders of images

Images of CIFAR-10 and MNIST, written as files and read by the recipe `folder`. The test images are the official ones.
The machine was busy with other work during these runs, so the times are no benchmark. The first run is older than the
rest: its whitening was fitted to images of one class, and is now fitted to images of all classes.

{tables(*figures)}

`cifar10`, which is made for that dataset, reaches {PERCENT.of(special)} (mean). The recipe `folder` reaches
{Unit(".2f", 100, "points").of(special - own["raw"])} less on its images as JPEG files.
"""


def long_runs() -> str:
    """Return the section on runs of the tutorial's network that are as long as the tutorial's own."""
    stated = load("stated")["tutorial"]["accuracy"]
    claims = " and ".join(f"about {ABOUT.of(value)} ({where})" for where, value in stated.items())
    runs = of_run("`cifar10-tutorial`", LONG, "bfloat16")
    runs += of_run("`cifar10-tutorial`, 4 towers", FOUR_TOWERS, "bfloat16")
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
The runs below were made before the fused kernels (same model, different low-order bits, slower). The machine was busy
and was paused once, so the times are no benchmark.

{tables(*runs)}

Test accuracy in %, averaged / raw weights, bfloat16, n 1. The first row is from {link(LONG)},
the second from {link(FOUR_TOWERS)}.

| after | {" | ".join(f"{step:,} steps" for step in LONG_STEPS)} |
|---{"|---" * len(LONG_STEPS)}|
| 1 tower (batch 128) | {" | ".join(by_step(LONG))} |
| 4 towers (batch 512) | {" | ".join(by_step(FOUR_TOWERS))} |

### bfloat16 against float32

Mean test accuracy of two seeds after 10,000 steps: {means["bfloat16", "ema"]} in bfloat16 and
{means["float32", "ema"]} in float32 with averaged weights, {means["bfloat16", "raw"]} and {means["float32", "raw"]}
with raw weights.

{tables(*compared)}
"""


def by_step(record: str) -> list[str]:
    """Return `averaged / raw` at each of LONG_STEPS, in %. It is empty after the end of the run."""
    accuracy = evaluations(record)
    pairs = [[accuracy[step][kind] for kind in WEIGHTS] if step in accuracy else [] for step in LONG_STEPS]
    return [" / ".join(map(PERCENT.bare, pair)) for pair in pairs]


def costs() -> str:
    """Return the section on the cost of the loop, exactness, a second process and the start."""
    loop, precision = rows_of("overhead"), {"start to first step, digits": "float32", "import lockstep": "none"}
    today = [
        *(over(name, row, TIMES, "bfloat16", "overhead") for name, row in loop.items()),
        *(
            over(name, row, START_SECONDS, precision.get(name, "bfloat16"), "start")
            for name, row in rows_of("start").items()
        ),
        over("`import torch` alone", load("start")["import_torch_s"], START_SECONDS, "none", "start"),
    ]
    second = loop["two processes / one, a thread each"]
    target = f"{second['target'].removeprefix('>= ')} times. {'Met' if second['met'] else 'Missed'}"
    return f"""## Cost of the loop, exactness, a second process and the start

`cifar10-tutorial` with towers of 128 images and distortions. The variants took turns. A ratio is the median of the
ratios of single rounds. "loop" is Lockstep's training loop. "bare loop" is a plain PyTorch loop over the same network
and data. `tree` is the exact sum, `allreduce` that of the backend, which is not exact.

{tables(*today)}

Target for two processes over one: {target}.
"""


def links() -> str:
    """Return the section on slow links between hosts."""
    lines = []
    for case, found in load("links")["cases"].items():
        own, ddp = found["programs"]["lockstep"], found["programs"]["ddp"]
        waits = [found["programs"][name]["wait_s"]["median"] * 1e3 for name in ("lockstep", "in one part")]
        cells = [
            case,
            *(f"{each['images_per_s']['median']:,.0f}" for each in (own, ddp)),
            TIMES.of(found["times_ddp"]["median"]),
            *(f"{each['bytes_per_step']['median'] / 1e6:.1f}" for each in (own, ddp)),
            *(f"{wait:,.0f}" for wait in waits),
            f"{found['hidden']['median']:.0%}",
            str(found["times_ddp"]["n"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return f"""## Slow links between hosts

Hosts are network namespaces of one machine, whose cores all processes share, and each host sends and receives at the
rate of its link. PyTorch DDP over Gloo trains the same network on the same links, in float32 as Lockstep does. "wait"
is the time in which a process of Lockstep has nothing to compute, and "one part" the same when the vector goes in one
part after the backward pass; the share that is hidden is the difference.

`python -m benchmarks.links --rounds N [--only CASE]` on {machine("links")} ({link("links")}), medians of n rounds:

| hosts x processes, link | images/s | DDP | ratio | MB a step | DDP | wait ms | one part | hidden | n |
|---|---|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}
"""


def split() -> str:
    """Return the section on where the time of a tower goes."""
    lines = []
    for name, found in load("split")["models"].items():
        speed = found["products_per_s"]["median"]
        for layer, row in found["layers"].items():
            ms, share = row["ms"], row["products"] / row["ms"]["median"] * 1e3 / speed
            cells = name, layer, f"{ms['median']:.1f}", f"{ms['min']:.1f} to {ms['max']:.1f}"
            lines.append(f"| {' | '.join(cells)} | {row['products'] / 1e9:.2f} | {share:.0%} |")
    speeds = " and ".join(
        f"{found['products_per_s']['median'] / 1e9:.0f}" for found in load("split")["models"].values()
    )
    count = next(iter(found["layers"].values()))["ms"]["n"]
    return f"""## Where the time of a tower goes

Milliseconds of each layer for 128 images in float32 on one core, forward and backward, and the billions of
multiplications that a direct computation would need. Their speed is a share of that of a product of two matrices of
1024 x 1024, measured in turn: {speeds} billion multiplications a second. Winograd's scheme can exceed it.

{command("split")} on {machine("split")} ({link("split")}), n = {count}:

| recipe | layers | ms | range | multiplications | of a product's speed |
|---|---|---|---|---|---|
{chr(10).join(lines)}
"""


def loss_of_mnist() -> str:
    """Return the section that compares MNIST's loss with TensorFlow's program and with the notebook's log."""
    runs, notebook, longer = load("loss-mnist")["runs"], load("stated")["notebook"]["loss"], dict(load(MNIST)["losses"])
    lockstep, tensorflow = runs["lockstep float32"], runs["tensorflow float32"]
    lines = [
        f"| {step} | {curve(tensorflow, step)} | {curve(lockstep, step)} | {notebook.get(str(step), '')} |"
        for step in CURVE_STEPS
    ]
    states = ", ".join(f"{loss} at step {step}" for step, loss in notebook.items())
    same = ", ".join(f"{longer[int(step)]:.3f} at step {step}" for step in notebook)
    return f"""## MNIST's loss over the first steps

`lockstep train mnist` and [TensorFlow's program](../benchmarks/peers/tensorflow_mnist.py) (TensorFlow
{tensorflow[0]["tensorflow"]}), both in float32 with 2 towers of 1,024 images, a seed for each run.
The loss of step n is the mean cross-entropy over that step's 2,048 images, under dropout and before the step's update:
the weights have had n - 1 updates. A cell has the mean and the range over the seeds. The seed decides initial weights,
order and dropout, differently in each program.

{caption("loss-mnist")}

| step | TensorFlow | Lockstep | the notebook's log |
|---|---|---|---|
{chr(10).join(lines)}

The notebook's log states the loss of the last GPU after the update of a step: {states}.
After as many updates, the run {link(MNIST)} (bfloat16, n 1) has {same}.

{mean_losses(lockstep, tensorflow)}

From equal weights and batches both programs compute the same loss at step 1. They part at the first update, for two
reasons. TensorFlow adds Adam's epsilon before it corrects the second moment, so its epsilon is 3.2e-7 in effect at
the first update, and ours is 1e-8. Winograd's scheme rounds outputs that are exactly 0, of which MNIST's blank areas
make many ([tutorial-parity.md](tutorial-parity.md), row 48).

Both fall faster than in the notebook's log, so the difference to the log is not due to Lockstep's arithmetic. Its cause
is unknown: the notebook's version of TensorFlow and its GPUs were not available.
"""


def mean_losses(lockstep: list[dict[str, Any]], tensorflow: list[dict[str, Any]]) -> str:
    """Return what one number a run, the mean of its losses, says of the two programs' difference."""
    ours, theirs = ([statistics.mean(run["losses"]) for run in runs] for runs in (lockstep, tensorflow))
    stated = " and ".join(
        f"{statistics.mean(means):.3f} (deviation {statistics.stdev(means):.3f}, n {len(means)}) in {name}"
        for means, name in ((ours, "Lockstep"), (theirs, "TensorFlow"))
    )
    after = [statistics.mean(run["losses"]) for run in load("loss-mnist")["mended"]]
    mended = f"{statistics.mean(after):.3f} ({min(after):.3f} to {max(after):.3f}, n {len(after)})"
    apart = standard_errors(ours, theirs)
    verdict = "so chance explains it" if abs(apart) < 2 else "more than chance explains"
    return f"""The steps of a run are not independent, so one number stands for each run: the mean of its
{len(lockstep[0]["losses"])} losses. It is {stated}. The difference
is {apart:.1f} standard errors, {verdict}. In these runs of TensorFlow all layers began with the same random numbers,
as one initialiser served them all. The program is mended since: its mean is {mended}."""


def standard_errors(first: list[float], second: list[float]) -> float:
    """Return the difference of two means in its standard errors."""
    spread = math.sqrt(statistics.variance(first) / len(first) + statistics.variance(second) / len(second))
    return (statistics.mean(first) - statistics.mean(second)) / spread


def curve(runs: list[dict[str, Any]], step: int) -> str:
    """Return mean and range, over the seeds, of the loss at `step`."""
    losses = [run["losses"][step - 1] for run in runs]
    return f"{statistics.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})"


def headlines() -> str:
    """Return README's table of headlines, from its first marker to its second."""
    seeds, long = load("seeds-cifar10")["figures"], load(LONG)["result"]
    stated = ABOUT.of(load("stated")["tutorial"]["accuracy"]["one GPU, 60 000 to 100 000 steps"])
    exact = rows_of("overhead")["exact tree / allreduce, two processes"]
    accuracy_and_time = f"**{PERCENT.of(seeds['accuracy']['mean'])}** in {SECONDS.of(seeds['total_s']['median'])}"
    what = f"`cifar10-tutorial`, {long['steps']:,} steps: test accuracy (the original states about {stated})"
    rows = [
        ("`cifar10`: test accuracy (mean) and total time (median)", accuracy_and_time, seeds["accuracy"]["n"],
         *source("seeds-cifar10")),
        (what, PERCENT.of(long["accuracy"]["ema"]), 1, *source(LONG)),
        *by_kind.headlines(),
        ("throughput of the exact `tree` on two processes", f"{TIMES.of(exact['median'])} `allreduce`", exact["n"],
         *source("overhead")),
    ]  # fmt: skip
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([BEGIN, "| what | result | n | machine | record |", "|---|---|---|---|---|", *lines, END])


def source(record: str) -> tuple[str, str]:
    """Return the machine of a record and a link to it from README."""
    return machine(record), link(record, "")


def survival() -> str:
    """Return the result of the random faults, from its first marker to its second."""
    record = load("survival")
    number = sum(seconds["n"] for seconds in record["faults"].values())
    lines = []
    for kind, seconds in record["faults"].items():
        span = f"{seconds['min']:.1f} to {seconds['max']:.1f} s"
        lines.append(f"| {kind} | {seconds['n']} | {seconds['median']:.1f} s | {span} |")
    return f"""{BEGIN_SURVIVAL}
**{record["survived"]} of {record["runs"]} runs** had the SHA-256 of the undisturbed one, after {number} faults.

{command("survival")} on {machine("survival")} ({link("survival")}):

| fault | n | recovery: median | range |
|---|---|---|---|
{chr(10).join(lines)}
{END_SURVIVAL}"""


def document() -> str:
    """Return the text of docs/results.md."""
    parts = (
        accuracy_and_time, photos, image_folders, long_runs, by_kind.section, split, links, costs, loss_of_mnist,
    )  # fmt: skip
    return "\n".join([introduction(), *(part() for part in parts), NOT_MEASURED])


def pages() -> dict[Path, str]:
    """Return the text of every page that has figures, rendered from the records."""
    marked = {README: headlines(), RELIABILITY: survival(), originals.PAGE: originals.text()}
    whole = {DOCUMENT: document(), manual.PAGE: manual.text(), portable_page.PAGE: portable_page.text()}
    return whole | {page: replaced(page.read_text(), text) for page, text in marked.items()}


def measured(recipe: str) -> str:
    """Return the measurements in the docstring of `recipe`, on one line."""
    if recipe in ("cifar10", "digits"):
        figures = load(f"seeds-{recipe}")["figures"]
        accuracy, one_view = figures["accuracy"], figures.get("accuracy_one_view")
        span = PERCENT.span((accuracy["min"], accuracy["max"]))
        views = f"; {PERCENT.of(one_view['mean'])} by each image alone" if one_view else ""
        return (
            f"Measured: {PERCENT.of(accuracy['mean'])} (mean; {span} over {accuracy['n']} seeds{views}) in "
            f"{SECONDS.of(figures['total_s']['median'])} (median), {SECONDS.of(figures['train_s']['median'])} of them "
            f"training, on {place(f'seeds-{recipe}')}."
        )
    if recipe == "mnist":
        result = load(MNIST)["result"]
        accuracy, time = PERCENT.of(result["accuracy"]["raw"]), MINUTES.of(result["total_s"])
        return f"Measured: {accuracy} of all test images (one seed, bfloat16, {time} on {place(MNIST)})."
    if recipe == "cifar10-tutorial":
        averaged, four = evaluations(LONG), evaluations(FOUR_TOWERS)
        each = ", ".join(f"{PERCENT.of(averaged[step]['ema'])} after {step:,}" for step in LONG_STEPS)
        return (
            f"Measured: by averaged weights {each} steps; by raw weights {PERCENT.of(averaged[100_000]['raw'])} then; "
            f"with 4 towers {PERCENT.of(four[30_000]['ema'])} after 30,000 (one seed, bfloat16, {place(LONG)})."
        )
    if recipe == "photos":
        records = [load(record) for record in PHOTO_SETS]
        found = [
            f"{one['set']}, {one['classes']} classes: {PERCENT.of(one['accuracy']['mean'])} in "
            f"{SECONDS.of(one['first_s'])}"
            for one in records
        ]
        count, cpu = records[0]["accuracy"]["n"], place(PHOTO_SETS[0])
        return f"Measured: {'; '.join(found)} (mean of {count} seeds; time of the first start; {cpu})."
    if recipe == "photos-tuned":
        found = [
            f"{one['set']}: {PERCENT.of(one['result']['accuracy']['raw'])} after {PERCENT.of(one['start'])}"
            for one in map(load, TUNED_SETS)
        ]
        return f"Measured: {'; '.join(found)} of `photos` (one seed, {place(TUNED_SETS[0])})."
    if recipe == "folder":
        runs = {name: load(f"folder-{name}")["result"] for name in CASES}
        each = "; ".join(f"{CASES[name].what}: {PERCENT.of(run['accuracy']['raw'])}" for name, run in runs.items())
        return f"Measured: {each} (one seed, bfloat16, {place('folder-cifar10-jpeg')})."
    return "Measured: not yet"


def place(record: str) -> str:
    """Return the machine of a record, as part of a sentence."""
    cpu, cores = machine(record).split(", ")
    content = load(record)
    one_process = content.get("result", content)["processes"] == 1
    return f"one process on an {cpu}" if one_process else f"{cores} of an {cpu}"


def main() -> None:
    for page, text in pages().items():
        page.write_text(text)
    for recipe in RECIPES:
        print(f"{recipe}: {measured(recipe)}")


if __name__ == "__main__":
    main()
