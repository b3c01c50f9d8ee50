"""What lies in a folder of images, and how it is read: the labels and splits of its images, or the
sentence that refuses it.

One table of cases. A folder is a mapping from names of files to their content: the number of an
image, or a text.
"""

import codecs
import json
import re

import numpy as np
import pytest
from tests.helpers import lockstep_error
from tests.images import lay, pictures, table

from lockstep.config.overrides import make
from lockstep.config.recipe import Recipe
from lockstep.errors import DATA, LockstepError
from lockstep.pages import prediction_table
from lockstep.pictures.check import lines_of, record_of
from lockstep.pictures.decode import Decoding
from lockstep.pictures.doubts import joining
from lockstep.pictures.manifest import SOURCES, LabelSource
from lockstep.pictures.names import names_in
from lockstep.pictures.survey import survey_folder
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


def named(form):
    """A table of four images, whose names have the `form`, and their labels."""
    return table("file,label", *(f"{form.format(n)},{'ab'[n > 2]}" for n in range(1, 5)))


LABELS = named("{}.png")
OTHERS = table("file,label", "1,x", "2,x", "3,y", "4,y")
SIX = pictures(*"123456")
LEAVES = ["scab", "rust", "scab rust", "healthy", "healthy", "scab"]
A_B = {"1.png": "a", "2.png": "a", "3.png": "b", "4.png": "b"}
DIVIDED = {
    "cats/1.png": ("cats", "train"),
    "cats/2.png": ("cats", "test"),
    "dogs/3.png": ("dogs", "train"),
    "dogs/4.png": ("dogs", "test"),
}


def in_folders(*names):
    """Nine images in each folder."""
    return pictures(*(f"{name}/{n}" for name in names for n in range(9)))


def wide(header, name):
    """A table with the columns of a header. The images, from 0, have the `name` of their number."""
    mark = next(c for c in ",;\t" if c in header)
    rows = [[name.format(n), ("even", "ödd")[n % 2], "x"] for n in range(4)]
    return "\r\n".join([header, *(mark.join(row[: header.count(mark) + 1]) for row in rows), ""])


def cells(*texts, header="image,labels"):
    """Six images, and a table of the labels of each."""
    return {**SIX, "l.csv": table(header, *(f"{n},{text}" for n, text in enumerate(texts, 1)))}


HOT = table("file,cat,dog", "1,1,0", "2,0.0,1.0", "3,True,yes", "4,no,FALSE", "5,1,0", "6,0,1")
AGES = table(
    'file,age,dog,"man, old",valid',
    *("1,7,0,1,0", "2,8,1,0,1", "3,9,1,0,0", "4,9,0,0,0", "5,9,0,0,0", "6,9,1,1,1"),
)
HOT_LABELS = {
    "1.png": "cat",
    "2.png": "dog",
    "3.png": "cat and dog",
    "4.png": "",
    "5.png": "cat",
    "6.png": "dog",
}
LEAF_LABELS = {
    "1.png": "scab",
    "2.png": "rust",
    "3.png": "rust and scab",
    "4.png": "healthy",
    "5.png": "healthy",
    "6.png": "scab",
}

