"""Several labels of a picture: columns of 0 and 1, names in one cell, copies in several classes."""

import numpy as np
import pytest
from tests.helpers import lockstep_error
from tests.images import lay, pictures, table

from lockstep.config.overrides import make
from lockstep.errors import DATA, LockstepError
from lockstep.pages import prediction_table
from lockstep.pictures.cells import joining, names_in
from lockstep.pictures.check import lines_of, record_of
from lockstep.pictures.decode import Decoding
from lockstep.pictures.photos import survey_folder
from lockstep.pictures.table import LabelSource
from lockstep.recipes import get_recipe

LEAVES = ["scab", "rust", "scab rust", "healthy", "healthy", "scab"]
CATS = pictures("cats/1", "cats/2", "dogs/3", "dogs/4")
SIX = pictures(*"123456")


def cells(*texts, header="image,labels"):
    return {**SIX, "l.csv": table(header, *(f"{n},{text}" for n, text in enumerate(texts, 1)))}


def read(root, contents, multi_label=True, classes=None, **source):
    root = lay(root / "photos", contents)
    return survey_folder(
        root, 0.3, source=LabelSource(**source, multi_label=multi_label), classes=classes
    )


def labels_of(found):
    return {
        photo.path.removesuffix(".png"): " ".join(photo.labels)
        for photos in found.splits.values()
        for photo in photos
    }


HOT = table("file,cat,dog", "1,1,0", "2,0.0,1.0", "3,True,yes", "4,no,FALSE", "5,1,0", "6,0,1")
AGES = table(
    'file,age,dog,"man, old",valid',
    *("1,7,0,1,0", "2,8,1,0,1", "3,9,1,0,0", "4,9,0,0,0", "5,9,0,0,0", "6,9,1,1,1"),
)
HOT_LABELS = {"1": "cat", "2": "dog", "3": "cat dog", "4": "", "5": "cat", "6": "dog"}
LEAF_LABELS = {
    "1": "scab",
    "2": "rust",
    "3": "rust scab",
    "4": "healthy",
    "5": "healthy",
    "6": "scab",
}

# id: (contents, options, path -> labels)
READ = {
    "columns": ({**SIX, "l.csv": HOT}, {}, HOT_LABELS),
    "columns of -1 and 1": (
        {
            **SIX,
            "l.csv": HOT.replace(",0", ",-1")
            .replace("-1.0", "\N{MINUS SIGN}1")
            .replace("no,FALSE", "-1,-1"),
        },
        {},
        HOT_LABELS,
    ),
    "a delimiter that ends each line": ({**SIX, "l.csv": HOT.replace("\n", ",\n")}, {}, HOT_LABELS),
    "a delimiter that ends each line but the first": (
        {**SIX, "l.csv": HOT.replace("\n", ",\n").replace("dog,", "dog")},
        {},
        HOT_LABELS,
    ),
    "the delimiter in the first line": (
        {**SIX, "l.csv": "\ufeffsep=;\r\n" + HOT.replace(",", ";").replace("\n", "\r\n")},
        {},
        HOT_LABELS,
    ),
    "the delimiter in quotes, and empty lines": (
        {**SIX, "l.csv": '\n"sep=|"\n\n' + HOT.replace(",", "|") + " | |\n\n"},
        {},
        HOT_LABELS,
    ),
    "columns beside others, that are named": (
        {**SIX, "l.csv": AGES},
        {"label_column": 'dog,"man, old"'},
        {"1": "man, old", "2": "dog", "3": "dog", "4": "", "5": "", "6": "dog man, old"},
    ),
    "names with a space between them": (
        cells(*LEAVES),
        {"label_separator": " "},
        LEAF_LABELS,
    ),
    "names with a comma and spaces between them, one twice": (
        cells("a", "b", '"b , a"', "", '",a,a,"', "b"),
        {"label_separator": ","},
        {"1": "a", "2": "b", "3": "a b", "4": "", "5": "a", "6": "b"},
    ),
    "a comma in a name": (
        cells('"dog, brown"', "cat", '"cat;dog, brown"', "cat", '"dog, brown"', "cat"),
        {"label_separator": ";"},
        {
            "1": "dog, brown",
            "2": "cat",
            "3": "cat dog, brown",
            "4": "cat",
            "5": "dog, brown",
            "6": "cat",
        },
    ),
    "each cell is one name": (
        cells("hot dog", "cat", "hot dog", "cat", "", "cat"),
        {"layout": "table"},
        {"1": "hot dog", "2": "cat", "3": "hot dog", "4": "cat", "5": "", "6": "cat"},
    ),
    "a row for each label": (
        {
            **SIX,
            "l.csv": table("file,label", "1,a", "1,b", "2,a", "3,b", "4,a", "5,b", "6,", "6,a"),
        },
        {},
        {"1": "a b", "2": "a", "3": "b", "4": "a", "5": "b", "6": "a"},
    ),
    "copies in folders": (
        {**CATS, "dogs/1 again.png": 1, "cats/too.png": 1},
        {},
        {"cats/1": "cats dogs", "cats/2": "cats", "dogs/3": "dogs", "dogs/4": "dogs"},
    ),
    "names of folders with a separator": (
        pictures("a/1", "a/2", "b/3", "b/4", "a+b/5"),
        {"label_separator": "+"},
        {"a/1": "a", "a/2": "a", "b/3": "b", "b/4": "b", "a+b/5": "a b"},
    ),
    "names of files with a separator": (
        pictures("a_1", "b_2", "a+b_3", "a_4", "b_5"),
        {"label_separator": "+", "label_from": "(.+)_"},
        {"a_1": "a", "b_2": "b", "a+b_3": "a b", "a_4": "a", "b_5": "b"},
    ),
}

