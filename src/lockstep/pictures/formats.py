"""Formats of datasets that are not read as they lie: what a file is, and what to do with it."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from lockstep.messages import command

_FILES = 10_000  # that are searched in a folder
_HEAD = 4_096  # bytes of a file that tell its format
_SAVE = "save each image as a PNG in a folder with the name of its class"
_ARRAYS = (
    f"{_SAVE}, or give the arrays in Python, as in lockstep.train('folder', data={{'train': "
    f"(images, labels)}})"
)
_PICKLE = f"a pickle of Python, as CIFAR-100 has: open it with pickle.load, and {_ARRAYS}"
_OBJECTS = (
    "of objects in images, and a classifier needs one class of each image: write a labels.csv with "
    "the columns file and label, or save the part of the image with each object as an image in a "
    "folder with the name of its class"
)
# What a sentence has in place of a command -> its words.
_COMMANDS = {
    "{mnist}": ("train", "mnist", "--data", "DIR"),
    "{cifar10}": ("train", "cifar10", "--data", "DIR"),
    "{fetch}": ("data", "fetch", "cifar10"),
}
# The files' names, a folder's files in the order of these rows; how such a file begins; what it is.
_ANNOTATIONS = (
    (
        r"image_class_labels\.txt",
        "",
        "a list of the dataset CUB, which is not needed: the folders in its folder images are the "
        "classes, so give that folder. The list of test images is not read",
    ),
    (r".*\.txt", r"\d+( +-?[\d.]+){4,}\s", f"a YOLO annotation {_OBJECTS}"),
    (r"data\.ya?ml", r"(?s).*^(names|nc) *:", f"a list of YOLO's classes, {_OBJECTS}"),
    (r".*\.xml", r"(?s).*<annotation\b", f"a Pascal VOC annotation {_OBJECTS}"),
    (
        r".*\.json",
        r'(?s).*"(images|annotations|categories)"\s*:\s*\[\s*\{',
        f"a COCO annotation {_OBJECTS}",
    ),
    (
        r".*\.cls",
        "",
        "a label of a WebDataset: move each image into a folder with the name in its .cls file",
    ),
    (
        r".*\.(txt|lst|list)",
        r"[^\n]*\.(jpe?g|png|bmp|webp|tiff?|gif)[ \t,;]+[^\s.,]+[ \t\r]*$",
        "a list of images and labels: save it as a labels.csv whose first line is file,label and "
        "whose other lines have a comma between image and label",
    ),
)
_CONTAINERS = (
    (
        r".*\.arrow|(dataset_info|dataset_dict|state)\.json",
        "",
        f"a part of a Hugging Face dataset: open its folder with datasets.load_from_disk, and "
        f"{_SAVE}",
    ),
    (
        r".*\.parquet",
        "PAR1",
        f"a Parquet file, as of a Hugging Face dataset: open it with datasets.load_dataset("
        f"'parquet', data_files=...), and {_SAVE}",
    ),
    (
        r".*idx\d[.-]ubyte(\.gz)?",
        "",
        f"an idx file. For MNIST itself: {{mnist}}. For others, as EMNIST: {_ARRAYS}",
    ),
    (
        r"(data_batch_\d|test_batch)\.bin",
        "",
        "of the binary version of CIFAR-10, which has a reader: {cifar10}",
    ),
    (
        r"data_batch_\d|test_batch|batches\.meta",
        "",
        "of the Python version of CIFAR-10: download the binary version, {fetch}",
    ),
    (r"train|test|meta", r"\x80[\2-\5]", _PICKLE),
    (r".*\.(pkl|pickle)", "", _PICKLE),
    (r".*\.(np[zy]|mat|h5|hdf5)", "", f"a file of arrays: {_ARRAYS}"),
    (r"(data|lock)\.mdb", "", f"an LMDB database: open it with lmdb.open, and {_SAVE}"),
    (
        r".*\.tfrecords?([.-].*)?|.*-\d{5}-of-\d{5}",
        "",
        f"a TFRecord: open it with tf.data.TFRecordDataset, and {_SAVE}",
    ),
    (
        r".*\.(dcm|dicom)|[^.]+",
        r"(?s).{128}DICM",
        f"a DICOM file: open it with pydicom.dcmread, and {_SAVE}, of 16 bits if it has more than "
        f"256 levels",
    ),
    (
        r".*\.[ct]sv",
        r"[^\n]*(\bpixels?_?\d*\b|\b1x1\b)",
        f"a table of pixels, as of Kaggle: read it with pandas.read_csv, and {_ARRAYS}",
    ),
    (
        r".*\d{4,}(-of-\d+)?\.tar",
        "",
        "an archive, perhaps a part of a WebDataset: unpack it with tar -xf, and then give each "
        "class a folder with its images",
    ),
    (
        r".*\.(zip|7z|rar|tar|tgz|tbz2?|txz|tar\.\w+)",
        "",
        "an archive: unpack it, and give the folder that it makes",
    ),
)


def named_format(path: Path, images: bool = False) -> str:
    """Return the sentence that says in which format a dataset lies at `path`, a file or a folder,
    and what to do; "" if none is known.

    A folder with `images` has annotations at most, and its archives and arrays are something else.
    """
    files = [path] if path.is_file() else [*islice(_files_in(path), _FILES)]
    for names, begins, what in _ANNOTATIONS if images else (*_CONTAINERS, *_ANNOTATIONS):
        for file in files:
            if re.fullmatch(names, file.name, re.I) and re.match(begins, _head(file), re.M):
                for place, words in _COMMANDS.items():
                    what = what.replace(place, command(*words))
                return f"{file} is {what}"
    return ""


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without hidden ones, in a fixed order."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for name in sorted(names):
            if name[0] != ".":
                yield Path(parent, name)


def _head(file: Path) -> str:
    """Return how a file begins, a character for each byte; "" if it cannot be read or is none, as a
    pipe.
    """
    with suppress(OSError):
        if file.is_file():
            with open(file, "rb") as stream:
                return stream.read(_HEAD).decode("latin-1")
    return ""
