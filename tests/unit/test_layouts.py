"""What lies in a folder of images, and how it is read: classes, splits and labels, or the sentence
that refuses it.

One table of cases. A folder is a mapping from names of files to their content: the number of an
image, or a text.
"""

import codecs
import re

import pytest
from tests.helpers import lockstep_error
from tests.images import lay, pictures, table

from lockstep.config.recipe import Recipe
from lockstep.errors import DATA, LockstepError
from lockstep.pictures.photos import survey_folder
from lockstep.pictures.table import SOURCES, LabelSource
from lockstep.recipes import get_recipe
from lockstep.text import listed

CATS = pictures("cats/1", "cats/2", "dogs/3", "dogs/4")
FLAT = pictures("1", "2", "3", "4")
HAM = pictures(
    *(
        f"HAM_images_part_{part}/ISIC_{n}.jpg"
        for part in (1, 2)
        for n in range(3 * part, 3 * part + 3)
    )
)
HAM_TABLE = table(
    "lesion_id,image_id,dx,age",
    *(f"L{n // 2},ISIC_{n},{'nv' if n % 2 else 'mel'},50" for n in range(3, 9)),
)
ONE, TWO = "1.png,a", "2.png,b"
LABELS = table("file,label", "1.png,a", "2.png,a", "3.png,b", "4.png,b")
A_B = {"1.png": "a", "2.png": "a", "3.png": "b", "4.png": "b"}


def of(classes, **folders):
    """What is read of images in folders that name their classes."""
    return {f"{name}/{n}.png": name for name in classes for n in folders.get(name, ())}


