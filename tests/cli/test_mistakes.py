"""Bad input on the command line: one clear message, the documented exit code, no traceback, nothing lost."""

import json
import resource
import shutil

import pytest
from tests.images import bright_and_dark
from tests.runs import change_state
from tests.unit.test_saver import flip

from lockstep.runs import statefile

USAGE, DATA, ENVIRONMENT = 2, 3, 4
CLEAR = "\x1b[2J"  # what clears the screen


def refused(done, code, *words):
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("lockstep: ") or "Error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 4  # a usage error shows the usage, too
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["train", "digts"], USAGE, ["unknown recipe 'digts'", "digits"]),
        (["train", "cifar"], USAGE, ["did you mean cifar10"]),
        (["train", "--set", "optimiser.momentum=0.9"], USAGE, ["did you mean optimizer"]),
        (["train", "--set", "momentum"], USAGE, ["NAME=VALUE"]),
        (["train", "--lr", "-1"], USAGE, ["lr: got -1.0", "greater than 0"]),
        (["train", "--set", "model_options.dropout=0.5"], USAGE, ["option of model digits 'dropout'"]),
        (["train", "--device", "cuda:0,0"], USAGE, ["name it once"]),
        (["train", "--summary-every", "-1"], USAGE, ["--summary-every"]),
        (["train", "--processes", "5"], USAGE, ["5 processes for 4 towers", "--processes 1 to 4"]),
        (["train", "--processes", "0"], USAGE, ["--processes"]),
        (["train", "--model", "nowhere.to_be:found"], USAGE, ["no module 'nowhere.to_be'"]),
        (["train", "--model", "json:dumb"], USAGE, ["did you mean dump"]),
        (["train", "--set", "weight_decay.conv9.weight=1"], USAGE, ["conv9.weight"]),
        (["train", "--reduction", "allreduce"], USAGE, ["exact=false"]),
        (["train", "--name", "../out"], USAGE, ["is not allowed", "--runs sets the parent folder"]),
        (["train", "--model", "mnist", "--set", "weight_decay={}"], USAGE, ["16x16 pixels or more, got 8x8"]),
        (["train", "--model", "tutorial", "--set", "weight_decay.conv3.weight=1"], USAGE, ["'conv3.weight'"]),
        (["train", "--model", "timm:create_model"], USAGE, ["no module 'timm'", "pip install '.[timm]'"]),
        (["train", "--set", "augmentation.kind=distort"], USAGE, ["crop_px 24 is larger than the images, 8x8"]),
        (["train", "nofile.toml"], USAGE, ["nofile.toml", "No such file"]),
        (["train", "runs/none", "--resume"], USAGE, ["there is no folder runs/none", "the folder of a run"]),
        (["train", "--resume"], USAGE, ["--resume continues a run"]),
        (["train", "--device", "gpu"], USAGE, ["device: got 'gpu'", "as in cuda:0 or cuda:0,2"]),
        (["train", "--bacth", "3"], USAGE, ["No such option", "--batch"]),
        (["trian"], USAGE, ["No such command"]),
        (["show", "mnits"], USAGE, ["did you mean mnist"]),
        (["eval", "runs/none"], USAGE, ["runs/none is not a folder"]),
        (["eval", "."], USAGE, ["not a run"]),
        (["train", "mnist", "--data", "nowhere"], DATA, ["nowhere does not exist"]),
        (["train", "mnist"], DATA, ["train-images-idx3-ubyte.gz", "--data DIR", "digits"]),
        (["train", "digits", "--data", "."], DATA, ["comes with lockstep"]),
        (["train", "--no-portable", "--device", "cuda"], ENVIRONMENT, ["sees no CUDA GPU", "--device cpu"]),
        (["train", "--runs", "/proc/none"], ENVIRONMENT, ["cannot write the run folder /proc/none/digits-1"]),
        (["train", "--inline", "--processes", "2"], USAGE, ["--inline computes one process"]),
        (["train", f"{CLEAR}.toml"], USAGE, ["\\x1b[2J"]),
        *((["train", "--name", name], USAGE, [f"--name {name!r} is not", "letters"]) for name in ("a b", ".a", CLEAR)),
        (["train", "digits", "--dataset", "nowhere:load"], USAGE, ["no module 'nowhere'"]),
        (["train", "digits", "--dataset", "mine.arrays"], USAGE, ["unknown dataset 'mine.arrays'"]),
        (["train", "--set", "dataset=memory"], USAGE, ["data= of lockstep.train sets both"]),
        (["train", "--init", "w.pt"], DATA, ["no such file"]),
        (["eval", "RUN", "--checkpoint", "last"], USAGE, ["--checkpoint 'last': give best, or the number of steps"]),
        (["eval", "RUN", "--checkpoint", "-4"], USAGE, ["--checkpoint '-4': give best"]),
        (["eval", "RUN", "--checkpoint", "best", "--watch"], USAGE, ["--checkpoint is for one checkpoint"]),
        (["eval", "RUN", "--once"], USAGE, ["--once needs --watch"]),
        (["eval", "RUN", "--split", "validation"], USAGE, ["no split 'validation': its splits are train, test"]),
        (["train", "RUN", "--resume", "--init", "RUN"], USAGE, ["leave out --init to resume"]),
        (["verify", "RUN", "--processes", "5"], USAGE, ["5 processes for 4 towers"]),
        (["predict", "RUN"], USAGE, ["Missing argument"]),
        (["predict", "RUN", "x.png", "--top", "0"], USAGE, ["--top"]),
        (["predict", "RUN", "x.png", "--checkpoint", "7"], USAGE, ["has no such checkpoint"]),
        (["predict", "RUN", "x.png", "--device", "cuda"], USAGE, ["portable arithmetic, which computes on a CPU"]),
        (["predict", "nothing", "x.png"], USAGE, ["nothing does not exist: give the folder of a run"]),
        (["predict", "RUN/log.txt", "x.png"], DATA, ["is damaged, or not a file that Lockstep wrote"]),
        (["predict", "RUN/model.safetensors", "x.png", "--checkpoint", "best"], USAGE, ["--checkpoint is for runs"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_one_clear_message(here, trained_once, tmp_path, args, code, words):
    if any("RUN" in word for word in args):
        path, _ = trained_once("--steps", 10, "--save-every", 4, "--processes", 1)
        args = [word.replace("RUN", str(path)) for word in args]
    done = here(*args)
    refused(done, code, *words)
    assert CLEAR not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_recipe_with_a_folder_of_images_as_its_data_is_one_message(here, tmp_path):
    bright_and_dark(tmp_path / "photos", 2)
    refused(here("train", "digits", "--data", "photos"), DATA, "comes with lockstep")
    refused(here("train", "cifar10", "--data", "photos"), DATA, "data_batch_1.bin")


def test_a_broken_recipe_file(here, tmp_path):
    (tmp_path / "mine.toml").write_text("towers = [")
    refused(here("train", "mine.toml"), USAGE, "mine.toml")
    (tmp_path / "mine.toml").write_text('recipe = "digits"\n[optimizer]\nmomentun = 0.5\n')
    refused(here("train", "mine.toml"), USAGE, "did you mean optimizer.momentum")


@pytest.fixture
def run(trained_once, tmp_path):
    """A run of ten steps with checkpoints at 0, 4, 8 and 10, but no result: as if killed at its very end; a copy."""
    path, record = trained_once("--steps", 10, "--save-every", 4, "--processes", 1)
    shutil.copytree(path, tmp_path / "runs/a")
    (tmp_path / "runs/a/result.json").unlink()
    return tmp_path / "runs/a", record


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_an_existing_run_is_never_overwritten(here, run):
    path, _ = run
    before = contents(path)
    refused(here("train", "--name", "a"), USAGE, "runs/a exists", "--resume", "--name")
    refused(here("train", path), USAGE, "exists", "--resume")
    refused(here("train", path, "--resume", "--seed", "3"), USAGE, "seed: 0 -> 3", "another --name")
    refused(here("train", "--name", "a", "--resume", "--steps", "9"), USAGE, "steps: 10 -> 9")
    assert contents(path) == before


def test_damaged_checkpoints_are_passed_over_and_the_result_is_the_same(here, run):
    path, result = run
    for step in (8, 10):
        flip(path / f"checkpoints/step-{step:09d}.safetensors")
    evaluated = here("eval", path)
    assert evaluated.returncode == 0
    assert "after 4 steps" in evaluated.stdout
    assert evaluated.stderr.count("is damaged") == 2
    done = here("train", path, "--resume", "--save-every", 4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is damaged") == 2
    assert "after step 4" in done.stdout
    assert json.loads((path / "result.json").read_text())["weights_sha256"] == result["weights_sha256"]
    kept = sorted(p.name for p in (path / "checkpoints").iterdir())
    assert kept[:2] == [f"damaged-step-{step:09d}.safetensors" for step in (8, 10)]
    assert statefile.latest(path / "checkpoints").step == 10


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_all_checkpoints_damaged(here, run, processes):
    path, _ = run
    for state in path.glob("checkpoints/*.safetensors"):
        flip(state)
    before = contents(path / "checkpoints")
    refused(here("train", path, "--resume", "--processes", processes), DATA, "every checkpoint in")
    assert contents(path / "checkpoints") == before


@pytest.mark.parametrize("split", ["train", "test"])
def test_other_data_is_refused(here, run, split):
    path, _ = run
    for state in path.glob("checkpoints/step-*"):
        change_state(state, lambda facts, _: facts["data_sha256"].update({split: "0" * 64}))
    refused(here("train", path, "--resume"), DATA, "data is not what", "was trained on")


def test_a_run_without_checkpoints(here, run):
    path, _ = run
    (path / "checkpoints").rename(path / "elsewhere")
    (path / "checkpoints").mkdir()
    refused(here("eval", path), DATA, "no checkpoint yet")


def test_a_recipe_edited_behind_the_checkpoints_back(here, run):
    path, _ = run
    text = (path / "recipe.json").read_text()
    (path / "recipe.json").write_text(text.replace('"lr": 0.2', '"lr": 0.3'))
    for command in (("train", path, "--resume"), ("eval", path)):
        refused(here(*command), USAGE, "trained by another recipe")
    (path / "recipe.json").write_text(text[:50])
    refused(here("eval", path), DATA, "recipe.json cannot be read")
    (path / "recipe.json").write_text(text)
    (path / "result.json").write_text("")
    refused(here("train", path, "--resume"), DATA, "result.json cannot be read")


def test_a_file_where_the_runs_should_be(here, tmp_path):
    (tmp_path / "file").write_text("mine")
    refused(here("train", "--runs", "file"), ENVIRONMENT, "cannot write the run folder file/digits-1")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.slow
def test_programs_started_together_get_runs_of_their_own(started, tmp_path):
    programs = [started("train", "--steps", 2, "--processes", 1, "--seed", seed) for seed in range(3)]
    for process in programs:
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["digits-1", "digits-2", "digits-3"]


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(here, tmp_path):
    """The file-size limit lets small files through and stops every checkpoint."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        done = here("train", "--steps", 6, "--save-every", 2, "--name", "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.stdout.count("could not save a checkpoint") == 3
    assert "Training continues" in done.stdout
    assert ": step 5, loss" in done.stdout
    assert done.returncode == ENVIRONMENT
    assert "Traceback" not in done.stderr
    assert "could not save a checkpoint" in done.stderr
    assert list((tmp_path / "runs/full/checkpoints").iterdir()) == []


def test_a_complete_run_stays_so(here, trained_once, tmp_path):
    path, record = trained_once("--steps", 10, "--save-every", 4, "--processes", 1)
    before = contents(path)
    again = here("train", "--steps", 10, "--name", "a", "--runs", path.parent, "--resume", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout) == record
    assert "complete" in again.stderr
    assert contents(path) == before


OVERFLOW = ("optimizer.nesterov=false", "optimizer.momentum=0", "ema=none", "schedule=constant", "lr=1e38")


@pytest.mark.parametrize(
    ("processes", "settings"),
    [(1, ["lr=1e30"]), pytest.param(3, ["lr=1e30"], marks=pytest.mark.slow), pytest.param(1, OVERFLOW, id="update")],
)
def test_what_is_not_finite_stops_every_process_at_the_same_step_and_is_never_saved(
    here, tmp_path, processes, settings
):
    options = [word for setting in settings for word in ("--set", setting)]
    done = here("train", *options, "--processes", processes, "--name", "nan", "--save-every", 1)
    assert done.returncode == 1
    assert done.stderr.startswith("lockstep: the loss or a gradient of tower")
    assert "is not finite at step" in done.stderr
    assert "Traceback" not in done.stderr
    step = int(done.stderr.split("after ")[1].split()[0])
    assert f"at step {step}." in done.stderr
    found = statefile.latest(tmp_path / "runs/nan/checkpoints")
    assert found.step == step
    assert all(tensor.isfinite().all() for tensor in found.tensors.values())
    assert not (tmp_path / "runs/nan/result.json").exists()