SEPARATOR = "--multi-label and --label-separator ' ' if so, or --layout table if it is one"
# id: (contents, options, what the sentence says)
REFUSED = {
    "one label, and a cell that joins others": (
        cells(*LEAVES),
        {"multi_label": False},
        [f"1 label that may join several labels (scab rust): add {SEPARATOR}"],
    ),
    "several labels, and a cell that joins others": (
        cells(*LEAVES),
        {},
        ["(scab rust): add --label-separator ' ' if so, or --layout table if it is one"],
    ),
    "several labels, and cells with an unknown mark": (
        cells("a;b", "c;d", "a;b", "c;d", "e", "e"),
        {},
        ["2 labels that may join several labels (a;b and 1 more): add --label-separator ';' if"],
    ),
    "a name of a file that joins others": (
        pictures("a_1", "b_2", "a+b_3", "a_4", "b_5"),
        {"label_from": "(.+)_", "multi_label": False},
        ["(a+b): add --multi-label and --label-separator + if so, or --layout names if"],
    ),
    "a name of a folder that joins others": (
        pictures("a/1", "b/2", "a b/3"),
        {},
        ["(a b): add --label-separator ' ' if so, or --layout folders if it is one"],
    ),
    "a wrong separator": (
        cells(*LEAVES),
        {"label_separator": ";"},
        [
            "--label-separator ';' is in no label, as healthy, rust, scab, scab rust: give what is "
            "between two names, or leave it out",
            "1 label that may join several labels (scab rust): add --label-separator ' ' if so",
        ],
    ),
    "a separator of columns": (
        {**SIX, "l.csv": HOT},
        {"label_separator": ","},
        ["--label-separator , is in no label, as cat, dog: give"],
    ),
    "one label, and columns": (
        {**SIX, "l.csv": HOT},
        {"multi_label": False},
        ["or add --multi-label if the columns cat, dog are labels"],
    ),
    "columns that may be something else": (
        {**SIX, "l.csv": AGES},
        {},
        [
            "l.csv has columns of 0 and 1, which may be labels, and others (age, valid): name those "
            """that are labels, as in --label-column 'dog,"man, old",valid'"""
        ],
    ),
    "a column that is not there": (
        {**SIX, "l.csv": AGES},
        {"label_column": "dog, cow"},
        ["has the columns 'file', 'age', 'dog', 'man, old', 'valid', and none called 'cow': name"],
    ),
    "a column with another value": (
        {**SIX, "l.csv": AGES},
        {"label_column": "dog,age"},
        ["l.csv: line 2 has '7' in the column 'age', where 0 or 1 is allowed: correct it, or name"],
    ),
    "a column without a value": (
        {**SIX, "l.csv": HOT.replace("5,1,0", "5,1,")},
        {"label_column": "cat,dog"},
        [
            "l.csv: line 6 has an empty cell in the column 'dog': write 1 if the image has this label"
        ],
    ),
    "a row of too few cells": (
        {**SIX, "l.csv": HOT.replace("5,1,0", "5,1")},
        {},
        ["l.csv: line 6 has 2 cells, and the first line 3: correct it"],
    ),
    "a row of too many cells": (
        {**SIX, "l.csv": HOT.replace("5,1,0", "5,1,0,1")},
        {},
        ["l.csv: line 6 has 4 cells, and the first line 3: correct it, with quotes around"],
    ),
    "-1 and 0": (
        {**SIX, "l.csv": HOT.replace("5,1,0", "5,1,-1.0")},
        {},
        [
            "l.csv: line 6 has -1 in a column of labels, where others have 0. In some datasets, as "
            "CheXpert, -1 means uncertain: write 0 or 1 for it, or remove these rows"
        ],
    ),
    "a column of 0 and 1 with another value": (
        {**SIX, "l.csv": HOT.replace("5,1,0", "5,2,0")},
        {},
        ["l.csv: line 6 has '2' in the column 'cat', where 0 or 1 is allowed: correct it, or name"],
    ),
    "a column without a name": (
        {**SIX, "l.csv": HOT.replace("file,cat,dog", "file,cat,")},
        {},
        ["and others (one without a name): name those that are labels, as in --label-column cat,"],
    ),
    "two columns of one name": (
        {**SIX, "l.csv": HOT.replace("file,cat,dog", "file,dog,dog")},
        {"label_column": "dog"},
        ["l.csv has more than one column 'dog': rename them"],
    ),
    "columns beside one of names": (
        {**SIX, "l.csv": table("file,label,dog,eel", *(f"{n},a,1,0" for n in range(1, 7)))},
        {},
        ["others (label): name those that are labels, as in --label-column dog,eel"],
    ),
    "lists, and a separator": (
        cells(*['"[1, 2]"', "[2]"] * 3),
        {"label_separator": ","},
        ["2 labels written as a list ([1 and 1 more): write them as a;b, or add --layout table"],
    ),
    "no rows": ({**SIX, "l.csv": "file,cat,dog\n"}, {}, ["l.csv has no rows: give it a line with"]),
    "one column, and one label": (
        {**SIX, "l.csv": table("file,cat", *(f"{n},{n % 2}" for n in range(1, 7)))},
        {"multi_label": False},
        ["or give its name as --label-column NAME, or give each class"],
    ),
    "a label without an image": (
        {**SIX, "l.csv": HOT.replace("\n", ",0\n").replace("dog,0", "dog,eel")},
        {},
        ["1 class without an image that can be read, eel: remove or fill them"],
    ),
    "one label, and a cell without": (
        cells("a", "a", "b", "", "b", "b"),
        {"multi_label": False},
        [
            "l.csv: line 5 has an empty cell in the column 'labels': fill it, or add "
            "--multi-label if it has no label"
        ],
    ),
    "one label in all": (
        cells("a", "", "a", "", "", "a"),
        {},
        ["only one class, a: name at least"],
    ),
    "no label": (cells("", "", "", "", "", ""), {}, ["it holds no folders"]),
    "a column beside folders": (
        {**CATS, "l.csv": table("file,x,y", "1,1,0", "2,0,1", "3,1,1", "4,0,0")},
        {},
        ["cats/1.png is cats by its folder, and l.csv (file, x, y) names it too: choose with"],
    ),
    "images that are always together": (
        cells("a b", "a b", "a c", "b c", "c", "d", header="file,label"),
        {"label_separator": " "},
        [
            "1 class with too few different images of its own, d: one is needed",
            "Add images, or name the column of l.csv (file, label) with train and test: --split-column",
        ],
    ),
    "a column with one label": (
        {
            **SIX,
            "l.csv": HOT.replace("\n", ",0\n")
            .replace("dog,0", "dog,eel")
            .replace("1,0\n", "1,1\n", 1),
        },
        {},
        ["of its own, eel: one", "leave it out: name the other columns as --label-column"],
    ),
}