# id: (contents, options, path -> class, or with a split path -> (class, split))
READ = {
    "folders": (
        CATS,
        {},
        {"cats/1.png": "cats", "cats/2.png": "cats", "dogs/3.png": "dogs", "dogs/4.png": "dogs"},
    ),
    "signs in the names of classes": (
        pictures("-1/1", "-1/2", "1/3", "1/4", "A-/5", "A-/6", "A/7", "A/8"),
        {},
        {
            f"{name}/{n}.png": name
            for n, name in enumerate(["-1", "-1", "1", "1", "A-", "A-", "A", "A"], 1)
        },
    ),
    "paths of another computer, in the folder": (
        {
            **FLAT,
            "l.csv": table(
                "path,label", *(f"Data\\all/{n}.png,{'aabb'[n - 1]}" for n in range(1, 5))
            ),
        },
        {},
        A_B,
    ),
    "a table in the folder": ({**FLAT, "labels.csv": LABELS}, {}, A_B),
    "tabs": ({**FLAT, "labels.tsv": LABELS.replace(",", "\t")}, {}, A_B),
    "utf-16": ({**FLAT, "labels.csv": codecs.BOM_UTF16_LE + LABELS.encode("utf-16-le")}, {}, A_B),
    "a table beside the folder": ({**FLAT, "../labels.csv": LABELS}, {}, A_B),
    "a table below the folder": (
        {**FLAT, "tables/labels.csv": LABELS.replace("1.png", "../1.png")},
        {},
        A_B,
    ),
    "a table beside that names other files": (
        {**CATS, "../list.csv": table("file,label", "x,a", "y,b")},
        {},
        None,
    ),
    "a table of something else": (
        {**CATS, "costs.csv": table("month,sum", "May,3", "June,4")},
        {},
        None,
    ),
    "an unknown name of the file's column": (
        {**FLAT, "labels.csv": LABELS.replace("file", "Foto")},
        {},
        A_B,
    ),
    "a column in which fewer than half of the cells name an image": (
        {
            **FLAT,
            "l.csv": table(
                "Foto,copy of,label",
                "1.png,-,a",
                "2.png,-,a",
                "3.png,-,b",
                "4.png,3.png,b",
            ),
        },
        {},
        A_B,
    ),
    "a table beside the folders of splits that names their images": (
        {
            **pictures("train/1", "train/2", "train/3", "test/4"),
            "l.csv": table("file,label", "1.png,a", "2.png,a", "3.png,b", "4.png,b"),
        },
        {},
        {
            "train/1.png": ("a", "train"),
            "train/2.png": ("a", "train"),
            "train/3.png": ("b", "train"),
            "test/4.png": ("b", "test"),
        },
    ),
    "numbers as labels and names": (
        {**FLAT, "l.csv": table("id,label", "1,2", "2,2", "3,3", "4,3")},
        {},
        {"1.png": "2", "2.png": "2", "3.png": "3", "4.png": "3"},
    ),
    "another column of labels": (
        {**FLAT, "l.csv": LABELS.replace("label", "breed")},
        {"label_column": "breed"},
        A_B,
    ),
    "two columns that may be it": (
        {
            **FLAT,
            "l.csv": table("file,class,label", *(f"{n}.png,x,{'ab'[n > 2]}" for n in range(1, 5))),
        },
        {"label_column": "label"},
        A_B,
    ),
    "windows paths of another computer": (
        {
            **FLAT,
            "l.csv": table(
                "file,label", *(rf"C:\Users\me\{n}.png,{'ab'[n > 2]}" for n in range(1, 5))
            ),
        },
        {},
        A_B,
    ),
    "absolute paths of another computer": (
        {
            **FLAT,
            "l.csv": table("file,label", *(f"/home/me/{n}.png,{'ab'[n > 2]}" for n in range(1, 5))),
        },
        {},
        A_B,
    ),
    "absolute paths tell equal names apart": (
        {**pictures("x/1", "y/1"), "l.csv": table("file,label", "/d/x/1.png,a", "/d/y/1.png,b")},
        {"layout": "table"},
        {"x/1.png": "a", "y/1.png": "b"},
    ),
    "paths that begin with the folder": (
        {
            **FLAT,
            "l.csv": table("file,label", *(f"photos/{n}.png,{'ab'[n > 2]}" for n in range(1, 5))),
        },
        {},
        A_B,
    ),
    "a space in a label": (
        {**FLAT, "l.csv": LABELS.replace(",b", ",scab frog_eye_leaf_spot")},
        {},
        {
            "1.png": "a",
            "2.png": "a",
            "3.png": "scab frog_eye_leaf_spot",
            "4.png": "scab frog_eye_leaf_spot",
        },
    ),
    "a space in a folder": (
        pictures("a b c/1", "d/2", first=1),
        {},
        {"a b c/1.png": "a b c", "d/2.png": "d"},
    ),
    "ham by the table": (
        {**HAM, "meta.csv": HAM_TABLE},
        {"label_column": "dx"},
        {name: "nv" if int(name[-5]) % 2 else "mel" for name in HAM},
    ),
    "ham by the folders": (
        {**HAM, "meta.csv": HAM_TABLE},
        {"layout": "folders"},
        {name: name.split("/")[0] for name in HAM},
    ),
    "tables in the splits": (
        {
            **pictures("train/1", "train/2", "valid/1", "valid/2", first=1),
            "train/l.csv": table("file,label", ONE, TWO),
            "valid/l.csv": table("file,label", "1.png,b", "2.png,a"),
        },
        {},
        {
            "train/1.png": ("a", "train"),
            "train/2.png": ("b", "train"),
            "valid/1.png": ("b", "validation"),
            "valid/2.png": ("a", "validation"),
        },
    ),
    "a table that agrees and has splits": (
        {
            **CATS,
            "l.csv": table(
                "file,label,split", "1,cats,train", "2,cats,test", "3,dogs,train", "4,dogs,test"
            ),
        },
        {},
        {
            "cats/1.png": ("cats", "train"),
            "cats/2.png": ("cats", "test"),
            "dogs/3.png": ("dogs", "train"),
            "dogs/4.png": ("dogs", "test"),
        },
    ),
    "another column of splits": (
        {
            **CATS,
            "l.csv": table(
                "file,label,part", "1,cats,train", "2,cats,test", "3,dogs,train", "4,dogs,test"
            ),
        },
        {"split_column": "part"},
        {
            "cats/1.png": ("cats", "train"),
            "cats/2.png": ("cats", "test"),
            "dogs/3.png": ("dogs", "train"),
            "dogs/4.png": ("dogs", "test"),
        },
    ),
    "folders, with the splits of a table that names no classes": (
        {**CATS, "l.csv": table("file,part", "1,train", "2,test", "3,train", "4,test")},
        {"layout": "folders", "split_column": "part"},
        {
            "cats/1.png": ("cats", "train"),
            "cats/2.png": ("cats", "test"),
            "dogs/3.png": ("dogs", "train"),
            "dogs/4.png": ("dogs", "test"),
        },
    ),
    "a table that agrees and adds nothing": (
        {**CATS, "l.csv": table("file,label", "1,cats", "4,dogs")},
        {},
        None,
    ),
    "the table of two that differ": (
        {**CATS, "l.csv": table("file,label", "1,x", "2,x", "3,y", "4,y")},
        {"layout": "table"},
        {"cats/1.png": "x", "cats/2.png": "x", "dogs/3.png": "y", "dogs/4.png": "y"},
    ),
    "the folders of two that differ": (
        {**CATS, "l.csv": table("file,label", "1,x", "2,x", "3,y", "4,y")},
        {"layout": "folders"},
        None,
    ),
    "case that is meant": (
        pictures("A/1", "a/2"),
        {"layout": "folders"},
        {"A/1.png": "A", "a/2.png": "a"},
    ),
    "folders in classes": (
        pictures("cats/x/1", "cats/y/2", "dogs/x/3", "dogs/y/4"),
        {},
        {
            "cats/x/1.png": "cats",
            "cats/y/2.png": "cats",
            "dogs/x/3.png": "dogs",
            "dogs/y/4.png": "dogs",
        },
    ),
    "masks that are meant": (
        pictures("face/1", "mask/1", first=1),
        {"layout": "folders"},
        {"face/1.png": "face", "mask/1.png": "mask"},
    ),
    "faces with and without masks": (
        pictures("with_mask/1", "without_mask/1"),
        {},
        {"with_mask/1.png": "with_mask", "without_mask/1.png": "without_mask"},
    ),
    "the names of the files": (
        pictures("cat.0.jpg", "cat.1.jpg", "dog.0.jpg", "dog.1.jpg"),
        {"label_from": "^([a-z]+)[.]"},
        {"cat.0.jpg": "cat", "cat.1.jpg": "cat", "dog.0.jpg": "dog", "dog.1.jpg": "dog"},
    ),
    "all that matches in the names of the files": (
        pictures("7_cat", "8_dog"),
        {"label_from": "cat|dog"},
        {"7_cat.png": "cat", "8_dog.png": "dog"},
    ),
    "the names of the files in splits": (
        pictures("train/a_1", "train/b_2", "test/x/a_3", "sample"),
        {"label_from": "([a-z])_"},
        {
            "train/a_1.png": ("a", "train"),
            "train/b_2.png": ("b", "train"),
            "test/x/a_3.png": ("a", "test"),
        },
    ),
    "the names of the files, in folders and beside a table": (
        {
            **pictures("cats/x_1", "cats/y_2", "dogs/x_3", "dogs/y_4"),
            "l.csv": table("file,label", "x_1,cats", "y_2,cats", "x_3,dogs", "y_4,dogs"),
        },
        {"label_from": "([a-z])_"},
        {"cats/x_1.png": "x", "cats/y_2.png": "y", "dogs/x_3.png": "x", "dogs/y_4.png": "y"},
    ),
    "the names of the files, with the splits of a table": (
        {
            **pictures("x_1", "y_2", "x_3", "y_4"),
            "l.csv": table("file,part", "x_1,train", "y_2,train", "x_3,test", "y_4,test"),
        },
        {"label_from": "([a-z])_", "split_column": "part"},
        {
            "x_1.png": ("x", "train"),
            "y_2.png": ("y", "train"),
            "x_3.png": ("x", "test"),
            "y_4.png": ("y", "test"),
        },
    ),
    "case that is meant in the names of the files": (
        pictures("A_1", "a_2"),
        {"label_from": "[Aa]", "layout": "names"},
        {"A_1.png": "A", "a_2.png": "a"},
    ),
    "folders of systems": (
        {
            **CATS,
            **pictures(
                "#recycle/a",
                "@eaDir/a",
                "lost+found/a",
                "$Recycle.Bin/a",
                "__MACOSX/a",
                "System Volume Information/a",
                "RECYCLER/a",
                "@Recycle/a",
                ".Trashes/a",
                first=50,
            ),
        },
        {},
        None,
    ),
}

