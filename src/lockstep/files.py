"""Files: replaced atomically, locked against other programs, and read only if they are regular."""

import contextlib
import errno
import fcntl
import hashlib
import io
import itertools
import json
import math
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import platformdirs

from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.messages import logger, waiting

# raises an error if this program may not write, just before a new file gets its name
Fence = Callable[[], None]
# a JSON object: a result, a row of metrics.jsonl, or the metadata of a state file
Record = dict[str, Any]

_MAX_JSON_BYTES = 16 << 20  # A JSON text takes up to 30 times its size in memory.
_MAX_LINES_BYTES = 1 << 30  # of metrics.jsonl
# as https://host/file; a Path has lost one slash
_ADDRESS = re.compile(r"(\w[\w+.-]+):/+(.*)", re.ASCII)
# Names of the files that `replace` writes first for a run, and of those that the library
# safetensors does.
_TEMPORARY = re.compile(r"\.[a-z0-9-]+\.(jsonl?|safetensors)-\d+|\.tmp\w{6}")
_MOUNTS = Path("/proc/self/mountinfo")
_UNSTAMPED = re.compile(
    r"squashfs|erofs|iso9660|udf|cramfs|romfs|vfat|msdos|exfat"
    r"|fuse\.(squashfuse\w*|fuseiso|archivemount|ratarmount)"
)
_REFUSED = {
    errno.EPERM,
    errno.EACCES,
    errno.EINVAL,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.ENOLCK,
    errno.EROFS,
}
NOTED = "LOCKSTEP_NOTED"  # tells a worker process what the launcher has noted
noted = {*os.environ.get(NOTED, "").split(",")}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def courtesy(call: str, effect: str) -> Iterator[None]:
    """Go on without a system call that no result needs, where the system refuses it, and say once
    which `effect` that has. Raises: an OSError that is no refusal, as of a damaged or full disk.

    Every such call is made within this context.
    """
    try:
        yield
    except OSError as error:
        if not is_refusal(error):
            raise
        note_once(call, f"the system refuses {call} ({error.strerror}): {effect}")


def is_refusal(error: OSError) -> bool:
    """Return whether `error` says that the system does not have a call, or does not allow it."""
    return error.errno in _REFUSED


def note_once(what: str, text: str) -> None:
    """Warn with `text`, once for all processes of a job."""
    if what not in noted:
        noted.add(what)
        logger.warning(text)


def cached(name: str) -> Path:
    """Return the path `name` in the user's cache. Where that is not there and cannot be made, it is
    in a folder of this user for temporary files.
    """
    try:
        place = platformdirs.user_cache_path("lockstep")
    except RuntimeError:  # The user has no home folder.
        place = Path("~/.cache/lockstep")
    there = next(path for path in (place, *place.parents) if os.path.lexists(path))
    if os.path.lexists(place / name) or (place.is_absolute() and os.access(there, os.W_OK)):
        return place / name
    other = Path(tempfile.gettempdir(), f"lockstep-{os.getuid()}")
    other.mkdir(mode=0o700, exist_ok=True)
    status = other.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise LockstepError(
            f"the cache {place} cannot be written, and {other} is not a folder of this user: set "
            f"XDG_CACHE_HOME to another folder",
            ENVIRONMENT,
        )
    note_once(
        "cache",
        f"the cache {place} cannot be written, so {other} is used: XDG_CACHE_HOME names another",
    )
    return other / name


def cache_key(kind: str, **inputs: object) -> str:
    """Return the key of what a cache keeps, in hex: the SHA-256 of its `kind`, and of all `inputs`
    that decide it, by name.

    Every cache makes its keys here. An input is a value that has a JSON form: a setting, a version,
    or the SHA-256 of a content or of source code. It is never something that two different inputs
    can share, as the result for an example, or a sum.
    """
    return hashlib.sha256(json.dumps([kind, inputs], sort_keys=True).encode()).hexdigest()


def stamps(status: os.stat_result) -> tuple[int, ...]:
    """Return what tells, without reading it, that the file at a path has changed.

    A program can set the time of the last change to any value, so only st_ctime_ns shows that a
    content of equal size took the place of another. A folder above that was renamed changes neither
    of a file, but which file is at the path: that shows the inode.
    """
    return (
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_dev,
        status.st_ino,
    )


def unstamped() -> set[int]:
    """Return the devices whose file systems keep no time of change that programs cannot set: those
    of images, such as ISO 9660, of which another may be mounted with equal stamps, and FAT.
    """
    devices = set[int]()
    with contextlib.suppress(OSError, ValueError):
        for line in _MOUNTS.read_text(errors="replace").splitlines():
            mount, _, kind = line.partition(" - ")
            if _UNSTAMPED.fullmatch(kind.split()[0]):
                major, minor = mount.split()[2].split(":")
                devices.add(os.makedev(int(major), int(minor)))
    return devices


