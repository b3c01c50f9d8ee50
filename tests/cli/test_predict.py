"""lockstep predict: the counts of lockstep eval, streaming, bad files, and output for people and
for programs.
"""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from tests.conftest import NATIVE, _outside
from tests.helpers import record_of, refused

from lockstep.data.readers import load_digits as load
from lockstep.errors import DATA, USAGE, printable

RUNS = [
    NATIVE,
    (
        "digits",
        "--no-portable",
        "--steps",
        60,
        "--precision",
        "bfloat16",
        "--processes",
        1,
        "--set",
        "test_time_augmentation=flip-translate",
    ),
]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Return the folder of the test images of digits as PNG files, in order, and their labels."""
    folder = tmp_path_factory.mktemp("pictures")
    test = load(None)["test"]
    for number, image in enumerate(test.images.numpy()):
        Image.fromarray(image[..., 0]).save(folder / f"{number:04d}.png")
    return folder, test.labels.tolist()


@pytest.fixture
def predict(here):
    """Return predict(*args) -> CompletedProcess of `lockstep predict`, in this process."""
    return lambda *args: here("predict", *args)


def rows(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "tolerance"),
    list(zip(RUNS, (1e-3, 0.02), strict=True)),
    ids=["float32", "views-bfloat16"],
)
def test_predicting_the_test_sets_files_counts_as_eval_does(
    options, tolerance, trained_once, program, predict, pictures
):
    run, _ = trained_once(*options)
    folder, labels = pictures
    done = program("predict", run, folder, "--json", "--top", 2)
    assert (done.returncode, done.stderr) == (0, "")
    confusion = np.zeros((10, 10), int)
    np.add.at(confusion, (labels, [row["index"] for row in rows(done)]), 1)
    record = record_of(program("eval", run, "--json"))
    # eval computes batches, so images whose two best classes are about equally probable may be
    # counted otherwise.
    best = [[probability for _, probability in map(dict.values, row["top"])] for row in rows(done)]
    close = sum(first - second < tolerance for first, second in best)
    assert close < 30
    assert np.abs(confusion - record["confusion"]).sum() <= 2 * close
    assert predict(run / "model.safetensors", folder, "--json", "--top", 2).stdout == done.stdout


def test_order_formats_and_a_bad_file(trained_once, predict, pictures, tmp_path):
    run, _ = trained_once(*RUNS[0])
    folder, _ = pictures
    odd = tmp_path / 'a,"b\n\x1b[31mc.png'
    odd.write_bytes((folder / "0003.png").read_bytes())
    (tmp_path / "bad.png").write_bytes(b"no image")
    given = [folder / "0002.png", odd, "bad.png", "none.png"]

    text = predict(run, *given)
    assert text.returncode == DATA
    assert len(text.stdout.splitlines()) == 2
    assert "\x1b" not in text.stdout
    assert "\\n\\x1b[31mc.png  " in text.stdout
    assert text.stderr.splitlines() == [
        "bad.png: not a JPEG, PNG, WebP, BMP, GIF, TIFF, HEIC, AVIF or PPM image, but a text that "
        "begins with "
        "'no image'",
        "none.png: no such file or directory",
        "lockstep: 2 of 4 images could not be classified",
    ]
    table = predict(run, *given, "--csv")
    assert (table.returncode, table.stderr) == (DATA, text.stderr)
    assert len(table.stdout.splitlines()) == 5
    columns = [*csv.DictReader(table.stdout.splitlines())]
    assert [row["file"] for row in columns] == [printable(str(path)) for path in given]
    assert [f"{row['file']}: {row['error']}" for row in columns[2:]] == text.stderr.splitlines()[:2]
    record = predict(run, *given, "--json", "--top", "20")
    assert record.returncode == DATA
    assert [row["source"] for row in rows(record)] == [*map(str, given)]
    assert [row["error"] is None for row in rows(record)] == [True, True, False, False]
    for row in rows(record):
        assert len(row["top"]) == (0 if row["error"] else 10)
        if row["top"]:
            assert row["top"][0] == {"label": row["label"], "probability": row["probability"]}
            assert sum(each["probability"] for each in row["top"]) == pytest.approx(1)
    for row, found in zip(columns, rows(record), strict=True):
        assert (row["label"] or None, row["mark"] or None) == (found["label"], found["mark"])
        shares = {each["label"]: each["probability"] for each in found["top"]}
        assert {name: float(row[name]) for name in "0123456789" if row[name]} == shares
    for option in (["--json"], ["--top", 2]):
        refused(predict(run, odd, "--csv", *option), USAGE, "excludes", option[0])


@pytest.mark.slow
def test_a_reader_that_stops_early_ends_the_program_quietly(trained_once, pictures):
    run, _ = trained_once(*RUNS[0])
    command = [sys.executable, "-m", "lockstep", "predict", str(run), str(pictures[0])]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=_outside(), text=True, **pipes) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.wait() == 0
