"""The exported graph: it classifies as an evaluation does, and every recipe's network can be
exported.
"""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.helpers import recipe_with
from tests.images import noise

from lockstep.classify.export import Graph, exported, graph_recipe
from lockstep.classify.formats import FORMATS
from lockstep.core.build import build_model
from lockstep.core.evaluation import classify
from lockstep.core.network import Network
from lockstep.data import transforms
from lockstep.head.outliers import Outliers
from lockstep.pictures.decode import Decoding
from lockstep.recipes import RECIPES, get_recipe

SHAPES = {"digits": (8, 8, 1), "mnist": (28, 28, 1)}


def images(count, height, width, channels=3, seed=0):
    return noise(seed, count, height, width, channels)


def graph_of(recipe, model, unfamiliar=None):
    return Graph(recipe, model, unfamiliar).eval()


def random_graph(name):
    recipe = get_recipe(name)
    shape = (
        (recipe.image_px, recipe.image_px, 3) if recipe.image_px else SHAPES.get(name, (32, 32, 3))
    )
    recipe = graph_recipe(recipe)
    torch.manual_seed(0)
    model = build_model(recipe, recipe.augmentation.shape(*shape), 10)
    with torch.no_grad():  # As drawn, a deep network gives all images the same probabilities.
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return recipe, model, shape


@pytest.mark.parametrize("name", [*RECIPES])
def test_the_graph_classifies_as_an_evaluation_does(name):
    recipe, model, shape = random_graph(name)
    batch = torch.from_numpy(images(3, *shape))
    with torch.no_grad():
        found = graph_of(recipe, model)(batch)
        network = Network(recipe, model, recipe.augmentation.shape(*shape), torch.device("cpu"))
        network.module.eval()
        logits, _ = classify(recipe, network, batch, torch.ones(3, dtype=torch.bool))
    assert torch.allclose(found, logits.softmax(1), atol=1e-4)
    assert not torch.allclose(found[0], found[1], atol=1e-4)


class Source:
    """What `exported` takes of a classifier."""

    def __init__(self, name):
        self.recipe, self.module, self.image_shape = random_graph(name)
        self.module.eval()
        self.graph = graph_of(self.recipe, self.module)
        self.classes, self.decoding = ["a"], Decoding(32)
        self.confidence = SimpleNamespace(confident_from=None, outliers=None, found_from=None)


def unfamiliar_of(recipe, model):
    """Return what tells unfamiliar images of a network, by features that are no image's."""
    features = model.get_submodule(recipe.head).in_features
    references = torch.from_numpy(np.random.default_rng(0).random((4, features)))
    references = torch.nn.functional.normalize(references).half()
    return Outliers(
        {"unfamiliar/references": references, "unfamiliar/threshold": torch.tensor(0.5)}, features
    )


def test_the_graph_tells_the_similarity_to_training_images():
    recipe = get_recipe("photos")
    _, model, shape = random_graph("photos")
    unfamiliar = unfamiliar_of(recipe, model)
    batch = torch.from_numpy(images(2, *shape))
    with torch.no_grad():
        shares, similarity = graph_of(recipe, model, unfamiliar)(batch)
        assert torch.allclose(shares, graph_of(recipe, model)(batch), atol=1e-6)
        layers = copy.deepcopy(model).eval()
        layers.set_submodule(recipe.head, torch.nn.Identity())
        features = layers(recipe.augmentation.test(batch))
    for row, found in zip(features, similarity.tolist(), strict=True):
        for least in (found - 1e-5, found + 1e-5):
            unfamiliar.threshold = torch.tensor(least)
            assert unfamiliar(row[None]).tolist() == [least > found]


def test_a_head_whose_weight_decay_was_chosen_has_a_graph():
    settings = {"multi_label": True, "decay_factors": (0.5, 2.0)}
    recipe = graph_recipe(recipe_with("photos", settings))
    assert (recipe.head, recipe.decay_factors, recipe.multi_label) == (None, (), True)


def written(source, name, folder, quantized=None):
    """Export `source`. Return the file, and the function that its runtime computes."""
    form = FORMATS[name]
    for module in form.modules:
        pytest.importorskip(module)
    file = folder / f"x{form.suffixes[-1]}"
    form.write(exported(source, form, images=quantized), {"classes": ["a"]}, file)
    return file, form.open(file, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FORMATS])
def test_a_file_has_the_similarity_as_its_second_output(name, tmp_path):
    source = Source("photos")
    recipe = get_recipe("photos")
    source.confidence.outliers = unfamiliar_of(recipe, source.module)
    source.recipe = source.recipe.replace(head=recipe.head)
    graph = graph_of(source.recipe, source.module, source.confidence.outliers)
    file, run = written(source, name, tmp_path)
    batch = images(2, *source.image_shape)
    with torch.no_grad():
        expected = graph(torch.from_numpy(batch))
    for one, other in zip(run(batch), expected, strict=True):
        assert abs(one - other.numpy()).max() < 1e-5
    size = sum(path.stat().st_size for path in tmp_path.glob(f"{file.stem}.*"))
    assert size < 1.1 * sum(tensor.nbytes for tensor in source.module.state_dict().values())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "digits"])
def test_every_recipe_exports_for_any_number_of_images(name, tmp_path):
    source = Source(name)
    transforms._affine.cache_clear()  # as in a new process
    _, run = written(source, "onnx", tmp_path)
    for count in (3, 1):
        batch = images(count, *source.image_shape)
        with torch.no_grad():
            expected = source.graph(torch.from_numpy(batch)).numpy()
        assert abs(run(batch)[0] - expected).max() < 1e-5