# id: (contents, options, what the sentence says)
REFUSED = {
    "ham": (
        {**HAM, "meta.csv": HAM_TABLE},
        {},
        [
            "HAM_images_part_1/ISIC_3.jpg is HAM_images_part_1 by its folder, and meta.csv "
            "(lesion_id, image_id, dx, "
            "age) names it too: choose with --layout folders or --label-column NAME"
        ],
    ),
    "labels that differ, of the same classes": (
        {**CATS, "l.csv": table("file,label", "1,cats", "2,dogs", "3,dogs", "4,cats")},
        {},
        [
            "cats/2.png is cats by its folder, and l.csv (file, label) says dogs: choose with "
            "--layout folders or "
            "--layout table"
        ],
    ),
    "labels by paths of another computer, beside folders": (
        {**CATS, "l.csv": table("path,sex", *(f"Set-1/x/{path},f" for path in CATS))},
        {},
        ["cats/1.png is cats by its folder, and l.csv (path, sex) names it too: choose with"],
    ),
    "paths of another split": (
        {**CATS, "l.csv": table("path,label", *(f"x/test/{path},f" for path in CATS))},
        {"layout": "table"},
        ["4 rows of l.csv (path, label) without an image (x/test/cats/1.png and 3 more)"],
    ),
    "labels of other classes, beside": (
        {**CATS, "../l.csv": table("file,label", "1,x", "2,x", "3,y", "4,y")},
        {},
        ["cats/1.png is cats by its folder, and l.csv (file, label) says x: choose with"],
    ),
    "a table without labels": (
        {**CATS, "meta.csv": table("file,width", "1,7", "2,7", "3,8", "4,8")},
        {},
        ["cats/1.png is cats by its folder, and meta.csv (file, width) names it too: choose"],
    ),
    "groups of some": (
        {**CATS, "l.csv": table("file,label,group", "1,cats,p", "4,dogs,q")},
        {},
        ["2 images without a row in l.csv (file, label, group) (cats/2.png and 1 more): add a row"],
    ),
    "a column that is not there": (
        {**FLAT, "l.csv": LABELS},
        {"label_column": "dx"},
        ["l.csv has the columns 'file', 'label', and none called 'dx' names an image's class"],
    ),
    "a column without a table": (
        CATS,
        {"label_column": "dx"},
        ["no CSV here names the images: add one with the columns"],
    ),
    "no label": (
        {**FLAT, "l.csv": table("file,width", "1,7")},
        {},
        [
            "l.csv has the columns 'file', 'width', and none names an image's class: call one "
            "label, class, category, "
            "target or labels, or give its name as --label-column NAME"
        ],
    ),
    "one-hot columns": (
        {**FLAT, "l.csv": table("file,cat,dog", "1,1,0", "2,0,1")},
        {},
        ["and none names an image's class"],
    ),
    "many columns": (
        {**FLAT, "l.csv": table("file," + ",".join(f"c{n}" for n in range(40)), "1" + ",0" * 40)},
        {},
        ["has the columns 'file', 'c0', 'c1', 'c2', 'c3' and 36 more, and none"],
    ),
    "the table is chosen, and names no classes": (
        {**CATS, "l.csv": table("file,width", "1,7", "2,7", "3,8", "4,8")},
        {"layout": "table"},
        ["none names an image's class: call one label"],
    ),
    "two labels": (
        {**FLAT, "l.csv": table("file,class,label", "1,x,a", "2,x,b")},
        {},
        ["'class' and 'label' may each name an image's class", "--label-column NAME"],
    ),
    "windows code page": (
        {**FLAT, "l.csv": "file,label\n1,a\n2,Käse\n".encode("cp1252")},
        {},
        ["l.csv: line 3 is not in UTF-8: save it as CSV in UTF-8"],
    ),
    "windows code page beside classes": (
        {**CATS, "l.csv": "file,label\n1,a\n2,Käse\n".encode("cp1252")},
        {},
        ["l.csv: line 3 is not in UTF-8", "or add --layout folders"],
    ),
    "absolute paths that are not here": (
        {**FLAT, "l.csv": LABELS + "C:\\x\\9.png,a\n"},
        {},
        [r"1 row of l.csv (file, label) without an image (C:\x\9.png): add the image"],
    ),
    "equal names of another computer": (
        {
            **pictures("x/1", "y/1", "z/2"),
            "l.csv": table("file,label", r"C:\p\1.png,a", r"C:\p\2.png,b"),
        },
        {"layout": "table"},
        ["1 row of l.csv (file, label) with several images of that name", "give the path of each"],
    ),
    "one of two splits": (
        {
            **pictures("train/1", "train/2"),
            "l.csv": table("file,label", "test/1.png,a", "train/2.png,b"),
        },
        {},
        ["1 row of l.csv (file, label) without an image (test/1.png)"],
    ),
    "json": (
        {**FLAT, "labels.json": '{"1.png": "a"}'},
        {},
        ["4 images in no class", "or save the json file as a CSV with the columns file and label"],
    ),
    "json beside the folder of images": (
        {"images/1.png": 1, "images/2.png": 2, "labels.json": "{}"},
        {},
        ["only one class, images: save the json file as a CSV"],
    ),
    "images of a split without labels": (
        pictures("train/1", "train/2", "valid/3"),
        {},
        ["train: it holds no folders, but 2 images"],
    ),
    "two minus signs": (
        pictures("-1/1", "-1/2", "\N{MINUS SIGN}1/3"),
        {},
        ["the classes '-1' and '\N{MINUS SIGN}1' differ only in case, spaces or dashes"],
    ),
    "case": (
        pictures("Cat/1", "Cat/2", "cat/3", "cat /4"),
        {},
        [
            "the classes 'Cat', 'cat' and 'cat ' differ only in case, spaces or dashes: give them "
            "one name, or add "
            "--layout folders to keep them apart"
        ],
    ),
    "dashes over splits": (
        pictures("train/big-cat/1", "train/dog/2", "test/big_cat/3"),
        {},
        ["'big-cat' and 'big_cat' differ only"],
    ),
    "case in a table": (
        {**FLAT, "l.csv": LABELS.replace("2.png,a", "2.png,A")},
        {},
        ["'A' and 'a' differ only", "--layout table"],
    ),
    "the classes once more": (
        pictures("cats/1", "dogs/2", "photos/cats/1", "photos/dogs/2"),
        {},
        [
            "2 folders within a class, with the name of another class (photos/cats and 1 more): "
            "move it away, or "
            "add --layout folders"
        ],
    ),
    "the classes once more in a split": (
        pictures("train/a/1", "train/b/2", "train/a/b/3", "test/a/4"),
        {},
        ["1 folder within a class, with the name of another class (a/b)"],
    ),
    "folders of images and masks": (
        pictures("images/1", "images/2", "masks/1", "masks/2"),
        {},
        [
            "2 images named like masks of others (masks/1.png and 1 more): move the masks away, or "
            "add --layout folders"
        ],
    ),
    "masks beside images": (
        pictures("a/1", "a/1_mask", "a/1_mask_1", "b/2", "b/2_seg.gif"),
        {},
        ["3 images named like masks of others (a/1_mask.png and 2 more)"],
    ),
    "masks in each class": (
        pictures("a/images/1", "a/masks/1", "b/images/2", "b/masks/2"),
        {},
        ["2 images named like masks"],
    ),
    "names of files without a label": (
        pictures("cat_1", "dog_2", "7", "8"),
        {"label_from": "(cat|dog)_"},
        [
            "2 images without a label (7.png and 1 more): move them away, or give a --label-from "
            "that matches more than (cat|dog)_"
        ],
    ),
    "names of files with one label": (
        pictures("cat_1", "cat_2"),
        {"label_from": "cat"},
        ["only one class, cat: --label-from cat must find at least two"],
    ),
    "names of files without any label": (
        CATS,
        {"label_from": "cow()|x"},
        ["4 images without a label (cats/1.png and 3 more): move them away"],
    ),
    "case in the names of files": (
        pictures("Cat_1", "cat_2"),
        {"label_from": "([Cc]at)_"},
        ["'Cat' and 'cat' differ only", "add --layout names to keep them apart"],
    ),
    "masks beside images with labels in their names": (
        pictures("cat_1", "cat_1_mask", "dog_2"),
        {"label_from": "([a-z]+)_"},
        ["1 image named like masks of others", "--layout names to train on them"],
    ),
    "splits in one of two tables": (
        {
            **pictures("x/1", "x/2", "y/3", "y/4"),
            "x/l.csv": table("file,label,split", "1.png,a,train", "2.png,b,test"),
            "y/l.csv": table("file,label", "3.png,a", "4.png,b"),
        },
        {"layout": "table"},
        ["give a column split or group to all of l.csv (file, label, split) and l.csv (file, lab"],
    ),
    "a column in which half of the cells name an image": (
        {**FLAT, "l.csv": table("Foto,label", "1.png,a", "2.png,a", "8.png,c", "9.png,c")},
        {},
        ["2 rows of l.csv (Foto, label) without an image (8.png and 1 more)"],
    ),
    "a table of more images than the folder has": (
        {**FLAT, "l.csv": table("Foto,label", *(f"{n}.png,x" for n in range(3, 31)))},
        {},
        ["26 rows of l.csv (Foto, label) without an image (5.png and 25 more)"],
    ),
    "two columns that name the images, one called id": (
        {
            **FLAT,
            "l.csv": table("id,photo,label", *(f"{n},{n % 4 + 1}.png,a" for n in range(1, 5))),
        },
        {},
        ["'id' and 'photo' may each name an image's file"],
    ),
    "columns of 0 and 1 that differ": (
        {**FLAT, "l.csv": table("file,a,b", "1.png,1,0", "1.png,0,1", "2.png,0,1", "3.png,1,1")},
        {"multi_label": True},
        ["1 image with rows in l.csv (file, a, b) that differ (1.png): keep one row of each"],
    ),
    "measures as labels": (
        {
            **pictures(*map(str, range(40))),
            "l.csv": table("id,label", *(f"{n},{n}.5" for n in range(40))),
        },
        {},
        [
            "40 classes with too few different images of its own, 0.5, 1.5, 10.5, 11.5, 12.5 "
            "and 35 more: one is needed to train and another to test. Add images, or name the "
            "column of l.csv (id, label) with train and test: --split-column"
        ],
    ),
}


