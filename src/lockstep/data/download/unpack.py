"""Unpacks a tar archive that may be hostile: only folders and regular files, and only inside one folder."""

import gzip
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from lockstep.errors import DATA, LockstepError


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.gz into `folder`, with default permissions instead of the archive's.

    Raises: LockstepError if the archive is damaged, or if a member is a link, a special file or outside the folder.
    Members that were unpacked before the error stay, so unpack into a temporary folder.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                _unpack(tar, member, folder, archive.name)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise LockstepError(f"{archive.name} is not a complete tar archive ({error})", DATA) from None


def _unpack(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, archive: str) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise _refusal(archive, member, "lies outside the folder")
    if not (member.isreg() or member.isdir()):
        raise _refusal(archive, member, "is a link" if member.islnk() or member.issym() else "is a special file")
    target = folder / path
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None
    try:
        with content, target.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
    except FileExistsError:
        raise _refusal(archive, member, "occurs twice") from None


def _refusal(archive: str, member: tarfile.TarInfo, reason: str) -> LockstepError:
    return LockstepError(f"{archive}: its member {member.name!r} {reason}, so the archive is refused", DATA)
