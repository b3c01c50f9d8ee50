"""Peak memory of each recipe, and what it is made of: `python -m benchmarks.memory --data DIR`.

Each recipe trains 2 steps and is evaluated, on one process, in both arithmetics if its own is portable. The program
notes its resident memory when torch and Lockstep are loaded, when the dataset is read, and when the model and its state
are made; then its peak after the steps, and after the evaluation. CIFAR-10 and MNIST are the real ones. CIFAR-100 has
random images of the same number and size; a folder has 80 random photos.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import data_option, options, parsed, record_of, save
from benchmarks.gpu_check import FOLDERS, IMPORTS, make_photos
from lockstep.recipes import RECIPES, get_recipe

STEPS = 2
STAGES = ("torch and Lockstep", "dataset", "model and state", "steps", "evaluation")
CHILD = """
import json, sys
import torch
from lockstep import hardware
from lockstep.cli import main
from lockstep.jobs import session, train

cpu, notes = torch.device("cpu"), []
read, make, evaluate = session.read_splits, session.Session.__init__, session.Session.evaluate_all

def noted_read(*args):
    notes.append(hardware.memory_bytes(cpu))
    splits = read(*args)
    notes.append(hardware.memory_bytes(cpu))
    return splits

def noted_make(self, *args, **kwargs):
    make(self, *args, **kwargs)
    notes.append(hardware.memory_bytes(cpu))

def noted_evaluate(*args, **kwargs):
    notes.append(hardware.peak_memory_bytes(cpu))
    results = evaluate(*args, **kwargs)
    notes.append(hardware.peak_memory_bytes(cpu))
    return results

session.read_splits, session.Session.__init__, session.Session.evaluate_all = noted_read, noted_make, noted_evaluate
try:
    main()
finally:
    print(json.dumps(notes[:3] + notes[-2:]), flush=True)
"""


def cifar100() -> dict[str, Any]:
    """Return random images in the number and size of CIFAR-100."""
    drawn = np.random.default_rng(0)

    def split(count: int) -> tuple[Any, Any]:
        return drawn.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), np.arange(count) % 100

    return {"train": split(50_000), "test": split(10_000)}


def measured(recipe: str, arithmetic: str, data: Path | None, folder: Path) -> list[int]:
    """Return the bytes after each of STAGES. `folder` has photos/, and receives the runs."""
    where: list[object] = [] if recipe == "digits" else [*data_option(data)]
    if recipe == "cifar100":
        where = ["--dataset", "benchmarks.memory:cifar100"]
    if recipe in FOLDERS:
        where = ["--data", folder / "photos"]
    if recipe == "photos-tuned":
        where += ["--init", folder / "photos-native"]
    words = ["train", recipe, *where, "--set", f"arithmetic={arithmetic}", "--steps", STEPS, "--processes", 1]
    words += ["--runs", folder, "--name", f"{recipe}-{arithmetic}", "--inline", "--json"]
    notes: list[int] = record_of([sys.executable, "-c", CHILD, *words], **IMPORTS)
    return notes


def main() -> None:
    args = parsed(options(__doc__, "CIFAR-10 and MNIST"))
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_photos(folder / "photos")
        for recipe in RECIPES:
            own = get_recipe(recipe).arithmetic
            for arithmetic in dict.fromkeys(("native", own)):
                notes = measured(recipe, arithmetic, args.data, folder)
                rows[f"{recipe}, {arithmetic}"] = dict(zip(STAGES, notes, strict=True))
                print(f"{recipe + ', ' + arithmetic:28}", *(f"{note / 2**20:8,.0f}" for note in notes), flush=True)
    save("memory", {"steps": STEPS, "bytes": rows})


if __name__ == "__main__":
    main()
