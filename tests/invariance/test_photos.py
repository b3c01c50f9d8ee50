"""A head on features, with the real program: one result on any number of processes, after kills,
and resumed.
"""

import json

import pytest
from tests.conftest import finished, start
from tests.disturbed import kill, read_until
from tests.images import bright_and_dark

pytestmark = pytest.mark.slow

# 200 images of 96 pixels take some seconds on one core, so there is a middle of the features to be
# killed in.
SETTINGS = (
    "--set",
    "image_px=96",
    "--set",
    "min_steps=400",
    "--log-every",
    1,
    "--save-every",
    50,
    "--folds",
    2,
    "--name",
    "a",
)


def train(cwd, *options):
    return start(
        "train", "photos", "--data", cwd.parent / "photos", *SETTINGS, "--json", *options, cwd=cwd
    )


def bits(process):
    """Return the SHA-256 of the head, and that of the answers of the folds."""
    result = json.loads(finished(process).splitlines()[-1])
    return result["weights_sha256"], result["folds"]["sha256"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The bits of a run on one process; and its parent folder, which holds the photos."""
    root = tmp_path_factory.mktemp("photos")
    # The features take seconds, so that a kill can come meanwhile.
    bright_and_dark(root / "photos", 300)
    (root / "one").mkdir()
    return bits(train(root / "one", "--processes", 1)), root


def test_two_and_four_processes_with_and_without_their_files(expected):
    own, root = expected
    for processes in (2, 4):
        folder = root / f"on{processes}"
        folder.mkdir()
        assert bits(train(folder, "--processes", processes)) == own
    again = train(root / "on2", "--processes", 3, "--name", "cached")
    out, err = again.communicate(timeout=240)
    assert json.loads(out.splitlines()[-1])["weights_sha256"] == own[0]
    assert "computing the features" not in err


def test_workers_killed_amid_the_features_are_restarted(expected):
    own, root = expected
    (root / "features").mkdir()
    process = train(root / "features", "--processes", 2)
    read_until(process.stderr, "computing the features")
    kill(process, workers_only=True)
    assert bits(process) == own


def test_a_run_killed_amid_the_head_is_resumed_on_3_processes(expected):
    own, root = expected
    (root / "head").mkdir()
    process = start(
        "train", "photos", "--data", root / "photos", *SETTINGS, "--processes", 2, cwd=root / "head"
    )
    read_until(process.stdout, "step 150,")
    kill(process)
    process.communicate()
    resumed = start("train", "runs/a", "--resume", "--processes", 3, "--json", cwd=root / "head")
    assert bits(resumed) == own