def read(root, contents, options):
    return survey_folder(lay(root / "photos", contents), 0.2, None, LabelSource(**options))


@pytest.mark.parametrize("name", READ)
def test_a_layout_that_is_read(tmp_path, name):
    contents, options, expected = READ[name]
    found = read(tmp_path, contents, options)
    if expected is None:
        expected = {path: path.partition("/")[0] for path in CATS}
    splits = any(isinstance(value, tuple) for value in expected.values())
    photos = {
        p.path: (listed(p.labels), p.split) if splits else listed(p.labels)
        for p in found.scan.photos
    }
    assert (photos, found.scan.problems) == (expected, [])


NOTED = {  # id: (contents, options, what a note says)
    "images beside the folders of splits and in the outer one of two": (
        {
            **pictures("seg_train/seg_train/a/1", "seg_train/seg_train/a/2"),
            **pictures("seg_train/seg_train/b/3", "seg_train/seg_train/b/4", first=3),
            **pictures("seg_test/a/5", "seg_test/b/6", "7", "seg_train/8", first=5),
        },
        {},
        "2 images in no class and not used (7.png and 1 more)",
    ),
    "a table of splits beside that of labels": (
        {**FLAT, "l.csv": LABELS, "splits.csv": table("file,split", "1.png,train", "2.png,test")},
        {},
        "not read: splits.csv has the columns 'file', 'split', and none names an image's class",
    ),
    "a table that the layout leaves out": (
        {**CATS, "l.csv": table("file,group", "1.png,x", "2.png,x", "3.png,y", "4.png,y")},
        {"layout": "folders"},
        "1 table that is not read (l.csv): name its --split-column or --group-column to use it",
    ),
    "splits below another folder": (
        {**pictures("i/train/1", "i/train/2", "i/val/3", "i/val/4"), "l.csv": LABELS},
        {"layout": "table"},
        "the folders train and val are not read as splits: give a column split, or the folder",
    ),
    "folders of folders": (
        pictures(
            "insects/ants/1", "insects/bees/x/2", "birds/owls/3", "birds/gulls/4", "x/5", "x/6"
        ),
        {},
        "2 classes whose images lie in folders (birds: gulls, owls and 1 more): they belong to the "
        "class. If the folders are the classes, add --label-from '([^/]+)/[^/]+$'",
    ),
    "files without a suffix": (
        {**CATS, "cats/one": "text", "dogs/two": "text", "dogs/c.txt": "text"},
        {},
        "files that are not read as images: 2 without a suffix, 1 .txt",
    ),
}


