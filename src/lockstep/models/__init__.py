"""Networks: plain single-device modules that know nothing of towers or processes."""

TIMM = "timm:"  # begins the name of a network of timm, which `from_timm.py` builds

# name -> the function that builds the network: (shape [C, H, W], classes, **options) ->
# torch.nn.Module that maps images [b, C, H, W] to logits [b, classes]. The caller seeds torch's
# default generator from the recipe beforehand. A model outside this package is named in the same
# way, as package.module:function.
MODELS = {
    "digits": "lockstep.models.digits:build",
    "tutorial": "lockstep.models.tutorial:build",
    "whitened": "lockstep.models.whitened:build",
    "residual": "lockstep.models.residual:build",
    "mnist": "lockstep.models.mnist:build",
    "efficientnet-lite0": "lockstep.models.efficientnet:efficientnet_lite0",
    "efficientnet-lite1": "lockstep.models.efficientnet:efficientnet_lite1",
    "efficientnet-lite2": "lockstep.models.efficientnet:efficientnet_lite2",
}
