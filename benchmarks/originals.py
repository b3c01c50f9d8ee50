"""What the originals state of their speed and accuracy, next to our records: a table of docs/coming-from-tensorflow.md.

`python -m benchmarks.tables` writes it between the two markers of that page. Every number comes from a record in
benchmarks/results/; `stated.json` holds those of the originals, which were not measured here.
"""

from pathlib import Path

from benchmarks.figures import ABOUT, FOUR_TOWERS, LONG, MNIST, PERCENT, RATE, Unit, link, load, machine

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
    peers = load("peers-cifar10-tutorial")["images_per_s"]
    measured = [
        ("1 tower, 1 process", "bfloat16", load("overhead")["images_per_s"]["one process"]["median"], "", "overhead")
    ]
    for precision in ("float32", "bfloat16"):
        rate = peers[f"lockstep {precision}"]["median"]
        measured.append(("2 towers, 2 processes", precision, rate, "", "peers-cifar10-tutorial"))
    for towers, record in (("1 tower", LONG), ("4 towers", FOUR_TOWERS)):
        run = load(record)["result"]
        accuracy = f"{PERCENT.of(run['accuracy']['ema'])} after {run['steps']:,} steps"
        measured.append((f"{towers}, 1 process", "bfloat16", run["images_per_s"], accuracy, record))
    batch = load("stated")["tutorial"]["images_per_batch"]
    return [
        _row(_cpu(towers, record), precision, BATCH_SECONDS.bare(batch / rate), RATE.bare(rate), accuracy, link(record))
        for towers, precision, rate, accuracy, record in measured
    ]


def mnist_rows() -> list[str]:
    """Return the notebook's log, and our rates and accuracy of `mnist`."""
    notebook, peers, run = load("stated")["notebook"], load("peers-mnist")["images_per_s"], load(MNIST)["result"]
    span = _span(list(notebook["images_per_s"].values()), ",.0f")
    stated = f"{PERCENT.of(notebook['accuracy'])} after {notebook['steps']} steps"
    own = f"{PERCENT.of(run['accuracy']['raw'])} after {run['steps']} steps"
    place, source = _cpu("2 towers, 2 processes", "peers-mnist"), link("peers-mnist")
    rates = {precision: RATE.bare(peers[f"lockstep {precision}"]["median"]) for precision in ("float32", "bfloat16")}
    return [
        _row("2 GPUs, model not stated", "float32", span, stated, "its log"),
        *(f"| {place} | {precision} | {rate} | | {source} |" for precision, rate in rates.items()),
        _row(_cpu("2 towers, 2 processes", MNIST), "bfloat16", RATE.bare(run["images_per_s"]), own, link(MNIST)),
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
