"""Images in the rows of Parquet and Arrow files, the forms of Hugging Face's datasets.

A column has the bytes of each image and perhaps its path, and others have labels. To all other
modules, such a file is a table of labels that also holds its images: "FILE, row N/PATH" is the path
of one. Rows count from 0. Nothing in a dataset is executed. pyarrow and the decoder are imported on
first use, because most folders have no such files.
"""

import json
import re
import stat
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

from lockstep import hardware
from lockstep.errors import DATA, LockstepError
from lockstep.files import read_json, stamps
from lockstep.messages import require_modules
from lockstep.pictures.threads import AT_A_TIME

SUFFIXES = ("parquet", "arrow")
JOINED = "\x1f"  # between the labels in a cell that was a list: ASCII's unit separator
_ROW = re.compile(r"(.+?\.(?:parquet|arrow)), row (\d+)(?:/.*)?", re.DOTALL | re.IGNORECASE)
# The types of columns that are cells of a table, in pyarrow's words.
_CELL = re.compile(
    r"(large_)?string|bool|u?int|float|double|dictionary|(large_)?list<\w+: (int|string)"
)
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream of Arrow
_OPEN = 4  # files that stay open


class RowFile:
    """A Parquet or Arrow file.

    Attributes:
        name: of the file, for messages.
        image: the column of images, "" if there is none.
        columns: those of numbers and texts, and of lists of them.
    """

    def __init__(self, path: Path) -> None:
        """Open the file. Raises: LockstepError if it has several columns of images; what pyarrow
        raises.
        """
        from pyarrow import ipc, memory_map, parquet

        self.name, self._lock = path.name, Lock()
        if path.suffix.lower() == ".parquet":
            file = parquet.ParquetFile(path)
            self._schema, self._read, read_part = file.schema_arrow, file.read, file.read_row_group
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            sizes = [group.num_rows for group in groups]
        else:
            # It is not compressed, so nothing is read before it is needed.
            stream = memory_map(str(path))
            if stream.read_at(len(_END), max(0, stream.size() - len(_END))) != _END:
                raise ValueError("its end is missing")
            table = ipc.open_stream(stream).read_all()
            table.validate(full=True)  # Else an offset of a stranger's file may lead out of it.
            self._read, read_part = (lambda columns: table), (lambda number, columns: table)
            self._schema, sizes = table.schema, [table.num_rows]
        self._starts = [0, *accumulate(sizes)]
        self._types = {field.name: str(field.type) for field in self._schema}
        images = [field.name for field in self._schema if _holds_images(field.type)]
        if len(images) > 1:
            raise LockstepError(
                f"{path.name} has several columns of images, {', '.join(images)}: keep one", DATA
            )
        self.image = "".join(images)
        self.columns = [name for name, kind in self._types.items() if _CELL.match(kind)]
        image = self.image
        # as many row groups as all threads work on at the same time
        usual = sorted(sizes)[len(sizes) // 2] if sizes else 1  # The last one may be short.
        kept = 2 + AT_A_TIME * hardware.cores() // max(1, usual)
        # It does not refer to `self`, so that a file is closed as soon as it is not used.
        self._part = lru_cache(kept)(lambda number: read_part(number, columns=[image])[image])

    @cached_property
    def paths(self) -> list[str]:
        """The path of each image from the folder of the file on; [] without images."""
        names = [""] * (self._starts[-1] if self.image else 0)
        if "path: string" in self._types.get(self.image, ""):
            from pyarrow import compute

            column = self._read(columns=[f"{self.image}.path"])[self.image]
            names = compute.struct_field(column, "path").to_pylist()
        return [f"{self.name}, row {row}{_as_path(name)}" for row, name in enumerate(names)]

    def classes(self, column: str) -> list[str]:
        """Return the names of the classes that the numbers in a column mean, [] if none are
        stated.
        """
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            features = json.loads(self._schema.metadata[b"huggingface"])["info"]["features"]
            feature = features[column]
            return [*map(str, feature.get("feature", feature)["names"])]
        return []

    def cells(self) -> Iterator[list[str]]:
        """Yield the path of the image in each row, and what the `columns` say of it. Raises:
        LockstepError for a number that means no class.
        """
        table = self._read(columns=self.columns)
        # -1 stands for an unknown class.
        named = [{-1: "", **dict(enumerate(self.classes(column)))} for column in self.columns]

        def text(value: Any, names: dict[Any, str]) -> str:
            if isinstance(value, list):
                return JOINED.join(text(each, names) for each in value)
            if len(names) > 1 and value is not None:
                value = names[value]
            return "" if value is None else unicodedata.normalize("NFC", str(value)).strip()

        values = [table[column].to_pylist() for column in self.columns]
        for path, *row in zip(self.paths, *values, strict=True):
            try:
                yield [path, *map(text, row, named)]
            except KeyError as error:
                raise LockstepError(
                    f"{path}: {error} is the number of no class: correct it, or the names of the "
                    f"classes in the file's schema",
                    DATA,
                ) from None

    def content(self, row: int) -> bytes | None:
        """Return the bytes of the image in a row; None if it has none."""
        if row >= self._starts[-1]:
            raise ValueError(f"it has {self._starts[-1]} rows")
        part = bisect_right(self._starts, row) - 1
        with self._lock:  # Threads work on rows of one group, which is then read once.
            value = self._part(part)[row - self._starts[part]].as_py()
        content: bytes | None = value["bytes"] if isinstance(value, dict) else value
        return content


def _holds_images(kind: Any) -> bool:
    """Return whether a type of pyarrow's is that of images: bytes, alone or in a struct."""
    from pyarrow import types

    if types.is_struct(kind):
        place = kind.get_field_index("bytes")
        kind = kind.field(place).type if place >= 0 else kind
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


@lru_cache(_OPEN)
def _opened(path: Path, seen: tuple[int, ...]) -> RowFile:
    require_modules(path.name, ["pyarrow"], "hf")
    return RowFile(path)


@contextmanager
def opened(path: Path) -> Iterator[RowFile]:
    """Yield the file at `path`. Raises: LockstepError, also for what pyarrow raises within the
    context, and without pyarrow.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # To open a pipe would be to wait.
            raise OSError("it is no file")
        yield _opened(path, stamps(status))
    except (LockstepError, MemoryError):
        raise
    except Exception as error:  # pyarrow raises any of Python's for a damaged file.
        cause = str(error).partition("\n")[0].rstrip(".")
        raise LockstepError(
            f"{path.name} cannot be read ({cause}): get it again, by git lfs pull if it is in a "
            f"clone of a repository",
            DATA,
        ) from None


def image_paths(path: Path) -> list[str]:
    """Return the paths of the images in a file, from its folder on; [] if it has none. Raises: as
    `opened`.
    """
    if not is_rows(path):
        return []
    with opened(path) as file:
        return file.paths


def is_rows(path: Path) -> bool:
    """Return whether a file may hold images in rows, by its name. A dataset that `save_to_disk`
    wrote has other Arrow files too, which its state.json leaves out.

    Raises: LockstepError if the state.json beside it is damaged.
    """
    suffix = path.suffix.lower()[1:]
    state = path.with_name("state.json")
    if suffix != "arrow" or not state.is_file():
        return suffix in SUFFIXES
    try:
        return path.name in [each["filename"] for each in read_json(state)["_data_files"]]
    except (OSError, KeyError, TypeError, ValueError):
        raise LockstepError(f"{state} is damaged: save the dataset again", DATA) from None


def read_picture(path: Path) -> bytes:
    """Return the bytes of an image, of a file or of a row. Raises: as `decode.read_image`."""
    from lockstep.pictures.decode import UnreadableImageError, read_image

    row = _ROW.fullmatch(str(path))
    if row is None:
        return read_image(path)
    try:
        with opened(Path(row[1])) as file:
            content = file.content(int(row[2]))
    except (LockstepError, IndexError) as error:
        raise UnreadableImageError(str(error)) from None
    if not content:
        raise UnreadableImageError("no image in this row")
    return content


def place(path: str) -> tuple[str, int]:
    """Return a key that sorts paths as the files are stored."""
    row = _ROW.fullmatch(path)
    return (row[1], int(row[2])) if row else (path, 0)


def _as_path(name: str | None) -> str:
    """Return a path that a row states, so that it can end the path of an image."""
    plain = unicodedata.normalize("NFC", (name or "").replace("\\", "/").replace("\0", ""))
    return plain and f"/{plain.lstrip('./')}"
