"""Initial weights from a file: which tensors of a model are loaded, and which start as new."""

import hashlib
import io
import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from lockstep.core.unlike import divided
from lockstep.data.dataset import first_other_class
from lockstep.errors import DATA, LockstepError
from lockstep.runs import statefile
from lockstep.runs.statefile import SUFFIX, facts_if_valid

_WRAPPERS = ("state_dict", "model", "model_state_dict", "net")  # the key of the weights in other programs' checkpoints
_PREFIXES = ("module.", "_orig_mod.")  # of names that DistributedDataParallel and torch.compile have saved
_NAMES_SHOWN = 6
_COUNTER = "num_batches_tracked"
_NEEDED_CODE = re.compile(r"GLOBAL ([\w.]+) (?:was not an allowed global|whose module)")  # in torch's messages

Line = tuple[str, str]  # (label, text)


@dataclass(frozen=True)
class InitialWeights:
    """What a model took from a file of weights. All names are the model's, except `unused`.

    Attributes:
        path, sha256: the file.
        loaded, new: the tensors that are loaded, and that the file lacks.
        mismatched: the tensors that the file has in another shape or type.
        unused: the tensors of the file that the model does not have.
        values, values_of_model: how many values of the parameters are loaded, and how many the model has.
        other_class: the first label whose name is another one in the file than in the dataset, and both names. None if
            all are equal, the file states no classes, or the numbers of classes differ, which a mismatch shows.
    """

    path: Path
    sha256: str
    loaded: tuple[str, ...]
    new: tuple[str, ...]
    mismatched: tuple[str, ...]
    unused: tuple[str, ...]
    values: int
    values_of_model: int
    other_class: tuple[int, str, str] | None = None

    def lines(self) -> list[Line]:
        """Return the lines of the start-up block."""
        total = len(self.loaded) + len(self.new) + len(self.mismatched)
        text = f"{len(self.loaded)} of {total} tensors, {self.values:,} of {self.values_of_model:,} parameters"
        for names, why in (
            (self.mismatched, "of another shape or type in the file"), (self.new, "not in the file"),
            (self.unused, "not in the model"),
        ):  # fmt: skip
            text += f"; {why}: {len(names)} ({_some(names)})" if names else ""
        lines = [("init", f"{self.path} (sha256 {self.sha256[:12]})"), ("loaded", text)]
        if self.other_class:
            label, name, own = self.other_class
            text = f"the file has other classes: label {label} is {name} in it, and {own} in the dataset"
            lines.append(("classes", f"{text}. The last layer starts from the outputs of the others"))
        return lines


def load_initial_weights(
    model: nn.Module, model_name: str, path: Path, sha256: str | None, classes: Sequence[str] = ()
) -> InitialWeights:
    """Load into `model`, in place, all tensors of the file that match by name and shape.

    `model_name` is its name in messages, `sha256` what the recipe states of the file (None: nothing), and `classes` the
    names of the dataset's classes. Weights are converted to the model's types. The number of batches that a norm layer
    has seen is not loaded: it counts those of this run.
    Raises: LockstepError if the file cannot be used, or no parameter matches.
    """
    content = _content(path, sha256)
    found = _plain_names(_tensors(path, content))
    own: dict[int, list[str]] = {}  # a tensor's names: several if weights are tied
    targets = {key: tensor for key, tensor in model.state_dict(keep_vars=True).items() if isinstance(tensor, Tensor)}
    for key, tensor in targets.items():
        own.setdefault(id(tensor), []).append(key)
    loaded: list[str] = []
    new: list[str] = []
    mismatched: list[str] = []
    for names in own.values():
        if names[0].endswith(_COUNTER):
            continue
        target, name_in_file = targets[names[0]], next((name for name in names if name in found), None)
        if name_in_file is None:
            new.append(names[0])
            continue
        tensor = found[name_in_file]
        if tensor.is_complex():
            raise LockstepError(f"--init {path}: {name_in_file} has complex numbers, and models have real ones", DATA)
        if _fits(tensor, target):
            _require_finite(tensor, name_in_file, path)
            with torch.no_grad():
                target.copy_(tensor)
            loaded.append(names[0])
        else:
            mismatched.append(names[0])
    loaded_parameters = [targets[key] for key in loaded if isinstance(targets[key], nn.Parameter)]
    if not loaded_parameters:
        raise LockstepError(
            f"--init {path}: none of its tensors has the name and shape of a parameter of model {model_name}. The file "
            f"has {_some(_shapes(found))}. The model has {_some(_shapes(targets))}. Give the weights of this model, or "
            f"--model the network of these weights"
        )
    in_file = facts_if_valid(path).get("classes") or []
    unused = (key for key in found if key not in targets and not key.endswith(_COUNTER))
    return InitialWeights(
        path,
        hashlib.sha256(content).hexdigest(),
        tuple(loaded),
        tuple(new),
        tuple(mismatched),
        tuple(unused),
        sum(p.numel() for p in loaded_parameters),
        sum(p.numel() for p in model.parameters()),
        first_other_class(in_file, classes) if len(in_file) == len(classes) else None,
    )


