"""--init: weights from files and runs, what matches, what is refused, and runs that start from them."""

import collections
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.runs import fit_here
from torch import nn

from lockstep import files
from lockstep.commands.specs import RunFolder, with_initial_weights
from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core.model import build_model
from lockstep.errors import DATA, USAGE, LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.initial_weights import load_initial_weights
from lockstep.jobs.session import Session
from lockstep.recipes import get_recipe
from lockstep.runs import saver, statefile
from lockstep.runs.weights_file import find_weights

DIGITS = get_recipe("digits").model_dump(mode="json")
SHAPE = (1, 8, 8)


def recipe(**changes):
    return make(DIGITS, {"steps": 4, **changes})


def model(seed=0, classes=10, **changes):
    return build_model(recipe(seed=seed, **changes), SHAPE, classes)


def loaded(path, into=None):
    into = into or model(seed=1)
    return into, load_initial_weights(into, "digits", path, find_weights(path).sha256)


def test_a_file_without_tensors_is_refused(tmp_path):
    save_file({}, tmp_path / "w.safetensors")
    with pytest.raises(LockstepError, match="none of its tensors has the name and shape of a parameter"):
        loaded(tmp_path / "w.safetensors")


def torch_file(path, value):
    torch.save(value, path)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "a"
    fit_here(recipe(), path, Placement(save_every=2))
    return path


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth"])
def test_all_weights_of_a_file_are_loaded(tmp_path, name):
    state = model().state_dict()
    path = tmp_path / name
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    into, table = loaded(path)
    counters = {key for key in state if key.endswith("num_batches_tracked")}
    assert set(table.loaded) == state.keys() - counters
    assert all(torch.equal(tensor, state[key]) for key, tensor in into.state_dict().items())
    assert (table.new, table.mismatched, table.unused) == ((), (), ())
    assert table.lines() == [
        ("init", f"{path} (sha256 {table.sha256[:12]})"),
        ("loaded", "17 of 17 tensors, 58,474 of 58,474 parameters"),
    ]


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model", "model_state_dict", "net"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_wrappers_and_prefixes_of_other_programs_are_removed(tmp_path, wrapper, prefix):
    state = collections.OrderedDict((prefix + key, tensor) for key, tensor in model().state_dict().items())
    value = {wrapper: state, "epoch": 3, "optimizer": {"state": {}}} if wrapper else state
    into, table = loaded(torch_file(tmp_path / "w.pth", value))
    assert len(table.loaded) == 17
    assert torch.equal(into.conv1.weight, model().conv1.weight)


def test_what_does_not_match_is_named_and_keeps_its_initial_weights(tmp_path):
    state = model(classes=7).state_dict()
    state["head.bias"] = state.pop("norm1.bias")
    state["conv2.weight"] = (state["conv2.weight"] * 100).to(torch.int8)
    save_file(state, tmp_path / "w.safetensors")
    before = model(seed=1).state_dict()
    into, table = loaded(tmp_path / "w.safetensors")
    after = into.state_dict()
    assert table.lines()[1:] == [
        (
            "loaded",
            "13 of 17 tensors, 37,440 of 58,474 parameters; "
            "of another shape or type in the file: 3 (conv2.weight, logits.weight, logits.bias); "
            "not in the file: 1 (norm1.bias); not in the model: 1 (head.bias)",
        )
    ]
    kept = {"conv2.weight", "logits.weight", "logits.bias", "norm1.bias"}
    assert {key for key in after if torch.equal(after[key], before[key]) and key.rpartition(".")[0] not in (
        "norm1", "norm2", "norm3")} == kept - {"norm1.bias"}  # fmt: skip
    assert torch.equal(after["norm1.bias"], before["norm1.bias"])


def test_other_classes_of_the_file_are_named(tmp_path):
    def line(path, classes):
        table = load_initial_weights(model(seed=1), "digits", path, find_weights(path).sha256, classes)
        return dict(table.lines()).get("classes", "")

    path, digits = tmp_path / "state.safetensors", "0123456789"
    statefile.write(path, model().state_dict(), {"classes": list(digits)})
    assert "label 2 is '2' in it, and 'x' in the dataset" in line(path, "01x3456789")
    assert line(path, digits) == line(path, "01") == ""
    save_file(model().state_dict(), path)
    assert line(path, "01x3456789") == ""
    found = saver.save(tmp_path, {"step": torch.tensor(1), **model().state_dict()}, {"classes": list(digits)})
    sha256 = files.sha256(found)
    table = load_initial_weights(model(), "digits", found, sha256, "01x3456789")
    assert table.other_class == (2, "'2'", "'x'")


