"""What decides a run's bits besides its recipe: the user's source files and the environment, and
how they compare.
"""

import importlib
import json
import sys
from types import SimpleNamespace

import pytest
import torch

from lockstep.runs.provenance import (
    code_sha256,
    compare,
    fingerprint,
    releases,
    sources,
    texts,
    versions,
)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return load(name, **files): write the files, import the module `name`, and return the sources
    of its function.
    """
    before = set(sys.modules)

    def loaded(name, folder="", **files):
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / folder)])
        for file, text in files.items():
            path = tmp_path / folder / f"{file.replace('__', '/', 1)}.py"
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        importlib.import_module(name)
        return list(sources(f"{name}:build"))

    yield loaded
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_source_is_the_module_and_its_imports_in_its_folder(load):
    assert sources("tutorial") == {}  # is built in
    files = {
        "mine1": "import json, torch\nimport beside1\n",
        "beside1": "from deep1.x import WIDTH\n",
    }
    found = load("mine1", **files, deep1__x="WIDTH = 1\n", other1="raise SystemExit\n")
    assert found == ["beside1.py", "deep1/x.py", "mine1.py"]


def test_the_source_in_a_package_is_relative_to_its_folder(load):
    model = "import json, elsewhere1\nfrom . import layers\ndef build():\n    import pkg1.unused\n"
    found = load(
        "pkg1.model",
        pkg1____init__="",
        pkg1__model=model,
        pkg1__layers="",
        pkg1__unused="",
        elsewhere1="",
    )
    assert found == [
        "elsewhere1.py",
        *(f"pkg1/{name}.py" for name in ("__init__", "layers", "model")),
    ]


def test_the_source_of_an_installed_model_is_its_module_alone(load):
    """Wherever it is installed: in the user's own folder, or in an environment inside the folder of
    the model.
    """
    package = {"big1____init__": "", "big1__net": "from . import layers\n", "big1__layers": ""}
    assert load("big1.net", "home/lib/python3/site-packages", **package) == ["big1/net.py"]
    assert load("mine2", mine2="import big1.net, lockstep\n") == ["mine2.py"]


def test_more_imports_of_the_folder_leave_the_source_the_same():
    same = {"a.py": "1" * 64}
    assert compare({"model_source": same}, {"model_source": same | {"plots.py": "2" * 64}}) == []
    # two models
    assert len(compare({"model_source": {"b.py": "2" * 64}}, {"model_source": same})) == 2


def test_a_fingerprints_differences_are_named_unless_one_sided():
    current = fingerprint(torch.device("cpu"))
    assert (
        compare(current, current)
        == compare({}, current)
        == compare(current, {"versions": {"other": "1"}})
        == []
    )
    old = {
        "device": "another",
        "environment": current["environment"] | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    }
    found = compare({**old, "step": 3, "data": "there"}, {**current, "step": 7, "data": "here"})
    assert texts(found, "environment") == [
        f"device: another -> {current['device']}",
        "environment.ONEDNN_MAX_CPU_ISA: AVX2 -> None",
    ]


def test_codes_sha256_is_of_names_and_contents_of_python_files(tmp_path):
    def written(name, **files):
        for path, text in files.items():
            (tmp_path / name / "inner").mkdir(parents=True, exist_ok=True)
            (tmp_path / name / f"{path.replace('__', '/')}.py").write_text(text)
        return code_sha256(tmp_path / name)

    one = written("one", a="x = 1\n", inner__b="y = 2\n")
    assert one == written("two", inner__b="y = 2\n", a="x = 1\n")
    others = [
        written("comment", a="x = 1  # one\n", inner__b="y = 2\n"),
        written("renamed", a="x = 1\n", inner__c="y = 2\n"),
        written("moved", a="x = 1\ny = 2\n", inner__b=""),
    ]
    assert len({one, *others}) == 4


def test_versions_of_a_models_libraries_count_once_imported(monkeypatch):
    assert {
        "python",
        "torch",
        "numpy",
        "lockstep",
        "safetensors",
        "pillow",
        "lockstep_sha256",
    } == versions().keys()
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(__version__="1.0.9"))
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(__version__="0.28.0+cpu"))
    found = fingerprint(torch.device("cpu"))["versions"]
    assert (found["timm"], found["torchvision"], releases()["torchvision"]) == (
        "1.0.9",
        "0.28.0+cpu",
        "0.28.0",
    )


@pytest.mark.parametrize(
    ("kind", "before", "after", "text"),
    [
        (
            "data",
            {"data_sha256": {"train": "1" * 64, "test": "5"}},
            {"data_sha256": {"train": "2" * 64}},
            "train: 11111111 -> 22222222",
        ),
        (
            "classes",
            {"classes": ["a", "b"]},
            {"classes": ["b", "a"]},
            "classes: ['a', 'b'] -> ['b', 'a']",
        ),
        ("probe", {"probe": "1"}, {"probe": "2"}, "probe: 1 -> 2"),
        (
            "source",
            {"model_source": {"a": "1", "b": "2" * 64}},
            {"model_source": {"a": "1", "b": "3"}},
            "b: 22222222 -> 3",
        ),
        (
            "decoder",
            {"decoder": {"pillow": "1"}},
            {"decoder": {"pillow": "2"}},
            "decoder.pillow: 1 -> 2",
        ),
        (
            "environment",
            {"versions": {"torch": "1"}},
            {"versions": {"torch": "2"}},
            "versions.torch: 1 -> 2",
        ),
    ],
)
def test_each_difference_has_its_kind(kind, before, after, text):
    found = compare(before, after)
    assert ([difference.kind for difference in found], texts(found, kind)) == ([kind], [text])


def test_what_a_strangers_record_states_is_safe_to_print():
    entry = json.loads(
        r'{"device": "\u001b[2J", "model_source": {"\u001b[2J": 5}, "versions": {"torch": [1]}}'
    )
    now = {"device": "cpu", "model_source": {}, "versions": {"torch": "2"}}
    assert all(str(difference).isprintable() for difference in compare(entry, now))
    assert len(compare(entry, now)) == 3
