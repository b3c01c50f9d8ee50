"""Bad input on the command line: one clear message, the documented exit code, no traceback, nothing
lost.
"""

import json
import shlex
import shutil

import pytest
from tests.conftest import SHORT
from tests.helpers import DATA, ENVIRONMENT, USAGE, refused

FEW = ("--towers", 1, "--batch", 8)  # images, as portable arithmetic takes longer
RUN = (*FEW, *SHORT)
CLEAR = "\x1b[2J"  # what clears the screen


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("train digts", USAGE, "unknown recipe 'digts' ... digits"),
        ("train --summary-every -1", USAGE, "--summary-every"),
        (
            "train --processes 5",
            USAGE,
            "5 processes need at least one tower each ... --processes 1 to 4",
        ),
        ("train --model json:dumb", USAGE, "did you mean dump"),
        ("train --reduction allreduce", USAGE, "exact=false"),
        ("train --name ../out", USAGE, "is not allowed ... --runs sets the parent folder"),
        (
            "train --model timm:create_model",
            USAGE,
            "is for the recipes photos and photos-tuned, not for digits ... timm.models:NAME",
        ),
        (
            "train --set augmentation.kind=distort",
            USAGE,
            "crop_px 24 is larger than the images, 8x8",
        ),
        ("train nofile.toml", DATA, "nofile.toml ... No such file"),
        ("trian", USAGE, "No such command"),
        (
            "train cifar10 --set flip=false",
            USAGE,
            "setting 'flip': did you mean augmentation.flip?",
        ),
        ("train --model nowhere/to_be.py:found", USAGE, "no module 'nowhere.to_be'"),
        ("eval runs/none", DATA, "there is no folder runs/none"),
        ("train mnist --data nowhere", DATA, "no train-images-idx3-ubyte.gz in ... nowhere"),
        ("train digits --data .", DATA, "comes with lockstep"),
        ("train --no-portable --device cuda", ENVIRONMENT, "sees no CUDA GPU ... --device cpu"),
        ("train --runs /proc/none", ENVIRONMENT, "cannot write the run folder /proc/none/digits-1"),
        ("train --inline --processes 2", USAGE, "--inline computes one process"),
        *(
            (f"train --name {name!r}", USAGE, f"--name {name!r} is not ... letters")
            for name in ("a b", ".a")
        ),
        (f"train --name '{CLEAR}'", USAGE, r"--name '\x1b[2J' is not ... letters"),
        ("train --set dataset=memory", USAGE, "data= of lockstep.train sets both"),
        ("train --init w.pt", DATA, "No such file"),
        (
            "eval RUN --checkpoint last",
            USAGE,
            "--checkpoint 'last': give best, or the number of steps",
        ),
        ("eval RUN --checkpoint best --watch", USAGE, "--checkpoint is for one checkpoint"),
        ("eval RUN --watch --interval 0", USAGE, "--interval: got 0.0"),
        ("verify RUN --from -1", USAGE, "--from"),
        ("eval RUN --examples 356", USAGE, "--examples: got 356 ... give 1 to 355"),
        ("eval RUN --once", USAGE, "--once needs --watch"),
        ("eval RUN --split validation", USAGE, "no split 'validation': its splits are train, test"),
        ("train RUN --resume --init RUN", USAGE, "leave out --init to resume"),
        ("predict RUN", USAGE, "Missing argument"),
        ("predict RUN https://a.org/new.png", USAGE, "https://a.org/new.png is an address"),
        ("predict RUN x.png --checkpoint 7", USAGE, "has no such checkpoint"),
        ("predict nothing x.png", DATA, "nothing does not exist: give the folder of a run"),
        ("predict RUN/log.txt x.png", DATA, "is damaged, or not a file that Lockstep wrote"),
        (
            "predict RUN/model.safetensors x.png --checkpoint best",
            USAGE,
            "--checkpoint is for runs",
        ),
        ("report RUN -o RUN/log.txt", USAGE, "exists already"),
        *((f"{each} RUN/..", USAGE, "one of the runs in it") for each in ("train", "report")),
        ("report RUN -o nowhere/r.html", ENVIRONMENT, "there is no folder ... nowhere: give"),
        ("report missing -o r.html", DATA, "missing"),
        ("export RUN -o d.pt2", USAGE, "d.pt2: programs know a format by the name of its file"),
        ("serve RUN --port 70000", USAGE, "less than or equal to 65535"),
        ("serve none --port 0", DATA, "none does not exist"),
    ],
)
def test_one_clear_message(here, trained_once, tmp_path, line, code, words):
    if "RUN" in line:
        path, _ = trained_once(*RUN)
        line = line.replace("RUN", str(path))
    done = here(*shlex.split(line))
    refused(done, code, *words.split(" ... "))
    assert CLEAR not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_broken_recipe_file(here, tmp_path):
    for text, words in (
        ("towers = [", "mine.toml"),
        ('recipe = "digits"\noptimizer.momentun = 1', "did you mean"),
    ):
        (tmp_path / "mine.toml").write_text(text)
        refused(here("train", "mine.toml"), USAGE, words)


@pytest.fixture
def run(trained_once, tmp_path):
    """A run with checkpoints at 0, 4, 8 and 12, but no result: as if killed at its very end; a
    copy.
    """
    path, record = trained_once(*RUN)
    shutil.copytree(path, tmp_path / "runs/a")
    (tmp_path / "runs/a/result.json").unlink()
    return tmp_path / "runs/a", record


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_an_existing_run_is_never_overwritten(here, run):
    path, _ = run
    before = contents(path)
    refused(here("train", *FEW, "--name", "a"), USAGE, "runs/a exists", "--resume", "--name")
    refused(here("train", path), USAGE, "exists", "--resume")
    refused(here("train", path, "--resume", "--seed", "3"), USAGE, "seed: 0 -> 3", "another --name")
    refused(here("train", *FEW, "--name", "a", "--resume", "--steps", "9"), USAGE, "steps: 12 -> 9")
    assert contents(path) == before


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


def test_text_from_files_never_reaches_a_terminal_as_controls(here, run):
    record = run[0] / "recipe.json"
    whole = record.read_text()
    record.write_text(json.dumps(json.loads(whole) | {"name": f"digits{CLEAR}"}))
    for command in (("eval", "runs/a"), ("show", "runs/a"), ("train", "runs/a", "--resume")):
        done = here(*command)
        refused(done, USAGE, "recipe setting name: got 'digits\\x1b[2J'")
        assert CLEAR not in done.stderr
    record.write_text(whole[:9] + CLEAR)
    assert CLEAR not in here("eval", "runs/a").stderr
    record.write_text(json.dumps(json.loads(whole) | {"model_options": {"\x9b2J": CLEAR}}))
    shown = here("show", "runs/a").stdout
    assert {"\x1b", "\x9b"}.isdisjoint(shown)
    assert "\\U0000009b2J" in shown


def test_a_complete_run_stays_so(here, trained_once, tmp_path):
    path, record = trained_once(*RUN)
    before = contents(path)
    again = here(
        "train", *FEW, "--steps", 12, "--name", "a", "--runs", path.parent, "--resume", "--json"
    )
    assert again.returncode == 0
    assert json.loads(again.stdout) == record
    assert "complete" in again.stderr
    assert contents(path) == before
