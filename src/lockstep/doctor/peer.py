"""One of the two processes that `lockstep doctor` starts: it prints the digest of the sum that both compute.

Arguments: the file in which they meet, and the number of this process.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from lockstep.core.digest import digest

TOWERS = 5
_LENGTH = 10_007  # values of a vector: no multiple of the number of processes


def vectors() -> list[Tensor]:
    """Return one vector for each tower, of magnitudes so different that another order of additions has other bits."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(_LENGTH, generator=generator) * 10.0**tower for tower in range(TOWERS)]


def main() -> None:
    """Add the vectors of all towers on two processes."""
    from lockstep.core.group import connect
    from lockstep.core.monitor import Monitor
    from lockstep.core.reduction import Reduction
    from lockstep.launch.rendezvous import open_store

    meeting, process = Path(sys.argv[1]), int(sys.argv[2])
    store = open_store(meeting, process, 2)
    device = torch.device("cpu")
    group = connect(process, 2, device, store, Monitor())
    reduction, every = Reduction(group, TOWERS), vectors()
    print(digest([reduction(every[tower] for tower in reduction.owned)]).hex(), flush=True)
    group.close()


if __name__ == "__main__":
    main()
