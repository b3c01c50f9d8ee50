"""Networks: plain single-device modules that know nothing of towers or processes."""

TIMM = "timm:"  # begins the name of a network of timm, which `from_timm.py` builds

# name -> the class of the network: (shape [C, H, W], classes, **options) -> torch.nn.Module that
# maps images [b, C, H, W] to logits [b, classes]. The caller seeds torch's default generator from
# the recipe beforehand. A model outside this package is named in the same way, as
# package.module:function.
MODELS = {
    "digits": "lockstep.models.digits:Digits",
    "tutorial": "lockstep.models.tutorial:Tutorial",
    "whitened": "lockstep.models.whitened:Whitened",
    "residual": "lockstep.models.residual:Residual",
    "mnist": "lockstep.models.mnist:Mnist",
    "efficientnet-lite0": "lockstep.models.efficientnet:EfficientNetLite0",
    "efficientnet-lite2": "lockstep.models.efficientnet:EfficientNetLite2",
}
