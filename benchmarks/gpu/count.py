"""Operators and launches of a step as a GPU computes it, counted on a CPU: `python -m
benchmarks.gpu.count [CASE...]`.

A launch is an operator that makes more than a view or an empty tensor; on a GPU a backward
convolution is up to four. An operator on lists is one launch, but as many as it has tensors if they
lie differently in memory or have several dtypes. A CUDA graph is one launch; --by-kernels has none.
Copies, as of the values of a step to the device, are among the launches.

All are means of some steps after the first ones, with what reads them: nothing; the listeners of a
run, in a step that none of them reads; its log and metrics; its summaries for TensorBoard. The last
column is the mean of a run: the log every 10 steps, summaries every 100. Of several processes, the
first is counted; messages are not. CASE: see `python -m benchmarks.gpu.steps --help`.
"""

import argparse
import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.stand_ins import Graph
from benchmarks.gpu.trial import Facts, Table, replica, simulated_gpu
from lockstep.core.group import Group
from lockstep.core.log import Log
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.writer import open_run

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
# Steps that are not counted, because graphs are captured and compared in them, and steps that are.
_BEFORE, _COUNTED = 4, 4
_NEVER = 1_000  # steps: more than any run of this program has
_LOGGED, _SUMMARISED = 10, 100  # steps between two of them in a run
# What reads the steps, and the options of the placement by which it does; see above.
READERS: dict[str, Facts | None] = {
    "nothing": None,
    "unread": {"log_every": _NEVER, "summary_every": _NEVER},
    "logged": {"log_every": 1, "summary_every": _NEVER},
    "summarised": {"log_every": _NEVER, "summary_every": 1},
}
HEAD = ["case", "operators", "copies", "launches", *[*READERS][1:], "in a run"]


class First(Group):
    """The first of several processes. What the others send is zero."""

    def __init__(self, processes: int) -> None:
        self.processes = processes


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
        if not is_view and name not in _EMPTY:
            self.launches[name] += _of_lists(name, args) if name.startswith("_foreach_") else 1
        return operation(*args, **(kwargs or {}))


def _of_lists(name: str, args: Any) -> int:
    """Return the launches of an operator on the lists of tensors in `args`: one, if torch has one
    kernel for all of them.

    Each list must have one dtype, and all the same one, unless they are copied; tensors at the same
    place in the lists must have one shape and strides. Source: ForeachUtils.h and
    ForeachBinaryOpList.cu of torch; the copy of 2.11 does not ask for the dtype of the destinations
    (https://github.com/pytorch/pytorch/issues/173383).
    """
    lists = [one for one in args if isinstance(one, list | tuple) and isinstance(one[0], Tensor)]
    dtypes = [{tensor.dtype for tensor in one} for one in lists]
    alike = all(len(one) == 1 for one in dtypes) and (
        name == "_foreach_copy_" or len(set.union(*dtypes)) == 1
    )
    for together in zip(*lists, strict=True):
        alike &= len({(tensor.shape, tensor.stride()) for tensor in together}) == 1
    return 1 if alike else len(lists[0])


def counted(case: str, as_graph: bool = True, processes: int = 1) -> Facts:
    """Return operators, copies and launches of a step of `case` in the first of the processes, for
    each of READERS, and the most frequent launches without one.
    """
    found = {}
    for name, options in READERS.items():
        with simulated_gpu(), tempfile.TemporaryDirectory() as folder:
            steps = _BEFORE + _COUNTED + 3  # All listeners read the last one.
            changes = {"arithmetic": "native", "steps": steps}
            placement = {"graphs": as_graph, **(options or {})}
            group = First(processes)
            trained = replica(case, torch.device("cpu"), 300, changes, group, **placement)
            with _updates(trained, Path(folder) / "run", options is not None) as updates:
                found[name] = _means(updates)
    launches = {name: facts["launches"] for name, facts in found.items()}
    unread = launches["unread"]
    in_a_run = (
        unread
        + (launches["logged"] - unread) / _LOGGED
        + (launches["summarised"] - unread) / _SUMMARISED
    )
    return {**found["nothing"], "with_readers": launches, "in_a_run": in_a_run}


@contextlib.contextmanager
def _updates(trained: Replica, path: Path, listening: bool) -> Iterator[Iterator[object]]:
    """Give the updates of a replica, those of a run at `path` with its listeners if `listening`."""
    if not listening:
        yield trained.updates(Log(trained.bound), boundary=lambda updates: False)
        return
    spec = TrainSpec(recipe=trained.recipe, placement=trained.placement, path=path)
    with open_run(spec, Context(), trained, {}) as writer:
        yield trained.updates(writer.log, poll_requests=writer.poll, boundary=lambda updates: False)


def _means(updates: Iterator[object]) -> Facts:
    """Return the means of the steps that are counted."""
    for _ in islice(updates, _BEFORE):
        pass
    replays = Graph.replays
    with Count() as count:
        for _ in islice(updates, _COUNTED):
            pass
    count.launches["CUDA graph"] = Graph.replays - replays
    return {
        "operators": count.operators / _COUNTED,
        "copies": count.launches["copy_"] / _COUNTED,
        "launches": count.launches.total() / _COUNTED,
        "most": {name: number / _COUNTED for name, number in count.launches.most_common(12)},
    }


def row(facts: Facts) -> list[str]:
    numbers = [facts["operators"], facts["copies"], *facts["with_readers"].values()]
    return [f"{number:,.1f}" for number in (*numbers, facts["in_a_run"])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--by-kernels", action="store_true", help="no CUDA graphs")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-results"), help="folder of the record"
    )
    args = parser.parse_args()
    table = Table("gpu-count", HEAD, args.out)
    for case in args.cases:
        table.add([case], partial(counted, case, not args.by_kernels, args.processes), row)
    sys.exit(table.failed)


if __name__ == "__main__":
    main()
