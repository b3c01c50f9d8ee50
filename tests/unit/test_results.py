"""The generated parts of README and docs, and the pictures, are those of records and program; no
figure is made up.
"""

import inspect
import json
import re
import sys
from xml.etree import ElementTree

import pytest
from benchmarks import age, common, kinds, measure, pictures, tables
from benchmarks.peers import compare

from lockstep.errors import CRASH, DATA, ENVIRONMENT, USAGE
from lockstep.recipes import MEASURED, RECIPES

NUMBER = re.compile(r"\d[\d,]*\.\d+")
RECORDS = tables.records("*")


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_every_generated_table_equals_its_record(page):
    assert page.read_text() == tables.page(page), "run: python -m benchmarks.tables"


def test_the_recipes_show_the_figures_of_their_records():
    assert MEASURED.read_text() == tables.measured(), "run: python -m benchmarks.tables"
    shown = json.loads(MEASURED.read_text())
    assert shown.keys() == RECIPES.keys()
    for recipe, row in shown.items():
        content = tables.load(row["record"])
        assert content["trains"]["recipe"] == recipe
        assert row["command"] == content["command"]
        table = tables.table(row["record"])
        assert row["accuracy"] in table
        assert row["time"] == "-" or f"| {row['time']} |" in table
        # A command that trains in another precision than it says would be shown without it.
        own = RECIPES[recipe]().precision
        trained = content["trains"]["changes"].get("precision", own)
        assert own in ("auto", trained) or f"--precision {trained}" in row["about"][0]


@pytest.mark.parametrize("record", RECORDS)
def test_every_record_has_a_table_and_says_how_it_was_made(record):
    content = tables.load(record)
    head, rows = content["table"]["head"], content["table"]["rows"]
    assert rows
    assert {len(row) for row in rows} == {len(head)}
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", content["date"])
    assert tables.caption(record).startswith(f"`{content['command']}` on {content['kind']}, ")
    program = re.match(r"python -m (benchmarks[\w.]+)", content["command"])
    assert program or content["command"].startswith("lockstep train ")
    assert not program or (tables.ROOT / f"{program[1].replace('.', '/')}.py").is_file()


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_every_table_states_machine_commit_and_date_of_its_records(page):
    for found in tables.PART.finditer(page.read_text()):
        kind, *patterns = found[2].split()
        for name in [name for pattern in patterns for name in tables.records(pattern)]:
            origin = tables.FLAGS_OF_ZEN.sub("", tables.made(tables.load(name)))
            assert origin in found[0], f"{kind} {name}"


def test_tables_of_several_origins_have_a_column_of_them():
    one, other = "seeds-digits", "seeds-cifar10"
    same = tables.dated(["what"], {one: [["a"], ["b"]]})
    assert same.endswith(f"\n\nMeasured on {tables.made(tables.load(one))}.")
    head, _, *rows = tables.dated(["what"], {one: [["a"]], other: [["b"]]}).splitlines()
    assert head == "| what | measured on |"
    assert rows == [
        f"| {cell} | {tables.made(tables.load(name))} |"
        for cell, name in (("a", one), ("b", other))
    ]


@pytest.mark.parametrize(
    ("name", "values", "result"),
    [
        ("flowers: test accuracy", [0.5, 0.75], ["62.50%", "2", "50.00 to 75.00"]),
        ("coverage: total time", [2.0, 3.0, 7.0], ["3.00 s", "3", "2.00 to 7.00"]),
        ("`mnist`, 4 towers of 1,024 images: 1 process, ms", [1234.5], ["1,234.5", "1", "one run"]),
        ("two processes / one, a thread each", [1.5], ["1.50 times", "1", "one run"]),
    ],
)
def test_the_name_of_a_figure_decides_its_unit(name, values, result):
    assert measure.row(name, values) == [name, *result]


def test_no_table_shows_a_record_of_changed_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    for commit in ("1234567-dirty", ""):
        (tmp_path / "serve.json").write_text(json.dumps({"commit": commit}))
        with pytest.raises(ValueError, match="measure it again"):
            tables.load("serve")


