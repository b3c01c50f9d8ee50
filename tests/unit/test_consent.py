"""Code that a file names is executed only if the command, or the Python call, names it with its options too."""

import json

import pytest

import lockstep
from lockstep.commands.specs import subject_of
from lockstep.config.consent import check_code, stated
from lockstep.errors import USAGE, LockstepError
from lockstep.recipes import get_recipe
from lockstep.runs.folder import Folder

HUB = {
    "model": "torch.hub:load", "weight_decay": {},
    "model_options": {"repo_or_dir": "their/network", "model": "net", "trust_repo": True},
}  # fmt: skip
HUB_CALL = 'torch.hub:load(repo_or_dir="their/network", model="net", trust_repo=True)'
OWN = {"model": "mynet:build", "weight_decay": {}, "model_options": {"width": 64, "depths": [2, 2], "bias": True}}
TIMM = {"model": "timm:create_model", "weight_decay": {}, "model_options": {"model_name": "hf-hub:their/network"}}


@pytest.fixture(params=["recipe file", "run"])
def written(request, tmp_path):
    """Return written(changes) -> the path of a recipe file, or of a run, of `digits` with `changes`."""

    def write(changes):
        recipe = get_recipe("digits").replace(**changes)
        if request.param == "run":
            Folder.create(tmp_path / "theirs", recipe).close()
            return str(tmp_path / "theirs")
        (tmp_path / "theirs.toml").write_text(recipe.toml())
        return str(tmp_path / "theirs.toml")

    return write


@pytest.mark.parametrize(
    ("changes", "given", "asked"),
    [
        (HUB, {}, f"a model that is not built in, {HUB_CALL},"),
        (HUB, {"model": "torch.hub:load"}, f"add --model '{HUB_CALL}'"),
        (HUB, {"model": 'torch.hub:load(model="net")'}, f"add --model '{HUB_CALL}'"),
        (HUB, {"model": "torch.hub:load", "model_options.model": "net"}, f"add --model '{HUB_CALL}'"),
        (TIMM, {"model": "timm:create_model"}, "add --model 'timm:create_model(model_name=\"hf-hub:their/network\")'"),
        (OWN, {}, "add --model mynet:build"),
        ({"dataset": "mine:data"}, {}, "add --dataset mine:data"),
        ({**OWN, "dataset": "mine:data"}, {"model": "mynet:build"}, "add --dataset mine:data"),
        ({**OWN, "dataset": "mine:data"}, {}, "add --model mynet:build --dataset mine:data"),
    ],
)
def test_code_that_a_file_names_is_refused_until_the_command_names_all_of_it(written, changes, given, asked):
    with pytest.raises(LockstepError) as caught:
        subject_of(written(changes), given)
    assert caught.value.code == USAGE
    assert asked in str(caught.value)
    assert subject_of(written(changes), {}, imports=False).recipe.model_options == changes.get("model_options", {})


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        (HUB, {"model": HUB_CALL}),
        (HUB, {"model": "torch.hub:load", "model_options": HUB["model_options"]}),
        (HUB, {"model": "torch.hub:load(model='net')", "model_options.repo_or_dir": "their/network"}),
        (OWN, {"model": "mynet:build"}),
        (OWN, {"model": "mynet:build(width=64)"}),
        ({**OWN, "dataset": "mine:data"}, {"model": "mynet:build", "dataset": "mine:data"}),
    ],
)
def test_naming_all_of_it_is_consent(written, changes, given):
    recipe = subject_of(written(changes), given).recipe
    assert recipe == get_recipe("digits").replace(**changes)
    assert subject_of(recipe, {}).recipe == recipe  # a value of the caller's own program


def test_the_options_of_a_file_are_not_those_of_another_model(written):
    recipe = subject_of(written({"model_options": {"a": "b"}}), {"model": "timm:create_model(model_name='x')"}).recipe
    assert (recipe.model, recipe.model_options) == ("timm:create_model", {"model_name": "x"})


def test_a_file_with_options_for_the_model_of_the_command_is_refused(tmp_path):
    (tmp_path / "r.toml").write_text('model_options = {model_name = "hf-hub:their/network"}\n')
    fields = {name: value for name, value in get_recipe("digits").model_dump(mode="json").items() if value}
    with pytest.raises(LockstepError, match="executes its code with these options"):
        subject_of(str(tmp_path / "r.toml"), {**fields, "model": "timm:create_model"})


@pytest.mark.parametrize("command", ["train", "bench"])
def test_a_recipe_file_alone_executes_nothing(command, refused_here, tmp_path):
    (tmp_path / "hubconf.py").write_text("open('executed', 'w')\n")
    options = {"repo_or_dir": str(tmp_path), "source": "local", "trust_repo": True, "model": "net"}
    (tmp_path / "theirs.toml").write_text(get_recipe("digits").replace(**HUB | {"model_options": options}).toml())
    done = refused_here(command, "theirs.toml")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert f'add --model \'torch.hub:load(repo_or_dir="{tmp_path}"' in done.stderr
    with pytest.raises(LockstepError, match="executes its code"):
        lockstep.train(tmp_path / "theirs.toml", quiet=True)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "mine:net"}, "was trained with model torch.hub:load: give that, or leave it out"),
        ({"model": "torch.hub:load(model='other')"}, "its model differ"),
        ({"model": "torch.hub:load(1)"}, "give package.module:function, or with options as in"),
        ({"model": "torch.hub:load(model=open('x'))"}, "give package.module:function, or with options as in"),
        ({"model": "torch.hub:load(**{'model': 1})"}, "give package.module:function, or with options as in"),
        ({"model": "torch.hub:load(model=1", "model_options.model": 1}, "give package.module:function, or with"),
        ({"model": "torch.hub:load(model=1)", "model_options.model": 1}, "model_options.model is given twice"),
    ],
)
def test_a_wrong_consent_is_one_message(given, message):
    with pytest.raises(LockstepError) as caught:
        check_code("runs/a", get_recipe("digits").replace(**HUB), given)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ['it\'s "so"', "\x1b[2J\n", "\u202e\U0001f600", "\udcff", "a\\b"])
def test_any_text_can_be_named_as_the_message_writes_it(text):
    recipe = get_recipe("digits").replace(**OWN | {"model_options": {"name": text, "more": [text, 1.5, {"x": True}]}})
    call = recipe.custom_code["model"]
    assert call.isprintable()
    assert stated({"model": call}) == {
        "model": "mynet:build", "model_options.name": text, "model_options.more": [text, 1.5, {"x": True}],
    }  # fmt: skip
    check_code("runs/a", recipe, {"model": call})
    json.dumps(call)
