"""Every published number comes from its record: docs/results.md, tables of three pages, docstrings of recipes."""

import inspect
import json
import re
import shutil
import statistics

import pytest
from benchmarks import common, figures, originals, portable_page, tables
from benchmarks.peers import compare

from lockstep.config.schedule import Staircase
from lockstep.recipes import RECIPES

RUN_RECORDS = [
    tables.LONG, tables.FOUR_TOWERS, tables.MNIST, "digits-float16",
    *(record for records in tables.BY_PRECISION.values() for record in records),
]  # fmt: skip
FOLDER_RECORDS = [f"folder-{name}" for name in tables.CASES]
PHOTOS = {*tables.PHOTO_SETS, *tables.LABEL_SETS, "unlike"}
WITH_DIGEST = sorted({*RUN_RECORDS, *FOLDER_RECORDS, *PHOTOS, "seeds-cifar10", "seeds-digits", "loss-mnist"})

# The pattern of a measurement. README may state defaults ("every 100 steps", "60 s"), but no measurement by hand.
MEASUREMENT = re.compile(
    r"""\d\s?(?:images|examples)/s | \d\s?% | \d\.\d+\s?(?:s|ms|min|minutes|seconds|hours|h)\b | \d\s?MiB\b
    | \bin\s\d[\d,.]*\s?(?:s|ms|min|minutes|seconds|hours)\b | \d\s?(?:times|x)\s(?:as|the|its|that|faster|over)\b
    | \(median\b | \bmedians?\s(?:of|over)\s\d | \bn\s?=?\s?\d | \b\d+\sseeds\b""",
    re.VERBOSE,
)


@pytest.fixture
def records(monkeypatch, tmp_path):
    """A copy of the records, which a test may change and from which everything is rendered."""
    folder = tmp_path / "results"
    shutil.copytree(common.RESULTS, folder)
    for module in (figures, tables):
        monkeypatch.setattr(module, "RESULTS", folder)
    return folder


def change(folder, record, keys, value):
    file = folder / f"{record}.json"
    content = inner = json.loads(file.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    file.write_text(json.dumps(content))


def by_hand(readme):
    """Return the measurements in `readme` outside the generated headlines."""
    before, rest = readme.split(tables.BEGIN)
    return [text for part in (before, rest.split(tables.END)[1]) for text in MEASUREMENT.findall(part)]


PAGES = [tables.DOCUMENT, tables.README, tables.RELIABILITY, originals.PAGE, portable_page.PAGE]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_page_is_rendered_from_the_records(page):
    assert page.read_text() == tables.pages()[page], "run: python -m benchmarks.tables"


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_docstring_of_a_recipe_states_its_records(recipe):
    stated = " ".join(inspect.getdoc(RECIPES[recipe]).split())
    assert tables.measured(recipe) in stated, f"its docstring should say: {tables.measured(recipe)}"
    before, after = stated.split(tables.measured(recipe))
    assert not MEASUREMENT.search(before + after)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_measured_if_and_only_if_there_is_a_record(recipe):
    commands = [figures.load(name)["command"] for name in (*WITH_DIGEST, *tables.TUNED_SETS)]
    recorded = {figures.recipe_of(command).name for command in commands}
    assert (tables.measured(recipe) == "Measured: not yet") == (recipe not in recorded)


def test_a_changed_record_changes_every_page_and_docstring(records):
    pages, digits = tables.pages(), tables.measured("digits")
    for record, keys, value in (
        ("seeds-cifar10", ("figures", "total_s", "median"), 518.0),
        ("seeds-digits", ("figures", "accuracy", "min"), 0.5),
        ("survival", ("survived",), 4321),
        ("overhead", ("images_per_s", "one process", "median"), 1234.0),
        ("stated", ("notebook", "images_per_s", "most"), 7890),
        ("mnist-200-bfloat16", ("result", "accuracy", "raw"), 0.5678),
    ):
        change(records, record, keys, value)
    changed = tables.pages()
    for page, numbers in (
        (tables.DOCUMENT, ("518.0 s", "56.78 %")), (tables.README, ("518.0 s",)), (tables.RELIABILITY, ("4321",)),
        (originals.PAGE, ("1,234", "7,890", "56.78 %")),
    ):  # fmt: skip
        assert all(number in changed[page] and number not in pages[page] for number in numbers), page
    assert tables.measured("digits") != digits


def test_readme_states_no_measurement_by_hand():
    assert by_hand(tables.README.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "2,852 images/s", "94.01 %", "86% of the test images", "11.05 s in all", "trains in 520 s", "7.8 minutes",
        "773 MiB a process", "1.47 times as fast", "2x the rate", "the median of 5", "n 5", "over 10 seeds",
    ],
)  # fmt: skip
def test_a_measurement_by_hand_is_found(text):
    readme = tables.README.read_text()
    assert by_hand(f"{readme}\n{text}\n")
    assert by_hand(f"{text}\n{readme}")


@pytest.mark.parametrize("text", ["every 100 steps", "--timeout 60", "cifar10 on 1 to 4 processes", "saves every 30 s"])
def test_a_default_is_no_measurement(text):
    assert not MEASUREMENT.search(text)


