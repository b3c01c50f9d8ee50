"""`lockstep push`, and hf:// in place of a model: the real huggingface_hub with a Hub on this
machine.
"""

import importlib
import json
import re
import shutil
import subprocess
import tomllib

import numpy as np
import pytest
import yaml
from PIL import Image
from tests.conftest import NATIVE
from tests.helpers import DATA, ENVIRONMENT, USAGE, read_json, refused, succeeded
from tests.hub import OWNER, TOKEN, hub_here

import lockstep
from lockstep import messages
from lockstep.errors import LockstepError

constants = pytest.importorskip("huggingface_hub.constants", reason='needs the extra "hf"')
from huggingface_hub import hf_api  # noqa: E402
from huggingface_hub.utils import logging  # noqa: E402

# huggingface_hub uses httpx2 so.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
NAME = f"{OWNER}/digits"


@pytest.fixture(scope="module")
def served():
    with hub_here() as hub:
        yield hub


@pytest.fixture
def hub(served, tmp_path):
    """A Hub without repositories, which this process and the programs that it starts ask."""
    served.repositories.clear()
    served.requests.clear()
    served.down = False
    variables = {
        "HF_ENDPOINT": served.url,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",  # a protocol of its own, of a library in Rust
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        importlib.reload(constants)  # It reads them when it is imported.
        # An earlier test of this process may have made it, for another server.
        patch.setattr(hf_api.api, "endpoint", served.url)
        logging.set_verbosity_error()  # Its handler keeps the stream of the first test.
        yield served
    importlib.reload(constants)


@pytest.fixture
def run(trained_once, tmp_path):
    return shutil.copytree(trained_once(*NATIVE)[0], tmp_path / "runs/mine")


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "new.png"
    Image.fromarray(np.eye(8, dtype=np.uint8) * 200).save(path)
    return path


def pushed(here, run, *options):
    done = succeeded(here("push", run, NAME, "--json", *options))
    return json.loads(done.stdout)


def secrets(folder):
    """Files below a folder that have the token, in any form."""
    found = subprocess.run(
        ["grep", "-rlaE", f"{TOKEN}|{TOKEN[3:]}", folder], capture_output=True, text=True
    )
    return found.stdout.splitlines()


def test_a_run_is_pushed_and_predicts_from_there_also_offline(hub, here, run, image, tmp_path):
    before = sorted(run.rglob("*"))
    record = pushed(here, run)
    repository = hub.repositories[f"models/{NAME}"]
    assert (record["commit"], record["before"]) == (repository.head, None)
    assert record["address"] == f"hf://{NAME}@{repository.head}"
    files = repository.commits[repository.head]
    assert {*files} == {
        ".gitattributes", "README.md", "model.safetensors", "recipe.toml", "result.json",
    }  # fmt: skip
    assert files["model.safetensors"] == (run / "model.safetensors").read_bytes()
    assert tomllib.loads(files["recipe.toml"].decode())["name"] == "digits"
    result = read_json(run / "result.json")
    del result["run"]
    assert json.loads(files["result.json"]) == result

    expected = succeeded(here("predict", run, image, "--json")).stdout
    done = succeeded(here("predict", f"hf://{NAME}", image, "--json"))
    assert done.stdout == expected
    assert done.stderr == f"downloaded model.safetensors of hf://{NAME}@{repository.head}\n"
    hub.requests.clear()
    done = succeeded(here("predict", record["address"], image, "--json"))
    assert (done.stdout, done.stderr, hub.requests) == (expected, "", [])
    hub.down = True
    assert succeeded(here("predict", f"hf://{NAME}", image, "--json")).stdout == expected
    classifier = lockstep.load(f"hf://{NAME}")
    assert classifier.weights_sha256 == result["weights_sha256"]
    assert sorted(run.rglob("*")) == before


def test_the_card_has_what_the_hub_reads_and_a_reader_needs(hub, here, run):
    pushed(here, run)
    files = [*hub.repositories[f"models/{NAME}"].commits.values()][-1]
    _, head, text = files["README.md"].decode().split("---\n", 2)
    result = read_json(run / "result.json")
    data = yaml.safe_load(head)
    assert (data["library_name"], data["pipeline_tag"]) == ("lockstep", "image-classification")
    metric = data["model-index"][0]["results"][0]["metrics"][0]
    assert (metric["type"], metric["value"]) == ("accuracy", result["accuracy"]["ema"])
    low, high = (100 * end for end in result["accuracy_interval"])
    for part in (
        f"**Accuracy: {result['accuracy']['ema']:.2%}**",
        f"95% interval\n  {low:.1f} to {high:.1f}%",
        "0, 1, 2, 3, 4, 5, 6, 7, 8, 9.",
        f"lockstep predict hf://{NAME} photo.jpg",
        f"| weights | `{result['weights_sha256']}` |",
        f"| last link of the run's chain | `{result['link']}` |",
        "## Limits",
        "No code is downloaded",
        "on any number of processes, on one kind of CPU or GPU.",
    ):
        assert part in text
    assert not re.search(r"{[{%]|%}|\n\n\n", text)


def test_a_card_states_confident_answers_and_own_code(hub):
    from lockstep.pages.card import card
    from lockstep.recipes import get_recipe

    confident = {"share": 0.95, "images": 6, "right": 6, "coverage": 0.75, "accuracy": 1.0}
    result = {"accuracy": {"raw": 0.875}, "accuracy_interval": [0.5, 0.9], "confident": confident}
    result |= {"warnings": ["few images"], "left_out": ["a.jpg"], "digest": "d", "link": "k"}
    result["weights_sha256"] = "w"
    recipe = get_recipe("photos").replace(model="nets.py:build")
    text = card("me/a", recipe, result, ["<b>", "bee"])
    assert "75.0% of the answers are marked as confident, and 100.0% of these are right" in text
    assert "**Warning:** few images" in text
    assert "&lt;b&gt;, bee" in text
    assert "nets.py:build" in text
    assert "marked as unfamiliar" in text


def test_a_second_push_is_a_new_commit_and_an_equal_one_is_none(hub, here, run):
    first = pushed(here, run)
    again = pushed(here, run)
    assert (again["commit"], again["before"]) == (first["commit"], first["commit"])
    result = read_json(run / "result.json")
    (run / "result.json").write_text(json.dumps(result | {"train_s": 1.0}))
    done = succeeded(here("push", run, NAME))
    repository = hub.repositories[f"models/{NAME}"]
    assert f"(after {first['commit']}, which stays in the history)" in done.stdout
    assert f"commit  {repository.head} " in done.stdout
    assert first["commit"] in repository.commits


def test_a_private_repository_is_for_its_owner(hub, here, run, image, monkeypatch):
    record = pushed(here, run, "--private")
    assert hub.repositories[f"models/{NAME}"].private
    monkeypatch.delenv("HF_TOKEN")
    message = f"hf://{NAME}: it does not exist, or is not yours: correct the name, or log in"
    refused(here("predict", f"hf://{NAME}", image), DATA, message)
    refused(here("predict", record["address"], image), DATA, record["address"])


def test_each_mistake_is_one_error(hub, here, run, image, tmp_path, monkeypatch):
    hub.add("other/empty", {"README.md": b"a"})
    for words, code, message in (
        (("push", run, "digits"), USAGE, "repository 'digits': give OWNER/NAME"),
        (("push", run, "a/b/c"), USAGE, "'a/b/c': give OWNER/NAME"),
        (("push", run, "other/empty"), DATA, "it does not exist, or is not yours"),
        (("push", run, "other/new"), DATA, "log in with a token that may write"),
        (("push", tmp_path / "none", NAME), DATA, "there is no folder"),
        (("predict", "hf://digits", image), USAGE, "give hf://OWNER/NAME or hf://OWNER/NAME@"),
        (("predict", "hf://me/none", image), DATA, "it does not exist, or is not yours"),
        (("predict", "hf://other/empty@v2", image), DATA, "there is no such revision: give a"),
        (("predict", f"hf://other/empty@{'f' * 40}", image), DATA, "there is no such revision"),
        (("predict", "hf://other/empty", image), DATA, "it has no model.safetensors: give"),
        (("predict", "hf://other/-..bad", image), USAGE, "has no such names: give hf://OWNER/NAME"),
        (("eval", "hf://other/empty"), USAGE, "hf://other/empty is an address"),
    ):
        refused(here(*words), code, message)
    hub.down = True
    refused(here("predict", "hf://me/x", image), ENVIRONMENT, "hf://me/x: the Hub cannot be reach")
    refused(here("push", run, NAME), ENVIRONMENT, f"hf://{NAME}: the Hub answers with status 503")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    refused(here("push", run, NAME), ENVIRONMENT, "the Hub cannot be reached (ConnectError)")
    (run / "result.json").unlink()
    refused(here("push", run, NAME), USAGE, "has no result or no model.safetensors: complete it")
    assert not secrets(tmp_path)


def test_what_is_no_model_of_lockstep_is_damaged_and_runs_no_code(hub, here, image, run, tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    content = bytearray((run / "model.safetensors").read_bytes())
    content[-5] ^= 1
    for name, data in (("pickle", pickle.dumps(Evil())), ("changed", bytes(content))):
        hub.add(f"other/{name}", {"model.safetensors": data, "evil.py": b"1"})
        done = here("predict", f"hf://other/{name}", image)
        assert (done.returncode, done.stdout) == (DATA, "")
        assert re.search(r"\nlockstep: \S+/model.safetensors is damaged.*\n\Z", done.stderr)
    assert not (tmp_path / "ran").exists()


def test_without_the_library_one_sentence_says_what_to_install(here, run, image, monkeypatch):
    monkeypatch.setattr(messages, "find_spec", lambda name: None)
    message = "hf needs huggingface_hub: pip install 'lockstep-images[hf]'"
    refused(here("push", run, NAME), ENVIRONMENT, message)
    refused(here("predict", f"hf://{NAME}", image), ENVIRONMENT, message)


def test_a_python_program_pushes_and_loads(hub, run):
    record = lockstep.push(lockstep.Run.open(run), NAME)
    assert lockstep.load(record.address).classes == tuple("0123456789")
    with pytest.raises(LockstepError, match="OWNER/NAME"):
        lockstep.push(run, "digits")


@pytest.mark.slow
def test_no_program_shows_or_keeps_the_token(hub, program, tmp_path, image):
    """From the training to the prediction, in everything that is printed or written."""
    train = ("train", *NATIVE, "--name", "a", "-v")
    lines = [train, ("push", "runs/a", NAME), ("predict", f"hf://{NAME}", image)]
    lines += [("push", "runs/a", "other/a"), ("predict", "hf://me/none", image)]
    for words in lines:
        done = program(*words)
        assert TOKEN not in done.stdout + done.stderr, words
        assert "Traceback" not in done.stderr
    assert any(f"Bearer {TOKEN}" in request for request in hub.requests)
    assert not secrets(tmp_path)
    files = hub.repositories[f"models/{NAME}"].commits.values()
    assert not any(TOKEN.encode() in content for each in files for content in each.values())
