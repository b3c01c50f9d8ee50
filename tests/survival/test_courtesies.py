"""What the system may refuse: calls that no result needs, and folders that a user often lacks."""

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.documents import SOURCE
from tests.helpers import lockstep_error, record_of
from tests.images import bright_and_dark

from lockstep import files
from lockstep.files import cached, courtesy, given, is_refusal
from lockstep.launch import submit

CALLS = ("chmod", "flock", "link", "symlink", "fsync", "fallocate", "utime", "memfd")
NOTED = {"chmod", "flock", "fsync", "fallocate", "memfd"}  # Lockstep makes no others.
_COURTESIES = re.compile(r"chmod|flock|fsync|posix_fallocate|truncate|link_to|symlink_to|utime")


@pytest.fixture(autouse=True)
def _nothing_noted(monkeypatch):
    monkeypatch.setattr(files, "noted", set())


@pytest.fixture(scope="session")
def preloaded(made_once):
    """The library that refuses the calls named in REFUSED."""
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc to compile what refuses calls")

    def make(folder):
        source = Path(__file__).with_name("refused.c")
        library = folder / "refused.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)

    return made_once("refused.so", make) / "refused.so"


def test_no_such_call_stands_outside_of_a_courtesy():
    """The one exception asks whether torch can lock a file, and is an error of its own."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        within = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.With) and "courtesy(" in ast.unparse(node.items[0])
            for inner in ast.walk(node)
        }
        found |= {
            (path.name, node.func.attr)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func).startswith(("os.", "fcntl.", "temporary."))
            and _COURTESIES.fullmatch(node.func.attr)
            and id(node) not in within
        }
    assert found == {("submit.py", "flock")}


def test_a_refusal_is_noted_once_and_a_broken_disk_is_raised(caplog):
    for _ in range(2):
        with courtesy("flock", "take care"):
            raise OSError(38, "Function not implemented")
    assert caplog.text.count("the system refuses flock (Function not implemented): take care") == 1
    for number in (5, 28):  # EIO, ENOSPC
        assert not is_refusal(OSError(number, ""))
        with pytest.raises(OSError, match="disk"), courtesy("fsync", ""):
            raise OSError(number, "disk")


def test_a_cache_that_cannot_be_written_is_elsewhere(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
    other = tmp_path / f"lockstep-{os.getuid()}"
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # no entry for this user
    assert cached("pixels") == other / "pixels"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cached("pixels") == tmp_path / "cache/lockstep/pixels"
    monkeypatch.setattr(files.os, "access", lambda *_: False)
    assert cached("pixels") == other / "pixels"
    (tmp_path / "cache/lockstep/pixels").mkdir(parents=True)  # It can be read.
    assert cached("pixels") == tmp_path / "cache/lockstep/pixels"
    assert caplog.text.count("cannot be written, so") == 1
    assert other.stat().st_mode & 0o777 == 0o700
    other.rmdir()
    other.symlink_to(tmp_path)
    with lockstep_error("not a folder of this user: set XDG_CACHE_HOME"):
        cached("weights")


def test_paths_that_no_file_can_have_are_refused(monkeypatch):
    with lockstep_error(r"a{80}\.\.\. is too long for a path"):
        given("a" * 300)
    with lockstep_error("~nobody-here/photos names a home folder that is not known"):
        given("~nobody-here/photos")


@pytest.mark.parametrize("refused", ["room", "lock", "folder"])
def test_temporary_files_need_room_and_locks(monkeypatch, tmp_path, refused):
    def no(*args, **options):
        raise OSError(28, "no way")

    if refused == "lock":
        monkeypatch.setattr(submit.fcntl, "flock", no)
    elif refused == "folder":
        monkeypatch.setattr(submit.tempfile, "TemporaryDirectory", no)
    else:
        monkeypatch.setattr("builtins.open", no)
    words = r"in .* \(no way\): let TMPDIR name a folder that you can write, with 524 kB of room"
    with lockstep_error(words), submit._temporary_folder(2):
        raise AssertionError
    if refused == "lock":
        with submit._temporary_folder(1) as folder:
            assert [*folder.iterdir()] == []


def photos_of(tmp_path):
    return bright_and_dark(tmp_path / "photos", 24)


def trained(start, tmp_path, name, **environment):
    options = ("--data", tmp_path / "photos", "--steps", "30", "--name", name, "--json")
    return start("train", "photos", *options, **environment)


@pytest.mark.slow
def test_a_run_ends_complete_where_all_is_refused(program, tmp_path, preloaded):
    """One note for each call, and the weights of a run that nothing was refused."""
    photos_of(tmp_path)
    every = {"LD_PRELOAD": str(preloaded), "REFUSED": ",".join(CALLS)}
    done = trained(program, tmp_path, "refused", **every)
    notes = re.findall(r"the system refuses (\w+)", done.stderr)
    assert sorted(notes) == sorted(NOTED - {"memfd"})
    expected = record_of(trained(program, tmp_path, "plain"))["weights_sha256"]
    assert record_of(done)["weights_sha256"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("refused", [*CALLS, "docstrings", "home"])
def test_every_command_works_where_one_call_is_refused(program, tmp_path, preloaded, refused):
    photos = photos_of(tmp_path)
    environment = {"LD_PRELOAD": str(preloaded), "REFUSED": refused}
    if refused == "docstrings":
        environment["PYTHONOPTIMIZE"] = "2"
    if refused == "home":
        environment |= {"HOME": "/nowhere", "XDG_CACHE_HOME": "", "TMPDIR": str(tmp_path)}
    expected = record_of(trained(program, tmp_path, "plain"))["weights_sha256"]
    done = trained(program, tmp_path, "one", **environment)
    assert record_of(done)["weights_sha256"] == expected
    (tmp_path / "runs/one/result.json").unlink()
    again = program("train", "runs/one", "--resume", "--json", **environment)
    assert record_of(again)["weights_sha256"] == expected
    for command in (
        ("eval", "runs/one"),
        ("report", "runs/one"),
        ("predict", "runs/one", photos / "dark/0.png"),
        ("train", "digits", "--steps", "8", "--processes", "2", "--name", "two"),
    ):
        done = program(*command, **environment)
        assert "Traceback" not in done.stderr
        if refused == "flock" and command[0] == "train":  # torch has no other way
            assert done.returncode == 4
            assert re.search(r"used in \S+ .* let TMPDIR name", done.stderr)
        else:
            assert done.returncode == 0, done.stderr
            assert done.stderr.count("the system refuses") <= 1
    assert not (tmp_path / "~").exists()
