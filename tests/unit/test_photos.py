"""Folders of photos: layouts, classes, splits, duplicates, the index of what is read, and what is
refused.
"""

import hashlib
import itertools
import os
import random
import re
import time
import unicodedata

import numpy as np
import pytest
from PIL import Image
from tests.helpers import lockstep_error
from tests.images import encoded, lay, load_folder, noise, table, write

from lockstep.data.folder import read_folder
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.pictures import index as module, survey
from lockstep.pictures.check import lines_of, record_of
from lockstep.pictures.decode import Decoding, _load_plugins, decode_image
from lockstep.pictures.index import index_file, read_photos
from lockstep.pictures.survey import manifest_of, survey_folder


@pytest.fixture
def photos(tmp_path):
    return tmp_path / "photos"


@pytest.fixture
def six(photos):
    """A folder of six images, of which one is damaged."""
    write(photos, {"a": [1, 2, 3], "b": [4, 5]})
    (photos / "b/bad.png").write_bytes(encoded(9)[:50])
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
    return survey_folder(root, test_share).require_sound()


def paths(found):
    """Split -> its files, sorted."""
    return {split: sorted(photo.path for photo in photos) for split, photos in found.splits.items()}


def contents(found):
    """Split -> (class, SHA-256) of its images, in their order."""
    return {
        split: [(*photo.labels, photo.sha256) for photo in photos]
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


def test_a_class_that_a_split_lacks_keeps_its_label(photos):
    write(photos / "train", {"a": [1, 2], "b": [3, 4], "c": [5, 6]})
    write(photos / "test", {"a": [7], "c": [8]})
    found = sound(photos)
    assert found.examples().labels[found.examples().splits["test"]].tolist() == [0, 2]
    assert found.notes == ["no test image of b"]


def test_what_is_not_read_is_counted(photos):
    """Hidden and foreign files, links to folders in a class, pipes. Links to files, and of classes,
    are followed.
    """
    write(
        photos,
        {
            "": [10, 11],
            "a": [1, 2, 3],
            ".hidden": [7],
            "a/.ipynb_checkpoints": [8],
            "__MACOSX/a": [9],
        },
    )
    write(photos.with_name("elsewhere"), {"b": [4, 5, 6]})
    (photos / "b").symlink_to(photos.with_name("elsewhere") / "b")
    (photos / "a/link.png").symlink_to(photos / "b/4.png")
    (photos / "a/up").symlink_to(photos)
    os.mkfifo(photos / "b/pipe.png")
    for name in (
        "a/.DS_Store",
        "a/._1.png",
        "b/Thumbs.db",
        "b/notes.txt",
        "readme.md",
        "a/phone.JXL",
    ):
        (photos / name).write_bytes(b"x")
    found = sound(photos)
    names = ("a/1", "a/2", "a/3", "a/link", "b/4", "b/5", "b/6")
    assert [photo.path for photo in found.photos] == [f"{name}.png" for name in names]
    assert found.manifest.unread == {"txt": 1, "md": 1, "jxl": 1, "png": 1}
    for words in (
        "2 images in no class",
        "1 link to a folder within a class, not followed (a/up)",
        "not read as images: ",
    ):
        assert any(words in note for note in found.notes)


def test_names_are_compared_in_unicodes_composed_form(photos):
    write(photos / "train", {"Käse": [1, 2], "a": [3, 4]})
    decomposed = unicodedata.normalize("NFD", "Käse")  # as macOS writes it
    write(photos / "test", {decomposed: [5], "a": [6]})
    assert sound(photos).classes == ("Käse", "a")
    write(photos / "train", {decomposed: [7]})
    refused(photos, "are the same name")
    os.mkdir(os.fsencode(photos) + b"/train/\xff")
    refused(photos, "is not UTF-8", "\\udcff")


def test_several_problems_are_told_at_once(photos):
    write(photos / "train", {"a": [1], "b": [], "empty": []})
    write(photos / "test", {"other": [3]})
    (photos / "train/b/bad.jpg").write_bytes(b"no image")
    text = refused(photos, "read, b, empty", "lacks, other", "train/b/bad.jpg: not a JPEG")
    assert text.count("\n- ") == 3


def test_a_folder_that_cannot_be_read_is_a_problem(photos, monkeypatch):
    write(photos, {"a": [1, 2], "b": [3, 4], "b/locked": [5]})
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: real(str(folder).replace("locked", "gone")))
    assert manifest_of(photos).problems == ("b/locked cannot be read: No such file or directory",)


