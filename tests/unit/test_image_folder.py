"""Folders of images: layouts, classes, splits, duplicates, the index of what is read, and what is refused."""

import errno
import hashlib
import os
import random
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.images import encoded, write

from lockstep import files
from lockstep.data import folder as module
from lockstep.data.check import lines_of, record_of
from lockstep.data.decode import decode_image
from lockstep.data.folder import index_file, load, read, survey
from lockstep.data.scan import is_image_folder, scan
from lockstep.errors import DATA, ENVIRONMENT, LockstepError

OLD = 1_600_000_000  # seconds; a file with this time was not changed just now
DEFAULTS = {"image_px": 32, "test_share": 0.2}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    return tmp_path / "photos"


@pytest.fixture
def six(photos, monkeypatch):
    """A folder of six images, of which one is damaged. All were written ten seconds ago."""
    write(photos, {"a": [1, 2, 3], "b": [4, 5]})
    (photos / "b/bad.png").write_bytes(encoded(9)[:50])
    later = time.time_ns() + 10 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    return photos


@pytest.fixture
def examined(monkeypatch):
    """The names of the files that are read."""
    names, real = [], module._examined

    def examine(path):
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(module, "_examined", examine)
    return names


def sound(root, test_share=0.2):
    return survey(root, test_share).require_sound()


def paths(found):
    """Split -> its files, sorted."""
    return {split: sorted(photo.file.path for photo in photos) for split, photos in found.splits.items()}


def contents(found):
    """Split -> (class, SHA-256) of its images, in their order."""
    return {
        split: [(photo.file.class_name, photo.facts.sha256) for photo in photos]
        for split, photos in found.splits.items()
    }


def refused(root, *words):
    with pytest.raises(LockstepError) as caught:
        sound(root)
    assert caught.value.code == DATA
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return str(caught.value)


# layouts


@pytest.mark.parametrize("val", ["val", "valid", "Validation"])
def test_a_folder_with_splits(photos, val):
    numbers = iter(range(100))
    for split in ("train", val, "test"):
        write(photos / split, {name: [next(numbers) for _ in range(3)] for name in ("cats", "dogs/small", "dogs/big")})
    found = sound(photos)
    assert set(found.splits) == {"train", "validation", "test"}
    assert found.classes == ("cats", "dogs")
    assert [len(members) for members in found.splits.values()] == [9, 9, 9]
    assert all(name.startswith(f"{val}/") for name in paths(found)["validation"])
    assert not found.notes


def test_without_a_test_folder_the_validation_images_are_the_test_images(photos):
    write(photos / "train", {"a": [1, 2], "b": [3, 4]})
    write(photos / "val", {"a": [1, 5], "b": [6]})
    found = sound(photos)
    assert any("in several splits" in note and "(train/a/1.png = val/a/1.png)" in note for note in found.notes)
    assert found.leaks() == [["train/a/1.png", "val/a/1.png"]]
    assert paths(found)["test"] == paths(found)["validation"] == ["val/a/1.png", "val/a/5.png", "val/b/6.png"]
    assert any("validation images are the test images" in note for note in found.notes)


