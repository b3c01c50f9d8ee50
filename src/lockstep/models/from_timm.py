"""Networks of timm by name, with their trained weights and the settings that these need.

timm is an extra and installs torchvision, so it is imported only where one of its networks is
named.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.errors import ENVIRONMENT, LockstepError, option, unknown
from lockstep.models import TIMM
from lockstep.models.modules import fix_statistics

_LARGEST_PX = 640
_REFUSED = {"pretrained", "checkpoint_path"}  # Weights come from the recipe's file.


def build(
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    *,
    fixed_statistics: bool = False,
    **options: Any,
) -> nn.Module:
    """Return timm's network `name` with new weights, [b, C, H, W] -> [b, classes].

    `options` are those of timm.create_model. With `fixed_statistics`, batch norm computes with its
    running averages in training too.
    Raises: LockstepError if there is no timm, or the network does not take the images or options.
    """
    for refused in _REFUSED & options.keys():
        raise LockstepError(
            f"model_options.{refused} is not for networks of timm: give weights as "
            f"{option('init', 'FILE')}"
        )
    try:
        network = _created(name, shape[1], num_classes=classes, in_chans=shape[0], **options)
    # A TypeError is an option that it does not know, which the caller reports.
    except (TypeError, LockstepError):
        raise
    except Exception as error:
        raise _unfit(name, shape[1], error) from None
    first = next((layer for layer in network.modules() if isinstance(layer, nn.Conv2d)), None)
    # A kernel as large as its stride makes patches. Subclasses of the layer pad an image.
    if type(first) is nn.Conv2d and first.kernel_size == first.stride:
        patch = first.stride[0]
        used = shape[1] // patch * patch
        if used < shape[1] and not options.get("dynamic_img_pad"):
            sizes = [f"image_px={px}" for px in (used, used + patch) if px <= _LARGEST_PX]
            raise LockstepError(
                f"model {TIMM}{name} divides images into patches of {patch} pixels, and leaves out "
                f"what is beyond {used} of {shape[1]}: set {' or '.join(sizes)}"
            )
    fix_statistics(network, fixed_statistics)
    return network


def _unfit(name: str, image_px: int, error: Exception) -> LockstepError:
    return LockstepError(
        f"model {TIMM}{name} does not take images of {image_px} pixels: {_line(error)}; give "
        f"another {option('settings', 'image_px=...')}"
    )


def describe(name: str, image_px: int | None) -> dict[str, Any]:
    """Return the settings that train the last layer of the network `name`, by timm's configuration,
    for images of `image_px` or of its own size.

    "licence" is that of its weights, in words. Nothing is downloaded.
    Raises: LockstepError if there is no timm or no such network, or a recipe cannot train its last
    layer alone.
    """
    config = _config(name)
    full = f"{TIMM}{config.architecture}.{config.tag}" if config.tag else f"{TIMM}{name}"
    channels, height, width = config.input_size
    pixels = image_px or height
    if (channels, height) != (3, width):
        raise LockstepError(
            f"model {full} takes images of {channels} x {height} x {width}, and recipes make "
            f"square ones of 3 channels: choose another network"
        )
    if pixels > _LARGEST_PX:
        raise LockstepError(
            f"model {full} would get images of {pixels} pixels, and {_LARGEST_PX} is the most: "
            f"give {option('settings', f'image_px={_LARGEST_PX}')}, or choose another network"
        )
    network = build(name, (3, pixels, pixels), 2).eval()
    if not isinstance(dict(network.named_modules()).get(config.classifier), nn.Linear):
        raise LockstepError(
            f"model {full} does not end in one linear layer, which recipes train (timm calls its "
            f"classifier {config.classifier!r}): choose another network"
        )
    try:
        with torch.no_grad():
            network(torch.zeros(1, 3, pixels, pixels))
    except Exception as error:
        raise _unfit(name, pixels, error) from None
    licence = config.license or "not stated by timm"
    if re.search(r"\bnc\b|noncommercial", licence):
        licence += ", which forbids commercial use"
    return {
        "licence": f"{licence}; see {_page(config)}",
        "model": full,
        "head": config.classifier,
        "image_px": pixels,
        "interpolation": config.interpolation,
        "augmentation.mean": list(config.mean),
        "augmentation.std": list(config.std),
    }


def trained_tensors(name: str, settings: dict[str, Any]) -> dict[str, Tensor]:
    """Return the trained weights of the network `name` with these `settings`, by the names of its
    layers, without those of its last layer.

    timm downloads them once. Raises: LockstepError if it cannot.
    """
    try:
        network = _created(name, settings["image_px"], pretrained=True, num_classes=2)
    except Exception as error:
        page = _page(_config(name))
        remedy = (
            f"Connect this machine to the network, or download the file from {page} on another one "
            f"and give it as {option('init', 'FILE')}"
        )
        if "gated" in f"{type(error).__name__} {error}".lower():
            remedy = f"Accept their licence on {page}, and log in with `hf auth login`"
        raise LockstepError(
            f"the weights of model {TIMM}{name} cannot be downloaded ({type(error).__name__}: "
            f"{_line(error)}). {remedy}",
            ENVIRONMENT,
        ) from None
    own = f"{settings['head']}."
    return {
        key: tensor.contiguous()
        for key, tensor in network.state_dict().items()
        if not key.startswith(own)
    }


def _created(name: str, image_px: int, **options: Any) -> nn.Module:
    """Return timm's network `name` for images of `image_px`, by the `options` of create_model."""
    if _config(name).fixed_input_size:
        options.setdefault("img_size", image_px)
    return imported().create_model(name, **options)  # type: ignore[no-any-return]


def imported() -> Any:
    """Return the module timm. Raises: LockstepError if it cannot be imported."""
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision of another torch
        raise LockstepError(
            f"networks of timm need the packages timm and torchvision, and they cannot be imported "
            f"({_line(error)}): pip install timm torchvision",
            ENVIRONMENT,
        ) from None
    return timm


def _config(name: str) -> Any:
    """Return timm's configuration of a network with trained weights. Raises: LockstepError."""
    timm = imported()
    trained = timm.list_models(pretrained=True)  # with the name of their weights after a dot
    names = {*trained, *(each.partition(".")[0] for each in trained)}
    config = timm.get_pretrained_cfg(name) if name in names else None
    if config is not None and config.has_weights:
        return config
    shown = (
        f"the names in timm.list_models(pretrained=True), not hf-hub:owner/name; for weights of "
        f"your own, add {option('init', 'FILE')}"
    )
    raise LockstepError(unknown("network of timm with trained weights", name, names, [shown]))


def _page(config: Any) -> str:
    """Return where the weights of a configuration are."""
    return f"https://huggingface.co/{config.hf_hub_id}" if config.hf_hub_id else str(config.url)


def _line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
