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


def case(images, said=None, table=None, **options):
    """What a folder of `images` and the table l.csv is read as, with the options of its labels."""
    return images | ({} if table is None else {"l.csv": table}), options, said


def files(names):
    """Images of the names, which have no spaces."""
    return pictures(*names.split())


CATS = files("cats/1 cats/2 dogs/3 dogs/4")
FLAT = files("1 2 3 4")
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


def named(form):
    """A table of four images, whose names have the `form`, and their labels."""
    return table("file,label", *(f"{form.format(n)},{'ab'[n > 2]}" for n in range(1, 5)))


LABELS = named("{}.png")
OTHERS = "file,label\n1,x\n2,x\n3,y\n4,y\n"
SIX = pictures(*"123456")
LEAVES = ["scab", "rust", "scab rust", "healthy", "healthy", "scab"]
A_B = "1: a | 2: a | 3: b | 4: b"
SPLIT = "1: a (train) | 2: a (test) | 3: b (train) | 4: b (test)"
DIVIDED = "cats/1: cats (train) | cats/2: cats (test) | dogs/3: dogs (train) | dogs/4: dogs (test)"


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
    return SIX | {"l.csv": table(header, *(f"{n},{text}" for n, text in enumerate(texts, 1)))}


HOT = "file,cat,dog\n1,1,0\n2,0.0,1.0\n3,True,yes\n4,no,FALSE\n5,1,0\n6,0,1\n"
AGES = table(
    'file,age,dog,"man, old",valid',
    *("1,7,0,1,0", "2,8,1,0,1", "3,9,1,0,0", "4,9,0,0,0", "5,9,0,0,0", "6,9,1,1,1"),
)
HOT_LABELS = "1: cat | 2: dog | 3: cat and dog | 4:  | 5: cat | 6: dog"
LEAF_LABELS = "1: scab | 2: rust | 3: rust and scab | 4: healthy | 5: healthy | 6: scab"