def test_train_alone_is_divided(photos):
    write(photos / "train", {"a": range(40), "b": range(40, 80)})
    found = sound(photos)
    assert set(found.splits) == {"train", "test"}
    assert len(found.splits["test"]) + len(found.splits["train"]) == 80
    write(photos.with_name("flat"), {"a": range(40), "b": range(40, 80)})
    assert contents(found) == contents(sound(photos.with_name("flat")))


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (["train/a", "train/b", "val/a", "valid/a"], ["val and valid are the same split"]),
        (["train/a", "val/a", "cars"], ["the folder train is beside cars", "give it a name without"]),
        (["seg_train/a", "seg_train/b", "seg_test/a", "seg_test/b", "seg_pred"], ["seg_test is beside seg_pred"]),
        (["trainval/a", "dev/a"], ["the folder trainval is beside dev"]),
        (["test/a", "val/a"], ["but no train: name the folder"]),
        (["train_1/a", "train_1/b", "train_2/a", "train_2/b"], ["train_1 and train_2 are the same split"]),
        (["trainA", "trainB", "testA", "testB"], ["trainA and trainB are the same split", "testA and testB are"]),
        (["Train_1", "Test_1"], ["train: it holds no folders", "If Train_1 is a class"]),
        (["train/a", "train/b", "test1"], ["test holds no folder", "move it away"]),
        (["train/a", "train/b", "test/a", "test/c", "test/d"], ["test: 2 classes that train lacks, c, d"]),
        (["cats"], ["only one class, cats", "at least two", "photos/cats"]),
        (["train/cats"], ["train: only one class, cats"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_layouts_are_named(photos, folders, words):
    for number, folder in enumerate(folders):
        write(photos, {folder: [number, 100 + number]})
    refused(photos, *words)


@pytest.mark.parametrize(
    ("train", "other", "split"),
    [
        ("training", "validation", "test"),  # without a test folder, these images are for the test too
        ("Train_png", "Test_png", "test"),
        ("seg_train/seg_train", "seg_test/seg_test", "test"),
        ("trainset", "testset", "test"),
        ("TrainImages", "2Valid", "validation"),
        ("TRAIN/train", "val", "validation"),
    ],
)
def test_folders_with_other_names_of_splits_are_read_as_splits(photos, train, other, split):
    write(photos / train, {"a": [1, 2], "b": [3, 4]})
    write(photos / other, {"a": [5], "b": [6]})
    found = sound(photos)
    assert found.classes == ("a", "b")
    assert paths(found)["train"] == [f"{train}/{name}.png" for name in ("a/1", "a/2", "b/3", "b/4")]
    assert paths(found)[split] == [f"{other}/a/5.png", f"{other}/b/6.png"]
    assert any(f"{train} is read as train" in note for note in found.notes)


@pytest.mark.parametrize(
    "folders",
    [
        ["train", "test", "plane"],
        ["test_1", "test_2"],
        ["steam_train/1920", "steam_train/1930", "freight_train/2020"],
        ["freight train/side", "car/front", "bus/front"],
    ],
    ids=" ".join,
)
def test_classes_that_are_named_like_splits(photos, folders):
    for number, folder in enumerate(folders):
        write(photos, {folder: range(10 * number, 10 * number + 9)})
    found = sound(photos)
    assert set(found.classes) == {folder.partition("/")[0] for folder in folders}
    assert not found.notes


def test_a_class_that_a_split_lacks_keeps_its_label(photos):
    write(photos / "train", {"a": [1, 2], "b": [3, 4], "c": [5, 6]})
    write(photos / "test", {"a": [7], "c": [8]})
    found = sound(photos)
    assert found.labels("test").tolist() == [0, 2]
    assert found.notes == ["no test image of b"]


def test_hidden_and_foreign_files_are_ignored(photos):
    write(photos, {"a": [1, 2, 3], "b": [4, 5, 6], ".hidden": [7], "a/.ipynb_checkpoints": [8], "__MACOSX/a": [9]})
    for name in ("a/.DS_Store", "a/._1.png", "b/Thumbs.db", "b/notes.txt", "readme.md", "a/1.xmp"):
        (photos / name).write_bytes(b"x")
    (photos / "a/phone.HEIC").write_bytes(b"x")
    write(photos, {"": [10, 11]})
    found = sound(photos)
    assert [photo.file.path for photo in found.photos] == [
        f"{name}.png" for name in ("a/1", "a/2", "a/3", "b/4", "b/5", "b/6")
    ]
    assert found.scan.others == {"txt": 1, "md": 1, "xmp": 1, "heic": 1}
    assert sorted(found.scan.loose) == ["10.png", "11.png"]
    assert len(found.notes) == 2
    assert "2 images in no class and not used" in found.notes[0]
    assert "1 heic" in found.notes[1]


def test_links_are_followed_and_a_class_has_the_images_of_each_folder_once(photos, tmp_path):
    write(photos, {"a": [1, 2, 3], "a/more": [8], "b": [4, 5, 6]})
    write(tmp_path / "elsewhere", {"more": [7]})
    (photos / "a/link.png").symlink_to(tmp_path / "elsewhere/more/7.png")
    (photos / "b/folder").symlink_to(tmp_path / "elsewhere/more")
    (photos / "b/more").symlink_to(photos / "a/more")
    for name, target in (("up", photos), ("self", photos / "a"), ("again", photos / "a/more")):
        (photos / "a" / name).symlink_to(target)
    assert [photo.file.path for photo in sound(photos).photos] == [
        "a/1.png", "a/2.png", "a/3.png", "a/again/8.png", "a/link.png", "b/4.png", "b/5.png", "b/6.png",
        "b/folder/7.png", "b/more/8.png",
    ]  # fmt: skip


def test_broken_links_links_to_themselves_and_pipes(photos):
    write(photos, {"a": [1, 2, 3], "b": [4, 5, 6]})
    os.mkfifo(photos / "b/pipe.png")
    (photos / "a/gone.png").symlink_to("nowhere.png")
    for name in ("x", "a/y", "a/z.png"):
        (photos / name).symlink_to((photos / name).name)
    assert is_image_folder(photos)
    found = scan(photos)
    assert (found.problems, found.classes) == ([], {"": ["a", "b"]})
    assert [file.path for file in found.files[:5]] == ["a/1.png", "a/2.png", "a/3.png", "a/gone.png", "a/z.png"]
    assert found.others.total() == 3
    refused(photos, "2 images cannot be read", "a/gone.png: no such file", "a/z.png: too many levels of symbolic links")


def test_names_are_compared_in_unicodes_composed_form(photos):
    write(photos / "train", {"Käse": [1, 2], "a": [3, 4]})
    decomposed = unicodedata.normalize("NFD", "Käse")  # as macOS writes it
    write(photos / "test", {decomposed: [5], "a": [6]})
    assert sound(photos).classes == ("Käse", "a")
    write(photos / "train", {decomposed: [7]})
    refused(photos, "are the same name")
    os.mkdir(os.fsencode(photos) + b"/train/\xff")
    refused(photos, "is not UTF-8", "\\udcff")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: None, ["does not exist"]),
        (lambda p: p.write_bytes(b""), ["is a file"]),
        (lambda p: p.mkdir(), ["it holds no folders"]),
        (lambda p: write(p, {"": [1, 2]}), ["it holds no folders, but 2 images in no class"]),
        (lambda p: write(p, {"a": [1, 2], "b": [3, 4], "c": [], "d/e": []}), ["2 classes without an image, c, d"]),
        (lambda p: write(p, {"a": [1, 2], "b": [3]}), ["1 class with fewer than two different images, b"]),
        (lambda p: write(p, {"a": [1, 2], "b": [2, 3], "c": [1, 3]}), ["too few images that are in one class only"]),
        (lambda p: write(p, {"train/a": [1], "train/b": [2], "test": []}), ["test holds no folder"]),
    ],
)
def test_folders_that_cannot_be_trained_on(photos, make, words):
    make(photos)
    refused(photos, *words)


