"""Formats of datasets that are not read: the sentence that names them."""

import re

import pytest
from tests.helpers import lockstep_error
from tests.images import lay, pictures, table

from lockstep.data import catalog
from lockstep.errors import DATA, LockstepError
from lockstep.pictures.foreign import named_format
from lockstep.pictures.listing import require_folder
from lockstep.pictures.survey import survey_folder

YOLO = "0 0.5 0.5 0.25 0.125\n"

# What lies in place of images: name of a file, its content, what the sentence says.
CONTAINERS = [
    ("train/data-00000-of-00001.arrow", "", "datasets.load_from_disk"),
    ("dataset_dict.json", "{}", "datasets.load_from_disk"),
    ("data/train-00000-of-00001.parquet", "PAR1", "datasets.load_dataset('parquet'"),
    ("emnist-letters-train-images-idx3-ubyte.gz", "", "an idx file. For MNIST itself: lockstep"),
    ("train-labels.idx1-ubyte", "", "an idx file"),
    ("cifar-10-batches-bin/data_batch_1.bin", "", "lockstep train cifar10 --data DIR"),
    ("cifar-10-batches-py/data_batch_1", b"\x80\x02", "lockstep data fetch cifar10"),
    ("cifar-100-python/train", b"\x80\x02}q\x01", "a pickle of Python, as CIFAR-100 has"),
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
    ("train.txt", "images/1.png 0\nimages/2.png 1\n", "a list of images and labels: save it as"),
    ("train.txt", "1.jpg,cat\n", "a list of images and labels"),
    ("meta/list.lst", "my cat 1.jpeg\tcat\n", "a list of images and labels"),
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
