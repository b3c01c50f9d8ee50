"""Numbers in docstrings and on the page about the originals equal those of the code."""

import importlib
import inspect
import re

import pytest
import torch

from lockstep.models import MODELS
from lockstep.recipes import get_recipe
from lockstep.settings import load_object

TUTORIAL, MNIST = get_recipe("cifar10-tutorial"), get_recipe("mnist")
COUNT = re.compile(r"(\d[\d ]*) parameters")
STATED = re.compile(r"(\d[\d ]*) parameters for (\d+)x(\d+) (grey|RGB)(?: and|,) (\d+) classes")


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