def test_several_problems_are_told_at_once(photos):
    write(photos / "train", {"a": [1], "b": [], "empty": []})
    write(photos / "test", {"other": [3]})
    (photos / "train/b/bad.jpg").write_bytes(b"no image")
    text = refused(photos, "empty", "other", "no image of b can be read", "train/b/bad.jpg: not a JPEG")
    assert text.count("\n- ") == 4


def test_a_folder_that_cannot_be_read_is_a_problem(photos, monkeypatch):
    write(photos, {"a": [1, 2], "b": [3, 4], "b/locked": [5]})
    real = os.scandir

    def scandir(folder):
        if str(folder).endswith(locked):
            raise PermissionError(13, "Permission denied", str(folder))
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    locked = "locked"
    assert scan(photos).problems == ["b/locked/ cannot be read: Permission denied"]
    locked = "photos"
    refused(photos, "photos cannot be read: Permission denied")


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ({"a": [1]}, True),
        ({"train/a/deep/er": [1]}, True),
        ({"": [1]}, False),
        ({"a": []}, False),
        ({".a": [1]}, False),
    ],
)
def test_what_looks_like_a_folder_of_images(photos, classes, expected):
    assert is_image_folder(write(photos, classes)) == expected
    assert not is_image_folder(photos / "nowhere")


# unreadable files


