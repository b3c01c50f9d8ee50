"""Which image a cell of a table means."""

import re
import unicodedata
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

# Words of splits and groups in a name.
OTHER = re.compile(r"(?<![a-z])(train|val(id)?|test|split|fold|group)(?![a-z])", re.I)
_ABSOLUTE = re.compile(r"/|[A-Za-z]:")


class PathIndex:
    """The images of a folder by what a table may call them: any end of the path, with or without
    suffix.
    """

    def __init__(self, root: Path, paths: Collection[str]) -> None:
        """Take the `paths` of images relative to the folder `root`."""
        self.root = root.resolve()
        self._paths = paths

    @cached_property
    def _wholes(self) -> dict[str, str | None]:
        """By the path from the folder's name on, in Unicode's composed form; None for several."""
        wholes: dict[str, str | None] = {}
        for path in self._paths:
            whole = unicodedata.normalize("NFC", f"{self.root.name}/{path}")
            wholes[whole] = None if whole in wholes else path
        return wholes

    # Most tables name whole paths, and the ends of a million take seconds.
    @cached_property
    def _ends(self) -> dict[str, str | list[str]]:
        """By the end without its suffix: the path, or a list of several."""
        ends: dict[str, str | list[str]] = {}
        for path in self._paths:
            end = _stem(unicodedata.normalize("NFC", f"/{self.root.name}/{path}"))
            while "/" in end:
                end = end.partition("/")[2]
                before = ends.setdefault(end, path)
                if isinstance(before, list):
                    before.append(path)
                elif before is not path:
                    ends[end] = [before, path]
        return ends

    @cached_property
    def _names(self) -> set[str]:
        """The names of the images' files without their suffix."""
        return {_stem(whole.rpartition("/")[2]) for whole in self._wholes}

    def about_one(self, path: str) -> bool:
        """Return whether a text has the name of an image, but for its suffix."""
        return path.lower().endswith(".txt") and _stem(path.rpartition("/")[2]) in self._names

    def _at(self, end: str) -> list[str]:
        """Return the paths that end so, with or without their suffix."""
        found = self._ends.get(end, [])
        paths = [found] if isinstance(found, str) else found
        stem = _stem(end)
        if stem == end:
            return paths
        found = self._ends.get(stem, [])
        suffix = end[len(stem) :]
        whole = [found] if isinstance(found, str) else found
        return paths + [path for path in whole if path.endswith(suffix)]

    def find(self, cell: str, folder: str) -> list[str]:
        """Return the paths that `cell` may mean in a table in `folder`: the path from there, else
        the end of a path.

        An absolute path may be another computer's: then the longest end of it that an image has
        counts.
        """
        cell = unicodedata.normalize("NFC", cell.replace("\\", "/"))
        folder = unicodedata.normalize("NFC", folder)
        end = cell.lstrip("./")
        if whole := self._wholes.get(f"{folder}/{end}"):
            return [whole]
        name = end.rpartition("/")[2]
        if not {name, _stem(name)} & self._names:
            return []
        if direct := self._at(f"{folder}/{end}"):
            return direct
        while _ABSOLUTE.match(cell) and "/" in end and not self._at(end):
            end = end.partition("/")[2]
        return self._at(end)

    def prefix_in(self, cells: Sequence[str], folder: str) -> str | None:
        """Return the folders before the path that `cells` have and the images lack, mostly "".
        None: the cells name no images.

        A path of another computer may begin so. The folder of a split is never left out: its images
        may be others of the same names.
        """
        paths = [cell.replace("\\", "/") for cell in cells]
        shared = "".join(paths[:1]).split("/")[:-1]
        for count in range(len(shared) + 1):
            prefix = "".join(f"{part}/" for part in shared[:count])
            if OTHER.search(prefix):
                break
            if self._are_in([path.removeprefix(prefix) for path in paths], folder):
                return prefix
        return None

    def _are_in(self, cells: Sequence[str], folder: str) -> bool:
        """Return whether the `cells` name images: half of them do, or as many as half of the
        images.
        """
        count = sum(bool(self.find(cell, folder)) for cell in cells)
        return count > 0 and 2 * count >= min(len(cells), len(self._paths))


def _stem(path: str) -> str:
    """Return a path without the suffix of its file."""
    folder, slash, name = path.rpartition("/")
    return folder + slash + (name.rpartition(".")[0] or name)