# The cases of multi-label data.
SEVERAL = {
    "columns": case(SIX, HOT_LABELS, HOT),
    "lists of JSON": case(
        {
            **SIX,
            "l.jsonl": "\n".join(
                json.dumps({"image": f"{n}.png", "labels": names, "split": "train"})
                for n, names in enumerate(
                    (["cat"], ["dog"], ["dog", "cat"], [], ["cat"], ["dog"]), 1
                )
            ),
        },
        HOT_LABELS,
    ),
    "columns of -1 and 1": case(
        SIX,
        HOT_LABELS,
        HOT.replace(",0", ",-1").replace("-1.0", "\N{MINUS SIGN}1").replace("no,FALSE", "-1,-1"),
    ),
    "a delimiter that ends each line": case(SIX, HOT_LABELS, HOT.replace("\n", ",\n")),
    "a delimiter that ends each line but the first": case(
        SIX, HOT_LABELS, HOT.replace("\n", ",\n").replace("dog,", "dog")
    ),
    "the delimiter in the first line": case(
        SIX, HOT_LABELS, "\ufeffsep=;\r\n" + HOT.replace(",", ";").replace("\n", "\r\n")
    ),
    "the delimiter in quotes, and empty lines": case(
        SIX, HOT_LABELS, '\n"sep=|"\n\n' + HOT.replace(",", "|") + " | |\n\n"
    ),
    "columns beside others, that are named": case(
        SIX,
        "1: man, old | 2: dog | 3: dog | 4:  | 5:  | 6: dog and man, old",
        AGES,
        label_column='dog,"man, old"',
    ),
    "names with a space between them": case(cells(*LEAVES), LEAF_LABELS, label_separator=" "),
    "names with a comma and spaces between them, one twice": case(
        cells("a", "b", '"b , a"', "", '",a,a,"', "b"),
        "1: a | 2: b | 3: a and b | 4:  | 5: a | 6: b",
        label_separator=",",
    ),
    "a comma in a name": case(
        cells('"dog, brown"', "cat", '"cat;dog, brown"', "cat", '"dog, brown"', "cat"),
        "1: dog, brown | 2: cat | 3: cat and dog, brown | 4: cat | 5: dog, brown | 6: cat",
        label_separator=";",
    ),
    "each cell is one name": case(
        cells("hot dog", "cat", "hot dog", "cat", "", "cat"),
        "1: hot dog | 2: cat | 3: hot dog | 4: cat | 5:  | 6: cat",
        layout="table",
    ),
    "a row for each label": case(
        SIX,
        "1: a and b | 2: a | 3: b | 4: a | 5: b | 6: a",
        "file,label\n1,a\n1,b\n2,a\n3,b\n4,a\n5,b\n6,\n6,a\n",
    ),
    "copies in folders": case(
        {**CATS, "dogs/1 again.png": 1, "cats/too.png": 1},
        "cats/1: cats and dogs | cats/2: cats | dogs/3: dogs | dogs/4: dogs",
    ),
    "names of folders with a separator": case(
        files("a/1 a/2 b/3 b/4 a+b/5"),
        "a/1: a | a/2: a | b/3: b | b/4: b | a+b/5: a and b",
        label_separator="+",
    ),
    "names of files with a separator": case(
        files("a_1 b_2 a+b_3 a_4 b_5"),
        "a_1: a | b_2: b | a+b_3: a and b | a_4: a | b_5: b",
        label_separator="+",
        label_from="(.+)_",
    ),
}
# What is said is the labels of each image, and its split where one is given; nothing: its first
# folder.
READ = {
    **{
        f"several labels: {name}": (contents, {"multi_label": True} | options, rows)
        for name, (contents, options, rows) in SEVERAL.items()
    },
    "folders": case(CATS),
    "signs in the names of classes": case(files("-1/1 -1/2 1/3 1/4 A-/5 A-/6 A/7 A/8")),
    "paths of another computer, in the folder": case(FLAT, A_B, named("Data\\all/{}.png")),
    "a table in the folder": case({**FLAT, "labels.csv": LABELS}, A_B),
    "tabs": case({**FLAT, "labels.tsv": LABELS.replace(",", "\t")}, A_B),
    "utf-16": case({**FLAT, "labels.csv": codecs.BOM_UTF16_LE + LABELS.encode("utf-16-le")}, A_B),
    "a table beside the folder": case({**FLAT, "../labels.csv": LABELS}, A_B),
    "a table below the folder": case(
        {**FLAT, "tables/labels.csv": LABELS.replace("1.png", "../1.png")}, A_B
    ),
    "a table beside that names other files": case(
        {**CATS, "../list.csv": "file,label\nx,a\ny,b\n"}
    ),
    "a table of something else": case({**CATS, "costs.csv": "month,sum\nMay,3\nJune,4\n"}),
    "an unknown name of the file's column": case(
        {**FLAT, "labels.csv": LABELS.replace("file", "Foto")}, A_B
    ),
    "a column in which fewer than half of the cells name an image": case(
        FLAT, A_B, "Foto,copy of,label\n1.png,-,a\n2.png,-,a\n3.png,-,b\n4.png,3.png,b\n"
    ),
    "a table beside the folders of splits that names their images": case(
        files("train/1 train/2 train/3 test/4"),
        "train/1: a (train) | train/2: a (train) | train/3: b (train) | test/4: b (test)",
        LABELS,
    ),
    "numbers as labels and names": case(
        FLAT, "1: 2 | 2: 2 | 3: 3 | 4: 3", "id,label\n1,2\n2,2\n3,3\n4,3\n"
    ),
    "another column of labels": case(
        FLAT, A_B, LABELS.replace("label", "breed"), label_column="breed"
    ),
    "two columns that may be it": case(
        FLAT, A_B, named("{}.png,x").replace("label", "class,label"), label_column="label"
    ),
    "windows paths of another computer": case(FLAT, A_B, named("C:\\Users\\me\\{}.png")),
    "absolute paths of another computer": case(FLAT, A_B, named("/home/me/{}.png")),
    "absolute paths tell equal names apart": case(
        files("x/1 y/1"),
        "x/1: a | y/1: b",
        "file,label\n/d/x/1.png,a\n/d/y/1.png,b\n",
        layout="table",
    ),
    "paths that begin with the folder": case(FLAT, A_B, named("photos/{}.png")),
    "a space in a label": case(
        FLAT,
        "1: a | 2: a | 3: scab frog_eye_leaf_spot | 4: scab frog_eye_leaf_spot",
        LABELS.replace(",b", ",scab frog_eye_leaf_spot"),
    ),
    "JSON Lines": case(
        {
            **FLAT,
            "metadata.jsonl": "\n".join(
                json.dumps({"file_name": f"{n}.png", "label": "aabb"[n - 1], "box": [1, 2]})
                for n in range(1, 5)
            ),
        },
        A_B,
    ),
    "lists of splits": case(
        {
            **pictures("1", "2", "3", "my cat"),
            "train.txt": "\n./1.png a\n2.png\ta\n\n3.png,b\n",
            "val.lst": "my cat.png  b\r\n",
            "read me.txt": "Four photos.\n",
        },
        "1: a (train) | 2: a (train) | 3: b (train) | my cat: b (validation)",
    ),
    "a list of labels": case({**FLAT, "labels.txt": LABELS.partition("\n")[2]}, A_B),
    "lists of splits beside a table of labels": case(
        {**FLAT, "train.txt": "1.png\n3.png\n", "test.txt": "./2.png\n4.png\n"},
        SPLIT,
        LABELS,
    ),
    "texts about each image": case({**CATS, "cats/1.txt": "other.jpg dogs\n"}),
    "a table of splits beside that of labels": case(
        {**FLAT, "splits.csv": "file,part\n1,train\n2,test\n3,train\n4,test\n"},
        SPLIT,
        LABELS,
        split_column="part",
    ),
    "a space in a folder": case(pictures("a b c/1", "d/2")),
    "ham by the table": case(
        {**HAM, "meta.csv": HAM_TABLE},
        " | ".join(f"{name}: {'nv' if int(name[-5]) % 2 else 'mel'}" for name in HAM),
        label_column="dx",
    ),
    "ham by the folders": case({**HAM, "meta.csv": HAM_TABLE}, layout="folders"),
    "tables in the splits": case(
        {
            **files("train/1 train/2 valid/1 valid/2"),
            "train/l.csv": "file,label\n1.png,a\n2.png,b\n",
            "valid/l.csv": "file,label\n1.png,b\n2.png,a\n",
        },
        "train/1: a (train) | train/2: b (train) | valid/1: b (validation) | valid/2: a (validation)",
    ),
    "a table that agrees and has splits": case(
        CATS, DIVIDED, "file,label,split\n1,cats,train\n2,cats,test\n3,dogs,train\n4,dogs,test\n"
    ),
    "another column of splits": case(
        CATS,
        DIVIDED,
        "file,label,part\n1,cats,train\n2,cats,test\n3,dogs,train\n4,dogs,test\n",
        split_column="part",
    ),
    "folders, with the splits of a table that names no classes": case(
        CATS,
        DIVIDED,
        "file,part\n1,train\n2,test\n3,train\n4,test\n",
        layout="folders",
        split_column="part",
    ),
    "a table that agrees and adds nothing": case(CATS, None, "file,label\n1,cats\n4,dogs\n"),
    "the table of two that differ": case(
        CATS, "cats/1: x | cats/2: x | dogs/3: y | dogs/4: y", OTHERS, layout="table"
    ),
    "the folders of two that differ": case(CATS, None, OTHERS, layout="folders"),
    "case that is meant": case(files("A/1 a/2"), layout="folders"),
    "folders in classes": case(files("cats/x/1 cats/y/2 dogs/x/3 dogs/y/4")),
    "masks that are meant": case(files("face/1 mask/1"), layout="folders"),
    "faces with and without masks": case(files("with_mask/1 without_mask/1")),
    "the names of the files": case(
        files("cat.0.jpg cat.1.jpg dog.0.jpg dog.1.jpg"),
        "cat.0.jpg: cat | cat.1.jpg: cat | dog.0.jpg: dog | dog.1.jpg: dog",
        label_from="^([a-z]+)[.]",
    ),
    "all that matches in the names of the files": case(
        files("7_cat 8_dog"), "7_cat: cat | 8_dog: dog", label_from="cat|dog"
    ),
    "the names of the files in splits": case(
        files("train/a_1 train/b_2 test/x/a_3 sample"),
        "train/a_1: a (train) | train/b_2: b (train) | test/x/a_3: a (test)",
        label_from="([a-z])_",
    ),
    "the names of the files, in folders and beside a table": case(
        files("cats/x_1 cats/y_2 dogs/x_3 dogs/y_4"),
        "cats/x_1: x | cats/y_2: y | dogs/x_3: x | dogs/y_4: y",
        "file,label\nx_1,cats\ny_2,cats\nx_3,dogs\ny_4,dogs\n",
        label_from="([a-z])_",
    ),
    "the names of the files, with the splits of a table": case(
        files("x_1 y_2 x_3 y_4"),
        "x_1: x (train) | y_2: y (train) | x_3: x (test) | y_4: y (test)",
        "file,part\nx_1,train\ny_2,train\nx_3,test\ny_4,test\n",
        label_from="([a-z])_",
        split_column="part",
    ),
    "case that is meant in the names of the files": case(
        files("A_1 a_2"), "A_1: A | a_2: a", label_from="[Aa]", layout="names"
    ),
    "folders of systems": case(
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
        "cats/1: cats | cats/2: cats | dogs/3: dogs | dogs/4: dogs",
    ),
    "a class that is called as a folder of systems in part": case(
        files("recycled/1 recycled/2 waste/3 waste/4")
    ),
    "a table without rows beside classes": case(CATS, None, "x,y\n"),
    "splits of a column, not those of the folders": case(
        files("train/1 train/2 test/3 test/4"),
        "train/1: a (validation) | train/2: b (validation) | test/3: a (train) | test/4: b (train)",
        "id,class,split\n1,a,val\n2,b,val\n3,a,Training\n4,b,Training\n",
    ),
    **{
        f"{header!r}, and images as {name}": case(
            files("sub/0 sub/1 sub/2 sub/3"),
            "sub/0: even | sub/1: ödd | sub/2: even | sub/3: ödd",
            wide(header, name),
        )
        for header in ("image,label", "\ufeffImage_ID;Category;note", "PATH\tTarget")
        for name in ("{}.png", "{}", "sub/{}.png", "./sub\\{}")
    },
    **{
        " ".join(folders): case(in_folders(*folders))
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
    "one label, and a cell that joins others": case(
        cells(*LEAVES),
        f"1 label that may join several labels (scab rust): add {SEPARATOR}",
        multi_label=False,
    ),
    "several labels, and a cell that joins others": case(
        cells(*LEAVES),
        "(scab rust): add --label-separator ' ' if so, or --layout table if it is one",
    ),
    "several labels, and cells with an unknown mark": case(
        cells("a;b", "c;d", "a;b", "c;d", "e", "e"),
        "2 labels that may join several labels (a;b and 1 more): add --label-separator ';' if",
    ),
    "a name of a file that joins others": case(
        files("a_1 b_2 a+b_3 a_4 b_5"),
        "(a+b): add --multi-label and --label-separator + if so, or --layout names if",
        label_from="(.+)_",
        multi_label=False,
    ),
    "a name of a folder that joins others": case(
        pictures("a/1", "b/2", "a b/3"),
        "(a b): add --label-separator ' ' if so, or --layout folders if it is one",
    ),
    "a wrong separator": case(
        cells(*LEAVES),
        "--label-separator ';' is in no label, as healthy, rust, scab, scab rust: give what "
        "is between two names, or leave it out ... 1 label that may join several labels "
        "(scab rust): add --label-separator ' ' if so",
        label_separator=";",
    ),
    "a separator of columns": case(
        SIX, "--label-separator , is in no label, as cat, dog: give", HOT, label_separator=","
    ),
    "one label, and columns": case(
        SIX, "or add --multi-label if the columns cat, dog are labels", HOT, multi_label=False
    ),
    "columns that may be something else": case(
        SIX,
        "l.csv has columns of 0 and 1, which may be labels, and others (age, valid): name "
        "those that are labels, as in --label-column 'dog,\"man, old\",valid'",
        AGES,
    ),
    "a column that is not there": case(
        SIX,
        "has the columns 'file', 'age', 'dog', 'man, old', 'valid', and none called 'cow': name",
        AGES,
        label_column="dog, cow",
    ),
    "a column with another value": case(
        SIX,
        "l.csv: line 2 has '7' in the column 'age', where 0 or 1 is allowed: correct it, or name",
        AGES,
        label_column="dog,age",
    ),
    "a column without a value": case(
        SIX,
        "l.csv: line 6 has an empty cell in the column 'dog': write 1 if the image has this label",
        HOT.replace("5,1,0", "5,1,"),
        label_column="cat,dog",
    ),
    "a row of too few cells": case(
        SIX,
        "l.csv: line 6 has 2 cells, and the first line 3: correct it",
        HOT.replace("5,1,0", "5,1"),
    ),
    "a row of too many cells": case(
        SIX,
        "l.csv: line 6 has 4 cells, and the first line 3: correct it, with quotes around",
        HOT.replace("5,1,0", "5,1,0,1"),
    ),
    "-1 and 0": case(
        SIX,
        "l.csv: line 6 has -1 in a column of labels, where others have 0. In some datasets, "
        "as CheXpert, -1 means uncertain: write 0 or 1 for it, or remove these rows",
        HOT.replace("5,1,0", "5,1,-1.0"),
    ),
    "a column of 0 and 1 with another value": case(
        SIX,
        "l.csv: line 6 has '2' in the column 'cat', where 0 or 1 is allowed: correct it, or name",
        HOT.replace("5,1,0", "5,2,0"),
    ),
    "a column without a name": case(
        SIX,
        "and others (one without a name): name those that are labels, as in --label-column cat,",
        HOT.replace("file,cat,dog", "file,cat,"),
    ),
    "two columns of one name": case(
        SIX,
        "l.csv has more than one column 'dog': rename them",
        HOT.replace("file,cat,dog", "file,dog,dog"),
        label_column="dog",
    ),
    "columns beside one of names": case(
        SIX,
        "others (label): name those that are labels, as in --label-column dog,eel",
        table("file,label,dog,eel", *(f"{n},a,1,0" for n in range(1, 7))),
    ),
    "lists, and a separator": case(
        cells(*['"[1, 2]"', "[2]"] * 3),
        "2 labels written as a list ([1 and 1 more): write them as a;b, or add --layout table",
        label_separator=",",
    ),
    "no rows": case(SIX, "l.csv has no rows: give it a line with", "file,cat,dog\n"),
    "one column, and one label": case(
        SIX,
        "or give its name as --label-column NAME, or give each class",
        table("file,cat", *(f"{n},{n % 2}" for n in range(1, 7))),
        multi_label=False,
    ),
    "a label without an image": case(
        SIX,
        "1 class without an image that can be read, eel: remove or fill them",
        HOT.replace("\n", ",0\n").replace("dog,0", "dog,eel"),
    ),
    "one label, and a cell without": case(
        cells("a", "a", "b", "", "b", "b"),
        "l.csv: line 5 has an empty cell in the column 'labels': fill it, or add --multi-label if it has no label",
        multi_label=False,
    ),
    "one label in all": case(
        cells("a", "", "a", "", "", "a"),
        "only one class, a: name at least two in l.csv (image, labels)",
    ),
    "no label": case(cells("", "", "", "", "", ""), "it holds no folders"),
    "a column beside folders": case(
        CATS,
        "cats/1.png is cats by its folder, and l.csv (file, x, y) names it too: choose with",
        "file,x,y\n1,1,0\n2,0,1\n3,1,1\n4,0,0\n",
    ),
    "images that are always together": case(
        cells("a b", "a b", "a c", "b c", "c", "d", header="file,label"),
        "1 class with too few different images of its own, d: one is needed ... Add images, "
        "or name the column of l.csv (file, label) with train and test: --split-column",
        label_separator=" ",
    ),
    "a column with one label": case(
        SIX,
        "of its own, eel: one ... leave it out: name the other columns as --label-column",
        HOT.replace("\n", ",0\n").replace("dog,0", "dog,eel").replace("1,0\n", "1,1\n", 1),
    ),
}
# What is said is parts of the sentence.
REFUSED = {
    **{
        f"several labels: {name}": (contents, {"multi_label": True} | options, words)
        for name, (contents, options, words) in SEVERAL_REFUSED.items()
    },
    "ham": case(
        {**HAM, "meta.csv": HAM_TABLE},
        "HAM_images_part_1/ISIC_3.jpg is HAM_images_part_1 by its folder, and meta.csv "
        "(lesion_id, image_id, dx, age) names it too: choose with --layout folders or "
        "--label-column NAME",
    ),
    "labels that differ, of the same classes": case(
        CATS,
        "cats/2.png is cats by its folder, and l.csv (file, label) says dogs: choose with "
        "--layout folders or --layout table",
        "file,label\n1,cats\n2,dogs\n3,dogs\n4,cats\n",
    ),
    "labels by paths of another computer, beside folders": case(
        CATS,
        "cats/1.png is cats by its folder, and l.csv (path, sex) names it too: choose with",
        table("path,sex", *(f"Set-1/x/{path},f" for path in CATS)),
    ),
    "paths of another split": case(
        CATS,
        "4 rows of l.csv (path, label) without an image (x/test/cats/1.png and 3 more)",
        table("path,label", *(f"x/test/{path},f" for path in CATS)),
        layout="table",
    ),
    "labels of other classes, beside": case(
        {**CATS, "../l.csv": OTHERS},
        "cats/1.png is cats by its folder, and l.csv (file, label) says x: choose with",
    ),
    "a table without labels": case(
        {**CATS, "meta.csv": "file,width\n1,7\n2,7\n3,8\n4,8\n"},
        "cats/1.png is cats by its folder, and meta.csv (file, width) names it too: choose",
    ),
    "groups of some": case(
        CATS,
        "2 images without a row in l.csv (file, label, group) (cats/2.png and 1 more): add a row",
        "file,label,group\n1,cats,p\n4,dogs,q\n",
    ),
    "a column that is not there": case(
        FLAT,
        "l.csv has the columns 'file', 'label', and none called 'dx' names an image's class",
        LABELS,
        label_column="dx",
    ),
    "a column without a table": case(
        CATS, "no CSV here names the images: add one with the columns", label_column="dx"
    ),
    "no label": case(
        FLAT,
        "l.csv has the columns 'file', 'width', and none names an image's class: call one "
        "label, class, category, target or labels, or give its name as --label-column NAME",
        "file,width\n1,7\n",
    ),
    "one-hot columns": case(
        FLAT, "and none names an image's class", "file,cat,dog\n1,1,0\n2,0,1\n"
    ),
    "many columns": case(
        FLAT,
        "has the columns 'file', 'c0', 'c1', 'c2', 'c3' and 36 more, and none",
        table("file," + ",".join(f"c{n}" for n in range(40)), "1" + ",0" * 40),
    ),
    "the table is chosen, and names no classes": case(
        CATS,
        "none names an image's class: call one label",
        "file,width\n1,7\n2,7\n3,8\n4,8\n",
        layout="table",
    ),
    "two labels": case(
        FLAT,
        "'class' and 'label' may each name an image's class ... --label-column NAME",
        "file,class,label\n1,x,a\n2,x,b\n",
    ),
    "windows code page": case(
        FLAT,
        "l.csv: line 3 is not in UTF-8: save it as CSV in UTF-8",
        "file,label\n1,a\n2,Käse\n".encode("cp1252"),
    ),
    "windows code page beside classes": case(
        CATS,
        "l.csv: line 3 is not in UTF-8 ... or add --layout folders",
        "file,label\n1,a\n2,Käse\n".encode("cp1252"),
    ),
    "absolute paths that are not here": case(
        FLAT,
        "1 row of l.csv (file, label) without an image (C:\\x\\9.png): add the image",
        LABELS + "C:\\x\\9.png,a\n",
    ),
    "equal names of another computer": case(
        files("x/1 y/1 z/2"),
        "1 row of l.csv (file, label) with several images of that name ... give the path of each",
        "file,label\nC:\\p\\1.png,a\nC:\\p\\2.png,b\n",
        layout="table",
    ),
    "one of two splits": case(
        files("train/1 train/2"),
        "1 row of l.csv (file, label) without an image (test/1.png)",
        "file,label\ntest/1.png,a\ntrain/2.png,b\n",
    ),
    "json": case(
        {**FLAT, "labels.json": '{"1.png": "a"}'},
        "4 images in no class ... or save the json file as a CSV with the columns file and label",
    ),
    "json beside the folder of images": case(
        {"images/1.png": 1, "images/2.png": 2, "labels.json": "{}"},
        "only one class, images: save the json file as a CSV",
    ),
    "images of a split without labels": case(
        files("train/1 train/2 valid/3"), "train: it holds no folders, but 2 images"
    ),
    "two minus signs": case(
        files("-1/1 -1/2 \N{MINUS SIGN}1/3"),
        "the classes '-1' and '\N{MINUS SIGN}1' differ only in case, spaces or dashes",
    ),
    "case": case(
        pictures("Cat/1", "Cat/2", "cat/3", "cat /4"),
        "the classes 'Cat', 'cat' and 'cat ' differ only in case, spaces or dashes: give "
        "them one name, or add --layout folders to keep them apart",
    ),
    "dashes over splits": case(
        files("train/big-cat/1 train/dog/2 test/big_cat/3"), "'big-cat' and 'big_cat' differ only"
    ),
    "case in a table": case(
        FLAT, "'A' and 'a' differ only ... --layout table", LABELS.replace("2.png,a", "2.png,A")
    ),
    "the classes once more": case(
        files("cats/1 dogs/2 photos/cats/1 photos/dogs/2"),
        "2 folders within a class, with the name of another class (photos/cats and 1 more): "
        "move it away, or add --layout folders",
    ),
    "the classes once more in a split": case(
        files("train/a/1 train/b/2 train/a/b/3 test/a/4"),
        "1 folder within a class, with the name of another class (a/b)",
    ),
    "folders of images and masks": case(
        files("images/1 images/2 masks/1 masks/2"),
        "2 images named like masks of others (masks/1.png and 1 more): move the masks away, or add --layout folders",
    ),
    "masks beside images": case(
        files("a/1 a/1_mask a/1_mask_1 b/2 b/2_seg.gif"),
        "3 images named like masks of others (a/1_mask.png and 2 more)",
    ),
    "masks in each class": case(
        files("a/images/1 a/masks/1 b/images/2 b/masks/2"), "2 images named like masks"
    ),
    "names of files without a label": case(
        files("cat_1 dog_2 7 8"),
        "2 images without a label (7.png and 1 more): move them away, or give a --label-from "
        "that matches more than (cat|dog)_",
        label_from="(cat|dog)_",
    ),
    "names of files with one label": case(
        files("cat_1 cat_2"),
        "only one class, cat: --label-from cat must find at least two",
        label_from="cat",
    ),
    "names of files without any label": case(
        CATS,
        "4 images without a label (cats/1.png and 3 more): move them away",
        label_from="cow()|x",
    ),
    "case in the names of files": case(
        files("Cat_1 cat_2"),
        "'Cat' and 'cat' differ only ... add --layout names to keep them apart",
        label_from="([Cc]at)_",
    ),
    "masks beside images with labels in their names": case(
        files("cat_1 cat_1_mask dog_2"),
        "1 image named like masks of others ... --layout names to train on them",
        label_from="([a-z]+)_",
    ),
    "splits in one of two tables": case(
        {
            **files("x/1 x/2 y/3 y/4"),
            "x/l.csv": "file,label,split\n1.png,a,train\n2.png,b,test\n",
            "y/l.csv": "file,label\n3.png,a\n4.png,b\n",
        },
        "2 images without a split in l.csv (file, label, split) and l.csv (file, label) (y/3.png "
        "and 1 more): give a split to all, or to none",
        layout="table",
    ),
    "a column in which half of the cells name an image": case(
        FLAT,
        "2 rows of l.csv (Foto, label) without an image (8.png and 1 more)",
        "Foto,label\n1.png,a\n2.png,a\n8.png,c\n9.png,c\n",
    ),
    "a table of more images than the folder has": case(
        FLAT,
        "26 rows of l.csv (Foto, label) without an image (5.png and 25 more)",
        table("Foto,label", *(f"{n}.png,x" for n in range(3, 31))),
    ),
    "two columns that name the images, one called id": case(
        FLAT,
        "'id' and 'photo' may each name an image's file",
        table("id,photo,label", *(f"{n},{n % 4 + 1}.png,a" for n in range(1, 5))),
    ),
    "a bad row beside other tables": case(
        {**FLAT, "train.txt": "1.png a\n2.png a\n3.png\n", "test.txt": "4.png b\n"},
        "train.txt: line 3 has 1 cell, and the first line 2: correct it",
    ),
    "splits that another table contradicts": case(
        {**FLAT, "s.csv": "file,split\n1,train\n2,train\n3,train\n4,test\n"},
        "1 image with rows in l.csv (file, label, split) and s.csv (file, split) that differ (4.",
        "file,label,split\n1,b,train\n2,a,train\n3,b,train\n4,a,train\n",
    ),
    "splits of some": case(
        {**FLAT, "splits.csv": "file,split\n1.png,train\n2.png,test\n"},
        "2 images without a split in l.csv (file, label) and splits.csv (file, split) (3.png and",
        LABELS,
    ),
    "a line that is no JSON object": case(
        {**FLAT, "l.jsonl": '{"file": "1.png", "label": "a"}\n[7]\n'},
        "l.jsonl cannot be read (line 2 is no JSON object): save it as CSV in UTF-8",
    ),
    "columns of 0 and 1 that differ": case(
        FLAT,
        "1 image with rows in l.csv (file, a, b) that differ (1.png): keep one row of each",
        "file,a,b\n1.png,1,0\n1.png,0,1\n2.png,0,1\n3.png,1,1\n",
        multi_label=True,
    ),
    "measures as labels": case(
        pictures(*map(str, range(40))),
        "40 classes with too few different images of its own, 0.5, 1.5, 10.5, 11.5, 12.5 and "
        "35 more: one is needed to train and another to test. Add images, or name the column "
        "of l.csv (id, label) with train and test: --split-column",
        table("id,label", *(f"{n},{n}.5" for n in range(40))),
    ),
    "two tables of labels": case(
        {**FLAT, "more.csv": LABELS.replace("label", "class")},
        "l.csv (file, label) and more.csv (file, class) are tables of labels: keep one",
        LABELS,
    ),
    "nothing": case({}, "it holds no folders"),
    "images in no class": case(files("1 2"), "it holds no folders, but 2 images in no class"),
    "a hidden class": case(files(".a/1"), "it holds no folders"),
    "classes without images": case(
        {**CATS, "c": None, "d/e": None}, "2 classes without an image that can be read, c, d"
    ),
    "a class with one image": case(
        files("a/1 a/2 b/3"),
        "1 class with too few different images of its own, b ... Add images, or divide the "
        "images into folders train and test",
    ),
    "copies in each class": case(
        {f"{name}.png": int(name[-1]) for name in ("a/1", "a/2", "b/2", "b/3", "c/1", "c/3")},
        "1 class with too few different images of its own, a",
    ),
    "a test folder without images": case(
        {**files("train/a/1 train/b/2"), "test": None}, "test holds no folder"
    ),
    **{
        folders: case(in_folders(*folders.split()), words)
        for folders, words in {
            "train/a train/b val/a valid/a": "val and valid are the same split",
            "train/a val/a cars": "the folder train is beside cars ... give it a name without",
            "seg_train/a seg_train/b seg_test/a seg_test/b seg_pred": "seg_test is beside seg_pred",
            "trainval/a dev/a": "the folder trainval is beside dev",
            "test/a val/a": "but no train: name the folder",
            "trainA trainB testA testB": "trainA and trainB are the same split ... testA and testB are",
            "Train_1 Test_1": "train: it holds no folders ... If Train_1 is a class",
            "train/a train/b test1": "test holds no folder ... move it away",
            "train/a train/b test/a test/c test/d": "test: 2 classes that train lacks, c, d",
            "cats": "only one class, cats ... at least two ... photos/other with pictures",
            "train/cats": "train: only one class, cats: give each of at least two a folder",
            "x/cats x/dogs": "only one class, x ... are the classes, give",
        }.items()
    },
    **{
        repr(text): case({**files("1 2 3"), "labels.csv": text}, words)
        for text, words in {
            "a,b\nx,y\n": "labels.csv has the columns 'a', 'b', and none names an image's file: call one file, fi",
            "id,image,label\n1,1,a\n": "'id' and 'image' may each name an image's file: call only one file",
            "": "labels.csv has no rows: give it a line with the names of its columns, and then one",
            "id,label\n1,a\n2,b\n1,b\n9,a\n": (
                "1 row of labels.csv (id, label) without an image (9): add the image ... 1 image "
                "with rows in ... that differ (1.png): keep one ... 1 image without a row in "
                "labels.csv (id, label) (3.png): add a row"
            ),
            "id,label,split\n1,a,test\n2,b,test\n3,a,test\n": "has no split train",
            "id,label,split\n1,a,A\n2,b,B\n3,a,A\n": "2 names of a split in ... (A and 1 more): call it train, val",
            'id,label\n"1,a\n': "labels.csv cannot be read ( ... save it as CSV in UTF-8",
        }.items()
    },
}

# What is said is a part of a note.
NOTED = {
    "images beside the folders of splits and in the outer one of two": case(
        files(
            "seg_train/seg_train/a/1 seg_train/seg_train/a/2 seg_train/seg_train/b/3 "
            "seg_train/seg_train/b/4 seg_test/a/5 seg_test/b/6 7 seg_train/8"
        ),
        "2 images in no class and not used (7.png and 1 more)",
    ),
    "a table of something else beside that of labels": case(
        {**FLAT, "sizes.csv": "file,width\n1.png,7\n2.png,7\n"},
        "not read: sizes.csv has the columns 'file', 'width', and none names an image's class",
        LABELS,
    ),
    "a table that the layout leaves out": case(
        CATS,
        "1 table that is not read (l.csv): name its --split-column or --group-column to use it",
        "file,group\n1.png,x\n2.png,x\n3.png,y\n4.png,y\n",
        layout="folders",
    ),
    "splits below another folder": case(
        files("i/train/1 i/train/2 i/val/3 i/val/4"),
        "the folders train and val are not read as splits: give a column split, or the folder",
        LABELS,
        layout="table",
    ),
    "folders of folders": case(
        files("insects/ants/1 insects/bees/x/2 birds/owls/3 birds/gulls/4 x/5 x/6"),
        "2 classes whose images lie in folders (birds: gulls, owls and 1 more): they belong "
        "to the class. If the folders are the classes, add --label-from '([^/]+)/[^/]+$'",
    ),
    "files without a suffix": case(
        {**CATS, "cats/one": "text", "dogs/two": "text", "dogs/c.txt": "text"},
        "files that are not read as images: 2 without a suffix, 1 .txt",
    ),
}


def read(root, contents, options, **how):
    source = LabelSource(**options)
    return survey_folder(lay(root / "photos", contents), 0.3, source=source, **how)


def several(root, contents, classes=None, **options):
    """What is read of multi-label data."""
    return read(root, contents, {"multi_label": True} | options, classes=classes)


def labels_of(found, splits=False):
    """What is said of the examples, sorted: their labels, and their splits."""
    photos = {photo for images in found.splits.values() for photo in images}
    return sorted(
        f"{photo.path.removesuffix('.png')}: {listed(photo.labels)}" + f" ({photo.split})" * splits
        for photo in photos
    )


@pytest.mark.parametrize("name", READ)
def test_a_layout_that_is_read(tmp_path, name):
    contents, options, said = READ[name]
    found = read(tmp_path, contents, options)
    if said is None:
        images = [path.removesuffix(".png") for path in contents if isinstance(contents[path], int)]
        said = " | ".join(f"{path}: {path.partition('/')[0]}" for path in images)
        assert not any(" is read as " in note for note in found.notes)
    rows = labels_of(found, splits=said.endswith(")"))
    assert (rows, found.manifest.problems) == (sorted(said.split(" | ")), ())
    assert {*found.classes} == {label for photo in found.photos for label in photo.labels}
    if found.multi_label:
        found.require_sound()


@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_that_is_refused(tmp_path, name):
    contents, options, said = REFUSED[name]
    with pytest.raises(LockstepError) as caught:
        read(tmp_path, contents, options).require_sound()
    assert caught.value.code == DATA
    for words in said.split(" ... "):
        assert words in str(caught.value)
    for option in re.findall(r"--([a-z-]+)", str(caught.value)):
        assert option.replace("-", "_") in Recipe.options


@pytest.mark.parametrize("name", NOTED)
def test_what_is_not_read_is_said(tmp_path, name):
    contents, options, said = NOTED[name]
    found = read(tmp_path, contents, options)
    assert found.manifest.problems == ()
    assert any(said in note for note in found.notes), found.notes


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
        assert "1: a" in labels_of(found.require_sound())


@pytest.mark.parametrize("truth", [False, True])
@pytest.mark.parametrize("multi_label", [False, True])
def test_answers_of_a_classifier_are_no_labels(tmp_path, multi_label, truth):
    head = prediction_table.head(["cats", "dogs"], multi_label=multi_label, with_truth=truth)
    width = head.count(",")
    answers = table(head, *(f"{name}{',x' * width}" for name in ("cats/1.png", "dogs/4.png")))
    for place in ("test.csv", "../test.csv"):
        contents = {**CATS, place: answers}
        found = read(tmp_path / str(len(place)), contents, {"multi_label": multi_label})
        assert "cats/1: cats" in labels_of(found.require_sound())
    flat = {**SIX, "l.csv": HOT, "../test.csv": answers, "more.csv": answers}
    assert labels_of(several(tmp_path / "flat", flat).require_sound()) == HOT_LABELS.split(" | ")


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
