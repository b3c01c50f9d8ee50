"""Numbers in docstrings and on the page about the originals equal those of the code."""

import importlib
import inspect
import re

import pytest
import torch
from tests.unit.test_parity import rows

from lockstep.config.placement import Placement
from lockstep.core.network import build_model
from lockstep.data.catalog import SOURCES
from lockstep.jobs.specs import EvalJob
from lockstep.models import MODELS
from lockstep.optim import Muon
from lockstep.recipes import RECIPES, named
from lockstep.settings import load_object

TUTORIAL, MNIST = named("cifar10-tutorial"), named("mnist")
COUNT = re.compile(r"(\d[\d ]*) parameters")
STATED = re.compile(r"(\d[\d ]*) parameters for (\d+)x(\d+) (grey|RGB)(?: and|,) (\d+) classes")


def spaced(number: float) -> str:
    """Return `number` with spaces between thousands, as in prose: 1 068 298."""
    return f"{number:,.0f}".replace(",", " ")


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def model_docstrings(name: str) -> str:
    """Return the docstrings of the model's module and of its classes and functions."""
    module = importlib.import_module(MODELS[name].partition(":")[0])
    members = [member for member in vars(module).values() if getattr(member, "__module__", None) == module.__name__]
    return "\n".join(inspect.getdoc(part) or "" for part in [module, *members])


@pytest.mark.parametrize("name", MODELS)
def test_the_parameter_counts_in_docstrings_are_correct(name):
    text = model_docstrings(name)
    stated = STATED.findall(text)
    assert len(stated) == len(COUNT.findall(text)), "state the images and the number of classes"
    for count, height, width, colour, classes in stated:
        shape = {"grey": 1, "RGB": 3}[colour], int(height), int(width)
        model = load_object(MODELS[name])(shape, int(classes))
        assert parameters(model) == int(count.replace(" ", "")), name


def test_the_docstrings_of_three_models_count_parameters():
    assert {name for name in MODELS if COUNT.search(model_docstrings(name))} == {"digits", "tutorial", "mnist"}


def test_the_digits_network_has_the_layers_of_its_docstring():
    text = model_docstrings("digits")
    model = load_object(MODELS["digits"])((1, 8, 8), 10)
    kinds = [type(layer).__name__ for layer in model.modules()]
    assert "Three 3x3 convolutions, each with batch norm and a ReLU, then dropout and the logits" in text
    assert [kinds.count(kind) for kind in ("Conv2d", "BatchNorm2d", "ReLU", "Dropout", "Linear")] == [3, 3, 3, 1, 1]
    sides = {}
    for name, layer in model.named_modules():
        if name in ("conv1", "conv2", "conv3", "logits"):
            layer.register_forward_hook(lambda _, inputs, output, name=name: sides.update({name: inputs[0].shape[1:]}))
    model(torch.rand(2, 1, 8, 8))
    assert "A 2x2 max-pool follows the second convolution and the third" in text
    assert sides == {"conv1": (1, 8, 8), "conv2": (32, 8, 8), "conv3": (64, 4, 4), "logits": (64 * 2 * 2,)}


def recipe_statements() -> dict[str, list[str]]:
    """Return, for each recipe, what its docstring must state, made of its settings."""
    wide, narrow = (
        parameters(build_model(named(name), (3, 32, 32), 10)) for name in ("cifar10-96", "cifar10")
    )  # fmt: skip
    large, plain, epochs = named("cifar10-96"), named("cifar10"), named("cifar100").epochs
    times = {2: "twice", 5: "five times"}
    return {
        "digits": [f"{spaced(SOURCES['digits'].images)} real 8x8 digits"],
        "mnist": [
            f"{MNIST.towers} towers of {spaced(MNIST.tower_batch)} images, {MNIST.steps} steps of "
            f"{type(MNIST.optimizer).__name__}"
        ],
        "cifar10-96": [
            f"The network of `{plain.name}` {times[round(wide / narrow)]} as large", f"{large.epochs:g} epochs",
        ],
        "cifar100": [
            f"The network and the rules of `{plain.name}` on {named('cifar100').dataset.removeprefix('cifar')} classes",
            f"for {times[epochs / plain.epochs]} the epochs",
        ],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["digits", "mnist", "cifar10-96", "cifar100"])
