"""Every published number comes from its record: docs/results.md, tables of three pages, docstrings of recipes."""

import inspect
import json
import re
import shutil
import statistics

import pytest
from benchmarks import common, figures, kinds, originals, portable_page, tables
from benchmarks.peers import by_kind, compare

from lockstep.config.schedule import Staircase
from lockstep.recipes import RECIPES

RUN_RECORDS = [
    tables.LONG, tables.FOUR_TOWERS, tables.MNIST,
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
    for module in (common, compare, figures):
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


PEER_RECORDS = [name for model in by_kind.COMPARED for name in figures.names(f"peers-{model}-*")]


@pytest.mark.parametrize("name", PEER_RECORDS)
def test_a_record_of_peers_is_of_the_kind_that_it_names_and_its_rows_follow_from_its_rounds(name):
    record = figures.load(name)
    assert name.endswith(f"-{kinds.slug(record['kind'])}")
    measured = [row for row in record["rows"] if "source" not in row]
    assert measured == (compare.rows(record["rounds"], record["programs"]) if "rounds" in record else [])
    assert record["rows"]


def test_only_equal_precisions_are_divided():
    rounds = [{"lockstep float32": 4.0, "lockstep bfloat16": 9.0, "tensorflow float32": 2.0}]
    (row,) = compare.rows(rounds, {"tensorflow float32": {"program": "p.py", "versions": {"tensorflow": "2"}}})
    assert (row["precision"], row["ratio"], row["n"], row["min"], row["max"]) == ("float32", 2.0, 1, 2.0, 2.0)


@pytest.fixture
def peers(monkeypatch, records):
    """Runs `compare` on a CPU of a given kind. The stand-ins for the programs return a given throughput of Lockstep."""

    def run(kind, rate, *options):
        rates = {"lockstep float32": rate, "tensorflow float32": 100.0}
        facts = {"program": "p.py", "versions": {"tensorflow": "2"}}
        runs = {name: lambda rate=rate: {"rate": rate, **facts} for name, rate in rates.items()}
        monkeypatch.setattr(compare, "programs", lambda args: runs)
        monkeypatch.setattr(compare, "kind", lambda: kind)
        monkeypatch.setattr(compare, "refuse_without", lambda python: None)
        monkeypatch.setattr("sys.argv", [compare.__file__, "mnist", "--data", "x", "--rounds", "1", *options])
        compare.main()
        return {file.name: file.read_text() for file in records.glob("peers-*")}

    return run


def test_a_new_kind_of_cpu_is_added_and_the_same_kind_replaced(peers, records):
    before = {file.name: file.read_text() for file in records.glob("peers-*")}
    new, page = "peers-mnist-toy-avx2.json", tables.document()
    once = peers("Toy (AVX2)", 50.0)
    assert {name: text for name, text in once.items() if name != new} == before
    again = peers("Toy (AVX2)", 150.0)
    assert {name: text for name, text in again.items() if name != new} == before
    assert json.loads(again[new])["rows"][0]["ratio"] == 1.5
    assert "| Toy (AVX2) |  |  | 1.50 (1.50 to 1.50, n 1) |  |" in set(tables.document().split("\n")) - set(
        page.split("\n")
    )
    more = json.loads(peers("Toy (AVX2)", 50.0, "--more")[new])
    assert (more["rows"][0]["n"], more["rows"][0]["min"], more["rows"][0]["max"]) == (2, 0.5, 1.5)
    assert more["command"] == "python -m benchmarks.peers.compare mnist --tensorflow PYTHON --rounds 2"


def test_a_run_keeps_the_rows_of_programs_that_it_cannot_run(peers, records):
    before = figures.load("peers-cifar10-tutorial-amd-zen-5-avx-512-with-bfloat16")
    change(records, "peers-mnist-amd-zen-5-avx-512-with-bfloat16", ["rows"], before["rows"])
    peers(before["kind"], 500.0)
    rows = figures.load("peers-mnist-amd-zen-5-avx-512-with-bfloat16")["rows"]
    assert [row for row in rows if "source" in row] == [row for row in before["rows"] if row["program"] != "p.py"]
    assert by_kind.fastest_tensorflow("mnist")[before["kind"], "float32"]["ratio"] == 0.93


def test_the_headline_has_the_range_over_kinds_and_says_where_lockstep_is_slower(peers, records):
    assert "Toy" not in tables.headlines()
    peers("Toy (AVX2)", 9.0)
    mnist = next(line for line in tables.headlines().split("\n") if "`mnist`" in line)
    assert "| 0.09 to 1.47 times in float32, 0.78 to 1.53 times in bfloat16. **Slower on " in mnist
    assert "and on Toy (AVX2) in float32 (0.09)" in mnist
    assert "5 kinds of CPU" in mnist
    for file in records.glob("peers-mnist-*"):
        if not file.stem.endswith("amd-zen-4-avx-512-with-bfloat16"):
            file.unlink()
    mnist = next(line for line in tables.headlines().split("\n") if "`mnist`" in line)
    assert "| 1.23 times in float32, 1.53 times in bfloat16 | 3 | AMD Zen 4 (AVX-512 with bfloat16), 2 cores |" in mnist


def test_the_fastest_program_of_a_peer_counts():
    rows = [row for row in by_kind.compared("cifar10-tutorial") if "Zen 5" in row["kind"]]
    of_float32 = [row for row in rows if row["precision"] == "float32"]
    fastest = by_kind.fastest_tensorflow("cifar10-tutorial")[of_float32[0]["kind"], "float32"]
    assert len(of_float32) == 2
    assert fastest["images_per_s"]["median"] == max(row["images_per_s"]["median"] for row in of_float32)


AMD, INTEL = "AuthenticAMD", "GenuineIntel"


@pytest.mark.parametrize(
    ("vendor", "family", "model", "flags", "kind"),
    [
        (AMD, 23, 49, "sse4_1 avx2", "AMD Zen 2 (AVX2)"),
        (AMD, 25, 1, "avx2", "AMD Zen 3 (AVX2)"),
        (AMD, 25, 17, "avx2 avx512f avx512_bf16 avx512_vnni", "AMD Zen 4 (AVX-512 with bfloat16)"),
        (AMD, 25, 17, "avx2", "AMD Zen 4 (AVX2)"),  # in a virtual machine that hides the rest
        (AMD, 26, 2, "avx2 avx512f avx512_vnni avx512_bf16", "AMD Zen 5 (AVX-512 with bfloat16)"),
        (AMD, 26, 80, "avx2", "AMD family 26 (AVX2)"),
        (INTEL, 6, 143, "avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_int8", "Intel (AMX)"),
        (INTEL, 6, 106, "avx2 avx512f avx512_vnni", "Intel (AVX-512 with VNNI, no bfloat16)"),
        (INTEL, 6, 85, "avx2 avx512f", "Intel (AVX-512, no VNNI)"),
        (INTEL, 6, 44, "sse4_2", "Intel (no vector units)"),
        ("HygonGenuine", 24, 1, "avx2", "HygonGenuine (AVX2)"),
    ],
)
def test_the_kind_of_a_cpu(vendor, family, model, flags, kind):
    of_core = (
        f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: X\nflags\t\t: {flags}\n"
    )
    assert kinds.kind(f"processor\t: 0\n{of_core}\nprocessor\t: 1\n{of_core}\n") == kind


def test_the_kind_of_an_arm_cpu_and_of_this_one():
    assert kinds.kind("processor\t: 0\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\n") == "ARM (bfloat16)"
    assert re.fullmatch(r"\S.* \(.+\)", kinds.kind())


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
        assert sorted(run["seed"] for run in program) == list(range(len(lockstep)))
        assert len({tuple(run["losses"]) for run in program}) == len(lockstep) >= 8
    for step in (10, 30):
        ours, theirs = ([run["losses"][step - 1] for run in program] for program in (lockstep, tensorflow))
        assert max(ours + theirs) < log[str(step)]
