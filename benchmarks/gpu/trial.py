"""A recipe on random images, and a table that loses nothing."""

import argparse
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import invented, kinds
from benchmarks.common import save
from benchmarks.gpu.stand_ins import graphs_of_a_gpu, operators_of_a_gpu
from lockstep import jobs, numerics
from lockstep.config.overrides import make, parse
from lockstep.config.placement import Placement
from lockstep.core import loop
from lockstep.core.captured import obstacle
from lockstep.core.group import Group
from lockstep.core.tower import Tower
from lockstep.data.dataset import Dataset
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.recipes import RECIPES, get_recipe

Facts = dict[str, Any]

# A recipe that starts from trained weights needs their file.
NAMES = [name for name in RECIPES if get_recipe(name).init_sha256 is None]


def replica(
    case: str,
    device: torch.device,
    examples: int,
    changes: Facts,
    group: Group | None = None,
    **placement: Any,
) -> Replica:
    """Return a replica of `case` on at least `examples` random images, in this process of `group`.

    case: the name of a recipe, and settings that differ, as in
    "cifar10,precision=bfloat16,towers=1". changes, placement: settings that differ in every case.
    """
    name, *settings = case.split(",")
    fields = get_recipe(name).model_dump(mode="json")
    # The full size of the images is the most expensive part of a run.
    full_size = {"progressive": None} if fields["progressive"] else {}
    recipe = make(fields, full_size | changes, parse(settings, {}))
    numerics.configure(recipe.threads_per_tower, recipe.exact)
    splits = invented.load(recipe.dataset, max(examples, recipe.batch), recipe.image_px)
    context = Context(device=device, group=group or Group())
    return Replica(recipe, Placement(device=device.type, **placement), context, splits)


@contextlib.contextmanager
def simulated_gpu() -> Iterator[None]:
    """Let the CPU train a `replica` as a GPU does, by CUDA graphs where the placement allows."""

    def updates(dataset: Dataset, tower: Tower, *args: Any, **options: Any) -> Any:
        ahead = obstacle(tower.bound.recipe) is None
        return loop.updates(dataset, tower, *args, **{**options, "ahead": ahead})

    with (
        operators_of_a_gpu(),
        graphs_of_a_gpu(),
        mock.patch.object(jobs.replica, "updates", updates),
    ):
        yield


def options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with --out."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-results"), help="folder of the record"
    )
    return parser


def device() -> torch.device:
    """Return the first GPU, or the CPU if torch sees none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def wait() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def gpu() -> Facts:
    """Return what a record states of the GPU, or nothing."""
    if not torch.cuda.is_available():
        return {}
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    name = torch.cuda.get_device_name()
    return {
        "kind": f"one {name}, {kinds.kind()}",
        "gpu": {"name": name, "cuda": torch.version.cuda, "cudnn": cudnn},
    }


class Table:
    """A record that grows by a row at a time. It is written and printed after each, so that a
    cut-off loses nothing.

    Several threads may add rows.
    """

    def __init__(self, name: str, head: list[str], out: Path) -> None:
        self._name, self._head, self._out = name, head, out
        self._rows: list[list[str]] = []
        self._cases: list[Facts] = []
        self._adding = threading.Lock()
        self.failed = False
        print(*head, sep=" | ", flush=True)

    def add(
        self, labels: list[str], measure: Callable[[], Facts], row: Callable[[Facts], list[str]]
    ) -> Facts | None:
        """Add the row of `labels` and of what `measure` returns. A failure is a row too."""
        began, facts, error = time.monotonic(), None, ""
        try:
            facts = measure()
            cells = row(facts)
        except SystemExit as problem:  # with what a program has written that failed
            error = str(problem).strip() or "its program failed without a message"
            cells = error.splitlines()[-1:]
        except Exception as problem:  # The other cases go on.
            error = f"{type(problem).__name__}: {problem}"
            cells = error.splitlines()[:1]
        cells = [*labels, *cells, *[""] * len(self._head)][: len(self._head)]
        case = {"case": " ".join(labels), "seconds": round(time.monotonic() - began, 1)}
        with self._adding:
            print(*cells, sep=" | ", flush=True)
            self.failed |= bool(error)
            self._rows.append(cells)
            self._cases.append(case | (facts or {}) | ({"error": error} if error else {}))
            table = {"head": self._head, "rows": self._rows}
            save(self._name, {**gpu(), "n": 1, "table": table, "cases": self._cases}, self._out)
        return facts

    def fail(self, why: str) -> None:
        """Print what is wrong with the rows, and fail."""
        print(why, flush=True)
        self.failed = True