# The cases of multi-label data. id: (contents, other options, path -> labels)
SEVERAL = {
    "columns": ({**SIX, "l.csv": HOT}, {}, HOT_LABELS),
    "lists of JSON": (
        {
            **SIX,
            "l.jsonl": "\n".join(
                json.dumps({"image": f"{n}.png", "labels": names, "split": "train"})
                for n, names in enumerate(
                    (["cat"], ["dog"], ["dog", "cat"], [], ["cat"], ["dog"]), 1
                )
            ),
        },
        {},
        HOT_LABELS,
    ),
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
        {
            "1.png": "man, old",
            "2.png": "dog",
            "3.png": "dog",
            "4.png": "",
            "5.png": "",
            "6.png": "dog and man, old",
        },
    ),
    "names with a space between them": (
        cells(*LEAVES),
        {"label_separator": " "},
        LEAF_LABELS,
    ),
    "names with a comma and spaces between them, one twice": (
        cells("a", "b", '"b , a"', "", '",a,a,"', "b"),
        {"label_separator": ","},
        {"1.png": "a", "2.png": "b", "3.png": "a and b", "4.png": "", "5.png": "a", "6.png": "b"},
    ),
    "a comma in a name": (
        cells('"dog, brown"', "cat", '"cat;dog, brown"', "cat", '"dog, brown"', "cat"),
        {"label_separator": ";"},
        {
            "1.png": "dog, brown",
            "2.png": "cat",
            "3.png": "cat and dog, brown",
            "4.png": "cat",
            "5.png": "dog, brown",
            "6.png": "cat",
        },
    ),
    "each cell is one name": (
        cells("hot dog", "cat", "hot dog", "cat", "", "cat"),
        {"layout": "table"},
        {
            "1.png": "hot dog",
            "2.png": "cat",
            "3.png": "hot dog",
            "4.png": "cat",
            "5.png": "",
            "6.png": "cat",
        },
    ),
    "a row for each label": (
        {
            **SIX,
            "l.csv": table("file,label", "1,a", "1,b", "2,a", "3,b", "4,a", "5,b", "6,", "6,a"),
        },
        {},
        {"1.png": "a and b", "2.png": "a", "3.png": "b", "4.png": "a", "5.png": "b", "6.png": "a"},
    ),
    "copies in folders": (
        {**CATS, "dogs/1 again.png": 1, "cats/too.png": 1},
        {},
        {
            "cats/1.png": "cats and dogs",
            "cats/2.png": "cats",
            "dogs/3.png": "dogs",
            "dogs/4.png": "dogs",
        },
    ),
    "names of folders with a separator": (
        pictures("a/1", "a/2", "b/3", "b/4", "a+b/5"),
        {"label_separator": "+"},
        {"a/1.png": "a", "a/2.png": "a", "b/3.png": "b", "b/4.png": "b", "a+b/5.png": "a and b"},
    ),
    "names of files with a separator": (
        pictures("a_1", "b_2", "a+b_3", "a_4", "b_5"),
        {"label_separator": "+", "label_from": "(.+)_"},
        {"a_1.png": "a", "b_2.png": "b", "a+b_3.png": "a and b", "a_4.png": "a", "b_5.png": "b"},
    ),
}
# id: (contents, options, path -> labels, or with a split path -> (labels, split)). None: the labels
# are the first folders.
READ = {
    **{
        f"several labels: {name}": (contents, {"multi_label": True} | options, rows)
        for name, (contents, options, rows) in SEVERAL.items()
    },
    "folders": (CATS, {}, None),
    "signs in the names of classes": (
        pictures("-1/1", "-1/2", "1/3", "1/4", "A-/5", "A-/6", "A/7", "A/8"),
        {},
        None,
    ),
    "paths of another computer, in the folder": (
        {**FLAT, "l.csv": named("Data\\all/{}.png")},
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
            "l.csv": LABELS,
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
    "JSON Lines": (
        {
            **FLAT,
            "metadata.jsonl": "\n".join(
                json.dumps({"file_name": name, "label": label, "box": [1, 2]})
                for name, label in A_B.items()
            ),
        },
        {},
        A_B,
    ),
    "lists of splits": (
        {
            **pictures("1", "2", "3", "my cat"),
            "train.txt": "\n./1.png a\n2.png\ta\n\n3.png,b\n",
            "val.lst": "my cat.png  b\r\n",
            "read me.txt": "Four photos.\n",
        },
        {},
        {**dict.fromkeys(("1.png", "2.png"), ("a", "train")), "3.png": ("b", "train")}
        | {"my cat.png": ("b", "validation")},
    ),
    "a list of labels": ({**FLAT, "labels.txt": LABELS.partition("\n")[2]}, {}, A_B),
    "lists of splits beside a table of labels": (
        {**FLAT, "l.csv": LABELS, "train.txt": "1.png\n3.png\n", "test.txt": "./2.png\n4.png\n"},
        {},
        {"1.png": ("a", "train"), "2.png": ("a", "test")}
        | {"3.png": ("b", "train"), "4.png": ("b", "test")},
    ),
    "texts about each image": ({**CATS, "cats/1.txt": "other.jpg dogs\n"}, {}, None),
    "a table of splits beside that of labels": (
        {
            **FLAT,
            "l.csv": LABELS,
            "splits.csv": table("file,part", "1,train", "2,test", "3,train", "4,test"),
        },
        {"split_column": "part"},
        {"1.png": ("a", "train"), "2.png": ("a", "test")}
        | {"3.png": ("b", "train"), "4.png": ("b", "test")},
    ),
    "two columns that may be it": (
        {**FLAT, "l.csv": named("{}.png,x").replace("label", "class,label")},
        {"label_column": "label"},
        A_B,
    ),
    "windows paths of another computer": (
        {**FLAT, "l.csv": named(r"C:\Users\me\{}.png")},
        {},
        A_B,
    ),
    "absolute paths of another computer": (
        {**FLAT, "l.csv": named("/home/me/{}.png")},
        {},
        A_B,
    ),
    "absolute paths tell equal names apart": (
        {**pictures("x/1", "y/1"), "l.csv": table("file,label", "/d/x/1.png,a", "/d/y/1.png,b")},
        {"layout": "table"},
        {"x/1.png": "a", "y/1.png": "b"},
    ),
    "paths that begin with the folder": (
        {**FLAT, "l.csv": named("photos/{}.png")},
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
    "a space in a folder": (pictures("a b c/1", "d/2"), {}, None),
    "ham by the table": (
        {**HAM, "meta.csv": HAM_TABLE},
        {"label_column": "dx"},
        {name: "nv" if int(name[-5]) % 2 else "mel" for name in HAM},
    ),
    "ham by the folders": ({**HAM, "meta.csv": HAM_TABLE}, {"layout": "folders"}, None),
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
        DIVIDED,
    ),
    "another column of splits": (
        {
            **CATS,
            "l.csv": table(
                "file,label,part", "1,cats,train", "2,cats,test", "3,dogs,train", "4,dogs,test"
            ),
        },
        {"split_column": "part"},
        DIVIDED,
    ),
    "folders, with the splits of a table that names no classes": (
        {**CATS, "l.csv": table("file,part", "1,train", "2,test", "3,train", "4,test")},
        {"layout": "folders", "split_column": "part"},
        DIVIDED,
    ),
    "a table that agrees and adds nothing": (
        {**CATS, "l.csv": table("file,label", "1,cats", "4,dogs")},
        {},
        None,
    ),
    "the table of two that differ": (
        {**CATS, "l.csv": OTHERS},
        {"layout": "table"},
        {"cats/1.png": "x", "cats/2.png": "x", "dogs/3.png": "y", "dogs/4.png": "y"},
    ),
    "the folders of two that differ": (
        {**CATS, "l.csv": OTHERS},
        {"layout": "folders"},
        None,
    ),
    "case that is meant": (pictures("A/1", "a/2"), {"layout": "folders"}, None),
    "folders in classes": (pictures("cats/x/1", "cats/y/2", "dogs/x/3", "dogs/y/4"), {}, None),
    "masks that are meant": (pictures("face/1", "mask/1"), {"layout": "folders"}, None),
    "faces with and without masks": (pictures("with_mask/1", "without_mask/1"), {}, None),
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
        {path: path[:4] for path in CATS},
    ),
    "a class that is called as a folder of systems in part": (
        pictures("recycled/1", "recycled/2", "waste/3", "waste/4"),
        {},
        None,
    ),
    "a table without rows beside classes": ({**CATS, "l.csv": "x,y\n"}, {}, None),
    "splits of a column, not those of the folders": (
        {
            **pictures("train/1", "train/2", "test/3", "test/4"),
            "l.csv": table("id,class,split", "1,a,val", "2,b,val", "3,a,Training", "4,b,Training"),
        },
        {},
        {
            "train/1.png": ("a", "validation"),
            "train/2.png": ("b", "validation"),
            "test/3.png": ("a", "train"),
            "test/4.png": ("b", "train"),
        },
    ),
    **{
        f"{header!r}, and images as {name}": (
            {**pictures(*(f"sub/{n}" for n in range(4))), "l.csv": wide(header, name)},
            {},
            {f"sub/{n}.png": ("even", "ödd")[n % 2] for n in range(4)},
        )
        for header in ("image,label", "\ufeffImage_ID;Category;note", "PATH\tTarget")
        for name in ("{}.png", "{}", "sub/{}.png", "./sub\\{}")
    },
    **{
        " ".join(folders): (in_folders(*folders), {}, None)
        for folders in (
            ["train", "test", "plane"],
            ["test_1", "test_2"],
            ["steam_train/1920", "steam_train/1930", "freight_train/2020"],
            ["freight train/side", "car/front", "bus/front"],
            ["contest", "trainer", "validity"],
        )
    },
}