def given(path: str | Path) -> Path:
    """Return the path that a user gave, with ~ expanded. Raises: LockstepError for an address, and
    for a path that no file can have.
    """
    address = _ADDRESS.fullmatch(str(path))
    if address and not os.path.lexists(path):
        shown = path if isinstance(path, str) else f"{address[1]}://{address[2]}"
        raise LockstepError(
            f"{shown} is an address, and Lockstep reads only files on this machine, and what "
            f"hf://OWNER/NAME names: download the file or folder first, and give its path"
        )
    try:
        place = Path(path).expanduser()
        place.lstat()
    except RuntimeError:
        raise LockstepError(
            f"{path} names a home folder that is not known here: give the full path"
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise LockstepError(
                f"{str(path)[:80]}... is too long for a path: give a shorter one"
            ) from None
    except ValueError:
        raise LockstepError(
            f"{str(path)!r:.80} has a character that no path can have: give another"
        ) from None
    return place


def near(path: Path) -> str:
    """Return the question whether the user meant the path of the nearest name, here or in runs/; ""
    if none is near.
    """
    found = None if os.path.lexists(path) else nearest(path)
    return f"did you mean {found}? " if found else ""


def nearest(path: Path) -> Path | None:
    """Return the path of the nearest name, here or in runs/; None if none is near."""
    return _nearest(path) or _nearest("runs" / path)


def first_with(folder: Path, name: str) -> Path | None:
    """Return the first folder in `folder` that has a file of this `name`; None if none of the first
    100 members has, or `folder` cannot be read.
    """
    with contextlib.suppress(OSError):  # Who reads the folder reports it.
        members = itertools.islice(folder.iterdir(), 100)
        return next((each for each in members if (each / name).is_file()), None)
    return None


def _nearest(path: Path) -> Path | None:
    """Return the path that exists whose parts are nearest to those of `path`, None if a part has no
    near name.
    """
    reached = Path(path.anchor)
    for part in path.relative_to(reached).parts:
        if not os.path.lexists(reached / part):
            with contextlib.suppress(OSError):
                names = {name.lower(): name for name in os.listdir(reached)}
                for name in get_close_matches(part.lower(), names, n=1):
                    part = names[name]
        reached /= part
    return reached if os.path.lexists(reached) else None


def no_room(error: OSError) -> bool:
    """Return whether `error` means that a disk, a quota or a file is full."""
    return error.errno in _NO_ROOM


def open_to_read(path: Path) -> io.BufferedReader:
    """Open a regular file. Raises: OSError, also for a pipe, which may wait for ever, and a device,
    which may not end.

    Folders of runs come from strangers.
    """
    no_wait = getattr(os, "O_NONBLOCK", 0)  # Windows, where exported files are used, has none.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | no_wait))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def open_to_write(path: Path, flags: int = 0) -> int:
    """Return a descriptor of the file `path`, created if missing, never truncated.

    Raises: OSError, also as `require_own`.
    """
    require_own(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o666)


def make_folder(path: Path) -> None:
    """Make the folder `path` of a run, unless it is there. Raises: OSError, also as
    `require_own`.
    """
    path.mkdir(parents=True, exist_ok=True)
    require_own(path)


def require_own(path: Path) -> None:
    """Raise an OSError if a link, a pipe, a device, or a file that has a second name is at `path`.

    A run's folder may come from a stranger, and what is written there must change no file
    elsewhere.
    """
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        # 0 if another program removes it at this moment
        plain = stat.S_ISREG(status.st_mode) and status.st_nlink < 2
        if not plain and not stat.S_ISDIR(status.st_mode):
            problem = (
                f"{path.name} is a link, has a second name, or is no file: put the file or "
                f"folder itself there"
            )
            raise OSError(errno.EINVAL, problem, str(path))


def refused(error: OSError) -> LockstepError:
    """Return the error for a call that the system refuses, although the result needs it."""
    where = f"{error.filename}: " if error.filename else ""
    return LockstepError(
        f"{where}the system refuses it ({error.strerror or error}): correct that, or give another "
        f"path",
        ENVIRONMENT,
    )


def require_permission(path: Path, error: Exception) -> None:
    """Raise a LockstepError if `error` says that this user may not read `path`, which is then not
    damaged.
    """
    if isinstance(error, PermissionError):
        raise LockstepError(
            f"this user may not read {path}: ask its owner for permission, for example by chmod "
            f"-R a+rX",
            ENVIRONMENT,
        ) from None


def unreadable(path: Path, error: Exception) -> LockstepError:
    """Return the error for a file of a run that cannot be read. Raises: as `require_permission`."""
    require_permission(path, error)
    remedy = "restore it" if path.name == "recipe.json" else "remove it to go on without it"
    return LockstepError(
        f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): {remedy}", DATA
    )


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Raises: OSError; ValueError if
    it is larger.
    """
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise ValueError(f"it is larger than {most:,} bytes")
        return file.read()


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a regular file of at most 1 GiB, [] if there is none. Raises:
    LockstepError.
    """
    if not path.is_file():
        return []
    try:
        return read_bytes(path, _MAX_LINES_BYTES).splitlines()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def sha256(path: Path) -> str:
    """Return the SHA-256 of the content of a regular file, in hex. Raises: OSError."""
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """Return the value in the JSON file `path`. Raises: OSError; ValueError if it has none, or more
    than 16 MiB.
    """
    return parse_json(read_bytes(path, _MAX_JSON_BYTES))


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises: ValueError, also for brackets that nest too
    deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its brackets nest too deeply") from None