def test_age_finds_the_files_that_decide_a_record(monkeypatch):
    files = ("README.md", "src/lockstep/core/tree.py", "src/lockstep/head/features.py")
    monkeypatch.setattr(age, "changes", lambda commit: files if commit == "1234567" else None)
    known = {"commit": "1234567", "date": "2026-11-28"}
    assert age.age("serve", known).endswith(f"changed since: {files[1]} {files[2]}")
    assert age.age("seeds-digits", known).endswith(f"changed since: {files[1]}")
    assert "does not have the commit" in age.age("serve", known | {"commit": "7654321"})
    files = files[:1]
    assert age.age("serve", known).endswith("nothing changed since")


@pytest.mark.parametrize(
    ("file", "decided", "not_decided"),
    [
        ("src/lockstep/kernels/portable/registry.py", "seeds-digits", "seeds-cifar10"),
        ("src/lockstep/classify/classifier.py", "serve", "seeds-digits"),
        ("benchmarks/million.py", "million-100000", "serve"),
        ("src/lockstep/launch/submit.py", "start", "seeds-digits"),
    ],
)
def test_the_map_of_records_and_files(file, decided, not_decided):
    assert (tables.ROOT / file).is_file()
    assert age.decides(decided, file)
    assert not age.decides(not_decided, file)


def test_the_map_names_files_that_exist():
    also = {part for parts in age._ALSO.values() for part in parts}
    for part in {*age._ALWAYS, *age._NEVER, age._HEAD, age._PORTABLE, *also}:
        assert any((tables.ROOT / place / part).exists() for place in ("", "src/lockstep"))


def test_changes_are_those_of_git():
    head = age.git("rev-parse", "HEAD").strip()
    assert {*age.changes(head)} <= {*age.git("diff", "--name-only", "HEAD").splitlines()}
    assert age.changes("0" * 40) is None


@pytest.fixture
def results(tmp_path, monkeypatch):
    """An empty folder of records, in a clone without changes."""
    folder = tmp_path / "benchmarks/results"
    monkeypatch.setattr(common, "RESULTS", folder)
    monkeypatch.setattr(common, "TREE", ("1234567", ""))
    monkeypatch.setattr(common, "tree", lambda: ("1234567", ""))
    monkeypatch.setattr(sys, "argv", [str(tables.ROOT / "benchmarks/measure.py"), "a b", "--d=/x"])
    return folder


TABLE = {"head": ["what"], "rows": [["it"]]}


def test_a_record_gives_way_only_to_one_with_as_many_rounds(results):
    for rounds in ([1, 2], [3], [4, 5]):
        common.save("serve", {"table": TABLE, "rounds": rounds})
    kept = json.loads((results / "serve.json").read_text())
    assert kept["rounds"] == [4, 5]
    less = results.parents[1] / "bench-results/serve.json"
    assert json.loads(less.read_text())["rounds"] == [3]
    assert kept["command"] == "python -m benchmarks.measure 'a b' --d=DIR"
    assert kept["commit"] == "1234567"


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (
            ("1234567", " M README.md\n"),
            None,
            "1 files differ from commit 1234567, such as README.md",
        ),
        (("1234567", ""), ("7654321", ""), "the files of commit 1234567 changed"),
        (None, None, "this is no git clone"),
    ],
)
def test_a_record_of_changed_files_is_refused(results, monkeypatch, capsys, before, after, why):
    monkeypatch.setattr(common, "TREE", before)
    monkeypatch.setattr(common, "tree", lambda: after)
    common.warn()
    common.save("serve", {"table": TABLE})
    out, err = capsys.readouterr()
    assert why in out
    assert why in err
    assert not results.exists()
    made = json.loads((results.parents[1] / "bench-results/serve.json").read_text())
    assert made["commit"].endswith("-dirty")