def test_unreadable_files_are_listed_at_once_and_read_again(photos, monkeypatch):
    write(photos, {"a": range(10), "b": range(10, 20)})
    for number in range(25):
        (photos / f"a/bad{number:02}.png").write_bytes(encoded(99)[: 40 + number])
    for name in "ab":  # the same content is no duplicate, as it is no image
        (photos / name / "none.jpg").touch()
    text = refused(photos, "27 images cannot be read", "a/bad00.png: ", "and 7 others")
    assert text.count("\n  a/bad") == 20
    for path in (*photos.glob("a/bad*"), *photos.glob("*/none.jpg")):
        path.unlink()
    (photos / "a/gone.png").symlink_to("nowhere.png")
    real, causes = files.read_bytes, {"2.png": errno.EACCES, "17.png": errno.EMFILE}

    def failing(path, most):
        if path.name in causes:
            raise OSError(causes[path.name], os.strerror(causes[path.name]))
        return real(path, most)

    with monkeypatch.context() as patch:
        patch.setattr("lockstep.data.decode.read_bytes", failing)
        refused(photos, "a/2.png: permission denied", "a/gone.png: no such file", "b/17.png: too many open files")
    (photos / "a/gone.png").unlink()
    write(photos.with_name("clean"), {"a": range(10), "b": range(10, 20)})
    assert contents(sound(photos)) == contents(sound(photos.with_name("clean")))


# splits


def test_the_split_follows_the_documented_rule(photos):
    def below(number, share):
        return int.from_bytes(hashlib.sha256(encoded(number)).digest()[:8], "big") < share * 2**64

    found = sound(write(photos, {"a": range(100), "b": range(100, 200)}), 0.3)
    expected = sorted(f"{'a' if n < 100 else 'b'}/{n}.png" for n in range(200) if below(n, 0.3))
    assert paths(found)["test"] == expected
    assert 40 <= len(expected) <= 80
    assert set(paths(sound(photos, 0.1))["test"]) < set(expected)  # A larger share keeps the test images.


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_each_class_has_an_image_on_both_sides(photos, share):
    found = sound(write(photos, {"a": [1, 2, 3], "b": [4, 5], "c": range(6, 20)}), share)
    assert all({name for name, _ in images} == {"a", "b", "c"} for images in contents(found).values())
    few = contents(found)["test" if share < 0.5 else "train"]
    extreme = min if share < 0.5 else max
    for name, own in (("a", [1, 2, 3]), ("b", [4, 5]), ("c", range(6, 20))):
        assert (name, extreme(hashlib.sha256(encoded(number)).hexdigest() for number in own)) in few
    assert len(few) == 3


def test_equal_files_are_on_one_side(photos):
    write(photos, {"a": range(30), "b": range(30, 60)})
    for number in range(30):
        (photos / f"a/copy of {number}.png").write_bytes(encoded(number))
        (photos / f"b/also {number}.png").write_bytes(encoded(number))
    found = sound(photos, 0.5)
    sides = {split: {sha256 for _, sha256 in images} for split, images in contents(found).items()}
    assert not sides["train"] & sides["test"]
    assert sum(map(len, found.splits.values())) == 120
    assert len(found.duplicates()) == len(found.conflicts()) == 30
    assert not found.leaks()
    assert "30 images in several classes" in found.notes[0]


# the dataset


def test_the_dataset_has_the_decoded_images(photos):
    write(photos, {"a": range(8), "b": range(8, 16)})
    splits = load(photos, **DEFAULTS | {"test_share": 0.3})
    assert list(splits) == ["train", "test"]
    by_sha256 = {hashlib.sha256(encoded(number)).hexdigest(): number for number in range(16)}
    for split, images in contents(sound(photos, 0.3)).items():
        dataset = splits[split]
        assert dataset.classes == ("a", "b")
        assert dataset.images.shape == (len(images), 32, 32, 3)
        for row, (name, sha256) in enumerate(images):
            assert dataset.classes[dataset.labels[row]] == name
            assert np.array_equal(dataset.images[row : row + 1][0], decode_image(encoded(by_sha256[sha256]), 32))


