"""Files of weights in the user's cache, by their SHA-256: of timm, and those that a URL names.

Only what downloads or converts a file imports torch or the network's libraries.
"""

import hashlib
import json
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lockstep import files, models
from lockstep.data.catalog import Archive
from lockstep.data.fetch import fetch_file
from lockstep.errors import LockstepError, option
from lockstep.messages import logger
from lockstep.runs.statefile import SUFFIX

# folder, file and SHA-256
_URL = re.compile(r"(https://[^\s#]+/)([^/\s#]+(?<!\.tar\.gz))#sha256=([0-9a-f]{64})")

_SUFFIX = ".pt"  # of a kept file whose URL has none: `kept` looks for one


def folder() -> Path:
    """Return the folder of kept weights."""
    return files.cached("weights")


def kept(sha256: str | None) -> Path | None:
    """Return the kept file of this SHA-256, or None. One that has changed since is deleted."""
    path = next(folder().glob(f"{sha256}.*"), None) if sha256 else None
    if path is None or files.sha256(path) == sha256:
        return path
    logger.warning(f"{path} is damaged, so it is deleted")
    path.unlink(missing_ok=True)
    return None


def downloaded(url: str) -> Path:
    """Return the file of weights that `https://...#sha256=HEX` names. It is downloaded once.

    Raises: LockstepError if the URL has another form, or the download fails.
    """
    parts = _URL.fullmatch(url)
    if parts is None:
        raise LockstepError(
            f"{option('init', url)}: give https://.../FILE#sha256=HEX, with the 64 digits of the "
            f"file's SHA-256, or download the file and give its path"
        )
    base, name, sha256 = parts.groups()
    if found := kept(sha256):
        return found
    suffix = Path(name.partition("?")[0]).suffix or _SUFFIX
    path = folder() / f"{sha256}{suffix}"
    fetch_file(Archive(name, (base,), 0, sha256), path)
    return path


def settings_key(name: str, image_px: int | None) -> str:
    """Return the key of the settings of timm's network `name` for images of `image_px`."""
    release = ""
    with suppress(PackageNotFoundError):
        release = version("timm")
    source = files.sha256(Path(models.__file__).with_name("from_timm.py"))
    return files.cache_key("timm", name=name, image_px=image_px, timm=release, source=source)


def settings_of_timm(name: str, image_px: int | None, with_weights: bool) -> dict[str, Any]:
    """Return the settings that go with timm's network `name`: what its configuration says, and with
    `with_weights` the SHA-256 of its trained weights, which are then kept.

    The key "licence" is that of the weights, in words. A later call needs no network.
    Raises: LockstepError.
    """
    index = folder() / f"{settings_key(name, image_px)}.json"
    if with_weights:
        # One that is damaged is written again.
        with suppress(OSError, ValueError, KeyError, TypeError):
            known: dict[str, Any] = files.read_json(index)
            if kept(known["init_sha256"]):
                return known
    from safetensors.torch import save

    from lockstep.models.from_timm import describe, trained_tensors

    settings = describe(name, image_px)
    if with_weights:
        data = save(trained_tensors(name, settings))
        sha256 = hashlib.sha256(data).hexdigest()
        folder().mkdir(parents=True, exist_ok=True)
        files.deliver(folder() / f"{sha256}{SUFFIX}", data)
        settings["init_sha256"] = sha256
        files.deliver(index, json.dumps(settings).encode())
    return settings
