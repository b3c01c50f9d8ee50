"""lockstep.export, and `lockstep export`."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep import numerics
from lockstep.commands.options import (
    AS_TRAINED,
    Checkpoint,
    Json,
    Source,
    TrustCode,
    options_from,
    placement_of,
    present,
    require_new_file,
)
from lockstep.commands.specs import chosen_checkpoint, data_of
from lockstep.data.progress import progress
from lockstep.errors import CRASH, DATA, LockstepError
from lockstep.files import deliver
from lockstep.messages import logger
from lockstep.runs.folder import Run
from lockstep.words import size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lockstep.classify.predict import Classifier
    from lockstep.data.dataset import Dataset

TOLERANCE = 1e-3  # largest difference between two probabilities


@dataclass(frozen=True)
class ExportRecord:
    """What `lockstep.export` found out about a file that it wrote. `lockstep export --json` prints the same.

    Attributes:
        file, bytes: the file, and its size.
        weights_sha256: of the tensors; the file's metadata has it too.
        split, examples: the images that the file was compared on: all of the split.
        accuracy: of the file, as its runtime computes it.
        accuracy_lockstep: of Lockstep, as `lockstep eval` computes it.
        otherwise: how many images the file classifies otherwise than Lockstep.
        difference: the largest difference of a probability from Lockstep's, computed in the file's precision, float32.
        tolerance: what the difference may be.
        images_per_s, images_per_s_lockstep: the speed of both on these images, in memory.
    """

    file: str
    bytes: int
    weights_sha256: str
    split: str
    examples: int
    accuracy: float
    accuracy_lockstep: float
    otherwise: int
    difference: float
    tolerance: float
    images_per_s: float
    images_per_s_lockstep: float


def export(
    source: str | Path | Run,
    file: str | Path,
    checkpoint: str | int | None = None,
    *,
    data: str | Path | None = None,
    trust_code: bool = False,
) -> ExportRecord:
    """Write a classifier to an ONNX file, which needs no Lockstep, and compare it with Lockstep on all test images.

        record = lockstep.export("runs/first", "first.onnx")
        print(record.accuracy, record.otherwise, record.difference)

    The file maps images uint8 [N, H, W, C] of any number, height and width to probabilities float32 [N, classes]. It
    contains the preprocessing and, as metadata, the names of the classes, and computes in float32.

    Args:
        source: a run, its folder, the file of one of its checkpoints, or a model file.
        file: the file to write, whose name ends in .onnx; an existing one is replaced. Needs the extra "export".
        checkpoint: "best", or a number of steps; None for the newest.
        data: folder of the dataset; None for that of training.
        trust_code: True to execute the run's own model and dataset.

    Raises:
        LockstepError: as `lockstep.load`; data that are gone, a network that cannot be exported, a package that is
            missing, a file that differs by more than the tolerance. No file is written then.
    """
    if Path(file).suffix.lower() != ".onnx":
        raise LockstepError(f"{file}: programs know a format by the name of its file: give one that ends in .onnx")
    from lockstep.classify.export import batch_of, exported, in_float32, loaded
    from lockstep.classify.predict import load, run_of
    from lockstep.jobs.session import read_splits, with_held_out

    run, _ = run_of(source)
    classifier = load(source, chosen_checkpoint(checkpoint), trust_code, "cpu")
    recipe = classifier.recipe
    recipe.require_trust(run.path if run else classifier.origin, trust_code)
    if run and not run.complete:
        logger.warning(f"{run.path} is not complete: its {checkpoint or 'newest'} checkpoint is exported")
    placement = placement_of({"data": data})
    placement = placement.replace(data=data_of(run.path, placement.data)) if run else placement
    splits = with_held_out(recipe, read_splits(recipe, placement))
    split = "test" if "test" in splits else recipe.evaluated_split
    _require_same_kind(splits[split], classifier)
    images, labels = splits[split].pixels(slice(None)).numpy(), splits[split].labels.numpy()
    facts = {
        "recipe": recipe.model_dump(mode="json"), "recipe_digest": recipe.digest(),
        "classes": list(classifier.classes), "image_shape": list(classifier.image_shape),
        "weights_sha256": classifier.weights_sha256, "versions": {n: version(n) for n in ("lockstep", "torch")},
    }  # fmt: skip
    content = exported(classifier, facts)
    compute = loaded(content)
    size = min(len(images), batch_of(images.shape[1:]))
    with progress(f"comparing the file with Lockstep on {len(images):,} images", 3 * len(images)) as advance:
        found, rate = _in_batches(compute, images, size, advance)
        own, own_rate = _in_batches(classifier.probabilities, images, recipe.eval_batch, advance)
        difference = abs(found - _in_batches(in_float32(classifier), images, size, advance)[0]).max()
    if not difference <= TOLERANCE:
        raise LockstepError(
            f"the ONNX file gives probabilities that differ by up to {difference:.2g} from Lockstep's, and "
            f"{TOLERANCE:g} is allowed: it is not written. Another version of its runtime may compute it correctly",
            CRASH,
        )
    deliver(Path(file), content)
    own_chosen = own.argmax(1)
    own_chosen[own.max(1) != own.max(1)] = -1  # An output that is not finite counts as wrong, as in an evaluation.
    chosen = found.argmax(1)
    return ExportRecord(
        str(file), len(content), classifier.weights_sha256, split, len(images),
        float((chosen == labels).mean()), float((own_chosen == labels).mean()), int((chosen != own_chosen).sum()),
        float(difference), TOLERANCE, rate, own_rate,
    )  # fmt: skip


def _require_same_kind(images: "Dataset", classifier: "Classifier") -> None:
    """Raise a LockstepError unless the classes and the size of `images` are those of the classifier."""
    found, own = (images.classes, tuple(images.images.shape[1:])), (classifier.classes, classifier.image_shape)
    if found != own:
        theirs, ours = (
            f"{len(names)} classes ({', '.join(names[:5])}{', ...' * (len(names) > 5)}) and images of {list(shape)}"
            for names, shape in (found, own)
        )
        raise LockstepError(
            f"the data have {theirs}, and {classifier.origin} has {ours}: give images of the same classes as --data",
            DATA,
        )


def _in_batches(
    compute: Callable[[Any], Any], images: "NDArray[np.uint8]", size: int, advance: Callable[[int], None]
) -> "tuple[NDArray[Any], float]":
    """Return what `compute` returns for `images`, `size` at a time, and images/s. Tell `advance` of each batch."""
    import numpy as np  # here, because most commands need no numpy

    begun, parts = time.perf_counter(), []
    for start in range(0, len(images), size):
        parts.append(compute(batch := images[start : start + size]))
        advance(len(batch))
    return np.concatenate(parts), len(images) / (time.perf_counter() - begun)


@options_from(placement=("data",), defaults=AS_TRAINED)
def export_shell(
    source: Source,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="A new file. Default: NAME.onnx.")
    ] = None,
    checkpoint: Checkpoint = None,
    trust_code: TrustCode = False,
    json_output: Json = False,
    **options: Any,
) -> None:
    """Write a classifier to an ONNX file, and check the file.

    The file needs no Lockstep, and is compared with Lockstep on all test images. It maps images, uint8 [N, H, W, C] of
    any number and size, to probabilities. It contains the preprocessing, and computes in float32. If its probabilities
    differ by more than 0.001, it is not written.

    Where a recipe has test_views=flip-translate-unsure, all images get these views, and not a quarter of a batch.

    \b
    Examples:
      lockstep export runs/digits-1                          writes digits-1.onnx
      lockstep export model.safetensors -o digits.onnx --data DIR
    """
    if output is None:
        name = source.resolve()
        output = Path(f"{name.stem if name.is_file() else name.name}.onnx")
    require_new_file("--output", output)
    numerics.prepare(1)  # before torch is imported; `load` sets the number of threads
    if not json_output:
        present([f"exporting {source}: torch traces the network, and then its file is compared with Lockstep"])
    record = export(source, output, checkpoint, data=options["data"], trust_code=trust_code)
    lines = [
        f"  file        {record.file}, {size(record.bytes)}, weights {record.weights_sha256[:16]}",
        f"  accuracy    {record.accuracy:.2%} of {record.examples:,} {record.split} images; lockstep eval: "
        f"{record.accuracy_lockstep:.2%}",
        f"  difference  {record.otherwise:,} images classified otherwise; probabilities differ by up to "
        f"{record.difference:.1e} in float32 (allowed: {record.tolerance:g})",
        f"  speed       {record.images_per_s:,.0f} images/s; lockstep predict: {record.images_per_s_lockstep:,.0f}",
    ]
    present(lines, asdict(record) if json_output else None)
