"""What the program says to input that is near to right: one sentence, which says what we got and
what to do.
"""

import pytest
from tests.conftest import NATIVE
from tests.helpers import DATA, USAGE

from lockstep.commands.program import COMMANDS, DATA_COMMANDS

NET = """
from torch import nn

def norm(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))

def other_size(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(100, classes))
"""
OWN = "train digits --no-portable --towers 1 --steps 1 --processes 1 --model nets.py"


@pytest.fixture
def place(here, trained_once, tmp_path):
    """`here`, in a folder with photos/, flowers/, new.png, mine.toml and the run runs/mine."""
    for name in (
        "photos/ants",
        "photos/bees",
        "photos/wasps",
        "flowers/rose",
        "flowers/tulip",
        "mnist",
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "mine.toml").write_text('recipe = "digits"')
    (tmp_path / "weights.pt").touch()
    (tmp_path / "nets.py").write_text(NET)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mine").symlink_to(trained_once(*NATIVE)[0])
    return here


CASES = [
    # A name of a file or folder that is nearly right: the nearest that exists.
    (
        "train phots/",
        DATA,
        "there is no folder phots: did you mean photos? give the name of a recipe",
    ),
    ("train Photos/ant/", DATA, "there is no folder Photos/ant: did you mean photos/ants?"),
    (
        "train flowes",
        USAGE,
        "unknown recipe 'flowes': did you mean flowers or folder? Allowed: cifar10,",
    ),
    ("train minne.toml", DATA, "recipe file minne.toml: did you mean mine.toml? No such file"),
    ("train --data phots", DATA, "phots: did you mean /TMP/photos? give a folder that holds"),
    ("train photos --data flwers", DATA, "flwers: did you mean /TMP/flowers?"),
    ("train mnist --data minst", DATA, "dataset mnist: did you mean /TMP/mnist? no train-images"),
    (
        "train --init runs/mien",
        DATA,
        "runs/mien: did you mean /TMP/runs/mine? it cannot be read: No such file",
    ),
    ("train --init wieghts.pt", DATA, "did you mean /TMP/weights.pt?"),
    ("train runs/mien --resume", DATA, "there is no folder runs/mien: did you mean runs/mine?"),
    (
        "eval runs/mien",
        DATA,
        "there is no folder runs/mien: did you mean runs/mine? give the folder of a run",
    ),
    ("eval rusn/mine", DATA, "did you mean runs/mine?"),
    ("eval mien", DATA, "there is no folder mien: did you mean runs/mine?"),
    ("eval runs/mine --data phots --split tets", DATA, "leave out --data /TMP/phots"),
    ("predict runs/mien new.png", DATA, "runs/mien does not exist: did you mean runs/mine?"),
    ("serve runs/mien", DATA, "did you mean runs/mine?"),
    ("report runs/mien", DATA, "did you mean runs/mine?"),
    ("export runs/mien", DATA, "did you mean runs/mine?"),
    ("verify runs/mien", DATA, "did you mean runs/mine?"),
    ("show runs/mien", DATA, "did you mean runs/mine?"),
    (
        "data fetch photos",
        USAGE,
        "unknown dataset 'photos': Allowed: cifar10, digits, mnist; folders of images",
    ),
    ("data check phots", DATA, "there is no folder phots: did you mean photos?"),
    (
        "train nothing/of/this",
        DATA,
        "there is no folder nothing/of/this: give the name of a recipe",
    ),
    # An address: what to do, with the address as it was given.
    (
        "train https://a.org/photos",
        USAGE,
        "https://a.org/photos is an address, and Lockstep reads only files on this",
    ),
    ("train hf://beans", USAGE, "hf://beans: give hf://OWNER/NAME, hf://OWNER/NAME@REVISION, or a"),
    ("train digits --data s3://bucket/x", USAGE, "s3://bucket/x is an address"),
    (
        "train --init https://a.org/w.pt",
        USAGE,
        "https://a.org/w.pt: give https://.../FILE#sha256=HEX, with the 64 digits",
    ),
    ("train --runs gs://bucket/runs", USAGE, "gs://bucket/runs is an address"),
    ("eval http://a.org/run", USAGE, "http://a.org/run is an address"),
    (
        "predict https://a.org/model.safetensors new.png",
        USAGE,
        "https://a.org/model.safetensors is an address",
    ),
    (
        "data check file:///home/me/photos",
        USAGE,
        "download the file or folder first, and give its path",
    ),
    # Several folders, a model of another library, a device of another kind, a batch that a model
    # cannot train on.
    (
        "train photos/ants photos/bees",
        USAGE,
        "photos/ants, photos/bees: give the folder that holds them, photos",
    ),
    (
        "train flowers photos",
        USAGE,
        "got 2: flowers, photos: give one, or a folder that holds a folder",
    ),
    (
        "train digits mnist.toml",
        USAGE,
        "takes one recipe, run or folder of photos, and got 2: digits, mnist.toml",
    ),
    (
        "train --model resnet50",
        USAGE,
        "as in timm:resnet50, nets.py:resnet50 or torchvision.models:resnet50",
    ),
    (
        "train --model timm/resnet50",
        USAGE,
        "or a network of timm with its weights, or a function or class of yours or of torchvision",
    ),
    (
        "train --device mps",
        USAGE,
        "Lockstep computes on no other kind of GPU, such as Apple's (mps)",
    ),
    (
        "eval runs/mine --device xpu",
        USAGE,
        "--device xpu: give auto, cpu, cuda, or the GPU of each process, as in",
    ),
    (
        f"{OWN}:norm --batch 1",
        USAGE,
        "a tower computes only one image a step: give --tower-batch 2 or more",
    ),
    (
        f"{OWN}:norm --towers 2 --batch 2",
        USAGE,
        "a tower computes only one image a step: give --tower-batch 2 or more",
    ),
    (
        f"{OWN}:other_size --batch 1",
        USAGE,
        "Correct the model, or give it images of the size that it takes",
    ),
]


@pytest.mark.parametrize(("line", "code", "sentence"), CASES, ids=[case[0] for case in CASES])
def test_one_sentence_says_what_to_do(place, tmp_path, line, code, sentence):
    before = sorted(tmp_path.rglob("*"))
    done = place(*line.split())
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    said = done.stderr.replace(str(tmp_path), "/TMP")
    assert sentence in said
    assert "Traceback" not in said
    assert said.startswith("lockstep: ")
    assert len(said.splitlines()) == 1
    assert [path for path in sorted(tmp_path.rglob("*")) if "cache" not in path.parts] == before


# of each command that names a run, a model, a recipe or images: a name that does not exist
NAMING = {
    "train": "train none/",
    "eval": "eval none",
    "predict": "predict none new.png",
    "serve": "serve none",
    "report": "report none",
    "export": "export none",
    "push": "push none me/a",
    "verify": "verify none",
    "show": "show none.toml",
    "check": "data check none",
}


def test_every_command_has_one_code_for_a_missing_file(place):
    commands = {"train", *COMMANDS, *DATA_COMMANDS} - {"doctor", "recipes", "fetch"}
    assert NAMING.keys() == commands
    for line in NAMING.values():
        assert place(*line.split()).returncode == DATA, line
    runs = [f"{name} runs/mine --data none/" for name in ("eval", "report", "export", "verify")]
    for line in ("train none.toml", "train --data none/", "train --init none", *runs):
        assert place(*line.split()).returncode == DATA, line
    assert place("eval", "new.png").returncode == DATA
    assert place("eval", "mine.toml").returncode == USAGE  # it is there, and no run
