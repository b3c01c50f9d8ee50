"""The files of each dataset, and where they can be downloaded.

`locate.py` finds the files of the readers by this catalog, and `fetch.py` downloads by it. Needs no torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """One published file.

    Attributes:
        name: the file's name.
        bases: URLs of folders that have the file, in the order in which they are tried.
        size_bytes, sha256: of the file. A download with another SHA-256 is refused.
    """

    name: str
    bases: tuple[str, ...]
    size_bytes: int
    sha256: str

    @property
    def packed(self) -> bool:
        """Whether the file is a tar archive that must be unpacked. Readers read a single .gz file directly."""
        return self.name.endswith(".tar.gz")


@dataclass(frozen=True)
class Source:
    """The files of a dataset.

    Attributes:
        name: the dataset's name in DATASETS.
        images: the number of images in all splits.
        side_px: the side of the images in pixels.
        files: for each file that the reader needs, the names that it may have.
        subfolders: subfolders of a data folder that may hold the files.
        archives: the files to download; empty for a dataset that comes with a package.
        shares_file_names: whether another dataset has files with the same names. If so, a folder for several datasets
            is not searched itself; only this dataset's subfolders of it are.
    """

    name: str
    images: int
    side_px: int
    files: tuple[tuple[str, ...], ...] = ()
    subfolders: tuple[str, ...] = ()
    archives: tuple[Archive, ...] = ()
    shares_file_names: bool = False

    @property
    def size_bytes(self) -> int:
        """The number of bytes that a download transfers."""
        return sum(archive.size_bytes for archive in self.archives)


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_SWIFT = "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/"
# The official URL of MNIST comes last, because it has refused downloads for years and is not encrypted.
_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
# The authors' repository comes before their bucket, because the bucket's URL is not encrypted.
_FASHION = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_IDX_FILES = tuple((f"{name}.gz", name) for name in _IDX)
_CIFAR10_FILES = (*((f"data_batch_{i}.bin",) for i in range(1, 6)), ("test_batch.bin",))


def _idx_archives(bases: tuple[str, ...], *sizes_and_sha256: tuple[int, str]) -> tuple[Archive, ...]:
    return tuple(Archive(f"{name}.gz", bases, *facts) for name, facts in zip(_IDX, sizes_and_sha256, strict=True))


# Sizes and SHA-256 of the official files, as pinned by other public projects.
_CIFAR10 = Archive(
    "cifar-10-binary.tar.gz", (_TORONTO, _SWIFT), 170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)  # fmt: skip
_MNIST_ARCHIVES = _idx_archives(
    _MNIST,
    (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
_FASHION_ARCHIVES = _idx_archives(
    _FASHION,
    (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)
_ALL = (
    Source("digits", 1_797, 8),
    Source("cifar10", 60_000, 32, _CIFAR10_FILES, ("cifar-10-batches-bin",), (_CIFAR10,)),
    Source("mnist", 70_000, 28, _IDX_FILES, ("mnist", "MNIST/raw"), _MNIST_ARCHIVES),
    Source(
        "fashion-mnist", 70_000, 28, _IDX_FILES, ("fashion-mnist", "FashionMNIST/raw"), _FASHION_ARCHIVES,
        shares_file_names=True,
    ),
)  # fmt: skip
SOURCES = {source.name: source for source in _ALL}
