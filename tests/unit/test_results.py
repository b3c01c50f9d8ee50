"""The generated parts of README and docs, and the pictures, are those of records and program; no
figure is made up.
"""

import inspect
import json
import re
import sys
from fnmatch import fnmatch
from xml.etree import ElementTree

import pytest
from benchmarks import age, common, kinds, pictures, tables
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
def test_every_record_has_a_table_a_machine_and_a_command(record):
    content = tables.load(record)
    head, rows = content["table"]["head"], content["table"]["rows"]
    assert rows
    assert {len(row) for row in rows} == {len(head)}
    assert tables.caption(record).count(record)
    program = re.match(r"python -m (benchmarks[\w.]+)", content.get("command", ""))
    assert not program or (tables.ROOT / f"{program[1].replace('.', '/')}.py").is_file(), content[
        "command"
    ]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_of_todays_code_or_says_why_it_is_not(record):
    content = tables.load(record)
    assert age.is_known(record, content), "make it again, or: python -m benchmarks.age WHY"
    assert age.is_of_today(record, content) or content["older"]["why"]


def test_the_code_of_a_record_is_that_which_decides_it():
    assert len({age.code(record) for record in ("seeds-digits", "serve", "million-100000")}) == 3
    assert age.code("seeds-digits") == age.code("mnist-200-portable")
    assert age.is_known("serve", {"code": age.code("serve")})
    assert age.is_known("serve", {"code": "0", "older": {"code": age.code("serve")}})
    assert not age.is_known("serve", {"code": "0", "older": {"code": "0"}})
    assert not age.is_known("serve", {})
    assert age.code("seeds-cifar10") != age.code("seeds-cifar10-portable")
    assert age.code("seeds-mnist") != age.code("seeds-photos")


def test_a_reason_is_added_to_those_before(tmp_path, monkeypatch):
    monkeypatch.setattr(age, "RESULTS", tmp_path)
    record = tmp_path / "serve.json"
    record.write_text(json.dumps({"code": "0", "older": {"code": "1", "why": ["first"]}}))
    for why in ("second", "not said: today's code is known"):
        monkeypatch.setattr(sys, "argv", ["age", why])
        age.main()
    older = json.loads(record.read_text())["older"]
    assert older == {"code": age.code("serve"), "why": ["first", "second"]}


def test_a_table_of_several_records_says_which_are_older():
    ages = {name: age.is_of_today(name, tables.load(name)) for name in RECORDS}
    for page in tables.PAGES:
        for found in tables.PART.finditer(page.read_text()):
            kind, *patterns = found[2].split()
            names = [name for pattern in patterns for name in RECORDS if fnmatch(name, pattern)]
            if kind in ("joined", "crossed"):
                last = found[0].splitlines()[-3]
                assert last.count("by older code") >= (not all(ages[name] for name in names))
                assert names


def test_a_record_gives_way_only_to_one_with_as_many_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(tables.ROOT / "benchmarks/measure.py"), "a b", "--d=/x"])
    table = {"head": ["what"], "rows": [["it"]]}
    results = tmp_path / "benchmarks/results"
    for rounds in ([1, 2], [3], [4, 5]):
        common.save("serve", {"table": table, "rounds": rounds}, results)
    kept = json.loads((results / "serve.json").read_text())
    assert kept["rounds"] == [4, 5]
    less = tmp_path / "bench-results/serve.json"
    assert json.loads(less.read_text())["rounds"] == [3]
    assert kept["command"] == "python -m benchmarks.measure 'a b' --d=DIR"


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


def test_every_figure_of_readme_stands_in_results():
    """Numbers with a decimal point, but for versions."""
    text = re.sub(
        r"(?:Python|PyTorch|TensorFlow|torch==)\s*[\d.]+|about\s1\.8 GB|\(\S+\)",
        "",
        tables.PAGES[0].read_text(),
    )
    page = (tables.ROOT / "docs/results.md").read_text()
    found = NUMBER.findall(text)
    assert len(found) > 10
    assert [number for number in found if number not in numbers(page)] == []


def test_a_table_cell_of_readme_has_at_most_twelve_words():
    rows = re.findall(r"^\| (.+) \|$", tables.PAGES[0].read_text(), re.M)
    cells = [cell for row in rows for cell in row.split(" | ")]
    assert len(cells) > 20
    assert [cell for cell in cells if len(cell.split()) > 12] == []


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


def test_the_diagram_is_what_the_repository_draws():
    assert (pictures.FOLDER / "step.svg").read_text() == pictures.step(), "run: make pictures"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_whole_and_names_no_path_host_or_address(name):
    text = (pictures.FOLDER / f"{name}.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    text = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(?<![\w.])/(?:[a-z]+/)+|https?:|@import|@font-face", text)