def test_unreadable_files_are_listed_at_once_and_read_again(photos):
    clean = contents(sound(write(photos, {"a": range(10), "b": range(10, 20)})))
    for number in range(25):
        (photos / f"a/bad{number:02}.png").write_bytes(encoded(99)[: 40 + number])
    (photos / "a/self.png").symlink_to("self.png")
    text = refused(photos, "26 images cannot be read", "a/bad00.png: ", "and 6 others")
    assert text.count("\n  a/bad") == 20
    for path in photos.glob("a/bad*"):
        path.unlink()
    refused(photos, "1 image cannot be read", "a/self.png: too many levels of symbolic links")
    (photos / "a/self.png").unlink()
    assert contents(sound(photos)) == clean


def test_a_file_without_suffix_is_read_and_other_kinds_are_named(photos):
    write(photos, {"a": [1, 2], "b": [3, 4]})
    (photos / "a/1.png").rename(photos / "a/1")
    (photos / "a/README").write_text("a text")
    os.mkfifo(photos / "a/pipe")
    assert [*manifest_of(photos).rows] == [
        "a/1",
        "a/2.png",
        "b/3.png",
        "b/4.png",
    ]
    for number in (3, 4):
        (photos / f"b/{number}.png").rename(photos / f"b/{number}.jxl")
    refused(
        photos,
        "1 class without an image that can be read, b: remove or fill them",
        "not read as images: 2 without a suffix, 2 .jxl",
    )
    for number in (3, 4):
        (photos / f"b/{number}.jxl").rename(photos / f"b/{number}.pgm")
    assert sound(photos).classes == ("a", "b")


def test_images_that_are_left_out_are_as_if_they_were_not_there(six):
    names = survey_folder(six, 0.2, left_out=["b/bad.png", "a/gone.png"]).require_sound()
    assert "1 image left out, as the recipe says (b/bad.png)" in names.notes
    left = load_folder(six, left_out=["b/bad.png"])
    (six / "b/bad.png").unlink()
    assert {split: data.sha256 for split, data in load_folder(six).items()} == {
        split: data.sha256 for split, data in left.items()
    }


def test_pictures_in_which_little_is_seen_are_counted_and_named(photos):
    write(photos, {"a": range(4), "b": range(4, 8)})
    assert sound(photos).notes == []
    white = Image.new("LA", (20, 20), (255, 0))
    white.save(photos / "a/empty.png")
    Image.open(photos / "a/1.png").save(photos / "b/again.bmp")
    Image.fromarray(noise(0, 20, 30, 3)).save(photos / "b/wide.png")
    Image.fromarray(noise(1, 29, 20, 3)).save(photos / "b/less.png")
    notes = sound(photos).notes
    assert notes == [
        "1 image with the same pixels in different files (a/1.png = b/again.bmp)",
        "1 image of one colour: the network sees nothing in it (a/empty.png)",
        "1 image of 3:2 or longer, cut to the middle square (b/wide.png): "
        "train with fit=pad or fit=squash to keep the edges",
    ]
    assert survey_folder(photos, 0.2, fit="pad").notes == notes[:2]


# splits


@pytest.mark.parametrize("by", ["pattern", "column"])
def test_groups_stay_on_one_side(photos, by):
    """Also groups that share a file, as one image of two patients would."""
    numbers = {f"p{patient}_{n}": (patient, n) for patient in range(30) for n in range(3)}
    photos.mkdir()
    for name, (patient, n) in numbers.items():
        (photos / f"{name}.png").write_bytes(
            encoded(100 if patient in (1, 2) and n == 0 else 3 * patient + n)
        )
    columns = ["id", "label", "group"][: 3 if by == "column" else 2]
    rows = [
        ",".join([name, "ab"[n % 2], f"patient {patient}"][: len(columns)])
        for name, (patient, n) in numbers.items()
    ]
    (photos / "labels.csv").write_text(table(",".join(columns), *rows))
    pattern = r"p(\d+)_" if by == "pattern" else None
    found = survey_folder(photos, 0.3, pattern).require_sound()
    sides = {
        split: {name.partition("_")[0] for name in names} for split, names in paths(found).items()
    }
    assert not sides["train"] & sides["test"]
    assert len(sides["train"]) + len(sides["test"]) == 30
    assert any({"p1", "p2"} <= side for side in sides.values())
    assert f"{len(sides['test'])} groups in test" in found.notes[0]
    whole = load_folder(photos, test_share=0.3, group=pattern)["train"]
    kept, held = whole.held_out(10)
    assert 10 <= len(held) <= 15
    assert not {*kept.groups.tolist()} & {*held.groups.tolist()}
    with lockstep_error("takes every group"):
        whole.held_out(len(whole) - 1)


