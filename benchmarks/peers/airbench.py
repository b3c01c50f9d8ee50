"""Keller Jordan's airbench94_muon on CIFAR-10's binary files: `python -m benchmarks.peers.airbench
FILE FOLDER`.

FILE is airbench94_muon.py of https://github.com/KellerJordan/cifar10-airbench, which is not part of
this repository. It runs as it is, but for the number of its runs; without --compile also without
torch.compile, which takes minutes to choose kernels. What it uses of torchvision, the normalisation
of images, is here where torchvision is not installed. The last line is JSON: the accuracy with
test-time augmentation and the seconds of each run, by its own clock: initial whitening, training
and the last evaluation.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import re
import runpy
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import torch
from torch import Tensor

SPLITS = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
RUN = re.compile(r"^\|[^|]*\| *eval *\|[^|]*\|[^|]*\| *([\d.]+) *\| *([\d.]+) *\|$", re.M)


class Normalize:
    """torchvision.transforms.Normalize, for images [n, C, H, W]."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.mean, self.std = mean, std

    def __call__(self, images: Tensor) -> Tensor:
        """Return (images - mean) / std, by channel."""
        mean, std = (one.to(images).view(-1, 1, 1) for one in (self.mean, self.std))
        return (images - mean) / std


def edited(source: str, runs: int, compiled: bool) -> str:
    """Return the program with another number of runs. Raises: SystemExit if it is another one."""
    changes = {"range(200)": f"range({runs})"}
    if not compiled:
        changes |= {"    model.compile(": "    # model.compile(", "@torch.compile\n": ""}
    for old, new in changes.items():
        if old not in source:
            raise SystemExit(f"the program has no {old.strip()!r}: is it airbench94_muon.py?")
        source = source.replace(old, new)
    return source


def write_data(folder: Path, place: Path) -> None:
    """Write the splits of CIFAR-10's binary files in `folder` in the program's form."""
    place.mkdir()
    for split, names in SPLITS.items():
        records = np.concatenate([np.fromfile(folder / name, np.uint8) for name in names])
        records = records.reshape(-1, 3073)
        images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        content = {
            "images": torch.from_numpy(images.copy()),
            "labels": torch.from_numpy(records[:, 0].astype(np.int64)),
            "classes": [*map(str, range(10))],
        }
        torch.save(content, place / f"{split}.pt")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=3, help="after one that warms up")
    parser.add_argument("--compile", action="store_true", help="as the program does by itself")
    args = parser.parse_args()
    source = edited(args.file.read_text(), args.runs, args.compile)
    folder = args.folder.absolute()
    instead = {}
    if importlib.util.find_spec("torchvision") is None:
        vision, transforms = ModuleType("torchvision"), ModuleType("torchvision.transforms")
        vision.transforms = transforms  # type: ignore[attr-defined]
        transforms.Normalize = Normalize  # type: ignore[attr-defined]
        instead = {module.__name__: module for module in (vision, transforms)}
    began, output = time.perf_counter(), io.StringIO()
    with (
        tempfile.TemporaryDirectory() as place,
        contextlib.chdir(place),
        mock.patch.dict(sys.modules, instead),
        mock.patch.object(sys, "argv", ["airbench.py"]),  # The program reads itself.
    ):
        write_data(folder, Path("cifar10"))
        Path("airbench.py").write_text(source)
        with contextlib.redirect_stdout(output):
            runpy.run_path("airbench.py", run_name="__main__")
    print(output.getvalue())
    _, *runs = RUN.findall(output.getvalue())
    record = {
        "accuracies": [float(accuracy) for accuracy, _ in runs],
        "seconds": [float(seconds) for _, seconds in runs],
        "total_s": time.perf_counter() - began,
        "torch": torch.__version__,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