@pytest.mark.parametrize("name", READ)
def test_labels_that_are_read(tmp_path, name):
    contents, options, expected = READ[name]
    found = read(tmp_path, contents, **options).require_sound()
    assert labels_of(found) == expected
    assert {*found.classes} == {label for photo in found.scan.photos for label in photo.labels}


def test_a_column_of_names_wins_by_its_name_or_a_separator(tmp_path):
    rows = table("file,label,dog", "1,a,1", "2,b,1", "3,a;b,0", "4,a,0", "5,b,0", "6,a;b,1")
    for options in ({"label_column": "label", "layout": "table"}, {"label_separator": ";"}):
        found = read(tmp_path / str(len(options)), {**SIX, "l.csv": rows}, **options)
        assert labels_of(found.require_sound())["1"] == "a"


@pytest.mark.parametrize("truth", [False, True])
@pytest.mark.parametrize("multi_label", [False, True])
def test_answers_of_a_classifier_are_no_labels(tmp_path, multi_label, truth):
    head = prediction_table.head(["cats", "dogs"], multi_label=multi_label, with_truth=truth)
    width = head.count(",")
    answers = table(head, *(f"{name}{',x' * width}" for name in ("cats/1.png", "dogs/4.png")))
    for place in ("test.csv", "../test.csv"):
        found = read(
            tmp_path / str(len(place)), {**CATS, place: answers}, multi_label
        ).require_sound()
        assert labels_of(found)["cats/1"] == "cats"
    flat = {**SIX, "l.csv": HOT, "../test.csv": answers, "more.csv": answers}
    assert labels_of(read(tmp_path / "flat", flat).require_sound()) == HOT_LABELS


