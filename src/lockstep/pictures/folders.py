"""Labels and splits by the names of folders.

Two layouts: ROOT/<class>/** and ROOT/{train,val,test}/<class>/**. The folders of the splits may
have other usual names, such as training_set or seg_test, and may hold a folder of the same name
that holds the classes. What can be read in two ways is a problem, until the user has chosen.
"""

import unicodedata
from collections import Counter, defaultdict
from pathlib import Path

from lockstep.pictures.listing import Listing
from lockstep.pictures.manifest import LabelSource, Manifest, Row, split_of
from lockstep.text import listed


def by_folders(root: Path, source: LabelSource, partial: bool) -> Manifest:
    """Return the manifest of `root` whose classes are folders; see `Manifest` for the rest.

    A file with images in its rows is read as a folder that has only this file.
    A class may be a link to a folder. Its name is its folder's name in Unicode's composed form
    (NFC), so that macOS and Linux agree on it. Raises: OSError if `root` cannot be read.
    """
    folder, only = (root, "") if root.is_dir() else (root.parent, root.name)
    listing = Listing(folder, {}, [], Counter(), [], [], only)
    splits, problems = _splits(listing, partial)
    rows: dict[str, Row] = {}
    unlabelled: list[str] = []
    classes: dict[str, list[str]] = {}
    around = [part for path in splits.values() for part in ("", path.rpartition("/")[0])]
    for path in dict.fromkeys([*around, *splits.values()]):
        unlabelled += listing.add(path, deep=False)
    for split, path in splits.items():
        prefix = path and f"{path}/"
        folders: dict[str, str] = {}  # class -> its folder
        for name in listing.folders(path):
            class_name = unicodedata.normalize("NFC", name)
            if not is_unicode(name):
                problems.append(f"the name of the folder {prefix}{name!a} is not UTF-8: rename it")
            elif class_name in folders:
                problems.append(
                    f"{prefix}{name} and {prefix}{folders[class_name]!a} are the same name: rename "
                    f"one"
                )
            else:
                folders[class_name] = name
        classes[split] = sorted(folders)
        for name in classes[split]:
            rows |= dict.fromkeys(
                listing.add(prefix + folders[name], deep=True), Row(split, (name,))
            )
    problems += listing.problems
    return Manifest(source, partial, listing, rows, unlabelled, splits, classes, problems=problems)


def _splits(listing: Listing, partial: bool) -> tuple[dict[str, str], list[str]]:
    """Return the splits, as in `Manifest.folders`, and no problems; or no splits, and the problems
    that the names leave.

    The folders are splits if the names of all say so. Several folders of one split, such as
    steam_train and freight_train, are classes, unless they hold folders of equal names. Beside
    other folders, one that is named like a split is a class too, if it has no folder's name in
    common with another one, and is not called "train".
    """
    names = listing.folders("")
    by_split = defaultdict[str, list[str]](list)
    for name in names:
        by_split[split_of(name)].append(name)
    others = by_split.pop("", [])
    named = [name for name in names if name not in others]
    if not named:
        return {"": ""}, []
    paths = {name: _nested(listing, name) for name in named}
    inner = {name: {*listing.folders(paths.get(name, name))} for name in names}
    alike = []
    for name in named:
        shared = any(inner[name] & inner[other] for other in names if other != name)
        if shared or (others and name.lower() == "train" and inner[name]):
            alike.append(name)
    if not alike and (others or (len(named) > 1 and len(by_split) == 1)):
        return {"": ""}, []
    problems = []
    if others:
        problems.append(
            f"the folder {alike[0]} is beside {listed(others[:5])}. If {alike[0]} is a split, move "
            f"all away but the splits; if it is a class, give it a name without the word of a "
            f"split, or put its images directly into it"
        )
    for same in by_split.values():
        if len(same) > 1:
            problems.append(f"{' and '.join(same)} are the same split: keep one of them")
    if "train" not in by_split and not partial:
        problems.append(
            f"there is {listed(named)}, but no train: name the folder of the training images train"
        )
    if problems:
        return {}, problems
    return {split: paths[same[0]] for split, same in by_split.items()}, []


def _nested(listing: Listing, name: str) -> str:
    """Return the path of the split's folder `name`, or of the one in it that is named like the same
    split.

    Archives such as seg_train/seg_train/<class> have it, as their only folder.
    """
    inner = listing.folders(name)
    if len(inner) == 1 and split_of(inner[0]) == split_of(name):
        return f"{name}/{inner[0]}"
    return name


def is_unicode(name: str) -> bool:
    """Return whether a name of the disk is text. Python decodes other bytes as surrogates."""
    return not any("\ud800" <= c <= "\udfff" for c in name)
