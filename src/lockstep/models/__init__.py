"""Networks: plain single-device modules that know nothing of towers or processes."""

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
}
