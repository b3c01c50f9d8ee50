"""Files of a run: replaced whole or not at all, read only if they are regular, with the umask's
permissions.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.helpers import lockstep_error

import lockstep
from lockstep import files
from lockstep.commands.report import Report
from lockstep.runs import statefile


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
@pytest.mark.parametrize("call", [files.open_to_read, files.sha256, files.read_json])
def test_only_a_regular_file_is_read(tmp_path, make, call):
    """Opening the other files could wait for ever, or reading them not end."""
    make(tmp_path / "a")
    with pytest.raises(OSError, match="not a regular file"):
        call(tmp_path / "a")


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    assert files.read_bytes(tmp_path / "a", 2) == b"12"
    with pytest.raises(ValueError, match="larger than 1 bytes"):
        files.read_bytes(tmp_path / "a", 1)


def test_a_failed_replacement_keeps_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "flush", full)
    with pytest.raises(OSError, match="No space left"):
        files.replace(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o002, 0o664)])
def test_new_files_have_the_permissions_of_the_umask(tmp_path, umask, mode):
    """Also model files: safetensors alone makes them readable by their owner only."""
    before = os.umask(umask)
    try:
        files.replace(tmp_path / "a", b"")
        statefile.write(tmp_path / "b", {"x": torch.ones(1)}, {})
        os.close(files.open_to_write(tmp_path / "c"))
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == dict.fromkeys(
        "abc", mode
    )


FOREIGN = {
    "link": lambda path, other: path.symlink_to(other),
    "link to nothing": lambda path, other: path.symlink_to(other.with_name("new")),
    "second name": lambda path, other: path.hardlink_to(other),
    "pipe": lambda path, other: os.mkfifo(path),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_nothing_is_written_through_what_a_stranger_put_there(tmp_path, make):
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.write_text("precious")
    for name in ("a", f".b-{os.getpid()}"):
        make(own / name, other)
    with pytest.raises(OSError, match="a is a link, has a second name, or is no file"):
        files.open_to_write(own / "a")
    files.replace(own / "b", b"new")  # under that temporary name
    files.replace(own / "a", b"new")
    assert [(own / name).read_text() for name in "ab"] == ["new", "new"]
    assert other.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "other", "own"]


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    files.make_folder(tmp_path / "a/b")
    files.make_folder(tmp_path / "a/b")
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(OSError, match="link is a link"):
        files.make_folder(tmp_path / "link")


def test_a_stream_that_cannot_encode_a_name_gets_it_escaped():
    code = (
        "from lockstep.files import reserve_standard_streams; reserve_standard_streams(); "
        "print('\u0424')"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "\\u0424\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&- <&-"])
def test_no_file_gets_the_descriptor_of_a_closed_stream(tmp_path, closed):
    code = (
        "import sys; from lockstep.files import reserve_standard_streams\n"
        "reserve_standard_streams(); file = open('file', 'w')\n"
        "print('lost'); print('lost', file=sys.stderr)\n"
        "file.write(str(file.fileno() > 2))"
    )
    command = ["bash", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code]
    done = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    shown = ["" if mark in closed.split() else "lost\n" for mark in (">&-", "2>&-")]
    assert (done.returncode, done.stdout, done.stderr) == (0, *shown)
    assert (tmp_path / "file").read_text() == "True"


def test_a_file_that_is_being_removed_is_no_strange_one(tmp_path, monkeypatch):
    (tmp_path / "lock").touch()
    gone = SimpleNamespace(st_mode=(tmp_path / "lock").stat().st_mode, st_nlink=0)
    monkeypatch.setattr(Path, "lstat", lambda _: gone)
    files.require_own(tmp_path / "lock")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("https://a.org/b", "^https://a.org/b is an address"),
        ("file:///home/b.png", "^file:///home/b.png is an address"),
        (Path("s3://a/b"), "^s3://a/b is an address"),
        ("~nobody.of.this.name/b", "home folder that is not known here"),
        ("b" * 5_000, "b{80}... is too long for a path"),
        ("a\0b", r"^'a\\x00b' has a character that no path can have: give another"),
    ],
)
def test_a_path_that_no_file_can_have_is_one_sentence(path, words):
    with lockstep_error(words) as error:
        files.given(path)
    assert "\n" not in str(error.value)


def test_a_file_that_is_written_has_the_path_that_was_given(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Report("page", Path()).save("~/page.html")
    assert (tmp_path / "page.html").read_text() == "page"
    with lockstep_error("^https://a.org/page.html is an address"):
        Report("page", Path()).save("https://a.org/page.html")
    with lockstep_error("^https://a.org/file.onnx is an address"):
        lockstep.export("run", output="https://a.org/file.onnx")