SEPARATOR = "--multi-label and --label-separator ' ' if so, or --layout table if it is one"
SEVERAL_REFUSED = {
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
        ["only one class, a: name at least two in l.csv (image, labels)"],
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
# id: (contents, options, what the sentence says)
REFUSED = {
    **{
        f"several labels: {name}": (contents, {"multi_label": True} | options, words)
        for name, (contents, options, words) in SEVERAL_REFUSED.items()
    },
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
        {**CATS, "../l.csv": OTHERS},
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
        [
            "2 images without a split in l.csv (file, label, split) and l.csv (file, label) (y/3.png"
            " and 1 more): give a split to all, or to none"
        ],
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
    "a bad row beside other tables": (
        {**FLAT, "train.txt": "1.png a\n2.png a\n3.png\n", "test.txt": "4.png b\n"},
        {},
        ["train.txt: line 3 has 1 cell, and the first line 2: correct it"],
    ),
    "splits that another table contradicts": (
        {
            **FLAT,
            "l.csv": table("file,label,split", *(f"{n},{'ab'[n % 2]},train" for n in range(1, 5))),
            "s.csv": table(
                "file,split", *(f"{n},{'train' if n < 4 else 'test'}" for n in range(1, 5))
            ),
        },
        {},
        ["1 image with rows in l.csv (file, label, split) and s.csv (file, split) that differ (4."],
    ),
    "splits of some": (
        {**FLAT, "l.csv": LABELS, "splits.csv": table("file,split", "1.png,train", "2.png,test")},
        {},
        ["2 images without a split in l.csv (file, label) and splits.csv (file, split) (3.png and"],
    ),
    "a line that is no JSON object": (
        {**FLAT, "l.jsonl": '{"file": "1.png", "label": "a"}\n[7]\n'},
        {},
        ["l.jsonl cannot be read (line 2 is no JSON object): save it as CSV in UTF-8"],
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
    "two tables of labels": (
        {**FLAT, "l.csv": LABELS, "more.csv": LABELS.replace("label", "class")},
        {},
        ["l.csv (file, label) and more.csv (file, class) are tables of labels: keep one"],
    ),
    "nothing": ({}, {}, ["it holds no folders"]),
    "images in no class": (
        pictures("1", "2"),
        {},
        ["it holds no folders, but 2 images in no class"],
    ),
    "a hidden class": (pictures(".a/1"), {}, ["it holds no folders"]),
    "classes without images": (
        {**CATS, "c": None, "d/e": None},
        {},
        ["2 classes without an image that can be read, c, d"],
    ),
    "a class with one image": (
        pictures("a/1", "a/2", "b/3"),
        {},
        [
            "1 class with too few different images of its own, b",
            "Add images, or divide the images into folders train and test",
        ],
    ),
    "copies in each class": (
        {f"{name}.png": int(name[-1]) for name in ("a/1", "a/2", "b/2", "b/3", "c/1", "c/3")},
        {},
        ["1 class with too few different images of its own, a"],
    ),
    "a test folder without images": (
        {**pictures("train/a/1", "train/b/2"), "test": None},
        {},
        ["test holds no folder"],
    ),
    **{
        " ".join(folders): (in_folders(*folders), {}, words)
        for folders, words in (
            (["train/a", "train/b", "val/a", "valid/a"], ["val and valid are the same split"]),
            (
                ["train/a", "val/a", "cars"],
                ["the folder train is beside cars", "give it a name without"],
            ),
            (
                ["seg_train/a", "seg_train/b", "seg_test/a", "seg_test/b", "seg_pred"],
                ["seg_test is beside seg_pred"],
            ),
            (["trainval/a", "dev/a"], ["the folder trainval is beside dev"]),
            (["test/a", "val/a"], ["but no train: name the folder"]),
            (
                ["trainA", "trainB", "testA", "testB"],
                ["trainA and trainB are the same split", "testA and testB are"],
            ),
            (["Train_1", "Test_1"], ["train: it holds no folders", "If Train_1 is a class"]),
            (["train/a", "train/b", "test1"], ["test holds no folder", "move it away"]),
            (
                ["train/a", "train/b", "test/a", "test/c", "test/d"],
                ["test: 2 classes that train lacks, c, d"],
            ),
            (["cats"], ["only one class, cats", "at least two", "photos/other with pictures"]),
            (["train/cats"], ["train: only one class, cats: give each of at least two a folder"]),
            (["x/cats", "x/dogs"], ["only one class, x", "are the classes, give"]),
        )
    },
    **{
        repr(text): ({**pictures("1", "2", "3"), "labels.csv": text}, {}, words)
        for text, words in (
            (
                "a,b\nx,y\n",
                [
                    "labels.csv has the columns 'a', 'b', and none names an image's file: call one "
                    "file, fi"
                ],
            ),
            (
                "id,image,label\n1,1,a\n",
                ["'id' and 'image' may each name an image's file: call only one file"],
            ),
            (
                "",
                [
                    "labels.csv has no rows: give it a line with the names of its columns, and then one"
                ],
            ),
            (
                "id,label\n1,a\n2,b\n1,b\n9,a\n",
                [
                    "1 row of labels.csv (id, label) without an image (9): add the image",
                    "1 image with rows in",
                    "that differ (1.png): keep one",
                    "1 image without a row in labels.csv (id, label) (3.png): add a row",
                ],
            ),
            ("id,label,split\n1,a,test\n2,b,test\n3,a,test\n", ["has no split train"]),
            (
                "id,label,split\n1,a,A\n2,b,B\n3,a,A\n",
                ["2 names of a split in", "(A and 1 more): call it train, val"],
            ),
            ('id,label\n"1,a\n', ["labels.csv cannot be read (", "save it as CSV in UTF-8"]),
        )
    },
}

# id: (contents, options, what a note says)
NOTED = {
    "images beside the folders of splits and in the outer one of two": (
        {
            **pictures("seg_train/seg_train/a/1", "seg_train/seg_train/a/2"),
            **pictures("seg_train/seg_train/b/3", "seg_train/seg_train/b/4", first=3),
            **pictures("seg_test/a/5", "seg_test/b/6", "7", "seg_train/8", first=5),
        },
        {},
        "2 images in no class and not used (7.png and 1 more)",
    ),
    "a table of something else beside that of labels": (
        {**FLAT, "l.csv": LABELS, "sizes.csv": table("file,width", "1.png,7", "2.png,7")},
        {},
        "not read: sizes.csv has the columns 'file', 'width', and none names an image's class",
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


def read(root, contents, options, **how):
    source = LabelSource(**options)
    return survey_folder(lay(root / "photos", contents), 0.3, source=source, **how)


def several(root, contents, classes=None, **options):
    """What is read of multi-label data."""
    return read(root, contents, {"multi_label": True} | options, classes=classes)


def labels_of(found):
    """Path -> labels of the examples."""
    return {p.path: listed(p.labels) for photos in found.splits.values() for p in photos}


@pytest.mark.parametrize("name", READ)
def test_a_layout_that_is_read(tmp_path, name):
    contents, options, expected = READ[name]
    found = read(tmp_path, contents, options)
    if expected is None:
        images = [path for path, content in contents.items() if isinstance(content, int)]
        expected = {path: path.partition("/")[0] for path in images}
        assert not any(" is read as " in note for note in found.notes)
    rows = labels_of(found)
    if any(isinstance(value, tuple) for value in expected.values()):
        rows = {photo.path: (rows[photo.path], photo.split) for photo in found.photos}
    assert (rows, found.manifest.problems) == (expected, ())
    assert {*found.classes} == {label for photo in found.photos for label in photo.labels}
    if found.multi_label:
        found.require_sound()


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


@pytest.mark.parametrize("name", NOTED)
def test_what_is_not_read_is_said(tmp_path, name):
    contents, options, words = NOTED[name]
    found = read(tmp_path, contents, options)
    assert found.manifest.problems == ()
    assert any(words in note for note in found.notes), found.notes


@pytest.mark.parametrize(
    ("train", "other", "split"),
    [
        ("train", "val", "validation"),
        ("train", "test", "test"),
        # without a test folder, these images are for the test too
        ("training", "validation", "test"),
        ("Train_png", "Test_png", "test"),
        ("seg_train/seg_train", "seg_test/seg_test", "test"),
        ("trainset", "testset", "test"),
        ("TrainImages", "2Valid", "validation"),
    ],
)
def test_folders_of_splits(tmp_path, train, other, split):
    own = pictures(*(f"{train}/{name}" for name in ("a/1", "a/2", "b/big/3", "b/small/4")))
    others = pictures(f"{other}/a/5", f"{other}/b/6", first=5)
    found = read(tmp_path, own | others, {}).require_sound()
    assert found.classes == ("a", "b")
    sides = {name: [photo.path for photo in photos] for name, photos in found.splits.items()}
    assert sorted(sides["train"]) == [*own]
    assert sides[split] == sides["test"] == [*others]
    notes = "\n".join(found.notes)
    assert (f"{train} is read as train" in notes) == (train != "train")
    assert ("validation images also serve as test images" in notes) == ("val" in other.lower())


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


def test_a_column_of_names_wins_by_its_name_or_a_separator(tmp_path):
    rows = table("file,label,dog", "1,a,1", "2,b,1", "3,a;b,0", "4,a,0", "5,b,0", "6,a;b,1")
    for options in ({"label_column": "label", "layout": "table"}, {"label_separator": ";"}):
        found = several(tmp_path / str(len(options)), {**SIX, "l.csv": rows}, **options)
        assert labels_of(found.require_sound())["1.png"] == "a"


@pytest.mark.parametrize("truth", [False, True])
@pytest.mark.parametrize("multi_label", [False, True])
def test_answers_of_a_classifier_are_no_labels(tmp_path, multi_label, truth):
    head = prediction_table.head(["cats", "dogs"], multi_label=multi_label, with_truth=truth)
    width = head.count(",")
    answers = table(head, *(f"{name}{',x' * width}" for name in ("cats/1.png", "dogs/4.png")))
    for place in ("test.csv", "../test.csv"):
        contents = {**CATS, place: answers}
        found = read(tmp_path / str(len(place)), contents, {"multi_label": multi_label})
        assert labels_of(found.require_sound())["cats/1.png"] == "cats"
    flat = {**SIX, "l.csv": HOT, "../test.csv": answers, "more.csv": answers}
    assert labels_of(several(tmp_path / "flat", flat).require_sound()) == HOT_LABELS


def test_labels_are_rows_of_zeros_and_ones_in_the_digest(tmp_path):
    found = several(tmp_path, {**SIX, "l.csv": HOT}).require_sound()
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
    found = several(tmp_path, contents).require_sound()
    for split in ("train", "test"):
        labels = found.examples().labels[found.examples().splits[split]]
        assert labels.sum(0).min() >= 1
    sides = [{photo.sha256 for photo in photos} for photos in found.splits.values()]
    assert not sides[0] & sides[1]
    assert sum(map(len, sides)) == sum(map(len, found.splits.values())) == 26
    assert "11 images in several classes: each counts once, with all its labels" in found.notes[1]
    notes = read(tmp_path / "one", contents, {}).notes
    assert notes[0].startswith("11 images in several classes: the labels contradict each other (")
    assert notes[0].endswith("): correct them, or add --multi-label")


def test_what_is_read_is_said_and_counted(tmp_path):
    found = several(tmp_path, cells("a b", "b", "a b c", "", "a a", "c"), label_separator=" ")
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
    columns = several(tmp_path / "hot", {**SIX, "l.csv": HOT}).notes
    assert columns[0].startswith("labels by the columns cat, dog of l.csv (file, cat, dog): 3.png")


def test_other_images_of_a_run_may_have_fewer_labels(tmp_path):
    found = several(
        tmp_path, cells("a", "a", "", "a", "b", "b"), classes=("a", "b", "c"), label_separator=";"
    ).require_sound()
    assert found.examples().labels.sum(0).tolist() == [3, 2, 0]
    with lockstep_error("1 class that the run does not know .b."):
        several(tmp_path, SIX, classes=("a", "c")).require_sound()


def test_names_in_a_text_and_what_joins_them():
    assert names_in(" a ;b;; a", ";") == ["a", "b", "a"]
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
