"""Labels and groups that a regular expression of the user finds in the paths of images, and labels
that a mark joins in one name.
"""

import json
import shlex
import subprocess
import sys
import unicodedata
from collections.abc import Collection
from pathlib import Path

from lockstep import errors
from lockstep.errors import LockstepError, option
from lockstep.pictures.folders import is_unicode
from lockstep.pictures.manifest import Manifest, Row
from lockstep.text import few, noted

# The options with an expression -> an example of one.
_EXAMPLES = {"group": "(patient[0-9]+)_", "label_from": "([a-z]+)[.]"}


def by_names(manifest: Manifest, pattern: str) -> Manifest:
    """Give each image the label that `pattern` finds in its path. An image without one is a
    problem.

    In a partial folder, the classes stay as they are if no image has such a label.
    """
    split_of = {
        path: split
        for path in (*manifest.rows, *manifest.unlabelled)
        if (split := manifest.split_at(path)) is not None
    }
    names = _found(split_of, pattern, "label_from")
    if manifest.partial and not any(names.values()):
        return manifest
    lacking = [path for path, name in names.items() if not name]
    remedy = f"move them away, or give a {option('label_from')} that matches more than {pattern}"
    unclear = [name for name in names.values() if not is_unicode(name)]
    rows = {
        path: Row(split_of[path], (name,) if name else ())
        for path, name in names.items()
        if is_unicode(name)
    }
    return manifest.labelled(rows, by="names", origin=typed("label_from", pattern)).adding(
        [
            *noted(lacking, "image", "without a label", remedy),
            *noted(unclear, "label", "not in UTF-8", "rename the images"),
        ]
    )


def grouped(manifest: Manifest, pattern: str) -> Manifest:
    """Give each image the group that `pattern` finds in its path: it replaces a column. An image
    without one is a problem.
    """
    names = _found(manifest.rows, pattern, "group")
    remedy = f"give a {option('group')} that matches every path, unlike {pattern}"
    lacking = [path for path, name in names.items() if not name]
    rows = {path: row._replace(group=names[path]) for path, row in manifest.rows.items()}
    return manifest._replace(rows=rows).adding(noted(lacking, "image", "without a group", remedy))


def separated(manifest: Manifest, mark: str) -> Manifest:
    """Split the labels that have `mark` between names. It is a problem if none has it."""
    texts = manifest.names
    names = {text: names_in(text, mark) for text in texts}
    problems = []
    if not (manifest.partial or any(mark in text for text in texts)):
        problems = [
            f"{typed('label_separator', mark)} is in no label, as {few(texts)}: give what is "
            f"between two names, or leave it out"
        ]
    rows = dict[str, Row]()
    twice = list[str]()
    for path, row in manifest.rows.items():
        labels = [name for text in row.labels for name in names[text]]
        rows[path] = row._replace(labels=tuple(sorted({*labels})))
        if len({*labels}) < len(labels):
            twice.append(path)
    classes = {
        split: sorted({name for text in joined for name in names[text]})
        for split, joined in manifest.classes.items()
    }
    return manifest._replace(rows=rows, classes=classes).adding(
        problems, noted(twice, "image", "that names a label twice: it counts once")
    )


def names_in(text: str, mark: str) -> list[str]:
    """Return the names in `text`, in their order, with `mark` between them."""
    return [name.strip() for name in text.split(mark) if name.strip()]


def typed(name: str, value: str) -> str:
    """Return an option with a `value` that the reader can copy, also with spaces in it."""
    return option(name, value if errors.in_python else shlex.quote(value))


def _found(paths: Collection[str], pattern: str, name: str) -> dict[str, str]:
    """Return path -> what `pattern` finds in it: its first capture group, or else all that it
    matches; "" if that is nothing. `name` is the option that gave it.

    Paths count in Unicode's composed form, so that copies on other file systems are alike.
    Raises: LockstepError if it is no regular expression, or the search takes too long.
    """
    done = subprocess.run(
        [sys.executable, "-IS", Path(__file__).with_name("groups.py")],
        input=json.dumps([pattern, [unicodedata.normalize("NFC", path) for path in paths]]),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        problem = done.stderr.strip() or "the search takes too long"
        raise LockstepError(
            f"{option(name, pattern)}: {problem}: give a regular expression, as in "
            f"{_EXAMPLES[name]}"
        )
    return dict(zip(paths, json.loads(done.stdout), strict=True))
