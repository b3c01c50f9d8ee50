"""The page of one run, and the page that compares several. It is made of what their folders state."""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from lockstep.pages import figures
from lockstep.pages.figures import Line, Panel
from lockstep.pages.page import NUMBERS, Figure, Headline, Picture, Section, Table, render
from lockstep.runs.folder import Run
from lockstep.settings import dotted
from lockstep.words import duration, listed, loss_text, plural, size, wilson_interval

_PAIRS = 5  # of classes that are confused most often, in words
_PAIRS_IN_TABLE = 100
_TABLE_ROWS = 30  # of a curve
_POINTS = 400  # of a curve
_BATCHES = 3  # runs up to which the accuracies of batches are drawn beside those of evaluations
_CURVES = {"loss": "loss", "accuracy": "accuracy", "learning_rate": "learning rate"}


def page(runs: Sequence[Run], record: Mapping[str, Any] | None = None, lacking: str | None = None) -> str:
    """Return the page of `runs`.

    `record` is that of the report job for the only run; None if there are several, or if it could not be computed, as
    `lacking` then says. Raises: LockstepError.
    """
    names = _names(runs)
    if len(runs) > 1:
        title = f"{len(runs)} runs: {listed(names)}"
        return render(title, [differences(runs, names), training(runs, names), speeds(runs, names)], spread(runs))
    (run,) = runs
    notes = [] if lacking is None else [lacking]
    if not _result(run):
        notes.insert(0, f"This run is not complete: its newest checkpoint is after {plural(max(run.steps), 'step')}.")
    judged = [] if record is None else [confusion(record), classes(record), calibration(record), *pictures(record)]
    sections = [training(runs, names), *judged, speed(run), provenance(run)]
    return render(f"Run {names[0]}", sections, headline(run, record), notes)


def _result(run: Run) -> dict[str, Any]:
    return run.result() or {}


def _session(run: Run) -> dict[str, Any]:
    """Return what is known of the last session."""
    return (run.sessions() or [{}])[-1]


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the names of the runs' folders, or their paths if two have one name."""
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def headline(run: Run, record: Mapping[str, Any] | None) -> Headline:
    """Return the accuracy with its interval, and the facts that identify a run."""
    recipe, result = run.recipe(), _result(run)
    facts = [("Recipe", recipe.name), ("Model", recipe.model)]
    if result:
        facts += [
            ("Training", f"{plural(result['steps'], 'step')} in {duration(result['train_s'])}"),
            ("Speed", f"{result['images_per_s']:,.0f} images/s on {plural(result['processes'], 'process')}"),
        ]
    facts += [("Device", _session(run)["device"])] if _session(run).get("device") else []
    times = [row["time"] for row in run.metrics() if row["kind"] == "step" and row.get("time")]
    facts += [("Date", time.strftime("%Y-%m-%d", time.gmtime(times[-1])))] if times else []
    if record is not None:
        low, high = record["accuracy_interval"]
        views = record.get("accuracy_one_view")
        return Headline(
            f"{record['accuracy']:.2%}",
            f"of {record['examples']:,} {record['split']} images are classified correctly "
            f"(95 % interval {low:.2%} to {high:.2%}, by Wilson's score"
            + ("" if views is None else f"; {views:.2%} by the image alone, without further views")
            + ")",
            [("Loss", loss_text(record["loss"])), *facts],
        )
    accuracy = run.accuracy if result else None
    if accuracy is None:
        return Headline("-", "No accuracy is recorded yet.", facts)
    low, high = result["accuracy_interval"]
    text = f"accuracy, as result.json states it (95 % interval {low:.2%} to {high:.2%})"
    return Headline(f"{accuracy:.2%}", text, facts)


def spread(runs: Sequence[Run]) -> Headline | None:
    """Return the mean accuracy of complete runs that differ only in their seed; None if there are no such."""
    recipes = {run.recipe().replace(seed=0).digest() for run in runs}
    found = [accuracy for run in runs if (accuracy := run.accuracy) is not None]
    if len(recipes) > 1 or len(found) < 2:
        return None
    deviation = statistics.stdev(found)
    text = (
        f"mean accuracy of {len(found)} runs of recipe {runs[0].recipe().name}; standard deviation "
        f"{100 * deviation:.2f} percentage points, range {min(found):.2%} to {max(found):.2%}"
    )
    return Headline(f"{statistics.mean(found):.2%}", text)


