"""The notebooks in examples/: one program in two languages, executed from top to bottom."""

import os
import re

import pytest
from tests.conftest import _outside
from tests.documents import ROOT

WITHOUT = "the notebooks need nbclient and ipykernel: pip install 'lockstep-images[dev]'"
nbclient = pytest.importorskip("nbclient", reason=WITHOUT)
nbformat = pytest.importorskip("nbformat", reason=WITHOUT)
pytest.importorskip("ipykernel", reason=WITHOUT)

EXAMPLES = ROOT / "examples"
NAMES = ("mnist_multi_gpu.ipynb", "mnist_multi_gpu.es.ipynb")
SKIPPED = "skip-execution"  # nbclient does not execute a cell with this tag: it needs a browser

# In place of the values in the cell "parameters".
SHORT = {"num_steps": 4, "tower_batch": 8, "display_step": 2, "compared_steps": 3}


def notebook(name):
    return nbformat.read(EXAMPLES / name, as_version=4)


def tags(cell):
    return cell.metadata.get("tags", [])


def test_both_languages_have_the_same_code():
    english, spanish = (notebook(name).cells for name in NAMES)
    assert [(cell.cell_type, cell.id, tags(cell)) for cell in english] == [
        (cell.cell_type, cell.id, tags(cell)) for cell in spanish
    ]
    for ours, theirs in zip(english, spanish, strict=True):
        assert (ours.source == theirs.source) == (ours.cell_type == "code"), ours.id


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_clean(name):
    """It is valid, has no outputs of an unknown machine, and its links lead to files of the
    repository.
    """
    text = notebook(name)
    nbformat.validate(text)
    code = [cell for cell in text.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    links = [link for cell in text.cells for link in re.findall(r"\]\(([^)]+)\)", cell.source)]
    local = [link for link in links if not link.startswith("https://")]
    assert len(local) >= 6
    assert [link for link in local if not (EXAMPLES / link).is_file()] == []


def executed(name, folder, **environment):
    """The cells of the notebook by id, after they were executed in `folder` with the values in
    SHORT.
    """
    text = notebook(name)
    for cell in text.cells:
        if "parameters" in tags(cell):
            cell.source += "".join(f"\n{parameter} = {value}" for parameter, value in SHORT.items())
    where = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(text, timeout=None, kernel_name="python3", resources=where)
    client.execute(env={**_outside(), "IPYTHONDIR": str(folder / "ipython"), **environment})
    return {cell.id: cell for cell in text.cells}


def printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_notebook_runs_from_top_to_bottom(tmp_path, synthetic_data):
    """In one language, as both have the same code."""
    data = os.environ.get("LOCKSTEP_DATA") or synthetic_data("mnist").parent
    cells = executed(
        NAMES[0], tmp_path, LOCKSTEP_DATA=str(data), XDG_CACHE_HOME=str(tmp_path / "cache")
    )
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
