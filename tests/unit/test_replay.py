"""The verify job: which steps are replayed, what is compared, and what makes a comparison impossible."""

import json
import shutil
from pathlib import Path

import pytest
from tests.runs import change_checkpoint, change_state
from tests.unit.test_saver import flip

from lockstep.commands.specs import verify_spec
from lockstep.commands.verify import lines_of
from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.errors import DATA, USAGE, LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.specs import VerifySpec
from lockstep.jobs.verify import verify
from lockstep.messages import collected
from lockstep.recipes import get_recipe
from lockstep.runs import statefile
from lockstep.runs.folder import Folder, Run
from lockstep.runs.recorded import Recorded

OPTIONS = ("digits", "--no-portable", "--steps", 30, "--digest-every", 10, "--save-every", 10, "--processes", 1)
HALF = ("--precision", "float16", "--set", "lr=2.0")  # steps are skipped until the loss scale fits


@pytest.fixture
def run(tmp_path, trained_once) -> Path:
    shutil.copytree(trained_once(*OPTIONS)[0], tmp_path / "a")
    return tmp_path / "a"


def record_of(path: Path, start=None, steps=None, placement=None):
    recipe = Run.open(path).recipe()
    placement = placement or Placement(device="cpu")
    return verify(VerifySpec(recipe=recipe, placement=placement, path=path, start=start, steps=steps), Context())


