"""Files of a run: never written through a link, replaced whole or not at all, with the umask's permissions."""

import os
import subprocess
import sys

import pytest

from lockstep import files


def test_a_link_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "link").symlink_to(victim)
    for opening in (files.append, files.open_lock):
        with pytest.raises(OSError, match="symbolic link"):
            opening(tmp_path / "link")
    assert victim.read_text() == "mine"
    files.replace(tmp_path / "link", b"new")  # the link itself is replaced
    assert victim.read_text() == "mine"
    assert (tmp_path / "link").read_text() == "new"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_only_a_regular_file_is_opened(tmp_path, make):
    """Opening the other files could wait for ever, or reading them not end."""
    make(tmp_path / "a")
    for call in (
        files.open_to_read, files.sha256, files.read_json, lambda path: files.read_bytes(path, 9), files.append,
        files.open_lock,
    ):  # fmt: skip
        with pytest.raises(OSError, match=r"not a regular file|No such device|symbolic link"):
            call(tmp_path / "a")
    (tmp_path / "b").write_bytes(b"12")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    assert files.read_bytes(tmp_path / "link", 2) == b"12"
    with pytest.raises(ValueError, match="larger than 1 bytes"):
        files.read_bytes(tmp_path / "link", 1)


def test_an_existing_temporary_file_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".a.json-{os.getpid()}").symlink_to(victim)
    files.replace(tmp_path / "a.json", b"new")
    assert victim.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "victim"]


def test_a_lock_is_not_truncated(tmp_path):
    (tmp_path / "lock").write_text("kept")
    os.close(files.open_lock(tmp_path / "lock"))
    assert (tmp_path / "lock").read_text() == "kept"


def test_a_failed_replacement_keeps_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "flush", full)
    with pytest.raises(OSError, match="No space left"):
        files.replace(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize(("umask", "mode"), [("022", 0o644), ("077", 0o600), ("002", 0o664)])
def test_new_files_have_the_permissions_of_the_umask(tmp_path, umask, mode):
    code = (
        "from pathlib import Path; from lockstep import files\n"
        "files.append(Path('a')).close(); files.replace(Path('b'), b'')\n"
        "c = Path('c'); c.touch(0o600); files.share(c)\n"
    )
    subprocess.run(["sh", "-c", f'umask {umask}; exec "$0" -c "$1"', sys.executable, code], cwd=tmp_path, check=True)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {mode}
