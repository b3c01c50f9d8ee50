"""The page of a run. It is made of what its folder states, and of an evaluation."""

from lockstep.files import Record
from lockstep.pages import figures
from lockstep.pages.figures import Line
from lockstep.pages.page import Figure, Headline, Picture, Section, Table, render
from lockstep.pictures.manifest import ALL
from lockstep.recipes.built_in import PACKAGED_NETWORKS
from lockstep.runs.run import Run, judged_rows
from lockstep.schema import dotted
from lockstep.text import (
    cell_text,
    duration,
    folds_text,
    gpu_text,
    label_rows,
    loss_text,
    plural,
    scores_text,
    words_of,
)

_PAIRS = 5  # of classes that are confused most often, in words
_POINTS = 400  # of a curve
_CONFIDENT = (
    "An answer is confident if its probability reaches a threshold. The threshold is chosen on "
    "training images that were held out, so that the target share of such answers is right. It "
    "holds for pictures like the training ones."
)
_FOLDS = (
    "Each picture was classified by a head that was trained without it, its group and pictures "
    "that look like it. These heads judge the recipe. The head of this run is another one, and all "
    "other sections are about it."
)
_EVIDENCE = (
    "The copy beside each image is bright where the image speaks for the class named below it, and "
    "dark elsewhere (a class activation map)."
)


def page(run: Run, record: Record | None = None, lacking: str | None = None) -> str:
    """Return the page of the `run`.

    `record` is that of the report job; None if it could not be computed, as `lacking` then says.
    Raises: LockstepError.
    """
    result = run.result()
    notes = [] if lacking is None else [lacking]
    if result is None:
        notes.insert(
            0,
            f"This run is not complete. The page shows its newest checkpoint, after "
            f"{plural(record['step'] if record else max(run.steps), 'step')}.",
        )
    else:
        notes += result.get("warnings", [])
    judged = []
    if record is not None:
        notes += record["notes"]
        found = labels(record) if "f1" in record else confusion(record)
        judged = [found, calibration(record), *pictures(record)]
    if result and "folds" in result:
        judged.append(folds(result["folds"]))
    sections = [training(run), *judged, provenance(run)]
    return render(f"Run {run.path.resolve().name}", sections, headline(run, record), notes)


def headline(run: Run, record: Record | None) -> Headline:
    """Return the accuracy with its interval, and the details that identify a run."""
    recipe, result = run.recipe(), run.result()
    details = [("Recipe", recipe.name), ("Model", recipe.model)]
    if result:
        time = f" in {duration(result['train_s'])}" if len(run.sessions()) == 1 else ""
        details.append(("Training", f"{plural(result['steps'], 'step')}{time}"))
    if recipe.left_out:
        details.append(("Left out", plural(len(recipe.left_out), "image")))
    if record is not None:
        details.insert(0, ("Loss", loss_text(record["loss"])))
        accuracy, (low, high) = record["accuracy"], record["accuracy_interval"]
        which = "other" if record["split"] == ALL else record["split"]
        images = f"of {record['examples']:,} {which} images"
    elif result is not None and run.accuracy is not None:
        accuracy, (low, high) = run.accuracy, result["accuracy_interval"]
        images = f"of the {recipe.evaluated_split} images, according to result.json,"
    elif tested := [*judged_rows(run).values()]:
        last = tested[-1]
        text = f"of the {last['split']} images after {plural(last['step'], 'step')}"
        return Headline(f"{last['accuracy']:.2%}", text, details)
    else:
        return Headline("-", "No accuracy is recorded yet.", details)
    interval = f"95% Wilson score interval {low:.2%} to {high:.2%}"
    share = (record or result or {}).get("f1", {"macro": accuracy})["macro"]
    text = words_of(recipe.multi_label).headline.format(f"{accuracy:.2%}", images)
    return Headline("-" if share is None else f"{share:.2%}", f"{text} ({interval})", details)