def finite(value: Any) -> Any:
    """Return `value` with None for each number in it that is not finite, as JSON has no infinity
    and no NaN.
    """
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lock_file(descriptor: int, how: int) -> None:
    """Lock an open file, if its file system has locks. Raises: BlockingIOError if another program
    holds the lock, and `how` does not wait.
    """
    with courtesy("flock", "run no two programs on the same folder at the same time"):
        fcntl.flock(descriptor, how)


@contextlib.contextmanager
def locked(path: Path, doing: str) -> Iterator[None]:
    """Hold the lock file `path` within the context, and remove it afterwards. The lock ends with
    this process.

    If another program holds it, say what it is `doing`, and wait. Raises: OSError.
    """
    while True:
        lock = open_to_write(path)
        try:
            try:
                lock_file(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.warning(
                    f"another program is {doing}: waiting for it", extra={"progress": True}
                )
                with waiting(lambda: f"another program is still {doing}: waiting for it"):
                    lock_file(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink == 0:
                # The last holder removed this lock file while we waited: lock the new one.
                continue
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # It takes no space.
                    path.unlink(missing_ok=True)
            return
        finally:
            os.close(lock)


def replace(
    path: Path,
    data: bytes | Callable[[Path], object],
    fence: Fence = lambda: None,
    durable: bool = True,
) -> None:
    """Write `data` to `path` atomically, and flush it to the disk if it is `durable`. `path` is
    unchanged after an error.

    `data` may be a function that writes the file of a given name. `fence` is called before the new
    file gets its name, and raises an error if this program may not write there. Raises: OSError, or
    the error of `fence`.
    """
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        os.close(open_to_write(temporary, os.O_EXCL))
        mode = temporary.stat().st_mode
        if isinstance(data, bytes):
            temporary.write_bytes(data)
        else:
            data(temporary)
            with courtesy("chmod", "only this user can read the files of weights"):
                temporary.chmod(mode)  # The library safetensors lets only the owner read its files.
        if durable:
            flush(temporary)
        fence()
        temporary.replace(path)
    except (OSError, LockstepError):
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        flush(path.parent)


def deliver(path: Path, data: bytes | Callable[[Path], object]) -> None:
    """Write `data` to a file that the user asked for, as `replace` does. Raises: LockstepError."""
    try:
        replace(path, data)
    except OSError as error:
        raise LockstepError(
            f"{path} cannot be written: {error.strerror or error}", ENVIRONMENT
        ) from None


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files that killed programs have left in a folder of a run.

    One that cannot be removed only takes space.
    """
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            with contextlib.suppress(OSError):
                path.unlink()


def flush(path: Path) -> None:
    """Wait until the file or folder `path` is on the disk. Raises: OSError if the disk fails."""
    with courtesy("fsync", "a power failure may take the newest files"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def reserve_standard_streams() -> None:
    """Open /dev/null as each of stdin, stdout and stderr that is closed, for example by `>&-` in a
    shell.

    Otherwise the next file that is opened gets that descriptor, and printed text ends up in the
    file. Call this before anything opens a file. stdout and stderr escape characters that their
    encoding lacks, as in a file's name.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest free descriptor
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  must stay open
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard(stream: IO[str]) -> None:
    """Send all further output on `stream` to the null device, including what the interpreter
    flushes at its end.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
