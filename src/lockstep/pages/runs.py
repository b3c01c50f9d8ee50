"""The page of one run, and the page that compares several. It is made of what their folders state."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.pages import figures
from lockstep.pages.figures import Line
from lockstep.pages.page import Figure, Headline, Picture, Section, Table, render
from lockstep.runs.folder import Run
from lockstep.settings import dotted
from lockstep.words import duration, listed, loss_text, plural, rate_text, size

_PAIRS = 5  # of classes that are confused most often, in words
_POINTS = 400  # of a curve
_SURE = "Answers are sure from the probability at which enough answers on held-out training images are right."
_NOT_SURE = "Which answers are sure is known only of a complete run of a linear head with 50 training images or more."
_EVIDENCE = "Beside each image, light shows where it speaks for the class that was found (the parts of its logit)."
_NO_EVIDENCE = "Which pixels decided is known only of a linear head on averages over places, as in recipe photos."


def page(runs: Sequence[Run], record: Mapping[str, Any] | None = None, lacking: str | None = None) -> str:
    """Return the page of `runs`.

    `record` is that of the report job for the only run; None if there are several, or if it could not be computed, as
    `lacking` then says. Raises: LockstepError.
    """
    names = _names(runs)
    if len(runs) > 1:
        title = f"{len(runs)} runs: {listed(names)}"
        return render(title, [differences(runs, names), training(runs, names), speed(runs, names)], spread(runs))
    (run,) = runs
    notes = [*([] if lacking is None else [lacking]), *_result(run).get("warnings", [])]
    if not _result(run):
        notes.insert(0, f"This run is not complete: its newest checkpoint is after {plural(max(run.steps), 'step')}.")
    judged = [] if record is None else [confusion(record), calibration(record), *pictures(record)]
    sections = [training(runs, names), *judged, speed(runs, names), provenance(run)]
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
            ("Speed", f"{rate_text(result)} on {plural(result['processes'], 'process')}"),
        ]
    facts += [("Left out", plural(len(recipe.left_out), "image"))] if recipe.left_out else []
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
    columns |= {
        "accuracy": ["-" if (share := run.accuracy) is None else f"{share:.2%}" for run in runs],
        "steps": [f"{_result(run).get('steps', max(run.steps, default=0)):,}" for run in runs],
        "training": [duration(_result(run)["train_s"]) if _result(run) else "not complete" for run in runs],
        "processes": [str(_result(run).get("processes", "")) for run in runs],
        "device": [_session(run).get("device", "") for run in runs],
        "torch": [str(_session(run).get("versions", {}).get("torch", "")) for run in runs],
        "weights (sha256)": [_result(run).get("weights_sha256", "")[:16] for run in runs],
    }
    same = {name: values[0] for name, values in columns.items() if len(set(values)) == 1 and values[0]}
    shown = {name: values for name, values in columns.items() if name not in same or name == "accuracy"}
    texts = [f"Settings that differ: {listed(changed)}." if changed else "The recipes are the same."]
    if same:
        texts.append(f"Equal in all: {', '.join(f'{name} {value}' for name, value in same.items())}.")
    rows = [[name, *(values[i] for values in shown.values())] for i, name in enumerate(names)]
    return Section("What differs", texts, table=Table(["run", *shown], rows))


def training(runs: Sequence[Run], names: Sequence[str]) -> Section:
    """Return the curves of loss and accuracy: of runs that are compared only evaluations, if there are some."""
    metrics = [run.metrics() for run in runs]
    steps = [[row for row in rows if row["kind"] == "step"] for rows in metrics]
    tests = [[*run.judged().values()] for run in runs]
    drawn = []
    for key in ("loss", "accuracy"):
        lines = []
        for name, rows, found in zip(names, steps, tests, strict=True):
            of = f"{name}, " if len(runs) > 1 else ""
            tested = [(float(row["step"]), row["accuracy"]) for row in found] if key == "accuracy" else []
            if not of or len(tested) < 2:
                points = [(float(row["step"]), row.get(key)) for row in rows[:: len(rows) // _POINTS + 1]]
                lines.append(Line(f"{of}batches", points))
            if tested:
                lines.append(Line(f"{of}{found[0]['split']} images", tested))
        ends = [f"{line.name} {' to '.join(_ends(line))}" for line in lines if line.points]
        svg = figures.curves(lines, key, log=key == "loss", share=key == "accuracy")
        drawn.append(Figure(svg, f"{key.capitalize()} over steps: {'; '.join(ends)}"))
    texts = []
    for name, found in zip(names, tests, strict=True):
        if found:
            best = max(found, key=lambda row: row["accuracy"])
            prefix = f"{name}: highest" if len(runs) > 1 else "Highest"
            texts.append(
                f"{prefix} accuracy on {best['split']} images: {best['accuracy']:.2%} after {best['step']:,} steps, by "
                f"the {'averaged' if best['weights'] == 'ema' else 'raw'} weights."
            )
    return Section("Training", texts, drawn)


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
    text = f"Confusion matrix: a row for each label, a column for each prediction, {plural(len(names), 'class')}"
    drawn = Figure(figures.heat_map(counts, names), text)
    return Section("Confusion", texts or ["No image is misclassified."], [drawn])


def calibration(record: Mapping[str, Any]) -> Section:
    """Return the reliability diagram, and the expected calibration error."""
    found = record["calibration"]
    text = (
        f"Expected calibration error: {found['error']:.2%}, the mean distance between the probability of the predicted "
        "class and the share of correct images, over 15 bins (Guo et al. 2017)."
    )
    bins = ", ".join(f"{share:.0%} of {count:,} at {mean:.0%}" for mean, share, count in found["bins"])
    drawn = Figure(figures.reliability(found["bins"]), f"Accuracy over the probability of the predicted class: {bins}")
    if None in record["sure"]:
        return Section("Calibration", [text, _NOT_SURE], [drawn])
    rows = []
    for share, count, right, every in (one.values() for one in record["sure"]):
        least = " to ".join(f"{one:.1%}" for one in every[:1] + every[1:][-1:]) or "-"
        correct = f"{right / count:.1%}" if count else "-"
        images = f"{count / record['examples']:.1%} ({count:,})"
        rows.append([f"{share:.0%}", least, images, correct])
    table = Table(["right, asked for", "from a probability of", f"sure {record['split']} images", "right"], rows)
    return Section("Calibration", [text, _SURE], [drawn], table)


def pictures(record: Mapping[str, Any]) -> list[Section]:
    """Return the worst mistakes as pictures, if there are any, and a few right answers if there is evidence."""
    explained = any(one["evidence"] for one in record["right"])
    sections = []
    if record["mistakes"]:
        texts = ["Misclassified images, the most certain first.", _EVIDENCE if explained else _NO_EVIDENCE]
        sections = [Section("Worst mistakes", texts, pictures=[_picture(one) for one in record["mistakes"]])]
    if explained:
        sections += [Section("Right answers", [_EVIDENCE], pictures=[_picture(one) for one in record["right"]])]
    return sections


def _picture(one: Mapping[str, Any]) -> Picture:
    found = one["top"][0][0] if one["top"] else "no class"
    ranked = [f"{name} {share:.1%}" for name, share in one["top"]]
    text = f"{one['name']}, labelled {one['label']}, classified as {found}"
    return Picture(one["picture"], text, [f"labelled {one['label']}", *ranked, one["name"]], one["evidence"] or "")


def speed(runs: Sequence[Run], names: Sequence[str]) -> Section:
    """Return throughput and memory, and what the time of a step is spent on."""
    texts = [
        f"{name}: {rate_text(result)}; {result['train_s']:,.1f} s of training, "
        f"{result['total_s']:,.1f} s in all; peak memory of a process "
        f"{listed([size(used) for used in result['peak_memory_bytes']])}."
        for run, name in zip(runs, names, strict=True)
        if (result := _result(run))
    ]
    for run, name in zip(runs, names, strict=True):
        if parts := [row["split"] for row in run.metrics() if row["kind"] == "step" and row.get("split")]:
            spent = [f"{part} {1e3 * statistics.fmean(row.get(part, 0.0) for row in parts):.2f}" for part in parts[-1]]
            texts.append(f"{name}: milliseconds of a step, in process 0: {', '.join(spent)}.")
    return Section("Speed", texts or ["No step is recorded."])


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
    table = Table(["what", "value"], rows)
    return Section("How it was made", texts, table=table, folded="Recipe, environment and digests", commands=commands)


def _ends(line: Line) -> list[str]:
    """Return the first and the last value of a line; of a point, the only one."""
    return ["" if y is None else f"{y:.4g}" for _, y in dict.fromkeys([line.points[0], line.points[-1]])]
