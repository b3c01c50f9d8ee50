"""lockstep.export, and `lockstep export`.

Examples:
  lockstep export runs/digits-1                          writes digits-1.onnx
  lockstep export model.safetensors -o digits.onnx --data DIR
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from lockstep import __version__, numerics
from lockstep.commands.named import data_of, path_of, placement_of
from lockstep.commands.predict import load
from lockstep.commands.shell import in_shell, require_extra, require_writable
from lockstep.errors import CRASH, DATA, LockstepError, option, printable
from lockstep.files import deliver, given
from lockstep.messages import logger, progress
from lockstep.runs.run import Run
from lockstep.text import size

_OPSETS = range(18, 26)  # which PyTorch writes without a converter of its own
TOLERANCE = 1e-3  # largest difference between two probabilities
# that a runtime is given at a time: it takes new memory for each large batch
_BATCH_VALUES = 1 << 22


@dataclass(frozen=True)
class ExportRecord:
    """An ONNX file, and how it compares with Lockstep. `lockstep export --json` prints the same.

    Attributes:
        file: The file.
        bytes: Its size.
        script: A program next to the file that uses it without Lockstep.
        weights_sha256: The SHA-256 of the weights, as in result.json and in the metadata of the
            file. None if a model file does not state it.
        split: The split whose images were compared.
        examples: Their number.
        accuracy: The accuracy of the file, as its runtime computes it. With multi-label data, an
            image counts if exactly its labels are found.
        accuracy_lockstep: The accuracy of Lockstep, as `lockstep eval` computes it.
        otherwise: The number of images whose class differs from that of Lockstep.
        difference: The largest difference of a probability from that of Lockstep in float32, the
            precision of the file.
        opset: The version of the ONNX operators that a runtime must know.
        ir_version: The version of the ONNX format that a runtime must know.
    """

    file: str
    bytes: int
    script: str = field(repr=False)
    weights_sha256: str | None = field(repr=False)
    split: str
    examples: int
    accuracy: float
    accuracy_lockstep: float
    otherwise: int
    difference: float
    opset: int
    ir_version: int

    def __str__(self) -> str:
        return "\n".join(
            [
                f"  file        {printable(self.file)}, {size(self.bytes)}",
                f"  format      ONNX opset {self.opset}, IR version {self.ir_version}",
                f"  use         python {printable(shlex.join([self.script, self.file]))} IMAGE...",
                f"  accuracy    {self.accuracy:.2%} of {self.examples:,} {self.split} images; "
                f"lockstep eval: {self.accuracy_lockstep:.2%}",
                f"  difference  {self.otherwise:,} images classified otherwise; probabilities "
                f"differ by up to {self.difference:.1e} in float32 (allowed: {TOLERANCE:g})",
                *(
                    [f"  sha256      {self.weights_sha256} (of the run, as train prints it)"]
                    if self.weights_sha256
                    else []
                ),
            ]
        )


def export(
    source: Path | str | Run,
    output: Path | str | None = None,
    checkpoint: str | int | None = None,
    confident: float = 0.95,
    opset: int | None = None,
    *,
    data: Path | str | None = None,
    trust_code: bool = False,
    force: bool = False,
) -> ExportRecord:
    """Write a classifier to an ONNX file, and compare it with Lockstep on all test images.

    Programs can use the file without Lockstep. It maps images, uint8 [N, H, W, C] of the network's
    size, to probabilities, and contains the preprocessing. It computes in float32. If a probability
    differs by more than 0.001 from that of Lockstep, no file is written.

    The script use_exported.py is written next to the file. It needs NumPy, Pillow and onnxruntime,
    reads images as `lockstep predict` does, and prints the same answers: the class, its
    probability, and whether the answer is confident.

    If the recipe moves only the least confident images for test-time augmentation
    (flip-translate-unsure), the file moves all of them.

    Args:
        source: Folder of a run, or a model.safetensors.
        output: The file to write. Default: NAME.onnx.
        checkpoint: The checkpoint after this many steps, or best: the one with the best accuracy of
            those that training evaluated. Default: the newest.
        confident: How often answers that are called confident should be right, for pictures like
            the training images: 0.95 means 95 times in 100.
        opset: Version of the ONNX operators, for a runtime that knows no later one. Default: the
            one that PyTorch writes.
        data: Folder of the dataset. Default: that of training.
        trust_code: Execute code that a recipe file or a run names: a model or a dataset that is not
            built in.
        force: Overwrite a file that exists.

    Returns:
        The record of the comparison.

    Raises:
        LockstepError: As `lockstep.load`; and data that are missing, a network that cannot be
            exported, a package of the extra "export" that is not installed, or a file whose
            probabilities differ.

    Examples:
        >>> record = lockstep.export("runs/first", "first.onnx")
        >>> print(record.accuracy, record.otherwise, record.difference)
    """
    named = Path(str(path_of(source))).resolve()
    name = named.stem if named.is_file() else named.name
    file = given(f"{name}.onnx" if output is None else output)
    if file.suffix.lower() != ".onnx":
        raise LockstepError(
            f"{file}: programs know a format by the name of its file: give one that ends in .onnx"
        )
    if opset is not None and opset not in _OPSETS:
        raise LockstepError(
            f"{option('opset', opset)}: {_OPSETS[0]} to {_OPSETS[-1]} are allowed: give one that "
            f"the runtime knows"
        )
    require_writable(file, force)
    beside = file.with_name("use_exported.py")
    require_extra("export", ("onnx", "onnxscript", "onnxruntime"))
    if in_shell():
        numerics.prepare(1)  # before torch is imported; `load` sets the number of threads
    import numpy as np
    import torch

    from lockstep.classify.classifier import run_of
    from lockstep.classify.export import exported, in_batches, in_float32, loaded, script
    from lockstep.core.task import task_of
    from lockstep.jobs.splits import read_splits, splits_of

    text = script().encode()
    if not (beside.is_file() and beside.read_bytes() == text):
        require_writable(beside, force)
    classifier = load(source, checkpoint, trust_code, "cpu", confident)
    (run, _), recipe, placement = run_of(source), classifier.recipe, placement_of({"data": data})
    recipe.require_trust(run.path if run else classifier.origin, trust_code)
    if run:
        placement = placement.replace(data=data_of(run, placement.data))
        if not run.complete:
            logger.warning(
                f"{run.path} is not complete: its {checkpoint or 'newest'} checkpoint is exported"
            )
    splits = splits_of(recipe, read_splits(recipe, placement))
    split = "test" if "test" in splits else recipe.evaluated_split
    dataset = splits[split]
    shape, classes = dataset.images.shape[1:], dataset.classes
    if (shape, classes) != (classifier.image_shape, classifier.classes):
        raise LockstepError(
            f"the data have {len(classes)} classes and images of {[*shape]}, and "
            f"{classifier.origin} has {len(classifier.classes)} "
            f"({', '.join(classifier.classes[:5])}, ...) and {[*classifier.image_shape]}: give "
            f"images of the same classes as {option('data')}",
            DATA,
        )
    images = dataset.pixels(slice(None)).numpy()
    metadata = {
        "recipe": recipe.model_dump(mode="json"),
        "recipe_digest": recipe.digest(),
        "classes": list(classes),
        "image_shape": list(shape),
        "weights_sha256": classifier.weights_sha256,
        "versions": {"lockstep": __version__, "torch": version("torch")},
    }
    with progress("making the file", 1, at_once=True):
        content, facts = exported(classifier, metadata, opset)
    batch = max(1, min(len(images), _BATCH_VALUES // images[0].size))
    what = f"comparing the file with Lockstep on {len(images):,} images"
    with progress(what, 3 * len(images), at_once=True) as advance:
        of_file = in_batches(loaded(content), images, batch, advance)
        of_lockstep = in_batches(classifier.probabilities, images, recipe.eval_batch, advance)
        in_its_precision = in_batches(in_float32(classifier), images, batch, advance)
    difference = abs(of_file - in_its_precision).max()
    if not difference <= TOLERANCE:
        raise LockstepError(
            f"the ONNX file gives probabilities that differ by up to {difference:.2g} from "
            f"Lockstep's, and {TOLERANCE:g} is allowed: it is not written. Another version of its "
            "runtime may compute it correctly",
            CRASH,
        )
    deliver(file, content)
    deliver(beside, text)
    task = task_of(recipe)
    predicted, expected = (
        task.found(torch.from_numpy(probabilities), classifier.confidence.found_from).numpy()
        for probabilities in (of_file, of_lockstep)
    )
    # An output that is not finite counts as wrong, as in an evaluation.
    expected = np.where(np.isnan(of_lockstep[:, :1]), -1, expected)
    own = task.own(dataset.labels, len(classes)).numpy()
    return ExportRecord(
        file=str(file),
        bytes=len(content),
        script=str(beside),
        weights_sha256=classifier.weights_sha256,
        split=split,
        examples=len(images),
        accuracy=float((predicted == own).all(1).mean()),
        accuracy_lockstep=float((expected == own).all(1).mean()),
        otherwise=int((predicted != expected).any(1).sum()),
        difference=float(difference),
        **facts,
    )