def test_the_dataset_does_not_depend_on_names_times_and_order(photos, tmp_path):
    write(photos, {"a": range(8), "b": range(8, 16)})
    other = tmp_path / "other"
    for number in random.sample(range(16), 16):
        folder = other / ("a" if number < 8 else "b") / str(number % 3)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{-number}.jpg").write_bytes(encoded(number))
        os.utime(folder / f"{-number}.jpg", (number, number))
    one, two = (load(root, **DEFAULTS) for root in (photos, other))
    for split in one:
        assert one[split].sha256 == two[split].sha256
        assert (one[split].images[:] == two[split].images[:]).all()
        assert (one[split].labels == two[split].labels).all()


def test_the_sha256_of_a_dataset_covers_files_labels_classes_and_size(tmp_path):
    names = iter("0123456789")

    def sha256(classes, **options):
        root = write(tmp_path / next(names) / "train", classes).parent
        write(root / "test", {name: [99] for name in classes})
        return load(root, **DEFAULTS | options)["train"].sha256

    base = {"a": [1, 2], "b": [3, 4]}
    digests = [sha256(base), sha256(base, image_px=48), sha256(base, grey=True), sha256({"a": [1, 2], "c": [3, 4]}),
               sha256({"a": [1, 3], "b": [2, 4]}), sha256({"a": [1, 2], "b": [3, 5]}),
               sha256({"a": [1, 2], "b": [3, 4, 5]})]  # fmt: skip
    assert len(set(digests)) == len(digests)
    assert sha256(base) == digests[0]


def test_a_change_that_no_stamp_shows_is_an_error_once(six, monkeypatch):
    """The error names the file, and the next start reads the files again."""
    (six / "b/bad.png").unlink()
    sound(six)
    stale = scan(six)
    (six / "a/3.png").write_bytes(encoded(300))
    monkeypatch.setattr(module, "scan", lambda root: stale)
    with pytest.raises(LockstepError, match=r"a/3\.png has changed since it was indexed: start again"):
        load(six, **DEFAULTS)
    assert sum(map(len, load(six, **DEFAULTS).values())) == 5


# the index


def test_the_second_start_reads_no_file(six, examined):
    first = read(scan(six))
    assert sorted(examined) == ["1.png", "2.png", "3.png", "4.png", "5.png", "bad.png"]
    assert [photo.file.path for photo in first] == [
        "a/1.png", "a/2.png", "a/3.png", "b/4.png", "b/5.png", "b/bad.png"
    ]  # fmt: skip
    assert [photo.facts.cause for photo in first] == [""] * 5 + ["truncated"]
    assert [photo.facts[1:4] for photo in first[:2]] == [("PNG", 7, 6), ("PNG", 8, 6)]
    examined.clear()
    (six.parent / "link").symlink_to(six)
    assert read(scan(six)) == read(scan(six.parent / "link")) == first
    assert set(examined) == {"bad.png"}  # The cause may be this host's.


def test_only_new_and_changed_files_are_read(six, examined):
    os.utime(six / "a/1.png", (OLD, OLD))
    read(scan(six))
    examined.clear()
    (six / "a/0.png").write_bytes(encoded(10))
    (six / "a/2.png").unlink()
    (six / "b/4.png").write_bytes(encoded(11))
    (six / "b/bad.png").write_bytes(encoded(12))
    os.utime(six / "b/5.png", (OLD, OLD))
    data = bytearray((six / "a/1.png").read_bytes())
    data[-1] ^= 1
    (six / "a/1.png").write_bytes(data)  # of equal size,
    os.utime(six / "a/1.png", (OLD, OLD))  # and time of change
    again = read(scan(six))
    assert sorted(examined) == ["0.png", "1.png", "4.png", "5.png", "bad.png"]
    index_file(six).unlink()
    assert read(scan(six)) == again
    assert not any(photo.facts.cause for photo in again)


@pytest.mark.parametrize("young", [1, 2])
def test_a_file_with_one_young_time_is_read_again(six, examined, young):
    """A program may set st_mtime_ns to any time, so a young st_ctime_ns alone means that the file may change again."""
    found = scan(six)
    stamps = [1, OLD, OLD, 1]
    stamps[young] = time.time_ns()
    found.files[0] = found.files[0]._replace(stamps=tuple(stamps))
    read(found)
    examined.clear()
    read(found)
    assert sorted(examined) == ["1.png", "bad.png"]