def test_a_recipes_docstring_states_its_settings(name):
    text = " ".join(inspect.getdoc(RECIPES[name]).split())
    for statement in recipe_statements()[name]:
        assert statement in text


def test_the_docstrings_of_the_cifar10_recipes_state_their_settings():
    fast, record = named("cifar10"), named("cifar10-record")
    assert "small images first, a whitened first layer, Muon" in inspect.getdoc(RECIPES["cifar10"])
    assert list(fast.progressive.sizes_px) == sorted(fast.progressive.sizes_px)
    assert (fast.model, type(fast.optimizer)) == ("whitened", Muon)
    assert "one tower, compiled, full-sized images" in inspect.getdoc(RECIPES["cifar10-record"])
    assert (record.towers, record.compile, record.progressive) == (1, True, None)


def page_statements() -> dict[int, list[str]]:
    """Return, for each row of the page, what it must state, made of the recipes' settings and the defaults."""
    distort, staircase, placement = TUTORIAL.augmentation, TUTORIAL.schedule, Placement()
    (decay,) = set(TUTORIAL.weight_decay.values())
    first_dense, second_dense = (name.removesuffix(".weight") for name in TUTORIAL.weight_decay)
    first = next(step for step in range(1, 200_000) if TUTORIAL.bind(50_000).learning_rate(step) < TUTORIAL.lr)
    network, mnist = build_model(TUTORIAL, (3, 24, 24), 10), build_model(MNIST, (1, 28, 28), 10)
    dropped = mnist.dropout.p
    return {
        5: [f"{distort.crop_px}x{distort.crop_px} crop", f"both offsets uniform in 0 to {32 - distort.crop_px}"],
        6: [
            "flip, brightness, contrast", f"one value of [-{distort.brightness:g}, {distort.brightness:g})",
            "one factor of [{:g}, {:g})".format(*distort.contrast),
        ],
        7: [f"1/sqrt({3 * distort.crop_px**2})"],
        12: [f"{spaced(parameters(network))} parameters"],
        14: [f"plus {decay:g}/2 of the squared norm of {first_dense}'s and {second_dense}'s weights"],
        16: [
            "no momentum", f"{TUTORIAL.lr:g}, times {staircase.decay:g} every {staircase.every_epochs:g} epochs",
            f"first at step {spaced(first)} with batch {TUTORIAL.batch}",
        ],
        17: [f"first decay at step {spaced(first)} / N"],
        18: [f"decay min({TUTORIAL.ema.decay:g}, (1 + n) / (10 + n))"],
        22: [f"{TUTORIAL.tower_batch} for each GPU"],
        26: [f"a line every {placement.log_every} steps"],
        30: [f"summaries every {placement.summary_every} steps"],
        34: [f"after 0, {placement.save_every}, ... updates", f"the latest {placement.keep} and the best"],
        37: [f"the recipe has {spaced(TUTORIAL.steps)} steps"],
        40: [f"`--watch --interval S` ({EvalJob.model_fields['interval'].default:g} s)"],
        48: [
            f"{spaced(parameters(mnist))} parameters",
            f"{dropped:.0%} of the units dropped, the others times {1 / (1 - dropped):g}".replace("%", " %"),
        ],
        49: [f"{type(MNIST.optimizer).__name__} at {MNIST.lr:g}", f"its {spaced(MNIST.tower_batch)} rows"],
    }  # fmt: skip


def test_the_constants_of_the_parity_page_are_the_recipes():
    page = {number: " | ".join(cells).lower() for number, cells in rows("").items()}
    for number, statements in page_statements().items():
        for statement in statements:
            assert statement.lower() in page[number], f"row {number}"
