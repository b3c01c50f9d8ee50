"""Unpacking a tar archive as if it were hostile: folders and regular files, inside one folder, nothing else."""

import gzip
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from lockstep.errors import DATA, LockstepError


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.gz into `folder`, with permissions of our own.

    Raises: LockstepError if it is damaged, or naming a member that is a link, a special file or outside the folder.
    What was unpacked until then stays, so unpack into a folder that can be thrown away.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                _unpack(tar, member, folder, archive.name)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise LockstepError(f"{archive.name} is not a whole tar archive ({error})", DATA) from None


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
        raise _refusal(archive, member, "is there twice") from None


def _refusal(archive: str, member: tarfile.TarInfo, why: str) -> LockstepError:
    return LockstepError(f"{archive}: its member {member.name!r} {why}, so it is not unpacked", DATA)
