"""Operators and launches of a step as a GPU computes it, counted on a CPU: `python -m
benchmarks.gpu.count [CASE...]`.

A launch is an operator that makes more than a view or an empty tensor; on a GPU a backward
convolution is up to four. A tower is one launch, as a CUDA graph, or with --by-kernels as many as
it has kernels. Copies are those to the device. CASE: see `python -m benchmarks.gpu.steps --help`.
"""

import argparse
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.stand_ins import Graph, graphs_of_a_gpu, operators_of_a_gpu
from benchmarks.gpu.trial import Facts, Table, replica
from lockstep.core import loop
from lockstep.core.steps import Observer

# A launch does not depend on the number of images, but a batch must have one for each tower.
CASES = (
    "digits",
    "cifar10-tutorial,batch=8",
    "cifar10-tutorial,batch=8,precision=bfloat16",
    "mnist,batch=8",
    "cifar10,batch=64,precision=float32",
    "cifar10,batch=64,precision=bfloat16",
    "folder,batch=16,precision=bfloat16",
)
_EMPTY = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "detach",
    "alias",
    "lift_fresh",
    "_local_scalar_dense",
}
_BEFORE = 3  # steps that are not counted: the third one compares the graph of the second


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts all operators, and the launches by operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators = 0
        self.launches: Counter[str] = Counter()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute and count one operator."""
        self.operators += 1
        name = operation._schema.name.removeprefix("aten::")
        aliases = [one.alias_info for one in operation._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        self.launches[name] += not is_view and name not in _EMPTY
        return operation(*args, **(kwargs or {}))


def counted(case: str, as_graph: bool = True) -> Facts:
    """Return operators, launches and copies of one step of `case`, and the most frequent
    launches.
    """
    with operators_of_a_gpu(), graphs_of_a_gpu():
        changes = {"arithmetic": "native", "steps": _BEFORE + 3}
        trained = replica(case, torch.device("cpu"), 300, changes)
        updates = loop.updates(
            trained.train_set,
            trained.tower,
            trained.reduction,
            trained.state,
            Observer(),
            boundary=lambda updates: False,
            ahead=True,
            as_graph=as_graph,
        )
        for _ in range(_BEFORE):
            next(updates)
        replays = Graph.replays
        with Count() as count:
            next(updates)
        count.launches["CUDA graph"] = Graph.replays - replays
    most = dict(count.launches.most_common(12))
    launches, copies = count.launches.total(), count.launches["copy_"]
    return {"operators": count.operators, "launches": launches, "copies": copies, "most": most}


def row(facts: Facts) -> list[str]:
    return [f"{facts[name]:,}" for name in ("operators", "launches", "copies")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--by-kernels", action="store_true", help="no CUDA graphs")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-results"), help="folder of the record"
    )
    args = parser.parse_args()
    table = Table("gpu-count", ["case", "operators", "launches", "copies"], args.out)
    for case in args.cases:
        table.add([case], partial(counted, case, not args.by_kernels), row)
    sys.exit(table.failed)


if __name__ == "__main__":
    main()
