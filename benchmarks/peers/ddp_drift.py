"""What DistributedDataParallel learns on several processes: `python -m benchmarks.peers.ddp_drift
PROCESSES [--data DIR] [--seed N]`.

Everything that PyTorch offers for reproducible training is on: seeds, deterministic algorithms, one
thread per process. The batch of a step holds the same 128 images on any number of processes, and
the network has neither dropout nor batch norm. So only the order of additions differs. It trains on
digits, or for two epochs on the CIFAR-10 in DIR. The last line is a JSON object: the loss of each
step, the mean over all processes, and the class that the network gives to each test image.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lockstep.data.dataset import Dataset
from lockstep.data.readers import load_cifar10, load_digits

BATCH = 128
STEPS = {"digits": 248, "cifar10": 782}


def pixels_of(dataset: Dataset) -> torch.Tensor:
    """Return all images, float32 [N, C, H, W] in [0, 1]."""
    return dataset.images[:].permute(0, 3, 1, 2).float() / 255


def train(process: int, processes: int, store: str, data: Path | None, seed: int) -> None:
    """Train as number `process` of `processes`. Process 0 writes what it found to `store`.json."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=process, world_size=processes
    )
    splits = load_cifar10(data) if data else load_digits(None)
    steps = STEPS["cifar10" if data else "digits"]
    images = pixels_of(splits["train"])
    dataset = TensorDataset(images, splits["train"].labels)
    _, channels, height, width = images.shape
    network = nn.Sequential(
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(4 * height * width, 10)),
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, BATCH // processes, sampler=sampler, drop_last=True)
    losses: list[float] = []
    for epoch in range(steps):
        sampler.set_epoch(epoch)
        for pixels, labels in loader:
            loss = functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            mean = loss.detach().double() / processes
            dist.all_reduce(mean)
            losses.append(mean.item())
            if len(losses) == steps:
                break
        if len(losses) == steps:
            break
    if process == 0:
        with torch.no_grad():
            answers = [network(one).argmax(1) for one in pixels_of(splits["test"]).chunk(20)]
        found = {"losses": losses, "answers": torch.cat(answers).tolist()}
        Path(f"{store}.json").write_text(json.dumps(found))
    dist.barrier()  # Gloo may abort a process that leaves before another one.
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("processes", type=int)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        arguments = (args.processes, store, args.data, args.seed)
        spawn(train, arguments, args.processes)  # type: ignore[no-untyped-call]
        print(Path(f"{store}.json").read_text())


if __name__ == "__main__":
    main()
