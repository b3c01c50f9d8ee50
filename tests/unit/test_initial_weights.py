"""--init: weights from files and runs, what matches, what is refused, and runs that start from
them.
"""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers import WHITENED, lockstep_error, recipe_with, replica
from tests.runs import fit_here

from lockstep.classify.classifier import weights_of
from lockstep.commands.plan import starting_from, train_spec
from lockstep.config.placement import Placement
from lockstep.core.build import build_model
from lockstep.errors import DATA, USAGE
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.weights import find_weights, load_initial_weights
from lockstep.launch.world import World
from lockstep.runs.run_folder import RunFolder

SHAPE = (1, 8, 8)


def recipe(**changes):
    return recipe_with("digits", {"steps": 4, "portable": False, **changes})


def model(seed=0, classes=10, **changes):
    return build_model(recipe(seed=seed, **changes), SHAPE, classes)


def loaded(path, into=None):
    into = into or model(seed=1)
    return into, load_initial_weights(into, "digits", path, find_weights(path).sha256)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "a"
    fit_here(recipe(), path, Placement(save_every=2, save_every_s=0, summary_every=0))
    return path


def test_all_weights_and_averages_are_loaded_but_no_batch_count(tmp_path):
    trained = model()
    trained.train()(torch.rand(4, *SHAPE))
    state = trained.state_dict()
    torch.save(state, tmp_path / "w.pth")
    into, taken = loaded(tmp_path / "w.pth")
    weights = {key for key in state if not key.endswith("num_batches_tracked")}
    assert {*taken.loaded} == weights
    assert all(torch.equal(into.state_dict()[key], state[key]) for key in weights)
    assert into.norm1.num_batches_tracked == 0
    assert (str(taken), taken.complete) == ("17 of 17 tensors are loaded", True)


def test_what_does_not_match_is_named_and_stays_initial(tmp_path):
    state = model(classes=7).state_dict()
    state["head.bias"] = state.pop("norm1.bias")
    # another floating-point type is converted
    state["conv1.weight"] = state["conv1.weight"].to(torch.bfloat16)
    state["conv2.weight"] = (state["conv2.weight"] * 100).to(torch.int8)
    save_file(state, tmp_path / "w.safetensors")
    into, taken = loaded(tmp_path / "w.safetensors")
    kept = ["conv2.weight", "norm1.bias", "logits.weight", "logits.bias"]
    assert sorted(taken.new) == sorted(kept)
    assert sorted(taken.left) == sorted({*kept, "head.bias"} - {"norm1.bias"})
    assert str(taken).startswith("13 of 17 tensors are loaded; new: 4 (")
    assert not taken.complete
    torch.save(model(classes=7).state_dict(), tmp_path / "other-classes.pt")
    assert loaded(tmp_path / "other-classes.pt")[1].complete
    before, after = model(seed=1).state_dict(), into.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in kept)
    assert torch.equal(after["conv1.weight"], state["conv1.weight"].float())


class Code:
    """A pickle of this object needs its class, and with it code."""


def not_finite():
    state = model().state_dict()
    state["conv1.weight"][0] = torch.nan
    return state


NONE = "none of its tensors has the name and shape"
REFUSED = [
    ("w.pth", not_finite, DATA, "conv1.weight has values that are infinite or not a num"),
    ("w.pth", lambda: {"norm1.running_mean": torch.ones(32)}, USAGE, NONE),
    ("w.pth", lambda: {"conv1.weight": torch.ones(32, 1, 3, 3) * 1j}, USAGE, NONE),
    ("w.pth", lambda: {"epoch": 3}, DATA, "something other than tensors by name"),
    ("w.pth", lambda: [torch.ones(2)], DATA, "something other than tensors by name"),
    ("w.pth", lambda: model().state_dict() | {"args": Code()}, DATA, "is damaged"),
    ("w.pt", lambda: b"<html>404</html>", DATA, "is damaged"),
    ("w.safetensors", dict, USAGE, NONE),
    ("w.safetensors", lambda: b"", DATA, "is damaged"),
    ("missing.pt", None, DATA, "cannot be read: No such file"),
    ("w.pth", lambda: {"conv1.weight": torch.ones(32, 1, 3, 3).to_sparse()}, USAGE, NONE),
    ("", None, USAGE, "is not a run: it has no recipe.json"),
]


@pytest.mark.parametrize(("name", "value", "code", "message"), REFUSED)
def test_what_cannot_be_used_is_one_message(tmp_path, name, value, code, message):
    path = tmp_path / name
    content = value() if value else None
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        (save_file if path.suffix == ".safetensors" else torch.save)(content, path)
    with lockstep_error(message, code) as error:
        loaded(path)
    assert str(error.value).isprintable()