def differences(runs: Sequence[Run], names: Sequence[str]) -> Section:
    """Return what differs between runs, as a table, and in words what is the same."""
    columns: dict[str, list[str]] = {}
    settings = [dotted(run.recipe().model_dump(mode="json")) for run in runs]
    for name in dict.fromkeys(name for each in settings for name in each):
        columns[name] = [str(each.get(name, "")) for each in settings]
    columns = {name: values for name, values in columns.items() if len(set(values)) > 1}
    changed = list(columns)
    for name, values in {
        "accuracy": ["-" if (share := run.accuracy) is None else f"{share:.2%}" for run in runs],
        "steps": [f"{_result(run).get('steps', max(run.steps, default=0)):,}" for run in runs],
        "training": [duration(_result(run)["train_s"]) if _result(run) else "not complete" for run in runs],
        "processes": [str(_result(run).get("processes", "")) for run in runs],
        "device": [_session(run).get("device", "") for run in runs],
        "torch": [str(_session(run).get("versions", {}).get("torch", "")) for run in runs],
        "weights (sha256)": [_result(run).get("weights_sha256", "")[:16] for run in runs],
    }.items():
        columns[name] = values
    same = {name: values[0] for name, values in columns.items() if len(set(values)) == 1 and values[0]}
    shown = {name: values for name, values in columns.items() if name not in same or name == "accuracy"}
    texts = [f"Settings that differ: {listed(changed)}." if changed else "The recipes are the same."]
    if same:
        texts.append(f"Equal in all: {', '.join(f'{name} {value}' for name, value in same.items())}.")
    rows = [[name, *(values[i] for values in shown.values())] for i, name in enumerate(names)]
    return Section("What differs", texts, table=Table(["run", *shown], rows))


def training(runs: Sequence[Run], names: Sequence[str]) -> Section:
    """Return the curves of loss, accuracy and learning rate, over steps and over time."""
    metrics = [run.metrics() for run in runs]
    steps = [[row for row in rows if row["kind"] == "step"] for rows in metrics]
    tests = [[row for row in rows if row["kind"] == "evaluation"] for rows in metrics]
    times = [_times(rows) for rows in steps]
    drawn = []
    for axis, over in (("step", "steps"), ("time", "seconds of training")):
        for key, label in _CURVES.items():
            lines = []
            for number, name in enumerate(names):
                x = [float(row["step"]) for row in steps[number]] if axis == "step" else times[number]
                points = _thinned([(at, row.get(key)) for at, row in zip(x, steps[number], strict=True)])
                found = _tested(tests[number]) if key == "accuracy" else ()
                if not found or len(runs) <= _BATCHES:
                    lines.append(Line(f"{name}, batch" if key == "accuracy" else name, points, colour=number))
                if found:
                    tested = [(float(row["step"]), row["accuracy"]) for row in found]
                    if axis == "time":
                        tested = [(_time_at(step, steps[number], times[number]), share) for step, share in tested]
                    colour = number if len(runs) > 1 else 1
                    lines.append(Line(f"{name}, {found[0]['split']} images", tested, len(runs) > 1, colour))
            panel = Panel(label, over, lines, log=key == "loss", share=key == "accuracy")
            drawn.append(Figure(figures.lines(panel), f"{label.capitalize()} over {over}"))
    rows = [
        [name, f"{row['step']:,}", f"{at:.1f}", *(_number(row.get(key)) for key in _CURVES)]
        for name, each, seconds in zip(names, steps, times, strict=True)
        for row, at in _chosen(list(zip(each, seconds, strict=True)))
    ]
    texts = []
    for name, found in zip(names, map(_tested, tests), strict=True):
        if found:
            best = max(found, key=lambda row: row["accuracy"])
            prefix = f"{name}: highest" if len(runs) > 1 else "Highest"
            texts.append(
                f"{prefix} accuracy on {best['split']} images: {best['accuracy']:.2%} after {best['step']:,} steps, by "
                f"the {'averaged' if best['weights'] == 'ema' else 'raw'} weights."
            )
    return Section("Training", texts, drawn, Table(["run", "step", "seconds", *_CURVES.values()], rows), folded=NUMBERS)