@pytest.mark.parametrize("name", NOTED)
def test_what_is_not_read_is_said(tmp_path, name):
    contents, options, words = NOTED[name]
    found = read(tmp_path, contents, options)
    assert found.scan.problems == []
    assert any(words in note for note in found.notes), found.notes


@pytest.mark.parametrize(
    "contents",
    [
        CATS,
        pictures("cats/a/1", "cats/b/2", "dogs/a/3", "dogs/b/4"),
        pictures("cats/a/1", "cats/2", "cats/b/3", "dogs/c/4", "dogs/c/5"),
        pictures("train/cats/1", "train/dogs/2", "test/cats/3", "test/dogs/4"),
    ],
)
def test_folders_that_are_no_classes_have_no_note(tmp_path, contents):
    assert not [note for note in read(tmp_path, contents, {}).notes if "whose images lie" in note]


def test_a_class_that_is_a_link_to_nowhere_is_refused(tmp_path):
    (lay(tmp_path / "photos", CATS) / "cows").symlink_to(tmp_path / "away")
    with lockstep_error("cows cannot be read, No such file or directory: correct the link"):
        survey_folder(tmp_path / "photos", 0.2, None, LabelSource()).require_sound()


def test_a_class_may_be_called_recycled(tmp_path):
    found = read(tmp_path, pictures("recycled/1", "recycled/2", "waste/3", "waste/4"), {})
    assert {photo.labels for photo in found.scan.photos} == {("recycled",), ("waste",)}