def test_every_figure_has_command_machine_n_and_record(monkeypatch):
    """A table's caption has the command, which is a program that exists; each row of it has n, range and precision."""
    shown = []
    monkeypatch.setattr(tables, "tables", lambda *rows: shown.extend(rows) or "")
    tables.document()
    assert len(shown) > 50
    assert all(each.n >= 1 and all((each.what, each.value, each.span, each.precision)) for each in shown)
    for record in {each.record for each in shown}:
        command, machine = figures.command(record), figures.machine(record)
        assert figures.caption(record).startswith(f"{command} on {machine} ({figures.link(record)}; ")
        assert re.fullmatch(r".+, \d+ cores", machine)
        if record != "peers-cifar10":  # the port is not part of this repository
            program = re.fullmatch(r"`(?:lockstep train|python -m ([\w.]+)) ?[^`]*`", command)
            assert program[1] is None or (tables.ROOT / f"{program[1].replace('.', '/')}.py").is_file(), command


def test_the_page_states_whether_the_recipe_of_a_record_is_todays():
    page = tables.document()
    for record in WITH_DIGEST:
        recipe = figures.recipe_of(figures.load(record)["command"])
        content = figures.load(record)
        then = content.get("result", content)["digest"]
        captions = [line for line in page.splitlines() if f"([{record}](" in line]
        assert captions
        for caption in captions:
            assert f"{record}.json); {figures.recipe_state(record)}" in caption
            assert (then == recipe.digest()) == ("same recipe as today)" in caption)


@pytest.mark.parametrize(
    ("name", "record", "changes"),
    [
        ("digits", "seeds-digits", {"lr": 0.3}),
        ("cifar10-tutorial", tables.LONG, {"lr": 0.3}),  # the oldest digest covers lr, and not label_smoothing
        ("cifar10-tutorial", tables.LONG, {"label_smoothing": 0.1}),
        ("cifar10-tutorial", tables.LONG, {"schedule": Staircase(decay=0.1, every_epochs=350.0, per_tower=True)}),
    ],
)
def test_a_changed_recipe_is_told_apart_from_its_record(monkeypatch, name, record, changes):
    assert figures.recipe_state(record).startswith("same ")
    changed = RECIPES[name]().model_copy(update=changes)
    monkeypatch.setitem(RECIPES, name, lambda: changed)
    assert figures.recipe_state(record).startswith("another recipe: digest `")


def test_the_recipe_of_a_command_is_what_the_program_would_train():
    recipe = figures.recipe_of("lockstep train cifar10-tutorial --precision bfloat16 --towers 4 --steps 30000 --seed 3")
    assert (recipe.precision, recipe.towers, recipe.batch, recipe.steps, recipe.seed) == ("bfloat16", 4, 512, 30_000, 3)


@pytest.mark.parametrize("model", ["cifar10-tutorial", "mnist"])
def test_the_ratios_of_a_comparison_follow_from_its_rounds(model):
    comparison = figures.load(f"peers-{model}")
    assert compare.summary(comparison["rounds"]) == {key: comparison[key] for key in ("images_per_s", "lockstep_over")}
    others = {name for name in comparison["images_per_s"] if not name.startswith("lockstep")}
    assert set(comparison["lockstep_over"]) == others


def test_only_equal_precisions_are_divided():
    rounds = [{"lockstep float32": 4.0, "peer float32": 2.0, "peer bfloat16": 1.0}]
    ratio = {"of_medians": 2.0, "n": 1, "min": 2.0, "max": 2.0}
    assert compare.summary(rounds)["lockstep_over"] == {"peer float32": ratio}


@pytest.mark.parametrize("recipe", ["cifar10", "digits"])
def test_figures_over_seeds_follow_from_the_runs(recipe):
    content = figures.load(f"seeds-{recipe}")
    for name, figure in content["figures"].items():
        values = [run[name] for run in content["runs"]]
        expected = {**common.spread(values), "mean": statistics.mean(values), "deviation": statistics.stdev(values)}
        assert figure == pytest.approx(expected)


@pytest.mark.parametrize("record", RUN_RECORDS)
def test_a_run_counted_every_example(record):
    content = figures.load(record)
    result, recipe = content["result"], figures.recipe_of(content["command"])
    assert (result["steps"], result["examples"]) == (recipe.steps or result["steps"], result["steps"] * recipe.batch)
    for row in content.get("evaluations", []):
        assert (row["examples"], row["accuracy"]) == (10_000, row["correct"] / 10_000)


def test_the_losses_of_both_programs_fall_faster_than_the_log_of_the_notebook():
    """The log states losses after the update, so one step ahead."""
    runs, log = figures.load("loss-mnist")["runs"], figures.load("stated")["notebook"]["loss"]
    lockstep, tensorflow = (runs[f"{name} float32"] for name in ("lockstep", "tensorflow"))
    for program in (lockstep, tensorflow):
        assert sorted(run["seed"] for run in program) == list(range(8))
        assert len({tuple(run["losses"]) for run in program}) == 8
    for step in (10, 30):
        ours, theirs = ([run["losses"][step - 1] for run in program] for program in (lockstep, tensorflow))
        assert max(ours + theirs) < log[str(step)]