def test_groups_that_are_joined_through_others_stay_together(photos):
    """Group 0 shares a picture with group 1, that one shares another with group 2, and so on."""
    chains, links = 6, 12
    groups = list(range(chains * links))
    random.Random(0).shuffle(groups)  # The order of the names is not that of a chain.
    contents = {}
    for place, group in enumerate(groups):
        for number in (place, place + (place % links < links - 1)):
            contents[f"{'ab'[place % 2]}/{group}_{number}.png"] = number
    found = survey_folder(lay(photos, contents), 0.3, r"(\d+)_").require_sound()
    sides = {
        split: {groups.index(int(photo.group)) // links for photo in images}
        for split, images in found.splits.items()
    }
    assert not sides["train"] & sides["test"]
    for seed in range(50):  # in any order of the pictures
        some = random.Random(seed).sample(found.photos, len(found.photos))
        assert survey._group_keys(some) == found.group_keys
    assert len({*found.group_keys.values()}) == chains


def test_groups_are_the_same_in_each_form_of_unicode(tmp_path):
    keys = []
    for form in ("NFC", "NFD"):  # as Linux and macOS write a name
        names = [f"{label}/Käse_{n}.png" for n, label in enumerate("aabb")]
        names += [f"{label}/Öl_{n}.png" for n, label in enumerate("aabb")]
        contents = {unicodedata.normalize(form, name): n for n, name in enumerate(names)}
        lay(tmp_path / form, contents)
        keys.append(survey_folder(tmp_path / form, 0.5, "[ab]/(.*)_").group_keys)
    assert keys[0] == keys[1]
    assert len({*keys[0].values()}) == 2


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        pytest.param(
            "(([a-z]|[a-z/])+)+[.]never", "the search takes too long", marks=pytest.mark.slow
        ),
        ("(" * 500, "maximum recursion depth exceeded"),
        ("a{99999999999}", "repetition number is too large"),
    ],
)
def test_a_pattern_that_is_wrong_or_never_ends_is_refused(photos, pattern, problem):
    """It may come with somebody else's recipe. The search ends after some seconds of CPU time."""
    write(photos, {"c" * 60: [1, 2], "b": [3, 4]})
    with lockstep_error(f"--group .*: .*{problem}.*: give a regular expression"):
        survey_folder(photos, 0.2, pattern)


def test_groups_that_are_not_named_or_torn_are_told(photos):
    write(photos, {"train/a": [1, 2], "train/b": [3, 4], "val/a": [1, 5], "val/b": [6]})
    found = survey_folder(photos, 0.2, r"\d+")
    assert (
        "1 group in several splits: the accuracy will be too high (train/a/1.png, val/a/1.png)"
        in found.notes
    )
    for pattern, words in (
        ("train/(.*)", "3 images without a group (val/a/1.png and 2 more)"),
        ("(", "give a regular"),
    ):
        with lockstep_error(re.escape(words)):
            survey_folder(photos, 0.2, pattern).require_sound()


def test_the_split_follows_the_documented_rule(photos):
    def below(number, share):
        return int.from_bytes(hashlib.sha256(encoded(number)).digest()[:8], "big") < share * 2**64

    found = sound(write(photos, {"a": range(100), "b": range(100, 200)}), 0.3)
    write(photos.with_name("other") / "train", {"a": range(100), "b": range(100, 200)})
    # train alone is divided too
    assert contents(found) == contents(sound(photos.with_name("other"), 0.3))
    expected = sorted(f"{'a' if n < 100 else 'b'}/{n}.png" for n in range(200) if below(n, 0.3))
    assert paths(found)["test"] == expected
    # A larger share keeps the test images.
    assert set(paths(sound(photos, 0.1))["test"]) < set(expected)


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_each_class_has_an_image_on_both_sides(photos, share):
    found = sound(write(photos, {"a": [1, 2, 3], "b": [4, 5], "c": range(6, 20)}), share)
    few = contents(found)["test" if share < 0.5 else "train"]
    extreme = min if share < 0.5 else max
    assert few == [
        (name, extreme(hashlib.sha256(encoded(number)).hexdigest() for number in own))
        for name, own in (("a", [1, 2, 3]), ("b", [4, 5]), ("c", range(6, 20)))
    ]


