"""Models of other libraries and of users: which arguments their functions are called with, and which fit at all."""

import functools

import pytest

from lockstep.core import model
from lockstep.errors import LockstepError

RGB, GREY = (3, 32, 32), (1, 28, 28)


# The signatures of timm 1.0 and torchvision 0.25, without their networks: the libraries are not installed here.
def create_model(model_name, pretrained=False, pretrained_cfg=None, checkpoint_path=None, no_jit=None, **kwargs):
    return "timm", model_name, pretrained, kwargs


def legacy_interface(builder):
    @functools.wraps(builder)
    def wrapper(*args, **kwargs):
        return builder(*args, **kwargs)

    return wrapper


@legacy_interface
def torchvision_resnet18(*, weights=None, progress=True, **kwargs):
    return torchvision_resnet((2, 2, 2, 2), **kwargs)


def torchvision_resnet(layers, num_classes=1000, zero_init_residual=False, width_per_group=64):
    return "torchvision", layers, num_classes, zero_init_residual


def get_model(name, **config):
    return "get_model", name, config


def channels_named(in_channels, num_classes):
    return "both named", in_channels, num_classes


def shape_and_num_classes(image_shape, num_classes, width=8):
    return "ours", image_shape, num_classes, width


def ours_with_any(shape, classes, **options):
    return "ours", shape, classes, options


class Net:
    def __init__(self, num_classes=10, in_chans=3, depth=2):
        self.facts = num_classes, in_chans, depth


def call(function, shape=RGB, **options):
    return model.call("m", function, shape, 7, options)


@pytest.mark.parametrize(
    ("function", "shape", "options", "expected"),
    [
        (create_model, RGB, {"model_name": "resnet18"}, ("timm", "resnet18", False, {"num_classes": 7})),
        (create_model, GREY, {"model_name": "a"}, ("timm", "a", False, {"num_classes": 7, "in_chans": 1})),
        (torchvision_resnet18, RGB, {}, ("torchvision", (2, 2, 2, 2), 7, False)),
        (torchvision_resnet18, RGB, {"zero_init_residual": True}, ("torchvision", (2, 2, 2, 2), 7, True)),
        (get_model, RGB, {"name": "vgg11"}, ("get_model", "vgg11", {"num_classes": 7})),
        (channels_named, GREY, {}, ("both named", 1, 7)),
        (shape_and_num_classes, GREY, {"width": 4}, ("ours", GREY, 7, 4)),
        (ours_with_any, RGB, {"width": 4}, ("ours", RGB, 7, {"width": 4})),
        (lambda shape, classes=10: (shape, classes), RGB, {}, (RGB, 7)),
    ],
)  # fmt: skip
def test_a_function_gets_what_its_signature_asks_for(function, shape, options, expected):
    assert call(function, shape, **options) == expected
    assert call(Net, GREY, depth=5).facts == (7, 1, 5)


@pytest.mark.parametrize(
    ("function", "shape", "options", "message"),
    [
        (create_model, RGB, {}, "missing a required argument: 'model_name'.*--set model_options.NAME="),
        (torchvision_resnet18, RGB, {"widht": 3}, r"cannot be built with \(num_classes=7, widht=3\): .*'widht'"),
        (Net, RGB, {"detph": 3}, r"model m\(num_classes=10, in_chans=3, depth=2\) .* argument 'detph'"),
        (Net, RGB, {"num_classes": 3}, "multiple values for keyword argument 'num_classes'"),
        (shape_and_num_classes, RGB, {"image_shape": 3}, "multiple values for argument 'image_shape'"),
        (lambda shape: shape, RGB, {}, r"model m\(shape\) cannot .* Give a function of \(shape"),
        (lambda shape, classes, width: shape, RGB, {}, "missing a required argument: 'width'"),
    ],
)  # fmt: skip
def test_a_function_that_does_not_fit_is_one_message(function, shape, options, message):
    with pytest.raises(LockstepError, match=message):
        call(function, shape, **options)


def test_a_type_error_inside_a_model_keeps_its_traceback():
    def broken(shape, classes):
        return None + 1

    with pytest.raises(TypeError, match="unsupported operand"):
        call(broken)
