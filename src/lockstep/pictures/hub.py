"""Datasets of the Hugging Face Hub: "hf://OWNER/NAME@REVISION" names the files of one commit, which
huggingface_hub keeps in its cache. After the first time, they need no network.
"""

import json
import re
from contextlib import suppress
from pathlib import Path

from lockstep import files
from lockstep.errors import LockstepError
from lockstep.files import Record
from lockstep.huggingface import reaching
from lockstep.messages import logger, progress, require_modules
from lockstep.pictures.listing import TABLES
from lockstep.pictures.rows import SUFFIXES

# A Path has lost one slash. The revision is a branch, tag or commit, or as refs/convert/parquet.
_ADDRESS = re.compile(
    r"hf:/+(?:datasets/)?([\w.-]+/[\w.-]+)(?:@(refs/\w+/[\w.-]+|[\w.-]+))?/?(.*?)/?"
)
_SNAPSHOT = re.compile(r"(.*/datasets--([\w.-]+?)--([\w.-]+)/snapshots/(\w+))(/.*)?")


def located(given: str | Path) -> Path:
    """Return the path that a user gave, as `files.given` does, or the folder of the dataset that
    hf://OWNER/NAME names, with a revision as in @v1, and perhaps a folder in it. Its files are
    downloaded unless they are here.

    Raises: LockstepError, also if there is no such dataset.
    """
    if not str(given).startswith("hf:/"):
        return files.given(given)
    address = re.sub("^hf:/+", "hf://", str(given))
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        raise LockstepError(
            f"{address}: give hf://OWNER/NAME, hf://OWNER/NAME@REVISION, or a folder in it, as "
            f"hf://OWNER/NAME@REVISION/FOLDER"
        )
    require_modules(address, ["huggingface_hub"], "hf")
    from huggingface_hub import snapshot_download

    name, revision, inner = parts.groups("")
    with reaching(address, "log in (hf auth login)", "dataset"):
        place = snapshot_download(
            name,
            repo_type="dataset",
            revision=revision or None,
            allow_patterns=[inner, f"{inner}/*"] if inner else None,
            ignore_patterns="*.py",
        )
    folder = Path(place, inner)
    logger.info(f"{address} is {source_of(folder)}, in {folder}")
    return folder


def source_of(folder: Path | None) -> str | None:
    """Return the address of a `folder` in the cache of huggingface_hub, with the commit; None for
    any other folder.
    """
    snapshot = _SNAPSHOT.fullmatch(str(folder))
    return snapshot and "hf://{1}/{2}@{3}{4}".format(*snapshot.groups(""))


def provenance(folder: Path | None) -> Record:
    """Return where the files of a `folder` in the cache of huggingface_hub are from, and the
    SHA-256 of each table and each file with images in its rows; {} for any other folder.
    """
    snapshot = _SNAPSHOT.fullmatch(str(folder))
    if snapshot is None:
        return {}
    root = snapshot[1]
    from lockstep.pictures.index import index_file  # which imports NumPy

    # A later start reads only the files that have changed.
    index = index_file(Path(root)).with_suffix(".json")
    known: dict[str, list[object]] = {}
    with suppress(OSError, ValueError):
        known = files.read_json(index)
    entries, changed = dict[str, list[object]](), dict[str, Path]()
    for path in sorted(Path(root).rglob("*.*")):
        if path.suffix.lower()[1:] in {*TABLES, *SUFFIXES} and path.is_file():
            file, seen = str(path.relative_to(root)), [*files.stamps(path.stat())]
            entries[file] = known.get(file, [])
            if entries[file][:1] != [seen]:
                entries[file], changed[file] = [seen], path
    with progress(
        f"computing the SHA-256 of the files of {source_of(folder)}", len(changed)
    ) as done:
        for file, path in changed.items():
            entries[file].append(files.sha256(path))
            done(1)
    if entries != known:
        with suppress(OSError):
            index.parent.mkdir(parents=True, exist_ok=True)
            files.replace(index, json.dumps(entries).encode())
    sums = {file: sha256 for file, (_, sha256) in entries.items()}
    return {"hub": {"source": source_of(folder), "files": sums}}
