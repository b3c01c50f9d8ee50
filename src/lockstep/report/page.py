"""The report of one or several runs: one HTML file that needs no other, made of what their folders state.

Every figure has its numbers as a table. The template is templates/report.html.jinja.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.errors import printable
from lockstep.report import figures
from lockstep.report.figures import Curve
from lockstep.runs.diff import difference
from lockstep.runs.recorded import Recorded
from lockstep.words import counted

_PAIRS = 5  # of classes that are confused most often
_TABLE_ROWS = 40  # of a curve
_MOST_CLASSES = 24  # up to which the confusion matrix is a table, too
_CURVES = {"loss": "loss", "accuracy": "accuracy of the batch", "learning_rate": "learning rate"}


class Table(NamedTuple):
    """A table: the names of its columns, and its rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Section(NamedTuple):
    """A part of the page. `figure` is an SVG element, which `caption` describes for readers who do not see it."""

    title: str
    texts: Sequence[str] = ()
    figure: str = ""
    caption: str = ""
    table: Table | None = None
    images: Sequence[Mapping[str, Any]] = ()
    code: str = ""


def page(paths: Sequence[Path], record: Mapping[str, Any] | None, note: str | None = None) -> str:
    """Return the report of the runs in `paths`.

    `record` is that of the report job for the only run; None if there are several, or if its data are not here, as
    `note` then says. Raises: LockstepError.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    runs = [Recorded(path) for path in paths]
    names = [run.run.path.name for run in runs]
    sections = [*(one_run(runs[0], record) if len(runs) == 1 else several(runs, names))]
    environment = Environment(
        loader=PackageLoader("lockstep.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["printable"] = printable
    title = f"{', '.join(names)}: a report by Lockstep"
    return environment.get_template("report.html.jinja").render(title=title, sections=sections, note=note)


def one_run(run: Recorded, record: Mapping[str, Any] | None) -> list[Section]:
    """Return the sections of one run's report."""
    found = []
    if record is not None:
        found += [accuracy(record)]
    found += [training([run], [run.run.path.name])]
    if record is not None:
        found += [confusion(record), classes(record), calibration(record), *pictures(record)]
    return [*found, speed(run), provenance(run)]


def several(runs: Sequence[Recorded], names: Sequence[str]) -> list[Section]:
    """Return the sections of a report that compares runs."""
    texts = []
    for first, second in pairwise(runs):
        record = difference(first.run.path, second.run.path)
        changes = record["recipe"]["differences"] or ["the same recipe"]
        texts.append(f"{first.run.path.name} -> {second.run.path.name}: {'; '.join(changes)}")
    rows = []
    for run, name in zip(runs, names, strict=True):
        kinds = {key: value for key, value in run.result.get("accuracy", {}).items() if value is not None}
        rows.append([
            name, ", ".join(f"{value:.2%} ({kind})" for kind, value in kinds.items()) or "not complete",
            *(str(run.result.get(key, "")) for key in ("steps", "train_s", "processes", "weights_sha256")),
        ])  # fmt: skip
    head = ["run", "accuracy", "steps", "seconds of training", "processes", "sha256 of the weights"]
    return [Section("What differs", texts, table=Table(head, rows)), training(runs, names)]


def accuracy(record: Mapping[str, Any]) -> Section:
    """Return the accuracy with its interval."""
    low, high = record["accuracy_interval"]
    share = f"{record['accuracy']:.2%}"
    return Section(
        f"{share} of {record['examples']:,} {record['split']} images are classified correctly",
        [
            f"{counted(record['correct'], record['examples'], 'images')}; 95 % interval {low:.2%} to {high:.2%} "
            f"(Wilson). Loss {record['loss']:.4f}. Weights: {record['weights']}, after {record['step']:,} steps."
        ],
    )


def training(runs: Sequence[Recorded], names: Sequence[str]) -> Section:
    """Return the curves of training, over steps and over time."""
    rows = [[row for row in run.run.metrics() if row["kind"] == "step"] for run in runs]
    tests = [[row for row in run.run.metrics() if row["kind"] == "evaluation"] for run in runs]
    panels = []
    for key, label in _CURVES.items():
        lines = [
            Curve(name, [row["step"] for row in steps], [row.get(key) for row in steps])
            for name, steps in zip(names, rows, strict=True)
        ]
        if key == "accuracy":
            lines += [
                Curve(f"{name}, {weights} on the test images", [row["step"] for row in found],
                      [row["accuracy"] for row in found])
                for name, each in zip(names, tests, strict=True)
                for weights in dict.fromkeys(row["weights"] for row in each)
                if (found := [row for row in each if row["weights"] == weights])
            ]  # fmt: skip
        panels.append((label, lines))
    timed = [
        Curve(name, [row["time"] - steps[0]["time"] for row in steps], [row.get("loss") for row in steps])
        for name, steps in zip(names, rows, strict=True)
        if steps
    ]
    drawn = figures.curves(panels, "steps", frozenset(["loss"])) + figures.curves(
        [("loss", timed)], "seconds since the first step", frozenset(["loss"])
    )
    head = ["run", "step", *_CURVES.values()]
    cells = [
        [name, f"{row['step']:,}", *("" if row.get(key) is None else f"{row[key]:.4g}" for key in _CURVES)]
        for name, steps in zip(names, rows, strict=True)
        for row in _spread(steps)
    ]
    caption = "Curves of loss, accuracy and learning rate over steps, and of the loss over time"
    return Section("Training", [], drawn, caption, Table(head, cells))