def numbers(text):
    return {*NUMBER.findall(text)}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_docstring_of_a_recipe_states_figures_of_its_records(recipe):
    """Each number with a decimal point after "Measured:" stands in a table of a record that this
    recipe has made.
    """
    measured = " ".join(inspect.getdoc(RECIPES[recipe]).split()).partition("Measured: ")[2]
    assert measured
    made = {
        name
        for name in RECORDS
        if recipe in (tables.load(name).get("trains") or {}).get("recipe", "")
    }
    made |= {name for name in RECORDS if recipe == "photos-tuned" and name.startswith("photos-")}
    table = "\n".join(map(tables.table, sorted(made)))
    assert bool(made) == ("not yet" not in measured)
    assert [number for number in NUMBER.findall(measured) if number not in numbers(table)] == []


def test_every_figure_of_readme_stands_in_a_page_of_records():
    """Numbers with a decimal point, but for versions."""
    text = re.sub(
        r"(?:Python|PyTorch|TensorFlow|torch==)\s*[\d.]+|about\s1\.8 GB|\(\S+\)",
        "",
        tables.PAGES[0].read_text(),
    )
    pages = [(tables.ROOT / f"docs/{name}.md").read_text() for name in ("results", "portable")]
    found = NUMBER.findall(text)
    assert found
    assert [number for number in found if number not in numbers(" ".join(pages))] == []


def test_every_exit_code_is_listed():
    page = (tables.ROOT / "docs/files.md").read_text()
    codes = set(map(int, re.findall(r"\d+", " ".join(re.findall(r"^\| ([\d, ]+) \|", page, re.M)))))
    assert codes == {0, CRASH, USAGE, DATA, ENVIRONMENT, 129, 130, 143}


def test_only_equal_precisions_are_divided():
    rounds = [{"lockstep float32": 4.0, "lockstep bfloat16": 9.0, "tensorflow float32": 2.0}]
    (row,) = compare.rows(
        rounds, {"tensorflow float32": {"program": "p.py", "versions": {"tensorflow": "2"}}}
    )
    assert (row["precision"], row["ratio"], row["n"], row["min"], row["max"]) == (
        "float32",
        2.0,
        1,
        2.0,
        2.0,
    )


@pytest.mark.parametrize(
    ("vendor", "family", "model", "flags", "kind"),
    [
        ("AuthenticAMD", 25, 1, "avx2", "AMD Zen 3 (AVX2)"),
        (
            "AuthenticAMD",
            25,
            17,
            "avx2 avx512f avx512_bf16 avx512_vnni",
            "AMD Zen 4 (AVX-512 with bfloat16)",
        ),
        (
            "AuthenticAMD",
            26,
            2,
            "avx2 avx512f avx512_vnni avx512_bf16",
            "AMD Zen 5 (AVX-512 with bfloat16)",
        ),
        ("AuthenticAMD", 26, 80, "avx2", "AMD family 26 (AVX2)"),
        ("GenuineIntel", 6, 143, "avx2 avx512f avx512_bf16 amx_bf16 amx_int8", "Intel (AMX)"),
        (
            "GenuineIntel",
            6,
            106,
            "avx2 avx512f avx512_vnni",
            "Intel (AVX-512 with VNNI, no bfloat16)",
        ),
        ("GenuineIntel", 6, 44, "sse4_2", "Intel (no vector units)"),
    ],
)
def test_the_kind_of_a_cpu(vendor, family, model, flags, kind):
    core = (
        f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: "
        f"X\nflags\t\t: {flags}\n"
    )
    assert kinds.kind(f"processor\t: 0\n{core}\nprocessor\t: 1\n{core}\n") == kind


@pytest.mark.parametrize("name", [*pictures.PICTURES, "road", "step"])
def test_a_picture_is_whole_and_names_no_path_host_or_address(name):
    text = (pictures.FOLDER / f"{name}.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    text = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(?<![\w.])/(?:[a-z]+/)+|https?:|@import|@font-face", text)
