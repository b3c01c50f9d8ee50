"""What the originals state of their speed and accuracy, next to our records: a table of docs/coming-from-tensorflow.md.

`python -m benchmarks.tables` writes it between the two markers of that page. Every number comes from a record in
benchmarks/results/; `stated.json` holds those of the originals, which were not measured here.
"""

from pathlib import Path

from benchmarks.figures import ABOUT, FOUR_TOWERS, LONG, MNIST, PERCENT, RATE, Unit, link, load, machine
from benchmarks.peers.by_kind import compared

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/coming-from-tensorflow.md"
BEGIN = "<!-- speed and accuracy: python -m benchmarks.tables writes them -->"
END = "<!-- end of speed and accuracy -->"

BATCH_SECONDS = Unit(".3f", 1, "s")
HEAD = "| devices | precision | seconds for 128 images | images/s | test accuracy | from |\n|---|---|---|---|---|---|"
MNIST_HEAD = "| devices | precision | images/s | test accuracy | from |\n|---|---|---|---|---|"


def text() -> str:
    """Return the part of the page from its first marker to its second."""
    return "\n".join([BEGIN, HEAD, *stated_rows(), *tutorial_rows(), "", MNIST_HEAD, *mnist_rows(), END])


def stated_rows() -> list[str]:
    """Return the tutorial's table: the rate follows from its seconds."""
    tutorial = load("stated")["tutorial"]
    rows = []
    for row in tutorial["devices"]:
        times = row["s_per_batch"]
        rates = _span([tutorial["images_per_batch"] / seconds for seconds in times], ",.0f")
        accuracy = f"about {ABOUT.of(row['accuracy'])} after {row['steps']:,} steps"
        rows.append(_row(str(row["gpus"]), "float32", _span(times, ".2f"), rates, accuracy, "its comment"))
    return rows


def tutorial_rows() -> list[str]:
    """Return our rates and accuracies of `cifar10-tutorial`."""
    measured = [
        ("1 tower, 1 process", "bfloat16", load("overhead")["images_per_s"]["one process"]["median"], "", "overhead")
    ]
    for towers, record in (("1 tower", LONG), ("4 towers", FOUR_TOWERS)):
        run = load(record)["result"]
        accuracy = f"{PERCENT.of(run['accuracy']['ema'])} after {run['steps']:,} steps"
        measured.append((f"{towers}, 1 process", "bfloat16", run["images_per_s"], accuracy, record))
    batch = load("stated")["tutorial"]["images_per_batch"]
    rows = [(_cpu(towers, record), *rest, record) for towers, *rest, record in measured]
    rows += [
        (where, precision, rate, "", record) for where, precision, rate, record in _two_processes("cifar10-tutorial")
    ]
    return [
        _row(where, precision, BATCH_SECONDS.bare(batch / rate), RATE.bare(rate), accuracy, link(record))
        for where, precision, rate, accuracy, record in rows
    ]


def mnist_rows() -> list[str]:
    """Return the notebook's log, and our rates and accuracy of `mnist`."""
    notebook, run = load("stated")["notebook"], load(MNIST)["result"]
    span = _span(list(notebook["images_per_s"].values()), ",.0f")
    stated = f"{PERCENT.of(notebook['accuracy'])} after {notebook['steps']} steps"
    own = f"{PERCENT.of(run['accuracy']['raw'])} after {run['steps']} steps"
    return [
        _row("2 GPUs, model not stated", "float32", span, stated, "its log"),
        *(_row(where, precision, RATE.bare(rate), "", link(record))
          for where, precision, rate, record in _two_processes("mnist")),
        _row(_cpu("2 towers, 2 processes", MNIST), "bfloat16", RATE.bare(run["images_per_s"]), own, link(MNIST)),
    ]  # fmt: skip


def _two_processes(model: str) -> list[tuple[str, str, float, str]]:
    """Return machine, precision, images/s and record of two towers on two processes, for each kind of CPU."""
    rows = {(row["kind"], row["precision"]): row for row in compared(model) if "lockstep_images_per_s" in row}
    return [
        (f"2 cores of {kind}: 2 towers, 2 processes", precision, row["lockstep_images_per_s"]["median"], row["record"])
        for (kind, precision), row in rows.items()
    ]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cpu(towers: str, record: str) -> str:
    cpu, cores = machine(record).split(", ")
    used = "1 core" if towers.endswith("1 process") else cores
    return f"{used} of {'an' if cpu[0] in 'AEIOU' else 'a'} {cpu}: {towers}"


def _span(values: list[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"