def test_equal_files_are_on_one_side_and_noted(photos):
    write(photos, {"a": range(30), "b": range(30, 60)})
    for number in range(30):
        (photos / f"a/copy of {number}.png").write_bytes(encoded(number))
        (photos / f"b/also {number}.png").write_bytes(encoded(number))
    found = sound(photos, 0.5)
    sides = {split: {sha256 for _, sha256 in images} for split, images in contents(found).items()}
    assert not sides["train"] & sides["test"]
    assert sum(map(len, found.splits.values())) == 120
    assert len(found.duplicates()) == len(found.duplicates("labels")) == 30
    assert not found.duplicates("split")
    assert "30 images in several classes" in found.notes[0]
    write(
        photos.with_name("leaky"),
        {"train/a": [1, 2], "train/b": [3, 4], "val/a": [1, 5], "val/b": [6]},
    )
    found = sound(photos.with_name("leaky"))
    assert found.duplicates("split") == [["train/a/1.png", "val/a/1.png"]]
    assert any(
        "in several splits" in note and "(train/a/1.png = val/a/1.png)" in note
        for note in found.notes
    )


# the dataset


def test_the_dataset_has_the_pixels_of_its_fit(photos):
    write(photos, {"a": [1, 4], "b": [2, 5]})  # 6 x 7 and 6 x 8 pixels
    for fit in ("crop", "pad", "squash"):
        for split, data in load_folder(photos, fit=fit).items():
            shown = [
                decode_image(photos / path, Decoding(32, fit=fit))
                for path in paths(sound(photos))[split]
            ]
            assert np.array_equal(data.pixels(slice(None)), shown)


def test_the_dataset_is_the_same_for_any_names_times_and_order(photos, tmp_path):
    write(photos, {"a": range(8), "b": range(8, 16)})
    splits, found = load_folder(photos), sound(photos)
    assert list(splits) == ["train", "test"]
    by_sha256 = {hashlib.sha256(encoded(number)).hexdigest(): number for number in range(16)}
    for split, images in contents(found).items():
        dataset = splits[split]
        assert dataset.classes == ("a", "b")
        pixels = dataset.pixels(slice(None))
        assert pixels.shape == (len(images), 32, 32, 3)
        for row, (name, sha256) in enumerate(images):
            assert dataset.classes[dataset.labels[row]] == name
            assert np.array_equal(
                pixels[row], decode_image(encoded(by_sha256[sha256]), Decoding(32))
            )
    other = tmp_path / "other"
    for number in random.sample(range(16), 16):
        folder = other / ("a" if number < 8 else "b") / str(number % 3)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{-number}.jpg").write_bytes(encoded(number))
        os.utime(folder / f"{-number}.jpg", (number, number))
    for split, dataset in load_folder(other).items():
        assert splits[split].sha256 == dataset.sha256
        assert (splits[split].pixels(slice(None)) == dataset.pixels(slice(None))).all()
        assert (splits[split].labels == dataset.labels).all()


def test_one_photo_more_is_one_photo_decoded(photos, monkeypatch):
    decoded = []
    monkeypatch.setattr(
        "lockstep.data.folder.decode_image",
        lambda *args: decoded.append(args) or decode_image(*args),
    )
    load_folder(write(photos, {"a": range(8), "b": range(8, 16)}))
    decoded.clear()
    for change in (lambda: write(photos, {"b": [99]}), (photos / "a/3.png").unlink):
        change()
        load_folder(photos)
        assert [args[0] for args in decoded] == [encoded(99)]