def _content(path: Path, sha256: str | None) -> bytes:
    """Return the content of the file. Raises: LockstepError unless it has the `sha256`, if one is given."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LockstepError(f"--init {path}: cannot be read: {error.strerror or error}", DATA) from None
    if sha256 not in (None, hashlib.sha256(content).hexdigest()):
        raise LockstepError(f"--init {path}: its sha256 is not the recipe's init_sha256, {sha256}", DATA)
    return content


def _tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    """Return the tensors of the file by name. No code in it is executed. Raises: LockstepError."""
    if path.suffix == SUFFIX:
        try:
            tensors = statefile.read(path, content, foreign=True).tensors
        except LockstepError as error:
            raise LockstepError(f"--init {path}: {error}", DATA) from None
        return _of_checkpoint(divided(tensors)[0])
    try:
        with warnings.catch_warnings(action="ignore"):  # about pickles of other programs
            value = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch and pickle raise many kinds
        if needed := _NEEDED_CODE.search(str(error)):
            raise LockstepError(
                f"--init {path}: loading it would execute code ({needed[1]}). Save the weights alone, where you trust "
                f"the file: torch.save(model.state_dict(), 'weights.pt')"
            ) from None
        # A message of the unpickler is long, and has escape sequences.
        first = "" if isinstance(error, pickle.UnpicklingError) else str(error).partition("\n")[0]
        problem = first or "torch.save did not write it, or it is not complete"
        raise LockstepError(f"--init {path}: the file is damaged ({problem})", DATA) from None
    return _of_pickle(value, path)


def _of_checkpoint(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the classifier's weights in a checkpoint of a run by the model's names; other `tensors` unchanged."""
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        group, slash, name = key.partition("/")
        if slash:
            groups.setdefault(group, {})[name] = tensor
    if "parameter" not in groups:
        return tensors
    return {**groups["parameter"], **groups.get("ema", {}), **groups.get("buffer", {}), **groups.get("frozen", {})}


def _of_pickle(value: object, path: Path) -> dict[str, Tensor]:
    """Return the tensors by name in `value`, or in the dictionary inside it under one of the usual keys."""
    if isinstance(value, Mapping):
        for inside in (value, *(value.get(key) for key in _WRAPPERS)):
            if isinstance(inside, Mapping):
                tensors = {str(key): tensor for key, tensor in inside.items() if isinstance(tensor, Tensor)}
                if tensors:
                    return tensors
    raise LockstepError(
        f"--init {path}: it has no tensors by name, neither at its top nor under {', '.join(_WRAPPERS)}. "
        f"Save the weights as torch.save(model.state_dict(), 'weights.pt')"
    )


def _plain_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without the prefixes that wrappers of a model add to all names."""
    while tensors and (prefix := next((p for p in _PREFIXES if all(key.startswith(p) for key in tensors)), None)):
        tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    return tensors


def _fits(tensor: Tensor, target: Tensor) -> bool:
    if tensor.is_quantized or tensor.is_meta or tensor.layout != torch.strided:
        return False
    return tensor.shape == target.shape and tensor.is_floating_point() == target.is_floating_point()


def _require_finite(tensor: Tensor, name: str, path: Path) -> None:
    if tensor.is_floating_point() and not bool(tensor.float().isfinite().all()):
        raise LockstepError(f"--init {path}: {name} has values that are infinite or not a number", DATA)


def _shapes(tensors: Mapping[str, Tensor]) -> list[str]:
    return [f"{key} {list(tensor.shape)}" for key, tensor in tensors.items()]


def _some(texts: Sequence[str]) -> str:
    """Return the first texts, and how many more there are."""
    more = len(texts) - _NAMES_SHOWN
    return ", ".join(texts[:_NAMES_SHOWN]) + (f", and {more} more" if more > 0 else "")
