"""Images in the rows of Parquet and Arrow files, and datasets of the Hugging Face Hub."""

import os
import shutil

import pytest
from tests.helpers import lockstep_error
from tests.images import encoded, load_folder, write

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'lockstep-images[hf]'")

from pyarrow import ipc, parquet
from tests.hub import hub_here
from tests.rows_files import of_folder, rows_table, save_to_disk, write_parquet

from lockstep import files, hardware
from lockstep.classify.inputs import image_of, is_one, items
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.pictures import listing, rows
from lockstep.pictures.manifest import LabelSource
from lockstep.pictures.survey import survey_folder

SPLITS = ("train", "test")


@pytest.fixture
def folder(tmp_path):
    """A folder of two classes in two splits, of images of 6 pixels."""
    root = tmp_path / "folder"
    write(root / "train", {"cat": range(10), "dog": range(10, 23)})
    write(root / "test", {"cat": range(30, 34), "dog": range(40, 43)})
    return root


def as_files(form, folder, root):
    """Write the images of `folder` in another form. Return what to train on."""
    for split in SPLITS:
        table = of_folder(folder, split)
        if form == "save_to_disk":
            save_to_disk(root / split, table)
            continue
        half = len(table) // 2
        for number, part in enumerate((table[:half], table[half:])):
            place = f"data/{split}-0000{number}-of-00002"
            if form == "by folders":
                place = f"default/{split}/{number:04}"
            write_parquet(root / f"{place}.parquet", part, row_group_size=3)
    if form == "save_to_disk":
        (root / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return root


def labelled(root, **options):
    """Path -> labels and split of what is read of a folder."""
    found = survey_folder(root, 0.2, source=LabelSource(**options))
    return {photo.path: (" ".join(photo.labels), photo.split) for photo in found.photos}


@pytest.mark.parametrize("form", ["parquet", "by folders", "save_to_disk"])
def test_the_same_images_are_the_same_dataset(folder, tmp_path, form):
    expected = load_folder(folder)
    found = load_folder(as_files(form, folder, tmp_path / "rows"))
    for split in SPLITS:
        one, other = expected[split], found[split]
        assert (one.sha256, one.classes) == (other.sha256, other.classes)
        assert one.pixels(slice(None)).equal(other.pixels(slice(None)))
    again = load_folder(tmp_path / "rows")  # of the cache
    assert again["train"].pixels(slice(None)).equal(expected["train"].pixels(slice(None)))


def test_pixels_are_made_of_rows_alone(folder, tmp_path, monkeypatch):
    """No file of the folder has given the pixels before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = as_files("parquet", folder, tmp_path / "rows")
    shutil.rmtree(folder)
    assert len(load_folder(data)["train"]) == 23


def test_a_file_is_divided_as_its_images_in_folders(folder, tmp_path):
    write_parquet(tmp_path / "photos.parquet", of_folder(folder, "train"))
    flat = shutil.copytree(folder / "train", tmp_path / "flat")
    expected, found = load_folder(flat), load_folder(tmp_path / "photos.parquet")
    assert {name: each.sha256 for name, each in found.items()} == {
        name: each.sha256 for name, each in expected.items()
    }


def test_row_groups_are_read_once_and_in_order(folder, tmp_path, monkeypatch):
    read = []
    of_group = parquet.ParquetFile.read_row_group

    def counted(file, number, **how):
        read.append(number)
        return of_group(file, number, **how)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", counted)
    monkeypatch.setattr(hardware, "cores", lambda: 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table = of_folder(folder, "train")
    write_parquet(tmp_path / "rows/a.parquet", table, row_group_size=4)
    load_folder(tmp_path / "rows")
    assert read == [*range(6)]
    places = [*map(rows.place, rows.image_paths(tmp_path / "rows/a.parquet"))]
    assert sorted(places) == places


def test_files_are_closed_without_a_collection(folder, tmp_path):
    table = of_folder(folder, "train")
    for number in range(30):
        write_parquet(tmp_path / f"rows/{number}.parquet", table[number % 23 : number % 23 + 1])
    with listing.no_collections():
        before = len(os.listdir("/proc/self/fd"))
        survey_folder(tmp_path / "rows", 0.2)
        assert len(os.listdir("/proc/self/fd")) <= before + 2 * rows._OPEN


def test_paths_columns_and_classes(tmp_path):
    """The path of a row is the end of its name, and any column may have labels, splits or groups."""
    images = [(encoded(n), f"a\\dog{n // 2}_{n}.png" if n else None) for n in range(6)]
    table = rows_table(
        images,
        {"fine": ["x", "y"]},
        fine=[0, 1] * 3,
        width=[6] * 6,
        part=["train", "test"] * 3,
        who=[n // 2 for n in range(6)],
    )
    write_parquet(tmp_path / "a.parquet", table)
    assert labelled(tmp_path, split_column="part", group_column="who") == {
        "a.parquet, row 0": ("x", "train"),
        **{
            f"a.parquet, row {n}/a/dog{n // 2}_{n}.png": ("xy"[n % 2], ("train", "test")[n % 2])
            for n in range(1, 6)
        },
    }
    groups = survey_folder(tmp_path, 0.4, "dog[0-9]|row 0$").photos
    assert {photo.group for photo in groups} == {"row 0", "dog0", "dog1", "dog2"}


def test_lists_are_several_labels(tmp_path):
    images = [(encoded(n), None) for n in range(4)]
    names = {"labels": ["a", "b", "c"]}
    table = rows_table(images, names, labels=[[0, 2], [], [1], [2, 0]])
    write_parquet(tmp_path / "a.parquet", table)
    assert [label for label, _ in labelled(tmp_path, multi_label=True).values()] == [
        "", "a c", "a c", "b",
    ]  # fmt: skip
    with lockstep_error(
        "a.parquet, row 0 has several labels, a, c: keep one, or add --multi-label"
    ):
        survey_folder(tmp_path, 0.2).require_sound()


BAD = {
    "a hidden class": (
        {"label": [0, 1, -1, 1]},
        "a.parquet, row 2 has an empty cell in the column 'label': fill it, or move the file away "
        "if it hides its labels",
    ),
    "no class": ({"label": [0, 1, 0, 7]}, "a.parquet, row 3/3.png: 7 is the number of no class"),
    "no label": (
        {"width": [1] * 4},
        "the columns 'file', 'width', and none names an image's class",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_named(tmp_path, name):
    columns, words = BAD[name]
    images = [(encoded(n), f"{n}.png") for n in range(4)]
    classes = {"label": ["x", "y"]} if "label" in columns else {}
    write_parquet(tmp_path / "a.parquet", rows_table(images, classes, **columns))
    with lockstep_error(words) as caught:
        survey_folder(tmp_path, 0.2).require_sound()
    assert caught.value.code == DATA


def test_rows_without_a_readable_image_are_named_and_skipped(tmp_path, monkeypatch):
    images = [(encoded(n), None) for n in range(8)] + [(b"text", "x.png"), (None, None)]
    table = rows_table(images, {"label": ["x", "y"]}, label=[0, 1] * 5)
    write_parquet(tmp_path / "train-0000.parquet", table)
    found = survey_folder(tmp_path, 0.2)
    with lockstep_error("2 images cannot be read") as caught:
        found.require_sound()
    assert "train-0000.parquet, row 8/x.png: not a JPEG" in str(caught.value)
    assert "train-0000.parquet, row 9: no image in this row" in str(caught.value)
    bad = {photo.path for photo in found.photos if photo.cause}
    survey_folder(tmp_path, 0.2, left_out=bad).require_sound()


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_damaged_files_are_named(folder, tmp_path, suffix):
    form = "save_to_disk" if suffix == "arrow" else "parquet"
    data = as_files(form, folder, tmp_path / "rows")
    victim = max(data.rglob(f"*00*.{suffix}"))
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    with lockstep_error(f"{victim.name} cannot be read .* get it again"):
        survey_folder(data, 0.2).require_sound()
    if suffix == "arrow":
        (victim.parent / "state.json").write_text("[1]")
        with lockstep_error("state.json is damaged: save the dataset again"):
            survey_folder(data, 0.2).require_sound()


def test_several_configurations_are_refused(folder, tmp_path):
    for name in ("plain", "cut"):
        as_files("parquet", folder, tmp_path / "rows" / name)
    with lockstep_error("a split is in several of the folders rows/cut/data, rows/plain/data"):
        survey_folder(tmp_path / "rows", 0.2).require_sound()


def test_a_table_without_images_is_another_file(folder, tmp_path):
    write_parquet(folder / "sizes.parquet", rows_table([], width=[]).drop("image"))
    found = survey_folder(folder, 0.2)
    assert found.problems == []
    assert "files that are not read as images: 1 .parquet" in found.notes


def test_without_pyarrow_a_sentence_says_what_to_install(folder, tmp_path, monkeypatch):
    data = as_files("parquet", folder, tmp_path / "rows")
    missing = LockstepError("x needs pyarrow: pip install", ENVIRONMENT)

    def without(*args):
        raise missing

    monkeypatch.setattr(rows, "_opened", without)
    monkeypatch.setattr(listing, "find_spec", lambda name: None)
    with lockstep_error("is a Parquet file .*pip install 'lockstep-images\\[hf\\]'"):
        survey_folder(data, 0.2).require_sound()
    with lockstep_error("needs pyarrow: pip install"):
        survey_folder(data / "data/train-00000-of-00002.parquet", 0.2)
    assert next(items(data)).image is missing


def test_predict_reads_rows_of_files_and_folders(folder, tmp_path):
    data = as_files("parquet", folder, tmp_path / "rows")
    file = data / "data/test-00000-of-00002.parquet"
    assert not is_one(file)
    found = [*items(file)]
    assert [str(item.name.relative_to(file.parent)) for item in found] == rows.image_paths(file)
    known = {path.read_bytes() for path in folder.rglob("*.png")}
    assert {image_of(item.image) for item in items(data)} == known
    save_to_disk(tmp_path / "disk", of_folder(folder, "test"))
    assert len([*items(tmp_path / "disk")]) == 7


def test_paths_of_strangers_stay_in_the_file(tmp_path):
    images = [(encoded(n), f"/../../{n}\0.parquet, row 0") for n in range(4)]
    table = rows_table(images, {"label": ["x", "y"]}, label=[0, 1] * 2)
    write_parquet(tmp_path / "a.parquet", table)
    contents = [
        rows.read_picture(tmp_path / path) for path in rows.image_paths(tmp_path / "a.parquet")
    ]
    assert contents == [data for data, _ in images]
    assert len(load_folder(tmp_path, test_share=0.4)["train"]) == 2


@pytest.fixture
def served(folder, tmp_path, monkeypatch):
    """A dataset on a server: its files, its commit, and what is asked of the server."""
    constants = pytest.importorskip(
        "huggingface_hub.constants", reason="huggingface_hub is missing"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    root = as_files("parquet", folder, tmp_path / "rows")
    (root / "beans.py").write_text("raise SystemExit")
    with hub_here() as hub:
        commit = hub.add_dataset("me/beans", root)
        # as HF_ENDPOINT does
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        files = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        yield root, commit, hub.requests


def test_a_dataset_of_the_hub_is_fetched_once(served, folder, monkeypatch):
    from lockstep.pictures.hub import located, provenance

    root, commit, asked = served
    place = located("hf://me/beans@v1")
    assert place.name == commit
    assert not [*place.rglob("*.py")]
    one, other = load_folder(place), load_folder(folder)
    assert {name: each.sha256 for name, each in one.items()} == {
        name: each.sha256 for name, each in other.items()
    }
    said = provenance(place)["hub"]
    assert said["source"] == f"hf://me/beans@{commit}"
    paths = [*root.rglob("*.parquet")]
    assert said["files"] == {str(each.relative_to(root)): files.sha256(each) for each in paths}
    assert provenance(root) == {}
    assert located("hf://datasets/me/beans@v1/data") == place / "data"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    count = len(asked)
    for name in (f"hf://me/beans@{commit}", "hf://me/beans@v1"):
        assert located(name) == place
    assert len(asked) == count
    victim = next(place.rglob("*.parquet"))
    victim.unlink()
    with lockstep_error("hf://me/beans@v1: the Hub cannot be reached"):
        located("hf://me/beans@v1")


def test_what_the_hub_does_not_have_is_refused(served):
    from lockstep.pictures.hub import located

    with lockstep_error("hf://me/peas: it does not exist, or is not yours: correct the name"):
        located("hf://me/peas")
    with lockstep_error("hf://beans: give hf://OWNER/NAME"):
        located("hf://beans")


def test_the_sums_of_files_are_made_anew_if_they_change(served):
    from lockstep.pictures.hub import located, provenance

    place = located("hf://me/beans")
    before = provenance(place)["hub"]["files"]
    victim = next(place.rglob("*.parquet")).resolve()
    victim.write_bytes(victim.read_bytes() + b" ")
    assert sum(before[name] != now for name, now in provenance(place)["hub"]["files"].items()) == 1


def test_a_damaged_arrow_file_and_a_pipe_are_named(folder, tmp_path):
    """An offset that leads out of the file would end the process."""
    place = as_files("save_to_disk", folder, tmp_path / "rows")
    path = next(place.rglob("data-*.arrow"))
    good = bytearray(path.read_bytes())
    image = ipc.open_stream(bytes(good)).read_all()["image"].chunk(0)
    offsets = image.field("bytes").buffers()[1].to_pybytes()
    at = good.index(offsets[:12]) + 4
    good[at : at + 4] = (2_000_000_000).to_bytes(4, "little")
    path.write_bytes(good)
    with lockstep_error(f"{path.name} cannot be read"):
        rows.image_paths(path)
    os.mkfifo(tmp_path / "x.parquet")
    with lockstep_error("x.parquet cannot be read .it is no file"):
        rows.image_paths(tmp_path / "x.parquet")