def test_a_datasets_sha256_covers_files_labels_classes_and_size(tmp_path):
    names = iter("0123456789")

    def sha256(classes, **options):
        root = write(tmp_path / next(names) / "train", classes).parent
        write(root / "test", {name: [99] for name in classes})
        return load_folder(root, **options)["train"].sha256

    base = {"a": [1, 2], "b": [3, 4]}
    digests = [
        sha256(base),
        sha256(base, image_px=48),
        sha256(base, grey=True),
        sha256(base, fit="pad"),
        sha256({"a": [1, 2], "c": [3, 4]}),
        sha256({"a": [1, 3], "b": [2, 4]}),
        sha256({"a": [1, 2], "b": [3, 5]}),
        sha256({"a": [1, 2], "b": [3, 4, 5]}),
    ]
    assert len(set(digests)) == len(digests)
    assert sha256(base) == digests[0]


def test_a_change_that_no_stamp_shows_is_an_error_once(six, monkeypatch):
    """The error names the file, and the next start reads the files again."""
    (six / "b/bad.png").unlink()
    stale = manifest_of(six)
    sound(six)
    (six / "a/3.png").write_bytes(encoded(300))
    monkeypatch.setattr("lockstep.pictures.survey.manifest_of", lambda *_, **__: stale)
    with lockstep_error(r"a/3\.png has changed since it was indexed: start again"):
        load_folder(six)
    assert sum(map(len, load_folder(six).values())) == 5


# the index


def test_only_new_and_changed_files_are_read(six, examined):
    os.utime(six / "a/1.png", (9, 9))
    first = read_photos(manifest_of(six))
    assert sorted(examined) == ["1.png", "2.png", "3.png", "4.png", "5.png", "bad.png"]
    assert [photo.cause for photo in first] == [""] * 5 + ["truncated"]
    assert (first[0].format, first[0].width, first[0].height, first[0].grey) == ("PNG", 7, 6, False)
    examined.clear()
    (six.parent / "link").symlink_to(six)
    assert read_photos(manifest_of(six.parent / "link")) == first
    assert examined == ["bad.png"]  # The cause may be this host's.
    (six / "a/0.png").write_bytes(encoded(10))
    (six / "a/2.png").unlink()
    (six / "b/bad.png").write_bytes(encoded(12))
    time.sleep(0.02)  # longer than the grain of the file system's clock
    data = bytearray((six / "a/1.png").read_bytes())
    data[-1] ^= 1
    (six / "a/1.png").write_bytes(data)  # of equal size,
    os.utime(six / "a/1.png", (9, 9))  # and time of change
    examined.clear()
    again = read_photos(manifest_of(six))
    assert sorted(examined) == ["0.png", "1.png", "bad.png"]
    index_file(six).unlink()
    assert read_photos(manifest_of(six)) == again


@pytest.mark.parametrize(
    ("damage", "again"),
    [
        (lambda data: b"", 6),
        (lambda data: data[:30], 6),
        (lambda data: data[:-50], 2),
        (lambda data: data.replace(b'"PNG"', b'"PMG"', 1), 2),
        (None, 6),
    ],
)
def test_an_index_damaged_or_of_another_decoder_is_made_again(
    six, examined, damage, again, monkeypatch
):
    first = read_photos(manifest_of(six))
    if damage:
        index_file(six).write_bytes(damage(index_file(six).read_bytes()))
    else:
        monkeypatch.setattr(module.decode, "identity", lambda: {"pillow": "0"})
    examined.clear()
    assert read_photos(manifest_of(six)) == first
    assert len(examined) == again
    examined.clear()
    assert read_photos(manifest_of(six)) == first
    assert examined == ["bad.png"]


