"""What the originals state of their speed and accuracy, beside our records: a table of docs/coming-from-tensorflow.md.

`python -m benchmarks.tables` writes it between the two markers of that page. Every number comes from a record in
benchmarks/results/; `stated.json` holds those of the originals, which were not measured here.
"""

from pathlib import Path
from typing import Any

from benchmarks.figures import ABOUT, PERCENT, Unit, link, load, machine

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/coming-from-tensorflow.md"
BEGIN, END = (
    "<!-- speed and accuracy: python -m benchmarks.tables writes them -->",
    "<!-- end of speed and accuracy -->",
)

LONG, FOUR_TOWERS = "cifar10-tutorial-100000-bfloat16", "cifar10-tutorial-4-towers-30000-bfloat16"
MNIST = "mnist-200-bfloat16"
RATE, BATCH_SECONDS = Unit(",.0f", 1, "images/s"), Unit(".3f", 1, "s")
HEAD = "| devices | precision | seconds for 128 images | images/s | test accuracy | from |\n|---|---|---|---|---|---|"
MNIST_HEAD = "| devices | precision | images/s | test accuracy | from |\n|---|---|---|---|---|"


def stated_rows() -> list[str]:
    """The tutorial's table: the rate follows from its seconds."""
    tutorial = load("stated")["tutorial"]
    rows = []
    for row in tutorial["devices"]:
        seconds = row["s_per_batch"]
        rates = [tutorial["images_per_batch"] / value for value in reversed(seconds)]
        accuracy = f"about {ABOUT.of(row['accuracy'])} after {row['steps']:,} steps"
        rows.append(
            f"| {row['gpus']} | float32 | {_span(seconds, '.2f')} | {_span(rates, ',.0f')} | {accuracy} | its comment |"
        )
    return rows


def tutorial_rows() -> list[str]:
    """Our rates and accuracies of `cifar10-tutorial`."""
    rates, peers = load("overhead")["images_per_s"], load("peers-cifar10-tutorial")["images_per_s"]
    return [
        _rate("1 tower, 1 process", "bfloat16", rates["one process"], "overhead"),
        *(
            _rate("2 towers, 2 processes", precision, peers[f"lockstep {precision}"], "peers-cifar10-tutorial")
            for precision in ("float32", "bfloat16")
        ),
        _run("1 tower, 1 process", LONG),
        _run("4 towers, 1 process", FOUR_TOWERS),
    ]


def mnist_rows() -> list[str]:
    """The notebook's log, and our rates and accuracy of `mnist`."""
    notebook, peers, run = load("stated")["notebook"], load("peers-mnist")["images_per_s"], load(MNIST)["result"]
    span = _span(list(notebook["images_per_s"].values()), ",.0f")
    place, source = _cpu("2 towers, 2 processes", "peers-mnist"), link("peers-mnist")
    return [
        f"| 2 GPUs, model not stated | float32 | {span} | {PERCENT.of(notebook['accuracy'])} after "
        f"{notebook['steps']} steps | its log |",
        *(
            f"| {place} | {precision} | {RATE.bare(peers[f'lockstep {precision}']['median'])} | | {source} |"
            for precision in ("float32", "bfloat16")
        ),
        f"| {_cpu('2 towers, 2 processes', MNIST)} | bfloat16 | {RATE.bare(run['images_per_s'])} | "
        f"{PERCENT.of(run['accuracy']['raw'])} after {run['steps']} steps | {link(MNIST)} |",
    ]


def text() -> str:
    """The part of the page from its first marker to its second."""
    rows = [BEGIN, HEAD, *stated_rows(), *tutorial_rows(), "", MNIST_HEAD, *mnist_rows(), END]
    return "\n".join(rows)


def with_table(page: str) -> str:
    """`page` with the table of today's records between its markers."""
    before, rest = page.split(BEGIN)
    return before + text() + rest.split(END)[1]


def _rate(towers: str, precision: str, found: dict[str, Any], record: str) -> str:
    return _row(towers, precision, found["median"], "", record)


def _run(towers: str, record: str) -> str:
    result = load(record)["result"]
    accuracy = f"{PERCENT.of(result['accuracy']['ema'])} after {result['steps']:,} steps"
    return _row(towers, "bfloat16", result["images_per_s"], accuracy, record)


def _row(towers: str, precision: str, images_per_s: float, accuracy: str, record: str) -> str:
    seconds = BATCH_SECONDS.bare(load("stated")["tutorial"]["images_per_batch"] / images_per_s)
    return (
        f"| {_cpu(towers, record)} | {precision} | {seconds} | {RATE.bare(images_per_s)} | {accuracy} | "
        f"{link(record)} |"
    )


def _cpu(towers: str, record: str) -> str:
    cpu, cores = machine(record).split(", ")
    used = "1 core" if towers.endswith("1 process") else cores
    return f"{used} of {'an' if cpu[0] in 'AEIOU' else 'a'} {cpu}: {towers}"


def _span(values: list[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"
