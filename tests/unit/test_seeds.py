"""A series of seeds made in parts: the content of a record, and the runs that may be added to it."""

import json

import pytest
from benchmarks import common, seeds


@pytest.fixture
def results(monkeypatch, tmp_path):
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", [seeds.__file__, "toy"])
    return tmp_path


def runs(*accuracies):
    return [
        {"seed": i, "accuracy": a, "train_s": 2.0, "total_s": 3.0, "images_per_s": 4.0}
        for i, a in enumerate(accuracies)
    ]


def test_a_record_has_every_run_with_mean_and_deviation(results):
    figures = seeds.save_all("toy", "digest", runs(0.5, 0.7), {"processes": 2, "device": "cpu"})
    assert figures["accuracy"] == pytest.approx(
        {"n": 2, "median": 0.6, "min": 0.5, "max": 0.7, "mean": 0.6, "deviation": 0.02**0.5}
    )
    record = json.loads((results / "seeds-toy.json").read_text())
    assert record["figures"]["accuracy"] == figures["accuracy"]
    assert (record["runs"], record["processes"], record["digest"]) == (runs(0.5, 0.7), 2, "digest")


def test_a_series_continues_after_the_recorded_seeds(results):
    assert seeds.recorded("toy", "digest", more=True) == []
    seeds.save_all("toy", "digest", runs(0.5), {"processes": 2, "device": "cpu"})
    assert seeds.recorded("toy", "digest", more=True) == runs(0.5)
    assert seeds.recorded("toy", "digest", more=False) == []


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("other", [{"digest": "another"}, {"machine": {"cpu": "another", "cores": 2}}])
def test_runs_of_another_recipe_are_not_replaced_and_of_another_machine_not_added_to(results, other, more):
    seeds.save_all("toy", "digest", runs(0.5), {"processes": 2, "device": "cpu"})
    file = results / "seeds-toy.json"
    before = json.dumps({**json.loads(file.read_text()), **other})
    file.write_text(before)
    if more or "digest" in other:
        with pytest.raises(SystemExit, match=r"of another .*: move it away"):
            seeds.recorded("toy", "digest", more=more)
    assert file.read_text() == before