def change_rows(run: Path, kind: str, step: int, **changes) -> None:
    """Change the row of metrics.jsonl of this kind and step."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if (row["kind"], row["step"]) == (kind, step):
            row.update(changes)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def kept(run: Path, *steps: int) -> None:
    for step in statefile.steps(run / "checkpoints"):
        if step not in steps:
            (run / f"checkpoints/step-{step:09d}.safetensors").unlink()


def ranges(run: Path, start=None, steps=None):
    with collected() as notes:
        begin, points = Recorded(run).range(start, steps)
    return begin, points[-1], points, notes


def test_which_steps_are_replayed(run):
    assert ranges(run) == (20, 30, (30,), [])
    assert ranges(run, 0) == (0, 10, (10,), [])
    assert ranges(run, 10) == (10, 20, (20,), [])
    assert ranges(run, 0, 20) == (0, 20, (10, 20), [])
    start, end, points, notes = ranges(run, 15, 8)
    assert (start, end, points) == (10, 20, (20,))
    assert "from step 10" in notes[0]
    assert "nothing is recorded after step 20 up to step 23" in notes[1]


def test_without_checkpoints_everything_is_replayed(run):
    kept(run, 30)
    assert ranges(run) == (0, 30, (10, 20, 30), [])
    kept(run)
    assert ranges(run) == (0, 30, (10, 20, 30), [])  # digests, and the SHA-256 of the result
    (run / "result.json").unlink()
    assert ranges(run) == (0, 20, (10, 20), [])
    assert ranges(run, 5)[:3] == (0, 20, (10, 20))


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(run):
    flip(run / "checkpoints/step-000000020.safetensors")
    start, end, points, notes = ranges(run)
    assert (start, end, points) == (10, 30, (20, 30))
    assert "step-000000020.safetensors is damaged" in notes[0]
    record = record_of(run)
    assert record["same"]
    assert record["compared"]["checkpoints"] == 1
    assert not list(run.glob("checkpoints/damaged-*"))  # Nothing is set aside, as the folder is only read.


@pytest.mark.parametrize(
    ("start", "steps", "code", "words"),
    [
        (30, None, DATA, "no state after step 30"),
        (2000, 5, DATA, "no state after step 30"),
        (20, 5, USAGE, "no state from step 21 to step 25"),
        (0, 3, USAGE, "the next one is after 10 steps"),
    ],
)
def test_nothing_to_compare_is_an_error(run, start, steps, code, words):
    with pytest.raises(LockstepError, match=words) as raised:
        ranges(run, start, steps)
    assert raised.value.code == code


def test_the_initial_state_is_computed_and_compared(run):
    record = record_of(run, start=0)
    assert record["same"]
    assert record["compared"] == {
        "digests": 2, "checkpoints": 2, "weights_sha256": 0, "losses": 1, "evaluations": 0, "best_step": 0,
    }  # fmt: skip
    assert record["last_equal_step"] == 10


def test_a_changed_checkpoint_differs_from_the_replay_alone(run):
    change_checkpoint(run, 30, "parameter/conv2.weight", 5)
    record = record_of(run)
    assert [one["what"] for one in record["differences"]] == ["checkpoints"]  # The SHA-256 of the result is right.
    assert record["tensors"]["count"] == 43
    difference = record["tensors"]["differing"][0]
    assert (difference["name"], difference["differing"], difference["max_ulp"]) == ("parameter/conv2.weight", 1, 1)


def test_a_changed_start_is_noticed_before_any_step(run):
    change_checkpoint(run, 20, "parameter/conv1.weight", 0)
    record = record_of(run)
    first = record["differences"][0]
    assert (first["what"], first["step"], record["last_equal_step"]) == ("digests", 20, None)
    assert record["tensors"]["step"] == 30
    assert len(record["tensors"]["differing"]) > 10
    assert any("--from 19 compares this checkpoint" in line for line in lines_of(record))
    record = record_of(run, start=19, steps=1)
    assert record["notes"] == ["there is no valid checkpoint after 19 steps: the replay starts from step 10"]
    assert [tensor["name"] for tensor in record["tensors"]["differing"]] == ["parameter/conv1.weight"]
    assert record["last_equal_step"] == 10
    assert "  tensors   1 of 43 differ after 20 steps" in list(lines_of(record))


def test_a_changed_digest_is_the_first_difference(run):
    change_rows(run, "digest", 20, digest="0" * 18)
    record = record_of(run, start=10, steps=20)
    assert not record["same"]
    assert [(one["what"], one["step"]) for one in record["differences"]] == [("digests", 20)]
    assert record["differences"][0]["recorded"] == "0" * 18
    assert record["last_equal_step"] == 10
    assert record["tensors"] is None  # The checkpoint of this step is right.
    assert record["to_step"] == 30  # The replay looks for tensors that differ.


def test_a_changed_loss_is_a_difference(run):
    change_rows(run, "step", 10, loss=0.5)
    record = record_of(run, start=0, steps=20)
    assert [(one["what"], one["step"], one["recorded"]) for one in record["differences"]] == [("losses", 10, 0.5)]


def test_a_changed_result_is_a_difference(run):
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"weights_sha256": "0" * 64}))
    record = record_of(run)
    assert [one["what"] for one in record["differences"]] == ["weights_sha256"]


def test_another_machine_is_described(run):
    sessions = json.loads((run / "environment.json").read_text())
    sessions[0]["probe"] = "0" * 64
    sessions[0]["versions"]["torch"] = "2.0.0"
    (run / "environment.json").write_text(json.dumps([*sessions, {**sessions[0], "step": 25, "cpu_capability": "X"}]))
    record = record_of(run)
    assert [session["from_step"] for session in record["machine"]] == [0, 25]
    assert [session["probe_equal"] for session in record["machine"]] == [False, False]
    assert any(text.startswith("versions.torch: 2.0.0 -> ") for text in record["machine"][0]["changes"])
    assert any(text.startswith("cpu_capability: X -> ") for text in record["machine"][1]["changes"])
    assert sum("the arithmetic probe differs" in note for note in record["notes"]) == 2
    record = record_of(run, start=0)
    assert [session["from_step"] for session in record["machine"]] == [0]


@pytest.mark.parametrize("stated_by", ["checkpoints", "environment.json"])
def test_other_data_is_refused_without_a_word_about_the_machine(run, stated_by):
    (entry,) = json.loads((run / "environment.json").read_text())
    entry["probe"] = "0" * 64  # which is of the images, too
    if stated_by == "environment.json":
        entry["data_sha256"]["train"] = "0" * 64
    else:
        for path in run.glob("checkpoints/*"):
            change_state(path, lambda facts, _: facts["data_sha256"].update(train="0" * 64))
    (run / "environment.json").write_text(json.dumps([entry]))
    with collected() as notes, pytest.raises(LockstepError, match="the training data is not what") as raised:
        record_of(run)
    assert (raised.value.code, notes) == (DATA, [])


def test_a_checkpoint_that_vanishes_is_not_compared(run, monkeypatch):
    """Training deletes old checkpoints while the replay runs."""
    read = statefile.read

    def read_until_deleted(path):
        found = read(path)
        kept(run, 30)
        return found

    monkeypatch.setattr("lockstep.runs.statefile.read", read_until_deleted)
    record = record_of(run, start=10, steps=10)
    assert record["same"]
    assert record["compared"]["checkpoints"] == 0
    assert record["compared"]["digests"] == 2
    assert "the checkpoint after 20 steps was deleted meanwhile: it is not compared" in record["notes"]


def test_if_nothing_could_be_read_nothing_is_claimed(run, monkeypatch):
    change = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    change = [row for row in change if row["kind"] != "digest"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in change))
    flip(run / "checkpoints/step-000000020.safetensors")
    with pytest.raises(LockstepError, match="nothing was compared") as raised:
        record_of(run, start=10, steps=10)
    assert raised.value.code == DATA


def test_a_run_that_is_not_exact_is_refused(tmp_path):
    recipe = make(get_recipe("digits").model_dump(mode="json"), {"exact": False})
    Folder.create(tmp_path / "a", recipe).close()
    with pytest.raises(LockstepError, match="only exact runs can be verified"):
        verify_spec(Run(tmp_path / "a"), Placement(), code={}, init=None)


@pytest.mark.slow
def test_a_run_in_float16_that_skips_steps_is_verified(trained_once):
    run, _ = trained_once(*OPTIONS, *HALF)
    assert "skipped" in (run / "log.txt").read_text()
    record = record_of(run, start=0, steps=20)
    assert record["same"]
    assert record["compared"]["checkpoints"] == 3


@pytest.mark.slow
def test_a_run_that_ended_early_has_its_best_weights_compared(trained_once):
    options = ("--set", "held_out=200", "--set", "patience=1", "--set", "lr=1e-9", "--epochs", 3)
    run, result = trained_once("digits", "--digest-every", 5, "--save-every", 4, "--processes", 1, *options)
    assert result["stopped_after"] is not None
    assert result["best_step"] < result["steps"]
    record = record_of(run, start=result["best_step"] - 1, steps=3)
    assert record["same"]
    assert record["compared"]["weights_sha256"] == 1
    record = record_of(run)
    assert record["same"]
    assert (record["compared"]["evaluations"], record["compared"]["best_step"]) == (1, 1)


@pytest.mark.slow
def test_a_run_from_a_file_needs_the_file_only_for_its_first_state(run, trained_once):
    tuned, _ = trained_once(*OPTIONS, "--init", run / "model.safetensors")
    assert record_of(tuned)["same"]
    assert record_of(tuned, start=0)["compared"]["digests"] == 2  # from the checkpoint of step 0
    placement = Placement(device="cpu", init=run / "model.safetensors")
    assert record_of(tuned, start=0, placement=placement)["compared"]["checkpoints"] == 2
    with pytest.raises(LockstepError, match="was not started from"):
        verify_spec(Run(tuned), Placement(), code={}, init=tuned)