def confusion(record: Mapping[str, Any]) -> Section:
    """Return the confusion matrix, and the pairs of classes that are confused most often."""
    names, counts = [one["name"] for one in record["classes"]], record["confusion"]
    pairs = sorted(
        ((count, y, x) for y, row in enumerate(counts) for x, count in enumerate(row) if x != y and count),
        key=lambda pair: (-pair[0], *pair[1:]),
    )
    texts = [
        f"{names[y]} is taken for {names[x]}: {plural(count, 'image')}, {count / sum(counts[y]):.1%} of its class."
        for count, y, x in pairs[:_PAIRS]
    ]
    if lost := record["examples"] - sum(map(sum, counts)):
        texts.append(f"The logits of {plural(lost, 'image')} are not finite, so they have no class and count as wrong.")
    if len(names) <= figures.MOST_NAMED:
        table = Table(["label", *names], [[name, *map(str, row)] for name, row in zip(names, counts, strict=True)])
    else:
        rows = [[names[y], names[x], f"{count:,}"] for count, y, x in pairs[:_PAIRS_IN_TABLE]]
        table = Table(["label", "classified as", "images"], rows)
    drawn = Figure(
        figures.heat_map(counts, names), "Confusion matrix: a row for each label, a column for each prediction"
    )
    return Section("Confusion", texts or ["No image is misclassified."], [drawn], table, folded=NUMBERS)


def classes(record: Mapping[str, Any]) -> Section:
    """Return precision and recall of each class."""
    counts, rows = record["confusion"], []
    for label, one in enumerate(record["classes"]):
        predicted = sum(row[label] for row in counts)
        low, high = wilson_interval(one["correct"], one["examples"]) if one["examples"] else (0.0, 1.0)
        interval = f"{low:.0%} to {high:.0%}" if one["examples"] else ""
        precision = one["correct"] / predicted if predicted else None
        rows.append([one["name"], f"{one['examples']:,}", _percent(precision), _percent(one["accuracy"]), interval])
    table = Table(["class", "images", "precision", "recall", "95 % interval of recall"], rows)
    texts = [
        "Precision is the share of images classified as a class that are of it; recall is the share of its images that "
        "are classified as it."
    ]
    return Section(
        "Classes",
        texts,
        table=table,
        folded="Precision and recall of each class" if len(rows) > figures.MOST_NAMED else "",
    )


def calibration(record: Mapping[str, Any]) -> Section:
    """Return the reliability diagram, and the expected calibration error."""
    found = record["calibration"]
    rows = [[f"{mean:.1%}", f"{share:.1%}", f"{count:,}"] for mean, share, count in found["bins"]]
    text = (
        f"Expected calibration error: {found['error']:.2%}, the mean distance between the probability of the predicted "
        "class and the share of correct images, over 15 bins (Guo et al. 2017)."
    )
    drawn = Figure(
        figures.reliability(found["bins"]), "Reliability diagram: accuracy over probability; images in each bin"
    )
    table = Table(["mean probability", "accuracy", "images"], rows)
    return Section("Calibration", [text], [drawn], table, folded=NUMBERS)