def training(run: Run) -> Section:
    """Return the section with the curves of loss and accuracy over the steps."""
    rows = [row for row in run.metrics() if row["kind"] == "step"]
    tested = [*judged_rows(run).values()]
    drawn, seen = [], rows[:: len(rows) // _POINTS + 1]
    seen += rows[-1:] if seen[-1:] != rows[-1:] else []
    for key in ("loss", "accuracy"):
        lines = [Line("batches", [(row["step"], row.get(key)) for row in seen])]
        if key == "accuracy" and tested:
            lines.append(
                Line(
                    f"{tested[0]['split']} images",
                    [(row["step"], row["accuracy"]) for row in tested],
                )
            )
        by = words_of(run.recipe().multi_label).curve * (key == "accuracy")
        form = ".1%" if key == "accuracy" else ".4g"
        ends = [f"{line.name} {' to '.join(_ends(line, form))}" for line in lines if line.points]
        drawn.append(
            Figure(
                figures.curves(lines, key),
                f"{key.capitalize()} over steps{by}: {'; '.join(ends)}",
            )
        )
    return Section("Training curves", figures=drawn)


def labels(record: Record) -> Section:
    """Return the section of multi-label data: how well each label is found."""
    head, *rows = label_rows(record["classes"])
    texts = [
        f"Over all labels: {scores_text(record)}.",
        "A label is found if its probability reaches the threshold of its class.",
    ]
    return Section("Precision and recall of each label", texts, table=Table(head, rows))


def confusion(record: Record) -> Section:
    """Return the section with the confusion matrix and the classes that are confused most."""
    names = [each["name"] for each in record["classes"]]
    counts = record["confusion"]
    pairs = sorted(
        (
            (count, y, x)
            for y, row in enumerate(counts)
            for x, count in enumerate(row)
            if x != y and count
        ),
        key=lambda pair: (-pair[0], *pair[1:]),
    )
    texts = [
        f"{names[y]} is mistaken for {names[x]}: {plural(count, 'image')}, "
        f"{count / record['classes'][y]['examples']:.1%} of its class."
        for count, y, x in pairs[:_PAIRS]
    ]
    if lost := record["examples"] - sum(map(sum, counts)):
        texts.append(
            f"The logits of {plural(lost, 'image')} are not finite, so they get no class and "
            f"count as wrong."
        )
    text = (
        f"Confusion matrix of {plural(len(names), 'class')}: a row for each true class, a column "
        f"for each predicted class"
    )
    head, rows = ["number", "class", "images", "accuracy"], []
    for number, each in enumerate(record["classes"]):
        right = "-" if each["accuracy"] is None else f"{each['accuracy']:.1%}"
        rows.append([str(number), each["name"], f"{each['examples']:,}", right])
    return Section(
        "Confusion matrix",
        texts or ["No image is misclassified."],
        [Figure(figures.heat_map(counts, names), text)],
        Table(head, rows),
        "Accuracy of each class",
    )


def calibration(record: Record) -> Section:
    """Return the section with the expected calibration error, and for each target the coverage and
    accuracy of confident answers, where these are known.
    """
    words = words_of("f1" in record)
    text = (
        f"Expected calibration error: {record['expected_calibration_error']:.2%}, the mean "
        f"distance between {words.compared}, over 15 bins (Guo et al. 2017)."
    )
    if None in record["confident"]:
        return Section("Calibration", [text])
    rows = []
    for share, count, _, coverage, accuracy, bounds, never in map(dict.values, record["confident"]):
        least = " to ".join(f"{bound:.1%}" for bound in bounds[:1] + bounds[1:][-1:]) or "-"
        if bounds and never:
            least += f"; {plural(never, 'class')} never"
        rows.append(
            [f"{share:.0%}", least, f"{cell_text(coverage)} ({count:,})", cell_text(accuracy)]
        )
    answers = words.answers.format(record["split"])
    head = ["target", "threshold", f"coverage of {answers}", "accuracy of confident answers"]
    return Section("Calibration and confident answers", [text, _CONFIDENT], table=Table(head, rows))


def folds(record: Record) -> Section:
    """Return the section of the cross-validation, by its record in result.json."""
    names = "examples", "correct", "accuracy"
    rows = [
        [str(number), *(cell_text(one[name]) for name in names)]
        for number, one in enumerate(record["each"], 1)
    ]
    head = ["fold", "images", "correct", "accuracy"]
    texts = [f"Accuracy {folds_text(record)}.", _FOLDS]
    return Section("Cross-validation", texts, table=Table(head, rows))


def pictures(record: Record) -> list[Section]:
    """Return the worst mistakes as pictures, if there are any."""
    if not record["mistakes"]:
        return []
    explained = any(mistake["evidence"] for mistake in record["mistakes"])
    mistaken = words_of("f1" in record).mistaken
    return [
        Section(
            "Worst mistakes",
            [f"{mistaken}, the most certain first.", *[_EVIDENCE] * explained],
            pictures=[_picture(mistake) for mistake in record["mistakes"]],
        )
    ]


def _picture(mistake: Record) -> Picture:
    name, label = mistake["name"], mistake["labelled"]
    return Picture(
        mistake["picture"],
        f"{name}, labelled {label}, classified as {mistake['classified']}",
        [f"labelled {label}", *mistake["ranked"], name],
        [*mistake["evidence"].items()],
    )


def provenance(run: Run) -> Section:
    """Return recipe, environment and digests, and the commands that reproduce and verify the
    run.
    """
    recipe, session, result, folder = (
        run.recipe(),
        (run.sessions() or [{}])[-1],
        run.result(),
        run.path,
    )
    details = {
        "recipe": f"{recipe.name}, digest {recipe.digest()}",
        "weights": f"sha256 {result['weights_sha256']}" if result else "",
        **{
            f"data, {name}": f"sha256 {sha}"
            for name, sha in (run.metadata().get("data_sha256") or {}).items()
        },
        "device": session.get("device", ""),
        "GPUs": gpu_text(result or {}),
        "versions": ", ".join(
            f"{name} {version}" for name, version in session.get("versions", {}).items()
        ),
        **{
            name: str(value)
            for name, value in dotted(recipe.model_dump(mode="json", exclude_none=True)).items()
        },
    }
    rows = [[name, value] for name, value in details.items() if value]
    texts = ["This command continues the run."]
    commands = [recipe.command("train", folder, "--resume")]
    if result:
        same = "with other low-order bits"
        if recipe.exact and not result["mixed_arithmetic"]:
            kind = f" on the same kind of {'GPU' if result['device'] == 'cuda' else 'CPU'}"
            where = kind * (recipe.arithmetic == "native")
            same = f"with the same weights{where}, to the last bit"
        texts = [
            f"The first command trains the run again, {same}. The second recomputes its last steps "
            f"and compares every bit."
        ]
        packaged = {settings["init_sha256"] for settings in PACKAGED_NETWORKS.values()}
        given = recipe.init_sha256 and recipe.init_sha256 not in packaged
        init = ("--init", session.get("init") or "FILE") if given else ()
        commands = [
            recipe.command("train", folder, *init, "--name", f"{folder.name}-again"),
            recipe.command("verify", folder),
        ]
    return Section(
        "Reproduce this run",
        texts,
        table=Table(["what", "value"], rows),
        folded="Recipe, environment and hashes",
        commands=commands,
    )


def _ends(line: Line, form: str) -> list[str]:
    """Return the first and the last value of a line; of a point, the only one."""
    return [
        "" if y is None else format(y, form)
        for _, y in dict.fromkeys([line.points[0], line.points[-1]])
    ]