@pytest.mark.parametrize("name", REFUSED)
def test_labels_that_are_refused(tmp_path, name):
    contents, options, words = REFUSED[name]
    with pytest.raises(LockstepError) as caught:
        read(tmp_path, contents, **options).require_sound()
    assert caught.value.code == DATA
    for word in words:
        assert word in str(caught.value)


def test_labels_are_rows_of_zeros_and_ones_in_the_digest(tmp_path):
    found = read(tmp_path, {**SIX, "l.csv": HOT}).require_sound()
    for split, photos in found.splits.items():
        labels = found.examples().labels[found.examples().splits[split]]
        assert labels.dtype == np.uint8
        names = [[*np.array(found.classes)[row == 1]] for row in labels]
        assert names == [[*photo.labels] for photo in photos]
    before = found.examples().digest("train", Decoding(32))
    (tmp_path / "photos/l.csv").write_text(HOT.replace("4,no", "4,yes"))
    after = survey_folder(tmp_path / "photos", 0.3, source=LabelSource(multi_label=True))
    assert [found.splits.keys(), len(found.splits["test"])] == [after.splits.keys(), 2]
    assert after.examples().digest("train", Decoding(32)) != before


def test_each_label_is_on_both_sides_and_copies_are_on_one(tmp_path):
    names = ["a/1", "a/2", "b/3", "b/4", "c/5", "c/6", *(f"a/{n}" for n in range(20, 40))]
    copies = {f"b/copy{n}.png": n for n in range(20, 30)} | {"c/copy.png": 1}
    contents = {f"{name}.png": int(name.partition("/")[2]) for name in names} | copies
    found = read(tmp_path, contents).require_sound()
    for split in ("train", "test"):
        labels = found.examples().labels[found.examples().splits[split]]
        assert labels.sum(0).min() >= 1
    sides = [{photo.sha256 for photo in photos} for photos in found.splits.values()]
    assert not sides[0] & sides[1]
    assert sum(map(len, sides)) == sum(map(len, found.splits.values())) == 26
    assert "11 images in several classes: each counts once, with all its labels" in found.notes[1]
    notes = read(tmp_path / "one", contents, multi_label=False).notes
    assert notes[0].startswith("11 images in several classes: the labels contradict each other (")
    assert notes[0].endswith("): correct them, or add --multi-label")


def test_what_is_read_is_said_and_counted(tmp_path):
    found = read(tmp_path, cells("a b", "b", "a b c", "", "a a", "c"), label_separator=" ")
    assert found.notes == [
        "labels by l.csv (image, labels): 3.png is a, b and c; 1.png is a and b; 5.png is a",
        "1 image that names a label twice: it counts once (5.png)",
    ]
    record = record_of(found)
    assert record["labels_per_image"] == {0: 1, 1: 3, 2: 1, 3: 1}
    assert record["without_label"] == ["4.png"]
    assert "  no label    4.png (--json lists all)" in lines_of(record)
    assert sum(record["splits"].values()) == 6
    assert {name: sum(counts.values()) for name, counts in record["classes"].items()} == {
        "a": 3,
        "b": 3,
        "c": 2,
    }
    assert "  labels      images 1 with 0, 3 with 1, 1 with 2, 1 with 3" in lines_of(record)
    columns = read(tmp_path / "hot", {**SIX, "l.csv": HOT}).notes
    assert columns[0].startswith("labels by the columns cat, dog of l.csv (file, cat, dog): 3.png")


def test_other_images_of_a_run_may_have_fewer_labels(tmp_path):
    found = read(
        tmp_path, cells("a", "a", "", "a", "b", "b"), classes=("a", "b", "c"), label_separator=";"
    ).require_sound()
    assert found.examples().labels.sum(0).tolist() == [3, 2, 0]
    with lockstep_error("1 class that the run does not know .b."):
        read(tmp_path, SIX, classes=("a", "c")).require_sound()


def test_names_in_a_text_and_what_joins_them():
    assert names_in(" a ;b;; a", ";") == ["a", "b", "a"]
    assert names_in("a b", None) == ["a b"]
    names = ["a", "b", "a, b", "a_b", "x y", "hot dog"]
    assert joining(names, False) == (",", ["a, b"])
    assert joining(names, True) == (" ", ["a, b", "hot dog", "x y"])
    assert joining(["cat", "cat cat"], False)[1] == []


def test_the_recipe_of_a_separator_has_several_labels():
    fields = get_recipe("folder").model_dump(mode="json")
    recipe = make(fields, {"multi_label": True, "label_separator": " "})
    assert recipe.digest() != make(fields, {"multi_label": True}).digest()
    with lockstep_error("label_separator is for multi-label data: add --multi-label"):
        make(fields, {"label_separator": " "})
