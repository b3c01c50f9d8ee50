"""Numbers in docstrings and on the page about the originals equal those of the code."""

import importlib
import inspect
import re

import pytest
import torch
from tests.unit.test_parity import PAGE

from lockstep.config.placement import Placement
from lockstep.core.model import build_model
from lockstep.models import MODELS
from lockstep.recipes import get_recipe
from lockstep.settings import load_object

TUTORIAL, MNIST = get_recipe("cifar10-tutorial"), get_recipe("mnist")
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
    assert bool(stated) == (name in ("digits", "tutorial", "mnist"))
    assert len(stated) == len(COUNT.findall(text)), "state the images and the number of classes"
    for count, height, width, colour, classes in stated:
        shape = {"grey": 1, "RGB": 3}[colour], int(height), int(width)
        model = load_object(MODELS[name])(shape, int(classes))
        assert parameters(model) == int(count.replace(" ", "")), name


def page_statements() -> dict[int, list[str]]:
    """Return, for each row of the page, what it must state, made of the recipes' settings and the defaults."""
    distort, staircase, placement = TUTORIAL.augmentation, TUTORIAL.schedule, Placement()
    (decay,) = set(TUTORIAL.weight_decay.values())
    first_dense, second_dense = (name.removesuffix(".weight") for name in TUTORIAL.weight_decay)
    first = next(step for step in range(1, 200_000) if TUTORIAL.bind(50_000).learning_rate(step) < TUTORIAL.lr)
    network, mnist = build_model(TUTORIAL, (3, 24, 24), 10), build_model(MNIST, (1, 28, 28), 10)
    dropped = mnist.dropout.p
    return {
        5: [f"{distort.crop_px}x{distort.crop_px} crop", f"offsets uniform in 0 to {32 - distort.crop_px}"],
        6: [
            f"brightness of [-{distort.brightness:g}, {distort.brightness:g})",
            "contrast of [{:g}, {:g})".format(*distort.contrast),
        ],
        7: [f"1/sqrt({3 * distort.crop_px**2})"],
        12: [f"{spaced(parameters(network))} parameters"],
        14: [f"plus {decay:g}/2 of the squared norm of {first_dense}'s and {second_dense}'s weights"],
        16: [
            f"{TUTORIAL.lr:g}, times {staircase.decay:g} every {staircase.every_epochs:g} epochs",
            f"first at step {spaced(first)} with batch {TUTORIAL.batch}",
        ],
        18: [f"decay min({TUTORIAL.ema.decay:g}, (1 + n) / (10 + n))"],
        22: [f"{TUTORIAL.tower_batch} for each GPU"],
        26: [f"a line every {placement.log_every} steps"],
        30: [f"summaries every {placement.summary_every} steps"],
        34: [f"at steps 0, {placement.save_every}, ...", f"keeps {placement.keep} and the best"],
        37: [f"by default {spaced(TUTORIAL.steps)}"],
        48: [
            f"{spaced(parameters(mnist))} parameters",
            f"{dropped:.0%} of the units dropped".replace("%", " %"),
        ],
        49: [f"{type(MNIST.optimizer).__name__} at {MNIST.lr:g}", f"its {spaced(MNIST.tower_batch)} rows"],
    }  # fmt: skip


def test_the_constants_of_the_parity_page_are_the_recipes():
    lines = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(), re.M)
    page = {int(number): text.lower() for number, text in lines}
    for number, statements in page_statements().items():
        for statement in statements:
            assert statement.lower() in page[number], f"row {number}"
