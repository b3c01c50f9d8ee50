"""The exported graph: it resizes as Pillow does, and every recipe's network goes through both exporters."""

import copy

import numpy as np
import pytest
import torch

from lockstep.classify.export import Graph, exported, graph_recipe, loaded
from lockstep.core.evaluate import classify
from lockstep.core.model import build_model
from lockstep.core.network import Network
from lockstep.core.unlike import Unlike
from lockstep.data import Plain, transforms
from lockstep.data.decode import decode_image
from lockstep.recipes import RECIPES, get_recipe

SHAPES = {"digits": (8, 8, 1), "mnist": (28, 28, 1)}


class Pixels(torch.nn.Module):
    """A network whose logits are the pixels."""

    def forward(self, x):
        return x.flatten(1)


def images(count, height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def graph_of(recipe, model, shape):
    return Graph(recipe, model, shape).eval()


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
@pytest.mark.parametrize(
    ("size", "most", "mean"),
    [
        ((37, 53), 1.6, 0.1), ((16, 16), 0.1, 0.1), ((9, 11), 1.6, 0.1), ((64, 20), 20, 0.5), ((97, 130), 2.6, 0.3),
        ((64, 64), 2.6, 0.3), ((200, 170), 2.6, 0.3),
    ],
)  # fmt: skip
def test_images_are_resized_as_pillow_does(size, most, mean, fit):
    """Logits are pixels / 255, so the probabilities' ratios tell the pixels.

    Pillow begins with the columns of a tall image, and values that are cut at black or white in between differ then. It
    rounds the means of the blocks that it first makes of an image of four times the size or more.
    """
    pixels = {"model": "mine:pixels", "augmentation": Plain(), "head": None, "init_sha256": None, "test_views": "one"}
    recipe, picture = get_recipe("photos").replace(**pixels, image_px=32, fit=fit), images(1, *size)
    found = graph_of(recipe, Pixels(), (16, 16, 3))(torch.from_numpy(picture)).log()[0]
    expected = torch.from_numpy(decode_image(picture[0], 16, fit=fit)).permute(2, 0, 1).flatten() / 255
    difference = ((found - found[0]) * 255 - (expected - expected[0]) * 255).abs()
    assert difference.max() < most
    assert difference.mean() < mean


def random_graph(name):
    name, _, fit = name.partition(" ")
    recipe = get_recipe(name).replace(**({"fit": fit} if fit else {}))
    shape = (recipe.image_px, recipe.image_px, 3) if recipe.image_px else SHAPES.get(name, (32, 32, 3))
    recipe = graph_recipe(recipe)
    torch.manual_seed(0)
    model = build_model(recipe, recipe.augmentation.shape(*shape), 10)
    return recipe, model, shape


@pytest.mark.parametrize("name", [*RECIPES])
def test_the_graph_classifies_as_an_evaluation_does(name):
    recipe, model, shape = random_graph(name)
    batch = torch.from_numpy(images(3, *shape))
    with torch.no_grad():
        found = graph_of(recipe, model, shape)(batch)
        network = Network(recipe, model, recipe.augmentation.shape(*shape), torch.device("cpu"))
        network.module.eval()
        logits, _ = classify(recipe, network, batch, torch.ones(3, dtype=torch.bool))
    assert torch.allclose(found, logits.softmax(1), atol=1e-4)


class Source:
    """What `exported` takes of a classifier."""

    def __init__(self, name):
        self.recipe, self.module, self.image_shape = random_graph(name)
        self.module.eval()
        self.graph = graph_of(self.recipe, self.module, self.image_shape)
        self.classes, self.decoding, self.sure_from, self.unlike = ["a"], {}, None, None


def unlike_of(recipe, model):
    """Return what tells unlike images of a network, by features that are no image's."""
    features = model.get_submodule(recipe.head).in_features
    references = torch.from_numpy(np.random.default_rng(0).random((4, features)))
    references = torch.nn.functional.normalize(references).half()
    return Unlike({"unlike/references": references, "unlike/threshold": torch.tensor(0.5)}, features)


def test_the_graph_tells_the_similarity_to_training_images():
    recipe = get_recipe("photos")
    _, model, shape = random_graph("photos")
    unlike = unlike_of(recipe, model)
    batch = torch.from_numpy(images(2, *shape))
    with torch.no_grad():
        shares, similarity = Graph(recipe, model, shape, unlike).eval()(batch)
        assert torch.allclose(shares, Graph(recipe, model, shape).eval()(batch), atol=1e-6)
        layers = copy.deepcopy(model).eval()
        layers.set_submodule(recipe.head, torch.nn.Identity())
        features = layers(recipe.augmentation.test(batch))
    for row, found in zip(features, similarity.tolist(), strict=True):
        for least in (found - 1e-5, found + 1e-5):
            unlike.threshold = torch.tensor(least)
            assert unlike(row[None]) == [least > found]


@pytest.mark.slow
def test_a_file_has_the_similarity_as_its_second_output():
    onnxruntime = pytest.importorskip("onnxruntime")
    source = Source("photos")
    recipe = get_recipe("photos")
    source.unlike = unlike_of(recipe, source.module)
    source.recipe = source.recipe.replace(head=recipe.head)
    graph = Graph(source.recipe, source.module, source.image_shape, source.unlike).eval()
    content = exported(source, {"classes": ["a"]})
    session = onnxruntime.InferenceSession(content)
    batch = images(2, 61, 47)
    with torch.no_grad():
        expected = graph(torch.from_numpy(batch))
    for one, other in zip(session.run(["probabilities", "similarity"], {"images": batch}), expected, strict=True):
        assert abs(one - other.numpy()).max() < 1e-5
    assert len(content) < 1.1 * sum(tensor.nbytes for tensor in source.module.state_dict().values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["folder pad", *(name for name in RECIPES if name != "digits")])
def test_every_recipe_exports_for_any_number_and_size_of_images(name):
    pytest.importorskip("onnxruntime")
    source = Source(name)
    transforms._affine.cache_clear()  # as in a new process
    run = loaded(exported(source, {"classes": ["a"]}))
    for count, height, width in ((3, *source.image_shape[:2]), (1, 61, 47), (4, 20, 90)):
        batch = images(count, height, width, source.image_shape[2])
        with torch.no_grad():
            expected = source.graph(torch.from_numpy(batch)).numpy()
        assert abs(run(batch) - expected).max() < 1e-5
