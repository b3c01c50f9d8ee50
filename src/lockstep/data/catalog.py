"""The files of each dataset: where they can be downloaded, and where they are on this machine.
Needs no torch.
"""

import os
from pathlib import Path
from typing import NamedTuple

from lockstep.errors import DATA, LockstepError, option
from lockstep.files import cached, near
from lockstep.messages import command
from lockstep.pictures.foreign import named_format


class Archive(NamedTuple):
    """One published file.

    Attributes:
        name: the file's name.
        bases: URLs of folders that have the file, in the order in which they are tried.
        size_bytes, sha256: of the file. A download with another SHA-256 is refused. A size of 0
            is not known, and the server states it.
    """

    name: str
    bases: tuple[str, ...]
    size_bytes: int
    sha256: str

    @property
    def packed(self) -> bool:
        """Whether the file is a tar archive that must be unpacked. Readers read a single .gz file
        directly.
        """
        return self.name.endswith(".tar.gz")


class DatasetFiles(NamedTuple):
    """The files of a dataset.

    Attributes:
        name: the dataset's name in DATASETS.
        files: for each file that the reader needs, the names that it may have.
        subfolders: subfolders of a data folder that may hold the files.
        archives: the files to download; empty for a dataset that comes with a package.
    """

    name: str
    files: tuple[tuple[str, ...], ...] = ()
    subfolders: tuple[str, ...] = ()
    archives: tuple[Archive, ...] = ()


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_SWIFT = "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/"
# The official URL of MNIST comes last, because it has refused downloads for years and is not
# encrypted.
_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
_CIFAR10_FILES = (*((f"data_batch_{i}.bin",) for i in range(1, 6)), ("test_batch.bin",))


# Sizes and SHA-256 of the official files, as pinned by other public projects.
_CIFAR10 = Archive(
    "cifar-10-binary.tar.gz",
    (_TORONTO, _SWIFT),
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_IDX = {
    "train-images-idx3-ubyte": (
        9_912_422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "train-labels-idx1-ubyte": (
        28_881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "t10k-images-idx3-ubyte": (
        1_648_877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "t10k-labels-idx1-ubyte": (
        4_542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}
_IDX_FILES = tuple((f"{name}.gz", name) for name in _IDX)
_IDX_ARCHIVES = tuple(
    Archive(f"{name}.gz", _MNIST, size, sha256) for name, (size, sha256) in _IDX.items()
)
_ALL = (
    DatasetFiles("digits"),
    DatasetFiles("cifar10", _CIFAR10_FILES, ("cifar-10-batches-bin",), (_CIFAR10,)),
    DatasetFiles("mnist", _IDX_FILES, ("mnist", "MNIST/raw"), _IDX_ARCHIVES),
)
CATALOG = {source.name: source for source in _ALL}


def find(source: DatasetFiles, folder: Path | None) -> list[Path]:
    """Return the paths of a dataset's files, one for each of `source.files`.

    If `folder` is given, only it is searched; else the folder that LOCKSTEP_DATA names and then the
    user's cache. In each of them, the folder with the dataset's name and the subfolders of `source`
    are searched too.
    Raises: LockstepError that names the searched folders and the first missing file.
    """
    paths, lacking = searched(source, folder)
    if paths:
        return paths
    fetch = command("data", "fetch", source.name, *(() if folder is None else ("--data", folder)))
    problem = lacking or f"no {source.files[0][0]} in {', '.join(map(str, _roots(source, folder)))}"
    question = near(folder) if folder else ""
    if folder and not lacking and (known := named_format(folder)):
        problem += f", and {known}"
    raise LockstepError(
        f"dataset {source.name}: {question}{problem}. Give the folder as {option('data', 'DIR')} "
        f"or in LOCKSTEP_DATA, or download it: {fetch}",
        DATA,
    )


def searched(source: DatasetFiles, folder: Path | None) -> tuple[list[Path], str]:
    """Return the same paths as `find`, and ""; where that raises [], and which folder lacks one of
    its files, or "".
    """
    lacking = ""
    for root in _roots(source, folder):
        for place in (root, *(root / sub for sub in source.subfolders)):
            paths = list[Path]()
            missing = list[str]()
            for names in source.files:
                present = [place / name for name in names if (place / name).is_file()]
                paths += present[:1]
                if not present:
                    missing.append(names[0])
            if not missing:
                return paths, ""
            if paths and not lacking:
                lacking = f"{place} has no file {missing[0]}"
    return [], lacking


def destination(source: DatasetFiles, folder: Path | None) -> Path:
    """Return the folder of a download: NAME in `folder`, else in LOCKSTEP_DATA if it is set, else
    in the cache.
    """
    path = _roots(source, folder)[1 if _stated(folder) else 0]
    # a download replaces the folder that a link points to, not the link
    return Path(os.path.realpath(path))


def _roots(source: DatasetFiles, folder: Path | None) -> list[Path]:
    data = _stated(folder)
    roots = [data, data / source.name] if data else []
    return roots if folder else [*roots, cached(source.name)]


def _stated(folder: Path | None) -> Path | None:
    """Return `folder`, else the one that LOCKSTEP_DATA names, in which no shell has read a "~"."""
    named = os.path.expanduser(os.environ.get("LOCKSTEP_DATA", ""))
    return folder or (Path(named) if named else None)