def confusion(record: Mapping[str, Any]) -> Section:
    """Return the confusion matrix, and the pairs of classes that are confused most often."""
    names, counts = [one["name"] for one in record["classes"]], record["confusion"]
    pairs = sorted(
        ((count, x, y) for y, row in enumerate(counts) for x, count in enumerate(row) if x != y and count),
        key=lambda pair: (-pair[0], pair[2], pair[1]),
    )
    texts = [
        f"{names[y]} is classified as {names[x]} {count:,} times, {count / max(1, sum(counts[y])):.1%} of its images."
        for count, x, y in pairs[:_PAIRS]
    ]
    table = None
    if len(names) <= _MOST_CLASSES:
        table = Table(["label", *names], [[name, *map(str, row)] for name, row in zip(names, counts, strict=True)])
    caption = "Heat map of the confusion matrix: rows are labels, columns are predictions"
    return Section("Confusion", texts or ["No image is misclassified."], figures.heat_map(counts, names), caption, table)


def classes(record: Mapping[str, Any]) -> Section:
    """Return precision and recall of each class."""
    counts = record["confusion"]
    rows = []
    for label, one in enumerate(record["classes"]):
        predicted = sum(row[label] for row in counts)
        precision = one["correct"] / predicted if predicted else None
        rows.append([one["name"], f"{one['examples']:,}", _percent(precision), _percent(one["accuracy"])])
    return Section("Classes", table=Table(["class", "images", "precision", "recall"], rows))


def calibration(record: Mapping[str, Any]) -> Section:
    """Return the reliability diagram."""
    found = record["calibration"]
    rows = [[f"{mean:.1%}", f"{share:.1%}", f"{count:,}"] for mean, share, count in found["bins"]]
    return Section(
        "Calibration",
        [f"Expected calibration error {found['error']:.2%}: the mean distance between probability and accuracy."],
        figures.reliability(found["bins"]),
        "Reliability diagram: accuracy against the probability of the predicted class",
        Table(["mean probability", "accuracy", "images"], rows),
    )


def pictures(record: Mapping[str, Any]) -> list[Section]:
    """Return the worst mistakes and the least certain images, as pictures."""
    kinds = {
        "Worst mistakes": ("mistakes", "Wrong, with the highest probability first."),
        "Least certain": ("doubts", "The two most probable classes are closest to each other."),
    }
    return [Section(title, [text], images=record[key]) for title, (key, text) in kinds.items() if record[key]]


def speed(run: Recorded) -> Section:
    """Return the throughput, its split and the memory."""
    steps = [row for row in run.run.metrics() if row["kind"] == "step" and row.get("split")]
    result, texts = run.result, []
    if result:
        texts.append(f"{result['images_per_s']:,.0f} images/s, {result['train_s']:,.1f} s of training.")
        memory = ", ".join(f"{used / 2**20:,.0f} MiB" for used in result["peak_memory_bytes"])
        texts.append(f"Peak memory of each process: {memory}.")
    if not steps:
        return Section("Speed", texts or ["Nothing is recorded."])
    parts = {name: sum(row["split"][name] for row in steps) / len(steps) * 1e3 for name in steps[-1]["split"]}
    drawn = figures.stacked([("a step", list(parts.items()))], "milliseconds")
    rows = [[name, f"{value:.2f} ms"] for name, value in parts.items()]
    return Section("Speed", texts, drawn, "What the time of a step is spent on", Table(["part", "mean"], rows))


def provenance(run: Recorded) -> Section:
    """Return recipe, environment, digests, and the commands that reproduce and verify the run."""
    recipe, session = run.run.recipe(), run.sessions[-1] if run.sessions else {}
    versions = ", ".join(f"{name} {version}" for name, version in session.get("versions", {}).items())
    facts = {
        "recipe": f"{recipe.name}, digest {recipe.digest()}",
        "weights": run.weights_sha256 or "not complete",
        "data": ", ".join(f"{name} {sha}" for name, sha in (run.facts.get("data_sha256") or {}).items()),
        "device": session.get("device", ""),
        "versions": versions,
    }
    rows = [[name, str(value)] for name, value in facts.items() if value]
    folder = run.run.path
    commands = f"{recipe.command('train', folder / 'recipe.json')}\n{recipe.command('verify', folder)}"
    return Section("How it was made", ["These commands reproduce and verify it:"], table=Table(["", ""], rows), code=commands)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _spread(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return at most _TABLE_ROWS of `rows`, at even distances, with the first and the last one."""
    if len(rows) <= _TABLE_ROWS:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (_TABLE_ROWS - 1))] for i in range(_TABLE_ROWS)]
