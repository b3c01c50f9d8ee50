"""The notebooks in examples/: one program in two languages, executed from top to bottom."""

import os
import re

import pytest
from tests.conftest import _outside

WITHOUT = "the notebooks need nbclient and ipykernel: pip install 'lockstep-images[dev]'"
nbclient = pytest.importorskip("nbclient", reason=WITHOUT)
nbformat = pytest.importorskip("nbformat", reason=WITHOUT)
pytest.importorskip("ipykernel", reason=WITHOUT)

# It needs the packages above.
from benchmarks.notebooks import EXAMPLES, NAMES, SKIPPED, execute, printed, read  # noqa: E402

OLD = "its outputs are not what today's code prints: run make notebooks"
LARGEST_BYTES = 100_000  # of a notebook, outputs included
# The cells before the training, whose outputs no placement and no machine changes.
FIXED = ("imports", "parameters", "recipe", "source", "layers", "gradients", "average-gradients")
VARY = {"gradients"}  # by the kind of CPU, in the low-order bits

# In place of the values in the cell "parameters".
SHORT = {"num_steps": 4, "tower_batch": 8, "display_step": 2, "compared_steps": 3}


def tags(cell):
    return cell.metadata.get("tags", [])


def test_both_languages_have_the_same_code():
    english, spanish = (read(name).cells for name in NAMES)
    assert [(cell.cell_type, cell.id, tags(cell)) for cell in english] == [
        (cell.cell_type, cell.id, tags(cell)) for cell in spanish
    ]
    for ours, theirs in zip(english, spanish, strict=True):
        assert (ours.source == theirs.source) == (ours.cell_type == "code"), ours.id


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_its_outputs(name):
    """It is valid and small, was executed from top to bottom, and its links lead to files of the
    repository.
    """
    text = read(name)
    nbformat.validate(text)
    assert (EXAMPLES / name).stat().st_size < LARGEST_BYTES
    code = [cell for cell in text.cells if cell.cell_type == "code" and SKIPPED not in tags(cell)]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)], OLD
    shown = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in shown} == {"stream", "execute_result"}
    assert not re.search(r"/(tmp|home|root)/|\r|\x1b", "".join(map(printed, code)))
    links = [link for cell in text.cells for link in re.findall(r"\]\(([^)]+)\)", cell.source)]
    local = [link for link in links if not link.startswith("https://")]
    assert len(local) >= 6
    assert [link for link in local if not (EXAMPLES / link).is_file()] == []


def test_both_languages_have_the_same_outputs():
    english, spanish = ([cell.get("outputs") for cell in read(name).cells] for name in NAMES)
    assert english == spanish


def test_the_outputs_before_the_training_are_todays(capsys):
    cells = cells_of(read(NAMES[0]))
    variables = {}
    for name in FIXED:
        capsys.readouterr()
        exec(cells[name].source, variables)
        if name not in VARY:
            assert capsys.readouterr().out == printed(cells[name]), f"{name}: {OLD}"


def test_the_outputs_show_the_training_of_the_parameters():
    cells, values = cells_of(read(NAMES[0])), {}
    exec(cells["parameters"].source, values)
    last = values["num_steps"] - 1
    steps = [*dict.fromkeys([*range(0, last, values["display_step"]), last])]
    rows = losses(cells)
    assert [int(row[0]) for row in rows] == steps, OLD
    assert float(rows[-1][1]) < 0.5 * float(rows[0][1])
    accuracy = re.search(r"testing accuracy: (0\.\d{4})", printed(cells["evaluation"]))[1]
    assert float(accuracy) > 0.9
    assert len({*re.findall(r"[0-9a-f]{64}", printed(cells["processes"]))}) == 1
    assert "image/png" in cells["predictions"].outputs[-1].data


def cells_of(notebook):
    return {cell.id: cell for cell in notebook.cells}


def losses(cells):
    """The rows of the table of losses, without its header."""
    return [line.split() for line in printed(cells["losses"]).splitlines()[1:]]


def executed(folder, parameters, **environment):
    """The cells by id, after they were executed in `folder` with `parameters` in place of some."""
    text = read(NAMES[0])
    for cell in text.cells:
        if "parameters" in tags(cell):
            cell.source += "".join(f"\n{name} = {value}" for name, value in parameters.items())
    places = {"IPYTHONDIR": str(folder / "ipython"), "XDG_CACHE_HOME": str(folder / "cache")}
    return execute(text, folder, **(_outside() | places | environment))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif("LOCKSTEP_DATA" not in os.environ, reason="LOCKSTEP_DATA has no MNIST")
def test_a_shorter_training_has_the_first_losses_of_the_outputs(tmp_path):
    """To the digits that all kinds of CPU agree on."""
    stored, values = cells_of(read(NAMES[0])), {}
    exec(stored["parameters"].source, values)
    steps = {"num_steps": values["display_step"] + 1, "compared_steps": 1}
    cells = executed(tmp_path, steps, LOCKSTEP_DATA=os.environ["LOCKSTEP_DATA"])
    for row, today in zip(losses(stored), losses(cells), strict=False):
        assert row[0] == today[0]
        assert float(today[1]) == pytest.approx(float(row[1]), rel=0.02), OLD
    first = [
        re.findall(r"digest \w+  loss (\S+)", printed(found["towers"])) for found in (stored, cells)
    ]
    assert [*map(float, first[1])] == pytest.approx([*map(float, first[0])], rel=1e-3), OLD


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_notebook_runs_from_top_to_bottom(tmp_path, synthetic_data):
    """In one language, as both have the same code."""
    data = os.environ.get("LOCKSTEP_DATA") or synthetic_data("mnist").parent
    cells = executed(tmp_path, SHORT, LOCKSTEP_DATA=str(data))
    assert "20,217,226" in printed(cells["layers"])
    largest, difference = map(float, re.findall(r"\S+$", printed(cells["gradients"]), re.M))
    assert 0 < difference < 1e-5 * largest
    assert re.findall(r"True|False", printed(cells["average-gradients"])) == [
        "True",
        "True",
        "False",
    ]
    assert [line.split()[0] for line in printed(cells["losses"]).splitlines()] == [
        "step",
        "0",
        "2",
        "3",
    ]
    assert re.search(
        r"testing accuracy: 0\.\d{4} \([\d,]+ of 10,000\)", printed(cells["evaluation"])
    )
    assert len(printed(cells["predictions"]).splitlines()) == 8
    assert "image/png" in cells["predictions"].outputs[-1].data
    one, two = re.findall(r"^(\d) process.* ([0-9a-f]{64}) ", printed(cells["processes"]), re.M)
    assert (one[0], two[0]) == ("1", "2")
    assert one[1] == two[1]
    digests = re.findall(r"(two|one) tower.* digest (\w+)  loss (.*)", printed(cells["towers"]))
    assert [len(losses.split()) for _, _, losses in digests] == [SHORT["compared_steps"]] * 2
    assert digests[0][1:] != digests[1][1:]
    assert cells["tensorboard-extension"].outputs == []
    assert tags(cells["tensorboard-extension"]) == [SKIPPED]