def test_a_line_of_many_tensors_stays_short(tmp_path):
    many = nn.Sequential(*(nn.Linear(2, 2) for _ in range(100)))
    names = [name for name, _ in many.named_parameters()]
    path = tmp_path / "w.safetensors"
    save_file({name: torch.ones_like(many.state_dict()[name]) for name in names[:80]}, path)
    table = load_initial_weights(many, "many", path, find_weights(path).sha256)
    assert table.lines()[1:] == [
        (
            "loaded",
            "80 of 200 tensors, 240 of 600 parameters; not in the file: 120 "
            "(40.weight, 40.bias, 41.weight, 41.bias, 42.weight, 42.bias, and 114 more)",
        )
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_point_types_are_converted(tmp_path, dtype):
    state = {key: tensor.to(dtype) for key, tensor in model().state_dict().items() if tensor.is_floating_point()}
    save_file(state, tmp_path / "w.safetensors")
    into, _ = loaded(tmp_path / "w.safetensors")
    assert into.conv1.weight.dtype == torch.float32
    assert torch.equal(into.conv1.weight, state["conv1.weight"].float())


def test_running_averages_are_loaded_and_the_count_of_batches_is_not(tmp_path):
    trained = model()
    trained.train()(torch.rand(4, *SHAPE))
    save_file(trained.state_dict(), tmp_path / "w.safetensors")
    into, _ = loaded(tmp_path / "w.safetensors")
    assert torch.equal(into.norm1.running_mean, trained.norm1.running_mean)
    assert (int(trained.norm1.num_batches_tracked), int(into.norm1.num_batches_tracked)) == (1, 0)


def test_tied_weights_are_found_under_either_name(tmp_path):
    def tied():
        network = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        network[1].weight = network[0].weight
        return network

    first, second = tied(), tied()
    torch.save({"1.weight": first[1].weight.detach()}, tmp_path / "w.pt")
    table = load_initial_weights(second, "tied", tmp_path / "w.pt", find_weights(tmp_path / "w.pt").sha256)
    assert (table.loaded, table.new, table.values) == (("0.weight",), (), 9)
    assert torch.equal(second[0].weight, first[0].weight)


class Code:
    """A pickle of this object needs its class, and with it code."""


def changed(key, change):
    state = model().state_dict()
    state[key] = change(state[key])
    return state


def nan(tensor):
    return tensor.index_fill(0, torch.tensor(0), torch.nan)


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        (lambda: changed("conv1.weight", nan), DATA, "conv1.weight has values that are infinite or not a number"),
        (lambda: changed("conv1.weight", lambda t: t.to(torch.complex64)), DATA, "conv1.weight has complex numbers"),
        (lambda: {"a": torch.ones(2)}, USAGE, r"none of its tensors .* The file has a \[2\]\. The model has conv1.w"),
        (lambda: {"norm1.running_mean": torch.ones(32)}, USAGE, "none of its tensors has the name and shape"),
        (lambda: {"epoch": 3}, USAGE, "has no tensors by name, neither at its top nor under state_dict, model"),
        (lambda: [torch.ones(2)], USAGE, "has no tensors by name"),
        (
            lambda: {"state_dict": model().state_dict(), "args": Code()},
            USAGE,
            r"would execute code \(tests.unit.test_initial_weights.Code\)",
        ),
        (model, USAGE, r"would execute code \(lockstep.*torch.save\(model.state_dict"),
    ],
)
def test_a_file_whose_content_cannot_be_used_is_one_message(tmp_path, value, code, message):
    path = torch_file(tmp_path / "w.pth", value())
    with pytest.raises(LockstepError, match=message) as error:
        loaded(path)
    assert error.value.code == code
    assert str(error.value).startswith(f"--init {path}: ")
    assert str(error.value).isprintable()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_a_damaged_file_is_one_message(tmp_path, suffix, damage):
    path = tmp_path / f"w{suffix}"
    if suffix == ".pt":
        torch.save(model().state_dict(), path)
    else:
        save_file(model().state_dict(), path)
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "text": b"<html>404</html>", "empty": b""}[damage])
    with pytest.raises(LockstepError, match="is damaged") as error:
        loaded(path)
    assert error.value.code == DATA
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("missing.pt", DATA, "there is no such file or run"),
        ("net.onnx", USAGE, "ONNX files do not keep torch's names"),
        ("weights.h5", USAGE, "give a .safetensors file, a file of torch.save"),
        ("folder", USAGE, "is not a run: it has no recipe.json"),
    ],
)
def test_a_path_that_is_no_weights_is_one_message(tmp_path, name, code, message):
    if name == "folder":
        (tmp_path / name).mkdir()
    elif not name.startswith("missing"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(LockstepError, match=message) as error:
        find_weights(tmp_path / name)
    assert error.value.code == code


def test_a_run_gives_its_final_weights_or_its_newest_valid_checkpoint(finished, tmp_path):
    found = find_weights(finished)
    assert (found.path, found.run) == (finished / "model.safetensors", finished)
    into, _ = loaded(finished / "model.safetensors")
    final = {key: tensor.clone() for key, tensor in into.state_dict().items()}

    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "model.safetensors").unlink()
    found = find_weights(copy)
    assert found.path == copy / "checkpoints/step-000000004.safetensors"
    into, _ = loaded(found.path)  # of a checkpoint the averaged weights are loaded, as of the model
    assert all(torch.equal(tensor, final[key]) for key, tensor in into.state_dict().items())

    found.path.write_bytes(b"cut")
    assert find_weights(copy).path.name == "step-000000002.safetensors"
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(LockstepError, match=r"neither a model.safetensors nor a checkpoint: train it"):
        find_weights(copy)


