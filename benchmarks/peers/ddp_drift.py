"""The losses of DistributedDataParallel on digits: `python -m benchmarks.peers.ddp_drift
PROCESSES`.

Everything that PyTorch offers for reproducible training is on: seeds, deterministic algorithms, one
thread per process. The batch of a step holds the same 128 images on any number of processes, and
the network has neither dropout nor batch norm. So only the order of additions differs. The last
line is a JSON list of the loss of each step, the mean over all processes.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lockstep.data.readers import load_digits

BATCH, STEPS = 128, 248


def train(process: int, processes: int, store: str) -> None:
    """Train as number `process` of `processes`. Process 0 writes the losses to `store`.json."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=process, world_size=processes
    )
    digits = load_digits(None)["train"]
    images = digits.images[:].permute(0, 3, 1, 2).float() / 255
    dataset = TensorDataset(images, digits.labels)
    network = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 10)),
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, BATCH // processes, sampler=sampler, drop_last=True)
    losses: list[float] = []
    for epoch in range(STEPS):
        sampler.set_epoch(epoch)
        for pixels, labels in loader:
            loss = functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            mean = loss.detach().double() / processes
            dist.all_reduce(mean)
            losses.append(mean.item())
        if len(losses) >= STEPS:
            break
    if process == 0:
        Path(f"{store}.json").write_text(json.dumps(losses[:STEPS]))
    dist.barrier()  # Gloo may abort a process that leaves before another one.
    dist.destroy_process_group()


def main() -> None:
    processes = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        spawn(train, (processes, store), processes)  # type: ignore[no-untyped-call]
        print(Path(f"{store}.json").read_text())


if __name__ == "__main__":
    main()