@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_that_is_refused(tmp_path, name):
    contents, options, words = REFUSED[name]
    with pytest.raises(LockstepError) as caught:
        read(tmp_path, contents, options).require_sound()
    assert caught.value.code == DATA
    for word in words:
        assert word in str(caught.value)
    for option in re.findall(r"--([a-z-]+)", str(caught.value)):
        assert option.replace("-", "_") in Recipe.options


def test_a_folders_layout_is_in_the_recipe_and_moves_no_digest():
    recipe = get_recipe("folder")
    assert not any(getattr(recipe, name) for name in SOURCES)
    other = recipe.replace(label_column="dx", layout="table")
    assert (other.label_column, other.layout) == ("dx", "table")
    assert other.digest() != recipe.digest()
    for changes in (
        {"layout": "folders", "label_column": "dx"},
        {"layout": "table", "label_from": "x"},
        {"label_column": "dx", "label_from": "x"},
        {"group": "a", "group_column": "b"},
    ):
        with lockstep_error("exclude each other: leave one out"):
            recipe.replace(**changes)
    with lockstep_error("layout=names needs label_from"):
        recipe.replace(layout="names")
    with lockstep_error("test_share is for folders of images, and dataset mine:load is not one"):
        get_recipe("digits").replace(dataset="mine:load", test_share=0.5)
    with lockstep_error("label_column is for folders of images"):
        get_recipe("digits").replace(label_column="dx")


