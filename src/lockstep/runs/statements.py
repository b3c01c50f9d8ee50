"""Statements: what others say that they replayed of a chain, each signed with an SSH key.

A file of statements has one JSON object a line. Its `statement` says which links were replayed,
where and with which verdict; its `signature` is that of `ssh-keygen -Y sign` in the namespace
"lockstep", of the statement as JSON with sorted keys and without spaces. As `after`, each statement
names by SHA-256 the last line of the file that it was added to, so that a line which is removed or
moved leaves a gap. Needs no torch.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.files import Record, deliver, locked, parse_json, read_lines, require_own
from lockstep.runs.chain import Link
from lockstep.runs.entries import Entries

_NAMESPACE = "lockstep"
CHANGED = "its signature is not of this text: it was changed after it was signed"


@dataclass(frozen=True)
class Line:
    """A line of a file of statements.

    Attributes:
        number: of the line, from 1.
        statement: what it says; {} if the line has none.
        signer: who signed it, by the name in the file of signers; None if that is unknown.
        problem: why the statement does not count; "" if it does.
        gap: whether the line that it was added after is not among those before it.
    """

    number: int
    statement: Record
    signer: str | None = None
    problem: str = ""
    gap: bool = False

    def covers(self, number: int) -> bool:
        """Return whether it says that the link with this number has the same bits."""
        return self.statement["same"] is True and number in self.statement["links"]


def require_ssh(**files: Path | None) -> None:
    """Raise a LockstepError unless ssh-keygen is installed and the files of these options exist."""
    if which("ssh-keygen") is None:
        raise LockstepError(
            "ssh-keygen makes and checks signatures, and is not installed: install OpenSSH",
            ENVIRONMENT,
        )
    for name, path in files.items():
        if path and not (path.is_file() and os.access(path, os.R_OK)):
            raise LockstepError(f"--{name} {path}: there is no file that can be read", DATA)


def require_key(path: Path) -> None:
    """Raise a LockstepError unless ssh-keygen knows the file `path` as a key."""
    require_ssh(key=path)
    if subprocess.run(["ssh-keygen", "-l", "-f", str(path)], capture_output=True).returncode:
        raise LockstepError(f"--key {path}: this is no SSH key, private or public", DATA)


def add(path: Path, statement: Record, key: Path | None) -> None:
    """Append the `statement` to the file `path`, signed with the SSH key of a file, or unsigned.

    ssh-keygen asks on the terminal for the passphrase of the key, if it has one. Raises:
    LockstepError; the file is then as before.
    """
    try:
        require_own(path)
    except OSError as error:
        raise LockstepError(f"--statement {path}: {error.strerror}", DATA) from None
    with locked(path.with_name(f".{path.name}.lock"), f"adding to {path.name}"):
        lines = read_lines(path)
        statement = {**statement, "after": _sha256(lines[-1]) if lines else None}
        line: dict[str, Any] = {"statement": statement}
        if key:
            signed = _ssh_keygen("sign", "-n", _NAMESPACE, "-f", str(key), of=_text(statement))
            if signed.returncode:
                problem = signed.stderr.decode(errors="replace").strip().splitlines()
                raise LockstepError(f"--key {key} cannot sign: {'; '.join(problem)}", ENVIRONMENT)
            line["signature"] = signed.stdout.decode()
        deliver(path, b"".join(text + b"\n" for text in [*lines, _text(line)]))


def read(path: Path, links: list[Link], digest: str, signers: Path) -> Iterator[Line]:
    """Yield each line of a file of statements, as the chain with these `links`, of the recipe with
    this `digest`, and the file of allowed `signers` judge it.

    Raises: LockstepError if the file cannot be read.
    """
    before: set[str | None] = {None}
    for number, text in enumerate(read_lines(path), 1):
        line = _judged(number, text, links, digest, signers)
        yield Line(**{**vars(line), "gap": line.statement.get("after") not in before})
        before.add(_sha256(text))


class _Statement(Entries):
    """What a statement says, as far as Lockstep reads it."""

    recipe_digest: str
    links: list[int]
    same: bool
    device: str | None = None
    after: str | None


def _judged(number: int, line: bytes, links: list[Link], digest: str, signers: Path) -> Line:
    try:
        record = parse_json(line)
        statement = record["statement"]
        last, numbers = Link(**statement["last"]), statement["links"]
        _Statement.check(statement)
        of_chain = statement["recipe_digest"] == digest and last in links
        fits = of_chain and all(0 < n <= links.index(last) for n in numbers)
        text = _text(statement)
    except (ValueError, TypeError, KeyError, RecursionError):
        return Line(number, {}, problem="it is no statement")
    if not record.get("signature"):
        return Line(number, statement, problem="it is not signed")
    with TemporaryDirectory() as folder:
        signature = Path(folder, "signature")
        signature.write_bytes(str(record["signature"]).encode(errors="replace"))
        arguments = "-n", _NAMESPACE, "-s", str(signature)
        if _ssh_keygen("check-novalidate", *arguments, of=text).returncode:
            return Line(number, statement, problem=CHANGED)
        allowed = "-f", str(signers)
        lines = [text.decode(errors="replace").split() for text in read_lines(signers)]
        # ssh-keygen finds the first name of a key, which may be for another purpose.
        for signer in dict.fromkeys(words[0].partition(",")[0] for words in lines if words):
            if not _ssh_keygen("verify", *arguments, *allowed, "-I", signer, of=text).returncode:
                break
        else:
            return Line(number, statement, problem=f"{signers.name} does not allow its key")
    if not fits:
        return Line(number, statement, signer, "it is of another run")
    return Line(number, statement, signer)


def _ssh_keygen(
    what: str, *arguments: str, of: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ssh-keygen", "-Y", what, *arguments], input=of, capture_output=True)


def _text(value: Record) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
