"""Formats of datasets that are not read: the sentence that names them."""

import gzip
import pickle
import re
from textwrap import dedent
from unittest import mock

import numpy as np
import pytest
from tests.helpers import lockstep_error
from tests.images import lay, noise, pictures, table

import lockstep
from lockstep.data import arrays, catalog
from lockstep.errors import DATA, LockstepError
from lockstep.pictures.foreign import named_format
from lockstep.pictures.listing import require_folder
from lockstep.pictures.survey import survey_folder

YOLO = "0 0.5 0.5 0.25 0.125\n"

# What lies in place of images: name of a file, its content, what the sentence says.
CONTAINERS = [
    ("dataset_dict.json", "{}", "a part of a Hugging Face dataset without a column of images"),
    ("emnist-letters-train-images-idx3-ubyte.gz", "", "an idx file. For MNIST itself: lockstep"),
    ("train-labels.idx1-ubyte", "", "an idx file"),
    ("cifar-10-batches-bin/data_batch_1.bin", "", "lockstep train cifar10 --data DIR"),
    ("cifar-10-batches-py/data_batch_1", b"\x80\x02", "lockstep data fetch cifar10, or open it in"),
    (
        "cifar-100-python/train",
        b"\x80\x02}q\x01",
        "a pickle of Python, as CIFAR-100 has: open it in",
    ),
    ("all.PKL", "", "open it with pickle.load"),
    ("pneumonia.npz", "PK", "a file of arrays: save each image as a PNG"),
    ("images.h5", "", "lockstep.train('folder', data={'train': (images, labels)})"),
    ("lmdb/data.mdb", "", "lmdb.open"),
    ("train.tfrecord-00000-of-00010", "", "tf.data.TFRecordDataset"),
    ("train-00000-of-01024", "", "tf.data.TFRecordDataset"),
    ("scan.dcm", b"\0" * 128 + b"DICM", "pydicom.dcmread"),
    ("series/IM000001", b"\n" * 128 + b"DICM", "pydicom.dcmread"),
    ("train.csv", table("label,pixel0,pixel1", "3,0,0"), "a table of pixels, as of Kaggle"),
    ("mnist_test.csv", table("label,1x1,1x2", "3,0,0"), "a table of pixels"),
    ("fer2013.csv", table('emotion,"pixels",Usage', "3,0 0,Training"), "a table of pixels"),
    ("shards/imagenet-train-000000.tar", "", "perhaps a part of a WebDataset: unpack it"),
    ("pets.tar.gz", "\x1f\x8b", "an archive: unpack it, and give the folder"),
    ("Pets.ZIP", "PK", "an archive: unpack it"),
    ("pets.7z", "", "an archive: unpack it"),
]
# What lies beside images.
ANNOTATIONS = [
    ("image_class_labels.txt", "1 1\n2 1\n", "the folders in its folder images are the classes"),
    ("labels/1.txt", YOLO, "a YOLO annotation of objects in images"),
    ("data.yaml", "train: ../train\nnames: [cat, dog]\n", "a list of YOLO's classes"),
    ("Annotations/1.xml", "<?xml version='1.0'?>\n<annotation>", "a Pascal VOC annotation"),
    ("annotations/all.json", '{"info": {},\n "images": [{"id": 1}]}', "a COCO annotation"),
    ("images/1.cls", "7", "a label of a WebDataset"),
]


@pytest.mark.parametrize(("name", "content", "words"), CONTAINERS)
def test_a_container_is_named_as_a_file_and_in_a_folder(tmp_path, name, content, words):
    root = lay(tmp_path / "data", {name: content})
    with lockstep_error(re.escape(f"{name} is "), DATA) as caught:
        survey_folder(root, 0.2).require_sound()
    assert words in str(caught.value)
    assert "holds no folders" not in str(caught.value)
    with lockstep_error(re.escape(f"{name} is ")) as caught:
        require_folder(root / name)
    assert words in str(caught.value)