def test_the_groups_of_a_column_with_another_name_stay_together(tmp_path):
    names = [f"{'ab'[n % 2]}/{n}" for n in range(60)]
    rows = [f"{name.partition('/')[2]},{name[0]},p{n // 4}" for n, name in enumerate(names)]
    contents = {**pictures(*names), "meta.csv": table("file,label,patient", *rows)}
    found = read(tmp_path, contents, {"group_column": "patient"}).require_sound()
    sides = [{photo.group for photo in photos} for photos in found.splits.values()]
    assert len(sides[0] | sides[1]) == 15
    assert not sides[0] & sides[1]


def test_labels_of_names_are_said_with_three_examples(tmp_path):
    names = [f"{name}.{number}.jpg" for number in range(9) for name in ("cat", "dog", "eel", "fox")]
    found = read(tmp_path, pictures(*names), {"label_from": "^[a-z]+"}).require_sound()
    assert found.notes == [
        "labels by --label-from '^[a-z]+': cat.0.jpg is cat; dog.0.jpg is dog; eel.0.jpg is eel"
    ]
    with lockstep_error(r"--label-from \(: missing \).*, as in \(\[a-z"):
        read(tmp_path, {}, {"label_from": "("})


def test_labels_of_names_or_of_folders_are_evaluated(tmp_path):
    """Other images of a run may have their labels in the names of files or of folders."""
    source = LabelSource(label_from="^[a-z]+_")
    photos = {"names": pictures("a_1", "b_2"), "folders": pictures("a_/1", "b_/2")}
    for name, contents in photos.items():
        root = lay(tmp_path / name, contents)
        found = survey_folder(root, 0.2, source=source, classes=("a_", "b_")).examples()
        assert found.labels[found.splits["all"]].tolist() == [0, 1]
