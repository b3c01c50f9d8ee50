"""The source files of a user's own model, which are read and never executed."""

import importlib
import sys

import pytest

from lockstep.runs.source import source_changes, sources


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return load(name, **files): write the files, import the module `name`, and return the sources of its function."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    before = set(sys.modules)

    def loaded(name, **files):
        for file, text in files.items():
            path = tmp_path / f"{file.replace('__', '/', 1)}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        importlib.import_module(name)
        return sources(f"{name}:build")

    yield loaded
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_built_in_model_has_no_recorded_source():
    assert sources("tutorial") == {}


def test_the_source_is_the_module_and_its_imports_from_its_folder(load):
    files = load("mine1", mine1="import json, torch\nimport beside1\n", beside1="x = 1\n", other1="raise SystemExit\n")
    assert list(files) == ["beside1.py", "mine1.py"]


def test_the_source_of_a_module_in_a_package_includes_the_package_files_it_imports(load):
    files = load(
        "pkg1.model",
        pkg1____init__="",
        pkg1__model="import json\nfrom . import layers\nfrom .blocks import block\nimport elsewhere1\n",
        pkg1__layers="y = 2\n",
        pkg1__blocks="def block(): pass\n",
        pkg1__unused="raise SystemExit\n",
        elsewhere1="from pkg1 import layers\n",
    )
    assert list(files) == ["elsewhere1.py", *(f"pkg1/{name}.py" for name in ("__init__", "blocks", "layers", "model"))]


def test_the_source_of_an_installed_model_is_its_module_alone():
    import packaging.version  # noqa: F401  a small package with several files

    files = sources("packaging.version:Version")
    assert list(files) == ["packaging/version.py"]


def test_source_changes_name_each_file():
    before = {"a.py": "1" * 64, "b.py": "2" * 64}
    after = {"a.py": "1" * 64, "b.py": "3" * 64, "c.py": "4" * 64}
    assert source_changes(before, after) == ["b.py: 22222222 -> 33333333", "c.py: none -> 44444444"]
    assert source_changes(before, before) == []
