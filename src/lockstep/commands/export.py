"""lockstep.export, and `lockstep export`.

Examples:
  lockstep export runs/digits-1                          writes digits-1.onnx
  lockstep export runs/digits-1 --to litert --int8       writes digits-1-int8.tflite
  lockstep export model.safetensors -o digits.onnx --data DIR
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep import __version__, numerics
from lockstep.commands.hub import is_address, model_at
from lockstep.commands.named import data_of, path_of, placement_of
from lockstep.commands.predict import load
from lockstep.commands.shell import in_shell, require_extra, require_writable
from lockstep.errors import CRASH, DATA, LockstepError, option, printable
from lockstep.files import Record, deliver, given
from lockstep.messages import logger, progress
from lockstep.runs.run import Run
from lockstep.text import size

TOLERANCE = 1e-3  # largest difference between two probabilities
# that a runtime is given at a time: it takes new memory for each large batch
_BATCH_VALUES = 1 << 22
_CALIBRATED = 256  # largest number of training images that int8 is calibrated on


@dataclass(frozen=True)
class ExportRecord:
    """An exported file compared with Lockstep. `lockstep export --json` prints the same.

    Attributes:
        file: The file.
        format: Its format.
        bytes: Its size; of an OpenVINO file, with that of its weights.
        script: A program next to the file that uses it without Lockstep.
        weights_sha256: The SHA-256 of the weights, as in result.json and in the metadata of the
            file. None if a model file does not state it.
        split: The split whose images were compared.
        examples: Their number.
        accuracy: The accuracy of the file, as its runtime computes it. With multi-label data, an
            image counts if exactly its labels are found.
        accuracy_lockstep: The accuracy of Lockstep, as `lockstep eval` computes it.
        ms: How long the runtime takes for one image, in milliseconds: a median.
        calibrated: The number of training images that int8 was calibrated on. None for float32.
        otherwise: The number of images whose class differs from that of Lockstep.
        difference: The largest difference of a probability from that of Lockstep in float32, the
            precision of the file.
        opset: The version of the ONNX operators that a runtime must know. None for LiteRT.
        ir_version: The version of the ONNX format that a runtime must know. None for LiteRT.
    """

    file: str
    format: str
    bytes: int
    script: str = field(repr=False)
    weights_sha256: str | None = field(repr=False)
    split: str
    examples: int
    accuracy: float
    accuracy_lockstep: float
    ms: float
    calibrated: int | None
    otherwise: int
    difference: float
    opset: int | None = None
    ir_version: int | None = None

    def __str__(self) -> str:
        versions = f", opset {self.opset}, IR version {self.ir_version}" if self.opset else ""
        allowed = f"in float32 (allowed: {TOLERANCE:g})"
        if self.calibrated:
            loss = self.accuracy_lockstep - self.accuracy
            allowed = (
                f"(int8 calibrated on {self.calibrated:,} training images; loss of accuracy: "
                f"{100 * loss:.2f} points)"
            )
        return "\n".join(
            [
                f"  file        {printable(self.file)}, {size(self.bytes)}",
                f"  format      {self.format}{versions}",
                f"  use         python {printable(shlex.join([self.script, self.file]))} IMAGE...",
                f"  accuracy    {self.accuracy:.2%} of {self.examples:,} {self.split} images; "
                f"lockstep eval: {self.accuracy_lockstep:.2%}",
                f"  difference  classified otherwise: {self.otherwise:,} of {self.examples:,}; "
                f"probabilities differ by up to {self.difference:.1e} {allowed}",
                f"  speed       {self.ms:.3g} ms an image, one at a time",
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
    to: str = "onnx",
    int8: bool = False,
    *,
    data: Path | str | None = None,
    trust_code: bool = False,
    force: bool = False,
) -> ExportRecord:
    """Write a classifier to a file of ONNX, LiteRT or OpenVINO, and compare it with Lockstep on all
    test images.

    Programs can use the file without Lockstep. It maps images, uint8 [N, H, W, C] of the network's
    size, to probabilities, and contains the preprocessing. It computes in float32. If a probability
    differs by more than 0.001 from that of Lockstep, no file is written.

    The script use_exported.py is written next to the file. It needs NumPy, Pillow and the runtime,
    reads images as `lockstep predict` does, and prints the same answers: the class, its
    probability, and whether the answer is confident.

    If the recipe moves only the least confident images for test-time augmentation
    (flip-translate-unsure), the file moves all of them.

    Args:
        source: Folder of a run, or a model.safetensors.
        output: The file to write. Default: NAME.onnx, NAME.tflite for LiteRT, or NAME.xml and
            NAME.bin for OpenVINO; with int8, NAME-int8.
        checkpoint: The checkpoint after this many steps, or best: the one with the best accuracy of
            those that training evaluated. Default: the newest.
        confident: How often answers that are called confident should be right, for pictures like
            the training images: 0.95 means 95 times in 100.
        opset: Version of the ONNX operators, for a runtime that knows no later one. Default: the
            one that PyTorch writes.
        to: The format: onnx, litert or openvino.
        int8: Quantize weights and activations to 8 bits, calibrated on training images. The file is
            smaller, and the loss of accuracy is stated.
        data: Folder of the dataset. Default: that of training.
        trust_code: Execute code that a recipe file or a run names: a model or a dataset that is not
            built in.
        force: Overwrite a file that exists.

    Returns:
        The record of the comparison.

    Raises:
        LockstepError: As `lockstep.load`; and data that are missing, a network that cannot be
            exported, a package of the extra "export", "litert" or "openvino" that is not
            installed, or a file whose probabilities differ.

    Examples:
        >>> record = lockstep.export("runs/first", "first.onnx")
        >>> print(record.accuracy, record.otherwise, record.difference)
    """
    if in_shell():
        numerics.prepare(1)  # before torch is imported; `load` sets the number of threads
    from lockstep.classify.formats import FORMATS

    if is_address(source):
        name = str(source).partition("@")[0].rpartition("/")[2]
        source = model_at(str(source))
    else:
        named = Path(str(path_of(source))).resolve()
        name = named.stem if named.is_file() else named.name
    if to not in FORMATS:
        raise LockstepError(f"{option('to', to)}: give one of {', '.join(FORMATS)}")
    form = FORMATS[to]
    suffix = form.suffixes[-1]
    file = given(f"{name}{'-int8' * int8}{suffix}" if output is None else output)
    if file.suffix.lower() != suffix:
        raise LockstepError(
            f"{file}: programs know a format by the name of its file: give one that ends in "
            f"{suffix}, or another format as {option('to')}"
        )
    if opset is not None and opset not in form.opsets:
        raise LockstepError(
            f"{option('opset', opset)}: 18 to 25 are allowed, of ONNX and OpenVINO: give one that "
            f"the runtime knows"
        )
    files = [*map(file.with_suffix, form.suffixes[:-1]), file]
    for each in files:
        require_writable(each, force)
    beside = file.with_name("use_exported.py")
    require_extra(form.extra, form.modules)
    import numpy as np
    import torch

    from lockstep.classify.classifier import run_of
    from lockstep.classify.export import (
        answers_of,
        exported,
        exporting,
        in_batches,
        in_float32,
        pace,
        script,
    )
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
    metadata = answers_of(classifier) | {
        "recipe": recipe.model_dump(mode="json"),
        "recipe_digest": recipe.digest(),
        "weights_sha256": classifier.weights_sha256,
        "versions": {"lockstep": __version__, "torch": version("torch")},
    }
    calibration = None
    if int8:
        train = splits["train"]
        calibration = train.pixels(
            torch.arange(0, len(train.labels), -(-len(train.labels) // _CALIBRATED))
        ).numpy()
    with progress("making the file", 1, at_once=True):
        model = exported(classifier, form, opset, calibration)
    facts = form.facts(model)
    batch = max(1, min(len(images), _BATCH_VALUES // images[0].size))
    what = f"comparing the file with Lockstep on {len(images):,} images"
    with TemporaryDirectory() as folder:
        made = Path(folder) / file.name
        with exporting(classifier):
            form.write(model, metadata, made)
            compute = form.open(made, torch.get_num_threads())
        with progress(what, 3 * len(images), at_once=True) as advance:
            of_file = in_batches(lambda each: compute(each)[0], images, batch, advance)
            of_lockstep = in_batches(classifier.probabilities, images, recipe.eval_batch, advance)
            in_float = in_batches(in_float32(classifier), images, batch, advance)
        difference = abs(of_file - in_float).max()
        # Beyond 1, they are no probabilities.
        limit = 1 if int8 else TOLERANCE
        if not difference <= limit:
            raise LockstepError(
                f"the {form.title} file gives probabilities that differ by up to {difference:.2g} "
                f"from Lockstep's, and {limit:g} is allowed: it is not written. Another version "
                "of its runtime may compute it correctly",
                CRASH,
            )
        task = task_of(recipe)
        predicted, expected = (
            task.found(torch.from_numpy(probabilities), classifier.confidence.found_from).numpy()
            for probabilities in (of_file, of_lockstep)
        )
        # An output that is not finite counts as wrong, as in an evaluation.
        expected = np.where(np.isnan(of_lockstep[:, :1]), -1, expected)
        own = task.own(dataset.labels, len(classes)).numpy()
        compared: Record = {
            "split": split,
            "examples": len(images),
            "accuracy": float((predicted == own).all(1).mean()),
            "accuracy_lockstep": float((expected == own).all(1).mean()),
            "otherwise": int((predicted != expected).any(1).sum()),
            "difference": float(difference),
            "calibrated": None if calibration is None else len(calibration),
        }
        ms = pace(compute, images)
        form.write(model, metadata | facts | compared, made)
        for each in files[1:]:  # No old graph may stand beside new weights.
            each.unlink(missing_ok=True)
        for each in files:
            deliver(each, made.with_name(each.name).read_bytes())
    deliver(beside, text)
    return ExportRecord(
        file=str(file),
        format=form.title,
        bytes=sum(each.stat().st_size for each in files),
        script=str(beside),
        weights_sha256=classifier.weights_sha256,
        ms=ms,
        **compared,
        **facts,
    )