def test_what_this_host_cannot_do_now_is_not_kept(six, examined, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("lockstep.data.decode._square", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(LockstepError, match="not enough memory") as caught:
            read(scan(six))
    assert caught.value.code == ENVIRONMENT
    assert [photo.facts.cause for photo in read(scan(six))] == [""] * 5 + ["truncated"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"PNG"', b'"PMG"', 1),
        None,  # another decoder
    ],
)
def test_an_index_that_is_damaged_or_of_another_decoder_is_made_again(six, examined, damage, monkeypatch):
    first = read(scan(six))
    data = index_file(six).read_bytes()
    if damage:
        index_file(six).write_bytes(damage(data))
    else:
        monkeypatch.setattr(module, "decoder_versions", lambda: {"pillow": "0"})
    examined.clear()
    assert read(scan(six)) == first
    assert len(examined) == 6


def test_a_cache_that_cannot_be_written_costs_only_time(six, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("lockstep.data.progress._SILENT_S", 0.0)
    assert len(read(scan(six))) == 6
    assert "so the next start reads all images again" in caplog.text
    assert f"reading the images in {six}: 100%" in caplog.text


def test_what_was_read_before_a_stop_is_kept(six, examined, monkeypatch):
    monkeypatch.setattr(module, "_AT_A_TIME", 1)
    monkeypatch.setattr("lockstep.hardware.cores", lambda: 1)
    real = module._examined

    def stopped(path):
        if len(examined) == 3:
            raise KeyboardInterrupt
        return real(path)

    monkeypatch.setattr(module, "_examined", stopped)
    with pytest.raises(KeyboardInterrupt):
        read(scan(six))
    monkeypatch.setattr(module, "_examined", real)
    read(scan(six))
    assert sorted(examined) == ["1.png", "2.png", "3.png", "4.png", "5.png", "bad.png"]


def test_several_programs_at_once_read_each_file_once(six, examined, monkeypatch, caplog):
    """Threads stand for programs: the lock of each open file is its own."""
    real, go_on = module._examined, threading.Event()

    def slowly(path):
        assert go_on.wait(20)
        return real(path)

    monkeypatch.setattr(module, "_examined", slowly)
    with ThreadPoolExecutor(3) as pool:
        starts = [pool.submit(read, scan(six)) for _ in range(3)]
        while caplog.text.count("another program is reading the images in") < 2:
            time.sleep(0.01)
        go_on.set()
        assert all(start.result() == starts[0].result() for start in starts)
    assert len(examined) == 6 + 2  # The damaged file is read by each.


# the report


def test_the_report_names_everything(photos):
    write(photos, {"a": range(20), "b": range(20, 30)})
    (photos / "a/big.jpg").write_bytes(encoded(500, side=40, format="JPEG"))
    (photos / "b/same.png").write_bytes(encoded(3))
    for name in ("b/bad.png", "b/list.txt", "b/x.cr2"):
        (photos / name).write_bytes(b"bad")
    record = record_of(survey(photos, 0.2))
    assert record["images"] == 33
    assert sum(record["splits"].values()) == 32
    assert {name: sum(counts.values()) for name, counts in record["classes"].items()} == {"a": 21, "b": 11}
    assert record["formats"] == {"JPEG": 1, "PNG": 31}
    assert record["height"] == {"min": 6, "median": 6.0, "max": 40}
    assert record["width"]["max"] == 42
    assert record["unreadable"] == {"b/bad.png": "not a JPEG, PNG, WebP, BMP, GIF or TIFF image"}
    assert record["duplicates"] == record["contradicting"] == [["a/3.png", "b/same.png"]]
    assert record["leaks"] == record["in_no_class"] == []
    assert (record["other_files"], record["unsupported"]) == (1, {"cr2": 1})
    a, b = (record["classes"][name]["train"] for name in "ab")
    assert record["imbalance"] == round(a / b, 3)
    assert len(record["problems"]) == 1
    text = "\n".join(lines_of(record))
    for words in ("33 images", "1 JPEG, 31 PNG", "6 to 40 pixels", "b/bad.png: not a", "a/3.png = b/same.png"):
        assert words in text
    record = record_of(survey(write(photos.with_name("wrong"), {"only": []}), 0.2))
    assert (record["images"], record["imbalance"], record["width"], len(record["problems"])) == (0, None, None, 2)
    assert lines_of(record)[0].endswith("0 images (0 train)")