@pytest.mark.parametrize(("name", "content", "words"), ANNOTATIONS)
def test_annotations_beside_images_are_named(tmp_path, name, content, words):
    root = lay(tmp_path / "data", {**pictures("images/1", "images/2"), name: content})
    for classes in None, ("cat", "dog"):
        with pytest.raises(LockstepError) as caught:
            survey_folder(root, 0.2, classes=classes).require_sound()
        assert f"{name} is " in str(caught.value)
        assert words in str(caught.value)
    folders = {**pictures("cat/1", "cat/2", "dog/3", "dog/4"), name: content}
    if "/" not in name:  # A folder that can be trained on has no problem.
        assert not survey_folder(lay(tmp_path / "folders", folders), 0.2).problems


def in_python(path, **names):
    """Do the lines of Python that the sentence about a file has. Return the data that they give."""
    given = {}
    lines = [line for line in named_format(path).splitlines() if line.startswith("  ")]
    assert len(lines) == 3
    with mock.patch.object(lockstep, "train", lambda what, data: given.update(data)):
        exec(dedent("\n".join(lines)).replace("...", "None"), names)
    splits = {name: pair for name, pair in given.items() if pair}
    arrays.store(splits, 32)  # as lockstep.train takes it
    return splits


def test_arrays_are_read_in_three_lines_of_python(tmp_path):
    images, labels = noise(0, 8, 28, 28), np.arange(8, dtype=np.uint8) % 2
    for name, array in (("a-images-idx3-ubyte", images), ("a-labels-idx1-ubyte.gz", labels)):
        head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4) for n in array.shape)
        data = head + array.tobytes()
        lay(tmp_path, {name: gzip.compress(data) if name.endswith("gz") else data})
    place = tmp_path / "a-images-idx3-ubyte"
    found = in_python(place, IMAGES=str(place), LABELS=str(tmp_path / "a-labels-idx1-ubyte.gz"))
    assert np.array_equal(found["train"][0], images)
    assert np.array_equal(found["train"][1], labels)
    file = tmp_path / "pneumoniamnist.npz"
    columns = {}
    for split in ("train", "val", "test"):
        columns |= {f"{split}_images": images, f"{split}_labels": labels[:, None]}
    np.savez_compressed(file, **columns)
    found = in_python(file, FILE=file)
    assert [*found] == ["train", "val", "test"]
    assert np.array_equal(found["val"][1], labels)
    colours = noise(1, 8, 3, 32, 32)
    for name, key in (("data_batch_1", b"labels"), ("train", b"fine_labels")):
        batch = {b"data": colours.reshape(8, -1), key: labels.tolist()}
        lay(tmp_path, {name: pickle.dumps(batch, protocol=2)})
        found = in_python(tmp_path / name, TRAIN=tmp_path / name, TEST=tmp_path / name)
        assert np.array_equal(found["test"][0], colours.transpose(0, 2, 3, 1))
        assert np.array_equal(found["train"][1], labels)


def test_other_files_are_not_taken_for_a_format(tmp_path):
    others = {
        "readme.txt": "Photos of my.jpg cats, 2020.\n",
        "classes.txt": "0 cat\n1 dog\n",
        "list.txt": "a/1.png\na/2.png\n",
        "sizes.csv": "name,width\n1,2\n",
        "config.json": '{"images": 7}',
        "notes.yaml": "author: me\n",
        "train": "text",
        "a.b": "DICM",
    }
    root = lay(tmp_path / "data", others)
    assert named_format(root) == ""
    assert named_format(lay(tmp_path / "more", {"pets.zip": "PK"}), images=True) == ""


def test_a_download_of_another_kind_is_named(tmp_path):
    lay(tmp_path, {"cifar-10-batches-py/data_batch_1": b"\x80\x02"})
    with lockstep_error("of the Python version of CIFAR-10: download the binary"):
        catalog.find(catalog.CATALOG["cifar10"], tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").touch()
    with lockstep_error("has no file train-labels-idx1-ubyte.gz. Give"):
        catalog.find(catalog.CATALOG["mnist"], tmp_path)
