"""`lockstep train photos/`: through the command line's main(), and once through the real
program.
"""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from tests.helpers import DATA, USAGE, read_json, record_of, refused, succeeded
from tests.images import bright_and_dark, encoded, grey_folder, write

import lockstep
from lockstep.pages.runs import page
from lockstep.pictures.decode import Decoding, decode_image, decoder_versions
from lockstep.runs.run import Run

SHORT = (
    "--set",
    "image_px=32",
    "--model",
    "digits",
    "--precision",
    "float32",
    "--towers",
    2,
    "--tower-batch",
    8,
    "--set",
    "eval_batch=20",
    "--set",
    "test_time_augmentation=off",
    "--summary-every",
    0,
)


@pytest.mark.slow
def test_a_folder_gives_the_same_weights_on_1_and_2_processes(program, here, tmp_path):
    bright_and_dark(tmp_path / "my photos", 30)
    train = ("train", "my photos/", *SHORT, "--steps", 4, "--json")
    one = succeeded(here(*train))
    copy = tmp_path / "elsewhere/copied"
    shutil.copytree(tmp_path / "my photos", copy)
    (copy / "dark/0.png").rename(copy / "dark/renamed.png")
    two = succeeded(program("train", copy, *train[2:], "--processes", 2))
    first, second = json.loads(one.stdout), json.loads(two.stdout)
    assert first["weights_sha256"] == second["weights_sha256"]
    assert (first["run"], second["run"]) == ("runs/my-photos-1", "runs/copied-1")
    assert first["accuracy"] == second["accuracy"]
    record = record_of(here("eval", "runs/my-photos-1", "--json"))
    assert [row["name"] for row in record["classes"]] == ["bright", "dark"]
    assert record["accuracy"] == first["accuracy"]["raw"]

    write(tmp_path / "other", {"bright": range(5), "dim": range(5, 10)})
    refused(
        here("eval", "runs/my-photos-1", "--data", "other"),
        DATA,
        "1 class that the run does not know (dim)",
    )
    bright_and_dark(tmp_path / "more", 40)
    done = here("eval", "runs/my-photos-1", "--data", "more", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["examples"] == 80
    assert "more is not the data of training: all 80 images are evaluated" in done.stderr
    shutil.rmtree(tmp_path / "my photos")
    refused(
        here("eval", "runs/my-photos-1"),
        DATA,
        "was trained on the images in",
        "give their folder as --data",
    )


@pytest.mark.slow
def test_the_rows_of_files_give_the_weights_of_the_folder(program, here, tmp_path):
    """As Parquet, from the Hub, and as `save_to_disk` writes it, on 1 and 2 processes."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("huggingface_hub")
    from tests.hub import hub_here
    from tests.rows_files import of_folder, save_to_disk, write_parquet

    for split, count in (("train", 20), ("test", 5)):
        bright_and_dark(tmp_path / "folder" / split, count)
        table = of_folder(tmp_path / "folder", split)
        write_parquet(tmp_path / f"rows/data/{split}-0.parquet", table, row_group_size=8)
        save_to_disk(tmp_path / "disk" / split, table)
    options = (*SHORT, "--steps", 4, "--json")
    one = record_of(here("train", "folder", *options))
    assert record_of(here("train", "disk", *options))["weights_sha256"] == one["weights_sha256"]
    two = record_of(program("train", "rows", *options, "--processes", 2))
    assert two["weights_sha256"] == one["weights_sha256"]
    predicted = here("predict", "runs/rows-1", "rows/data/test-0.parquet", "folder/test", "--json")
    first, second = np.array_split([*map(json.loads, predicted.stdout.splitlines())], 2)
    shown = [sorted(row["probability"] for row in rows) for rows in (first, second)]
    assert shown[0] == shown[1]
    assert first[0]["source"].startswith("rows/data/test-0.parquet, row 0/")
    succeeded(here("report", "runs/rows-1"))
    assert "row 0/" in (tmp_path / "runs/rows-1/report.html").read_text()
    with hub_here() as hub:
        commit = hub.add_dataset("me/spots", tmp_path / "rows")
        where = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")}
        name = ("--name", "hub")
        done = program("train", "hf://me/spots@v1", *options, *name, "--processes", 2, **where)
    assert record_of(done)["weights_sha256"] == one["weights_sha256"]
    (session,) = read_json(tmp_path / "runs/hub/environment.json")
    assert session["hub"]["source"] == f"hf://me/spots@{commit}"
    assert {*session["hub"]["files"]} == {"data/train-0.parquet", "data/test-0.parquet"}
    assert f"hf://me/spots@v1 is hf://me/spots@{commit}" in done.stderr
    succeeded(program("verify", "runs/hub", **where))  # without the server
    again = program("train", f"hf://me/spots@{commit}", *options, "--name", "again", **where)
    assert record_of(again)["weights_sha256"] == one["weights_sha256"]
    shutil.rmtree(tmp_path / "hub")
    refused(here("eval", "runs/hub"), DATA, f"give --data hf://me/spots@{commit}")


def test_a_resume_needs_the_same_images_and_notes_other_decoders(here, tmp_path, monkeypatch):
    photos = bright_and_dark(tmp_path / "photos", 20)
    train = ("train", "photos", *SHORT, "--steps", 2, "--name", "a")
    assert here(*train).returncode == 0
    (tmp_path / "runs/a/result.json").unlink()  # as if it had been stopped
    with monkeypatch.context() as patch:
        patch.setattr(
            "lockstep.jobs.replica.decoder_versions", lambda: decoder_versions() | {"pillow": "0.1"}
        )
        done = here(*train, "--resume")
    assert "the image decoder too, so pixels may differ" in done.stdout + done.stderr
    assert read_json(tmp_path / "runs/a/result.json")["mixed_arithmetic"] is True
    (tmp_path / "runs/a/result.json").unlink()
    (photos / "dark/new.png").write_bytes(encoded(1))
    done = here("train", "runs/a", "--resume")
    refused(done, DATA, "photos is not what runs/a was trained on", "added, removed or changed")
    done = here("verify", "runs/a")
    refused(done, DATA, "is not what runs/a was trained on", "added, removed or changed")
    assert "probe" not in done.stderr


@pytest.mark.slow
def test_a_grey_folder_is_fitted_evaluated_and_predicted(here, tmp_path):
    grey_folder(tmp_path / "letters", 20)
    short = (
        "--steps",
        1,
        "--tower-batch",
        4,
        "--precision",
        "float32",
        "--set",
        "eval_batch=20",
        "--processes",
        1,
    )
    done = succeeded(here("train", "letters", *short, "--name", "a"))
    assert "32x32x1, 2 classes" in done.stdout
    log = (tmp_path / "runs/a/log.txt").read_text()
    assert (
        "recipe folder with image_px=32, grey=true, augmentation.flip=false, test_time_augmentation=off"
        in log
    )
    assert "because all images are grey and their median shorter side is 28 pixels" in log
    assert "test images; 95% interval " in done.stdout
    warning = "2 classes with fewer than 20 training images (a has "
    assert f"warning   {warning}" in done.stdout
    assert warning in read_json(tmp_path / "runs/a/result.json")["warnings"][0]
    assert f'<p class="note" role="note">{warning}' in page(Run.open(tmp_path / "runs/a"))
    record = record_of(here("eval", "runs/a", "--split", "train", "--json"))
    Image.new("RGB", (90, 90), (255, 0, 0)).save(tmp_path / "red.png")
    paths = [str(path) for path in (tmp_path / "letters").rglob("*.png")]
    lines = here("predict", "runs/a", "red.png", *paths, "--json").stdout.splitlines()
    right = [f"/{one['label']}/" in one["source"] for one in map(json.loads, lines[1:])]
    test = record_of(here("eval", "runs/a", "--json"))
    assert (len(lines), sum(right)) == (21, record["correct"] + test["correct"])


def test_data_check_reports_and_ends_with_3_if_training_would(here, tmp_path):
    photos = write(tmp_path / "pets", {"a": range(10), "b": range(10, 30)})
    done = succeeded(here("data", "check", "pets"))
    assert "pets: 30 images" in done.stdout
    assert done.stdout.endswith("ok: it can be trained on\n")
    (photos / "list.csv").write_text(
        "file,breed\n" + "".join(f"{n}.png,{'xy'[n > 9]}\n" for n in range(30))
    )
    done = here("data", "check", "pets")
    assert done.returncode == DATA
    assert "a/0.png is a by its folder, and list.csv (file, breed) names it too" in done.stderr
    done = here("data", "check", "pets", "--label-column", "breed")
    assert "  x " in done.stdout
    assert done.stdout.endswith("ok: it can be trained on\n")
    refused(here("data", "check", "pets", "--layout", "both"), USAGE, "layout", "both", "folders")
    (photos / "list.csv").unlink()
    photos = photos.rename(tmp_path / "digits")  # a recipe, unless it is written as a path
    assert here("data", "check", "digits").stdout.endswith("ok: it can be trained on\n")
    (photos / "a/bad.png").touch()
    done = here("data", "check", "digits/", "--json")
    assert done.returncode == DATA
    record = json.loads(done.stdout)
    assert record["unreadable"] == {"a/bad.png": "empty"}
    assert len(record["problems"]) == 1
    assert done.stderr.startswith("lockstep: digits cannot be trained on: 1 image cannot be read")


def test_damaged_files_are_skipped_if_asked_and_stay_so(here, tmp_path):
    """One choice at the start of the run. A file that is mended, or another that is damaged, does
    not change it.
    """
    photos = bright_and_dark(tmp_path / "photos", 20)
    whole = {name: (photos / name).read_bytes() for name in ("bright/3.png", "dark/4.png")}
    (photos / "bright/3.png").write_bytes(whole["bright/3.png"][:60])
    (photos / "dark/4.png").write_text("<html>")
    train = ("train", "photos", *SHORT, "--steps", 2, "--name", "a")
    refused(
        here(*train), DATA, "2 images cannot be read", "or train without them: add --skip-damaged"
    )
    done = succeeded(here(*train, "--skip-damaged"))
    assert "left out  2 images that could not be read (bright/3.png and 1 more)" in done.stdout
    run = tmp_path / "runs/a"
    result = read_json(run / "result.json")
    assert result["left_out"] == ["bright/3.png", "dark/4.png"]
    log = (run / "log.txt").read_text()
    assert "left out: bright/3.png: truncated" in log
    assert "left out: dark/4.png: an HTML page" in log
    (run / "result.json").unlink()  # as if it had been stopped
    (photos / "bright/3.png").write_bytes(whole["bright/3.png"])
    done = succeeded(here(*train, "--skip-damaged", "--resume"))
    assert read_json(run / "result.json")["weights_sha256"] == result["weights_sha256"]
    assert here("eval", "runs/a").returncode == 0
    assert here("report", "runs/a").returncode == 0
    assert "<dt>Left out</dt><dd>2 images</dd>" in (run / "report.html").read_text().replace(
        "\n", ""
    )
    (photos / "dark/5.png").write_text("")
    refused(here("eval", "runs/a"), DATA, "1 image cannot be read", "dark/5.png: empty")
    (photos / "dark/5.png").unlink()
    (photos / "dark/4.png").write_bytes(whole["dark/4.png"])
    done = here(*train[:-1], "b", "--skip-damaged", "--set", "fit=squash")
    assert read_json(tmp_path / "runs/b/result.json")["left_out"] == []
    (photos / "dark/6.png").write_text("")
    left_out = ("--set", 'left_out=["dark/7.png"]')
    succeeded(here(*train[:-1], "c", "--skip-damaged", *left_out))
    assert read_json(tmp_path / "runs/c/result.json")["left_out"] == ["dark/6.png", "dark/7.png"]
    # Prediction has the pixels of training.
    own = lockstep.load(tmp_path / "runs/b").pixels(photos / "dark/4.png")
    assert np.array_equal(own, decode_image(photos / "dark/4.png", Decoding(32, fit="squash")))
    assert not np.array_equal(own, decode_image(photos / "dark/4.png", Decoding(32)))
    refused(here("train", "digits", "--skip-damaged"), USAGE, "is for folders of images")


def test_train_and_data_check_say_the_same(here, tmp_path):
    """One scan: whatever is given for a folder of images, both commands have the same sentence, and
    what to do.
    """
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "pets.zip").write_bytes(b"PK")
    (tmp_path / "notes").write_bytes(b"text")
    (tmp_path / "empty").mkdir()
    write(
        tmp_path,
        {
            "flat": [1, 2],
            "one/cats": [1, 2],
            "misfit": [1, 2],
            "phone/a": [1, 2],
            "phone/b": [3, 4],
        },
    )
    (tmp_path / "misfit/list.csv").write_text("name,breed\n1.png,a\n")
    (tmp_path / "phone/a/1.heic").write_bytes(b"bad")
    for name, *words in (
        ("nowhere/", "nowhere", "give "),
        ("link", "link is a link to gone, which does not exist: correct the link"),
        ("pets.zip", "pets.zip is an archive: unpack it, and give the folder that it makes"),
        ("notes", "notes is a file: give a folder that holds a folder of images for each class"),
        ("empty", "it holds no folders: give each class a folder with its images, or add a CSV"),
        (
            "flat",
            "it holds no folders, but 2 images in no class: give each class a folder",
            "or add a CSV",
        ),
        ("one", "only one class, cats: give each of at least two a folder", "one/other"),
        (
            "misfit",
            "list.csv has the columns 'name', 'breed', and none names an image's class: call one "
            "label",
        ),
        (
            "phone",
            "1 image cannot be read",
            "a/1.heic: not a JPEG, PNG, WebP, BMP, GIF, TIFF, HEIC, AVIF or PPM image",
        ),
    ):
        trained, checked = here("train", name), here("data", "check", name)
        refused(trained, DATA, *words)
        sentences = [done.stderr.replace(f"{tmp_path}/", "") for done in (trained, checked)]
        assert sentences[0] == sentences[1] or name == "nowhere/"
        assert checked.returncode == DATA