def starting(path, **changes):
    found = find_weights(path)
    return recipe(init_sha256=found.sha256, **changes), Placement(init=found.path)


def test_a_run_starts_from_the_weights_and_resumes_without_the_file(finished, tmp_path, capsys):
    copy = shutil.copy(finished / "model.safetensors", tmp_path / "w.safetensors")
    own, placement = starting(copy, seed=5)
    whole = fit_here(own, tmp_path / "b", placement.replace(save_every=2)).result
    assert "loaded" in capsys.readouterr().err
    first = load_file(tmp_path / "b/checkpoints/step-000000000.safetensors")
    weights = load_file(copy)
    for name, tensor in first.items():
        kind, _, key = name.partition("/")
        if kind in ("parameter", "ema") or (kind == "buffer" and not key.endswith("num_batches_tracked")):
            assert torch.equal(tensor, weights[key]), name
    assert first["buffer/norm1.num_batches_tracked"] == 0

    copy.unlink()
    for name in ("result.json", "checkpoints/step-000000004.safetensors"):
        (tmp_path / "b" / name).unlink()
    resumed = fit_here(own, tmp_path / "b", Placement(), resume=True, strict=True).result
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert resumed["mixed_arithmetic"] is False  # the probe does not depend on the file, which is gone
    log = (tmp_path / "b/log.txt").read_text()
    assert log.count("  loaded  ") == log.count("sha256 ") - 2 == 1  # once: the end block has a sha256 too


def test_a_run_without_checkpoint_or_file_does_not_start_from_random_weights(finished, tmp_path):
    own, _ = starting(finished)
    with pytest.raises(LockstepError, match="give their file or run as --init"):
        fit_here(own, tmp_path / "b")


def test_a_file_that_has_changed_is_refused(finished, tmp_path):
    own, placement = starting(finished)
    with pytest.raises(LockstepError, match="its sha256 is not the recipe's init_sha256") as error:
        fit_here(own.replace(init_sha256="0" * 64), tmp_path / "b", placement)
    assert error.value.code == DATA


def test_whitening_does_not_replace_loaded_weights(tmp_path):
    from tests.unit.test_session import WHITENED, session

    fitted = session(WHITENED).state
    weights = {name: tensor.clone() for name, tensor in {**fitted.parameters, **fitted.buffers}.items()}
    weights["whitening"] += 1
    save_file(weights, tmp_path / "w.safetensors")
    found = find_weights(tmp_path / "w.safetensors")
    source = session(WHITENED)
    own = source.recipe.replace(init_sha256=found.sha256, seed=9)
    built = Session(own, Placement(init=found.path), Context(), source.splits)
    assert torch.equal(built.state.buffers["whitening"], weights["whitening"])
    del weights["whitening"]
    save_file(weights, tmp_path / "w.safetensors")
    found = find_weights(tmp_path / "w.safetensors")
    built = Session(own.replace(init_sha256=found.sha256), Placement(init=found.path), Context(), source.splits)
    assert torch.equal(built.state.buffers["whitening"], fitted.buffers["whitening"])  # fitted to the images


def test_the_recipe_states_the_weights(finished, tmp_path):
    found = find_weights(finished)
    other, plain = "0" * 64, recipe()
    stated = plain.replace(init_sha256=other)
    new = RunFolder(tmp_path / "a")
    assert with_initial_weights(plain, None, new) == plain
    assert with_initial_weights(plain, found, new).init_sha256 == found.sha256
    assert with_initial_weights(stated, found, new, own_recipe=False).init_sha256 == found.sha256
    with pytest.raises(LockstepError, match="init_sha256 is 0000"):
        with_initial_weights(stated, found, new)
    with pytest.raises(LockstepError, match=r"give their file or run as --init.*--set init_sha256=none"):
        with_initial_weights(stated, None, new)

    begun = RunFolder(tmp_path / "b", stated={"init_sha256": found.sha256})
    assert with_initial_weights(plain, None, begun).init_sha256 == found.sha256
    assert with_initial_weights(plain, found, begun).init_sha256 == found.sha256
    assert with_initial_weights(stated, None, begun) == stated  # refused later, as another recipe
    with pytest.raises(LockstepError, match=r"was not started from .*: leave out --init to resume it"):
        with_initial_weights(plain, found, RunFolder(tmp_path / "c", stated={}))


@pytest.mark.parametrize("value", ["abc", "0" * 63, "G" * 64, 5])
def test_a_setting_that_is_no_sha256_is_refused(value):
    with pytest.raises(LockstepError, match="init_sha256"):
        recipe(init_sha256=value)
