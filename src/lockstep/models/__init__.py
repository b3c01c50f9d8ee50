"""Networks: plain single-device modules that know nothing of towers or processes."""

# name -> the function that builds it: (shape [C, H, W], classes) -> torch.nn.Module mapping [b, C, H, W] to logits
# [b, classes]. It is called with torch's default generator seeded from the recipe. A user's own is named the same
# way, as package.module:function.
MODELS = {
    "digits": "lockstep.models.digits:build",
    "tutorial": "lockstep.models.tutorial:build",
    "whitened": "lockstep.models.whitened:build",
    "mnist": "lockstep.models.mnist:build",
}