def test_a_start_after_a_stop_reads_only_the_other_files(six, examined, monkeypatch):
    """Python's own interrupt stands for Ctrl-C. The threads finish their files."""

    def stopped(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lockstep.pictures.threads.AT_A_TIME", 3)
        patch.setattr(module.decode, "inspect_image", inspected_until(2, stopped))
        with pytest.raises(KeyboardInterrupt):
            read_photos(manifest_of(six))
    done = len(index_file(six).read_bytes().splitlines()) - 1
    assert 1 <= done <= 4  # The damaged one, which is not kept, may be among the first.
    examined.clear()
    read_photos(manifest_of(six))
    assert len(examined) == 6 - done


def inspected_until(count, then):
    """Return `inspect_image` for the first `count` images, and then another function."""
    calls, inspect = itertools.count(), module.decode.inspect_image
    return lambda data: (inspect if next(calls) < count else then)(data)


def test_an_index_of_many_files_that_are_gone_is_written_anew(six, examined, monkeypatch):
    first = read_photos(manifest_of(six))
    monkeypatch.setattr(module, "_STALE", 0)
    for path in sorted(six.rglob("*.png"))[:4]:
        path.unlink()
    assert read_photos(manifest_of(six)) == first[4:]
    assert len(index_file(six).read_bytes().splitlines()) == 2
    examined.clear()
    assert read_photos(manifest_of(six)) == first[4:]
    assert examined == ["bad.png"]


def test_what_a_host_cannot_do_is_not_kept_nor_is_a_cache_needed(six, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(
            "lockstep.pictures.decode._square", lambda *_, **__: (_ for _ in ()).throw(MemoryError)
        )
        with lockstep_error("not enough memory") as caught:
            read_photos(manifest_of(six))
    assert caught.value.code == ENVIRONMENT
    monkeypatch.setenv("XDG_CACHE_HOME", __file__)
    monkeypatch.setattr("lockstep.messages._SILENT_S", 0.0)
    assert [photo.cause for photo in read_photos(manifest_of(six))] == [""] * 5 + ["truncated"]
    assert f"reading the images in {six}: 100%" in caplog.text


def test_copies_of_other_size_or_format_are_counted_over_splits(photos, monkeypatch):
    """Of pictures that are different, none looks like another one; equal files and tiny pictures do
    not count.
    """
    _load_plugins()  # so that Pillow writes HEIC
    for number in range(12):
        coarse = noise(number, 12, 12, 3)
        picture = Image.fromarray(coarse).resize((200, 150), Image.Resampling.BICUBIC)
        split, name = "train" if number < 9 else "test", "ab"[number % 2]
        for folder in (photos / split / name, photos / "test" / name):
            folder.mkdir(parents=True, exist_ok=True)
        picture.save(photos / split / name / f"{number}.png")
        if number < 3:
            copy = photos / "test" / name / f"copy {number}"
            picture.resize((100, 75)).save(
                copy.with_suffix((".jpg", ".webp", ".heic")[number]), quality=40
            )
        picture.save(photos / "test/a/same.png") if number == 4 else None
        picture.resize((60, 45)).save(photos / "test/a/tiny.png") if number == 6 else None
    survey = survey_folder(photos, 0.2)
    record = record_of(survey)
    assert sorted(record["near_duplicates"]) == [
        ["train/a/0.png", "test/a/copy 0.jpg"],
        ["train/a/2.png", "test/a/copy 2.heic"],
        ["train/b/1.png", "test/b/copy 1.webp"],
    ]
    assert "  alike       3 (near duplicates in different splits)" in "\n".join(lines_of(record))
    # The same number stands beside the accuracy, except in large folders.
    test_set = read_folder(survey.examples(), Decoding(8))["test"]
    assert test_set.caution.startswith("3 of 8 test images look like training images, so")
    monkeypatch.setattr("lockstep.pictures.similar._AT_START", 9 * 7 - 1)
    assert survey.examples().cautions["test"].startswith("test images that look like training")


def test_the_report_names_everything(photos):
    write(photos, {"a": range(20), "b": range(20, 30)})
    (photos / "a/big.jpg").write_bytes(encoded(500, side=40, format="JPEG"))
    (photos / "b/same.png").write_bytes(encoded(3))
    for name in ("b/bad.png", "b/list.txt", "b/x.cr2"):
        (photos / name).write_bytes(b"bad")
    record = record_of(survey_folder(photos, 0.2))
    assert record["images"] == 1 + sum(record["splits"].values()) == 33
    assert {name: sum(counts.values()) for name, counts in record["classes"].items()} == {
        "a": 21,
        "b": 11,
    }
    assert record["shorter_side"] == 6
    assert record["duplicates"] == record["contradicting"] == [["a/3.png", "b/same.png"]]
    assert record["leaks"] == record["in_no_class"] == []
    assert (record["other_files"], len(record["problems"])) == ({"cr2": 1, "txt": 1}, 1)
    text = "\n".join([*lines_of(record), *record["problems"]])
    for words in (
        "33 images",
        "1 JPEG, 31 PNG",
        "6 pixels on the shorter side",
        "b/bad.png: not a",
        "a/3.png = b/same.png",
    ):
        assert words in text