def pictures(record: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the worst mistakes and the least certain images, as pictures."""
    kinds = {
        "mistakes": ("Worst mistakes", "Misclassified images, the most certain first."),
        "doubts": ("Least certain", "Images whose two most probable classes are closest to each other."),
    }
    for key, (title, text) in kinds.items():
        shown = [
            Picture(
                one["picture"],
                f"{one['name']}, labelled {one['label']}, classified as "
                f"{one['top'][0][0] if one['top'] else 'no class'}",
                [f"labelled {one['label']}", *(f"{name} {share:.1%}" for name, share in one["top"]), one["name"]],
            )
            for one in record[key]
        ]  # fmt: skip
        if shown:
            yield Section(title, [text], pictures=shown)


def speed(run: Run) -> Section:
    """Return the throughput, what the time of a step is spent on, and the memory."""
    rows = [row for row in run.metrics() if row["kind"] == "step" and row.get("split")]
    result, texts = _result(run), []
    if result:
        texts = [
            f"{result['images_per_s']:,.0f} images/s; {result['train_s']:,.1f} s of training, "
            f"{result['total_s']:,.1f} s in all.",
            f"Peak memory of a process: {listed([size(used) for used in result['peak_memory_bytes']])}.",
        ]
    if not rows:
        return Section("Speed", texts or ["No step is recorded."])
    parts = _split(rows)
    drawn = Figure(figures.stacked([("a step", parts)], "milliseconds"), "What the time of a step is spent on")
    total = sum(value for _, value in parts)
    cells = [[name, f"{value:.2f} ms", f"{value / total:.1%}" if total else "-"] for name, value in parts]
    table = Table(["part of a step, in process 0", "mean", "share"], cells)
    return Section("Speed", texts, [drawn], table, folded=NUMBERS)


def speeds(runs: Sequence[Run], names: Sequence[str]) -> Section:
    """Return the throughput of runs, and what the time of a step is spent on in each."""
    bars, cells = [], []
    for run, name in zip(runs, names, strict=True):
        if rows := [row for row in run.metrics() if row["kind"] == "step" and row.get("split")]:
            parts = _split(rows)
            bars.append((name, parts))
            rate = f"{_result(run)['images_per_s']:,.0f}" if _result(run) else ""
            cells.append([name, rate, ", ".join(f"{part} {value:.2f}" for part, value in parts)])
    drawn = Figure(figures.stacked(bars, "milliseconds"), "What the time of a step is spent on") if bars else None
    table = Table(["run", "images/s", "milliseconds of a step"], cells)
    return Section("Speed", figures=[drawn] if drawn else (), table=table)


def provenance(run: Run) -> Section:
    """Return recipe, environment and digests, and the commands that reproduce and verify the run."""
    recipe, session = run.recipe(), _session(run)
    folder = run.path
    facts = {
        "recipe": f"{recipe.name}, digest {recipe.digest()}",
        "arithmetic": f"{recipe.arithmetic}, {recipe.precision}",
        "weights": f"sha256 {_result(run)['weights_sha256']}" if _result(run) else "",
        **{f"data, {name}": f"sha256 {sha}" for name, sha in (run.facts().get("data_sha256") or {}).items()},
        "device": session.get("device", ""),
        "versions": ", ".join(f"{name} {version}" for name, version in session.get("versions", {}).items()),
        **{name: str(value) for name, value in dotted(recipe.model_dump(mode="json", exclude_none=True)).items()},
    }
    rows = [[name, value] for name, value in facts.items() if value]
    same = "with the same weights, to the last bit" if recipe.exact else "with other low-order bits"
    texts = [f"The first command trains it again, {same}. The second computes its last steps again and compares them."]
    commands = [recipe.command("train", folder, "--name", f"{folder.name}-again"), recipe.command("verify", folder)]
    return Section(
        "How it was made",
        texts,
        table=Table(["what", "value"], rows),
        folded="Recipe, environment and digests",
        commands=commands,
    )


def _split(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return the mean milliseconds of each part of a step."""
    names = rows[-1]["split"]
    return [(name, statistics.fmean(row["split"].get(name, 0.0) for row in rows) * 1e3) for name in names]


def _tested(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the evaluations of the classifier's weights: the averaged ones, if there are any."""
    averaged = [row for row in rows if row["weights"] == "ema"]
    return averaged or rows


def _times(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the seconds of training at each row: without evaluations, and without the time between sessions."""
    total, times = 0.0, []
    for last, row in pairwise([{"step": -1}, *rows]):
        total += max(0, row["step"] - last["step"]) * (row.get("s_per_step") or 0.0)
        times.append(total)
    return times


def _time_at(step: float, rows: Sequence[Mapping[str, Any]], times: Sequence[float]) -> float:
    """Return the seconds of training when `step` updates were made."""
    return next(
        (at for row, at in zip(rows, times, strict=True) if row["step"] >= step - 1), times[-1] if times else 0.0
    )


def _thinned(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """Return at most _POINTS points, each the mean of equally many neighbours; [(0, None)] for none."""
    known = [(x, y) for x, y in points if y is not None]
    group = max(1, -(-len(known) // _POINTS))
    parts = [known[i : i + group] for i in range(0, len(known), group)]
    return [(statistics.fmean(x for x, _ in p), statistics.fmean(y for _, y in p)) for p in parts] or [(0.0, None)]


def _chosen(rows: Sequence[Any]) -> Sequence[Any]:
    """Return at most _TABLE_ROWS of `rows`, at even distances, with the first and the last one."""
    if len(rows) <= _TABLE_ROWS:
        return rows
    return [rows[round(i * (len(rows) - 1) / (_TABLE_ROWS - 1))] for i in range(_TABLE_ROWS)]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