def test_a_run_gives_final_weights_or_its_newest_checkpoint(finished, tmp_path):
    found = find_weights(finished)
    assert (found.path, found.run) == (finished / "model.safetensors", finished)
    final = load_file(found.path)
    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "model.safetensors").unlink()
    found = find_weights(copy)
    assert found.path == copy / "checkpoints/step-000000004.safetensors"
    into, _ = loaded(found.path)  # of a checkpoint the averaged weights are loaded, as of the model
    assert all(torch.equal(tensor, final[name]) for name, tensor in into.named_parameters())
    content = found.path.read_bytes()
    sound = found.path.with_name("step-000000002.safetensors")
    for damaged in (
        b"cut",
        content[:-1],
        content[:-1] + b"\0",
    ):  # The last two have their metadata.
        found.path.write_bytes(damaged)
        assert find_weights(copy).path == weights_of(copy)[1].path == sound
    shutil.rmtree(copy / "checkpoints")
    with lockstep_error("has no checkpoint any more, although it is complete"):
        find_weights(copy)


def starting(path, **changes):
    found = find_weights(path)
    return recipe(init_sha256=found.sha256, **changes), Placement(init=found.path, summary_every=0)


def test_a_run_starts_from_weights_and_resumes_without_the_file(finished, tmp_path, capsys):
    copy = shutil.copy(finished / "model.safetensors", tmp_path / "w.safetensors")
    own, placement = starting(copy, seed=5)
    whole = fit_here(own, tmp_path / "b", placement.replace(save_every=2)).result
    assert f"parameters, from the weights {copy}\n" in capsys.readouterr().err
    first = load_file(tmp_path / "b/checkpoints/step-000000000.safetensors")
    weights = load_file(copy)
    for name, tensor in first.items():
        kind, _, key = name.partition("/")
        if kind in ("parameter", "ema") or (
            kind == "buffer" and not key.endswith("num_batches_tracked")
        ):
            assert torch.equal(tensor, weights[key]), name
    assert first["buffer/norm1.num_batches_tracked"] == 0

    copy.unlink()
    for name in ("result.json", "checkpoints/step-000000004.safetensors"):
        (tmp_path / "b" / name).unlink()
    resumed = fit_here(own, tmp_path / "b", Placement(summary_every=0), resume=True).result
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    # the probe does not depend on the file, which is gone
    assert resumed["mixed_arithmetic"] is False
    assert (tmp_path / "b/log.txt").read_text().count(" tensors are loaded") == 1


def test_weights_that_are_missing_or_have_changed_are_refused(finished, tmp_path):
    own, placement = starting(finished)
    with lockstep_error("give their file or run as --init"):
        fit_here(own, tmp_path / "b")
    with lockstep_error("its sha256 is not the recipe's init_sha256", DATA):
        fit_here(own.replace(init_sha256="0" * 64), tmp_path / "b", placement)


@pytest.mark.parametrize("stored", [True, False])
def test_whitening_is_fitted_to_images_unless_the_file_has_it(tmp_path, stored):
    source = replica(WHITENED)
    fitted = source.state.buffers["whitening"]
    assert fitted.any()
    weights = {
        name: tensor.clone()
        for name, tensor in {**source.state.parameters, **source.state.buffers}.items()
    }
    weights["whitening"] += 1
    expected = weights["whitening"] if stored else fitted
    if not stored:
        del weights["whitening"]
    save_file(weights, tmp_path / "w.safetensors")
    found = find_weights(tmp_path / "w.safetensors")
    own = source.recipe.replace(init_sha256=found.sha256, seed=9)
    built = Replica(own, Placement(init=found.path), Context(), source.splits)
    assert torch.equal(built.state.buffers["whitening"], expected)


def test_the_recipe_states_the_weights(finished, tmp_path):
    found, plain = find_weights(finished), recipe()
    assert starting_from(plain, None) == plain
    assert starting_from(plain, found).init_sha256 == found.sha256
    stated = plain.replace(init_sha256="0" * 64)
    for weights, message in (
        (found, "init_sha256 is 0000"),
        (None, "give their file or run as --init.*--set init_sha256=none"),
    ):
        with lockstep_error(message):
            starting_from(stated, weights)


def test_a_run_to_continue_was_started_from_its_weights(finished, tmp_path):
    found, plain = find_weights(finished), recipe()

    def init_of(name, init):
        place = Placement(device="cpu", init=init)
        how = {"name": name, "runs": tmp_path, "resume": True}
        return train_spec(plain, {}, place, World(), **how).recipe.init_sha256

    RunFolder.create(tmp_path / "a", plain.replace(init_sha256=found.sha256)).close()
    RunFolder.create(tmp_path / "b", plain).close()
    assert init_of("a", None) == init_of("a", finished) == found.sha256
    with lockstep_error("was not started from .*: leave out --init to resume it"):
        init_of("b", finished)
