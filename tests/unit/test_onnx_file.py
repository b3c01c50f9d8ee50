"""ONNX files of other people: any graph with Lockstep's metadata gives one error, and nothing outside it is read."""

import json

import numpy as np
import pytest

from lockstep.errors import DATA, LockstepError
from lockstep.inference.classifier import load
from lockstep.inference.onnx_file import METADATA
from lockstep.recipes import get_recipe

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper  # noqa: E402  after it is known to be installed

ANY = ("n", "height", "width", 1)
RECIPE = get_recipe("digits").model_dump(mode="json")
FACTS = {"recipe": RECIPE, "classes": ["no", "yes"], "image_shape": [8, 8, 1]}


def tensor(name, kind=TensorProto.UINT8, shape=ANY):
    return helper.make_tensor_value_info(name, kind, shape)


def write(path, *nodes, given=None, constants=(), facts=FACTS):
    """Write a graph of `nodes`, from `given` to probabilities, with `facts`."""
    result = tensor("probabilities", TensorProto.FLOAT, ("n", 2))
    graph = helper.make_graph(nodes, "graph", [given or tensor("images")], [result], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    model.metadata_props.add(key=METADATA, value=json.dumps(facts))
    onnx.save(model, path)
    return path


def numbers(name, *values):
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def cast(name="images"):
    return helper.make_node("Cast", [name], ["probabilities"], to=TensorProto.FLOAT)


def elsewhere(location):
    """Return a constant whose values are in another file."""
    constant = TensorProto(name="constant", data_type=TensorProto.FLOAT, dims=[1, 2])
    constant.data_location = TensorProto.EXTERNAL
    constant.external_data.add(key="location", value=str(location))
    return constant


IDENTITY = helper.make_node("Identity", ["constant"], ["probabilities"])
FILL = helper.make_node("ConstantOfShape", ["shape"], ["probabilities"])


@pytest.mark.parametrize(
    ("nodes", "more", "message"),
    [
        ([cast("others")], {"given": tensor("others")}, "cannot compute the graph of .*others"),
        ([cast()], {"given": tensor("images", TensorProto.FLOAT)}, "cannot compute the graph of .*data type"),
        ([cast()], {"given": tensor("images", shape=(1, 9, 9, 1))}, "cannot compute the graph of .*dimensions"),
        ([cast()], {}, r"damaged: its graph gives \[1, 8, 8, 1\] values for 1 images"),
        ([FILL], {"constants": [numbers("shape", 1 << 22, 1 << 22)]}, "cannot compute the graph of .*memory"),
        ([IDENTITY], {"constants": [elsewhere("values.bin")]}, "is no ONNX file, or is damaged"),
        ([IDENTITY], {"constants": [elsewhere("/etc/hostname")]}, "is no ONNX file, or is damaged"),
        ([cast()], {"facts": []}, "does not contain its recipe"),
        ([cast()], {"facts": {**FACTS, "classes": 2}}, "does not state the names of the classes"),
        ([cast()], {"facts": {**FACTS, "image_shape": [1 << 20, 1 << 20, 3]}}, "its images have"),
    ],
)
def test_a_file_with_another_graph_gives_one_error(tmp_path, monkeypatch, capfd, nodes, more, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "values.bin").write_bytes(bytes(8))
    path = write(tmp_path / "a.onnx", *nodes, **more)
    with pytest.raises(LockstepError, match=message) as refused:
        next(load(path).predict(np.zeros((8, 8, 1), np.uint8)))
    assert refused.value.code == DATA
    assert len(str(refused.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "")


def test_values_that_are_not_finite_are_no_prediction(tmp_path):
    nothing = helper.make_tensor("constant", TensorProto.FLOAT, [1, 2], [np.nan, 1.0])
    prediction = next(
        load(write(tmp_path / "a.onnx", IDENTITY, constants=[nothing])).predict(np.zeros((8, 8, 1), np.uint8))
    )
    assert prediction.error == "the network's output is not finite"
