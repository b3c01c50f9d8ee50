"""What can be read in two ways in the names of classes, folders and files, where the user has not
chosen.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from lockstep.errors import option
from lockstep.pictures.manifest import Manifest
from lockstep.pictures.names import names_in, typed
from lockstep.pictures.table import MINUS
from lockstep.text import listed, noted

_WORD = "(?:masks?|gt|ground[ _-]?truths?|seg(?:mentations?)?|annotations?|labels?)"
# What the path of a mask has besides that of its image: a folder, or a part of the name as in
# 7_mask_1.png.
_MASK = re.compile(
    rf"(?<![^/])(?:[^/]*[ _-]masks?|segmentation\w*|{_WORD})/"
    rf"|(?<![^/]){_WORD}[ _.-]+(?=[^/]*$)|[ _.-]+{_WORD}(?:[ _.-]?\d+)?(?=\.\w+$)",
    re.I,
)
# Parts of words, of which each match of `_MASK` has one.
_MASK_WORDS = ("mask", "gt", "truth", "seg", "annotat", "label")
# What separates the words of a class's name. A dash before or after all words is a sign, as in -1
# and A-.
_BETWEEN = re.compile(r"(?<=[^\W_])[\s_-]+(?=[^\W_])|[\s_]+")
# What may stand between names, the likeliest first. Of the last two, most are parts of one name.
_MARKS = ";|,+&/ _-"
_CLEAR = _MARKS[:-2]


def doubts(manifest: Manifest) -> list[str]:
    """Return what can be read in two ways, a sentence each."""
    return [*_names(manifest), *_joined(manifest)]


def _names(manifest: Manifest) -> list[str]:
    """Return what is doubtful in the names of classes, folders and files."""
    alike = defaultdict[str, list[str]](list)
    for name in manifest.names:
        plain = unicodedata.normalize("NFKC", name).replace(MINUS, "-")
        words = _BETWEEN.sub(" ", plain)
        alike[words.strip().casefold()].append(repr(name))
    apart = option("layout", "table" if manifest.table and manifest.by != "names" else manifest.by)
    problems = [
        f"the classes {listed(same)} differ only in case, spaces or dashes: give them one name, or "
        f"add {apart} to keep them apart"
        for same in alike.values()
        if len(same) > 1
    ]
    if manifest.table:
        return problems
    remedy = f"move it away, or add {apart} to count its images to the class around it"
    for split, root in manifest.folders.items() if manifest.by == "folders" else ():
        folders = {
            path.rpartition("/")[0] for path, row in manifest.rows.items() if row.split == split
        }
        parents = [folder[len(root) :].strip("/").split("/") for folder in folders]
        classes = {parts[0] for parts in parents}
        inner = {
            "/".join(parts[:2])
            for parts in parents
            if len(parts) > 1 and parts[1] in classes - {parts[0]}
        }
        problems += noted(
            sorted(inner), "folder", "within a class, with the name of another class", remedy
        )
    masks = _masks(manifest.rows)
    remedy = f"move the masks away, or add {apart} to train on them too"
    return problems + noted(masks, "image", "named like masks of others", remedy)


def _joined(manifest: Manifest) -> list[str]:
    """Return the problem that a text may join several labels, where the user has not said so."""
    source, in_text = manifest.source, manifest.by != "folders"
    if manifest.partial or manifest.columns or not (source.multi_label or in_text):
        return []
    lists = [name for name in manifest.names if name[0] in "[{"]
    if lists:
        remedy = f"write them as a;b, or add {option('layout', manifest.by)} if each is one name"
        return noted(lists, "label", "written as a list", remedy)
    unknown = source.multi_label and in_text and not source.label_separator
    between, joined = joining(manifest.names, unknown)
    split = typed("label_separator", between)
    if not source.multi_label:
        split = f"{option('multi_label', True)} and {split}"
    return noted(
        joined,
        "label",
        "that may join several labels",
        f"add {split} if so, or {option('layout', manifest.by)} if it is one label",
    )


def joining(names: Collection[str], unknown: bool) -> tuple[str, list[str]]:
    """Return the mark that joins two or more other `names` most often, and the names with it. With
    `unknown`, the parts need not be names, if the mark is hardly a part of a name.
    """
    joined = {}
    known = {*names}
    for mark in _MARKS:
        parts_of = {name: {*names_in(name, mark)} for name in known if mark in name}
        joined[mark] = sorted(
            name
            for name, parts in parts_of.items()
            if len(parts) > 1 and ((unknown and mark in _CLEAR) or parts <= known)
        )
    mark = max(_MARKS, key=lambda mark: len(joined[mark]))
    return mark, joined[mark]


def _masks(paths: Collection[str]) -> list[str]:
    """Return which of `paths` are masks by their folder or name, and have their image among the
    others.
    """
    # A search of all paths at once takes a tenth of the time of one search a path.
    text = "\0".join(paths).casefold()
    if not any(word in text for word in _MASK_WORDS):
        return []
    image_of = {path: _MASK.sub("", path) for path in paths if _MASK.search(path)}
    images = {Path(path).stem for path in paths if path not in image_of}
    return [path for path, image in image_of.items() if Path(image).stem in images]
