"""The networks of the tutorial and of MNIST with DistributedDataParallel over Gloo, in the usual
style of PyTorch.

Run `torchrun --standalone --nproc-per-node 2 -m benchmarks.peers.pytorch_ddp --data FOLDER`, with
cifar-10-batches-bin in FOLDER, or for --model mnist, MNIST's files. The script uses a Dataset that
distorts one image at a time, a DataLoader, an nn.Module, SGD and an AveragedModel, in float32 by
default. Process 0 prints one line of JSON. It needs torch and numpy, but not Lockstep.
"""

import argparse
import gzip
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Cifar(Dataset[tuple[Tensor, int]]):
    """The 50,000 training images. Each is distorted when it is read."""

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.rglob("data_batch_?.bin"))
        if len(files) != 5:
            raise SystemExit(f"{folder}: {len(files)} files data_batch_N.bin found, 5 are needed")
        records = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
        self.images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
        self.labels = records[:, 0].astype(int).tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = self.images[index][:, top : top + 24, left : left + 24].float()
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        image = image + torch.empty(()).uniform_(-63, 63)
        mean = image.mean((1, 2), keepdim=True)
        image = (image - mean) * torch.empty(()).uniform_(0.2, 1.8) + mean
        deviation = image.std(correction=0).clamp(min=image.numel() ** -0.5)
        return (image - image.mean()) / deviation, self.labels[index]


class Digits(Dataset[tuple[Tensor, int]]):
    """The 60,000 training images of MNIST."""

    def __init__(self, folder: Path) -> None:
        files = [
            next(folder.rglob(f"train-{kind}-ubyte.gz")) for kind in ("images-idx3", "labels-idx1")
        ]
        pixels, labels = (
            np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8) for file in files
        )
        self.images = torch.from_numpy(pixels[16:].reshape(-1, 1, 28, 28).copy())
        self.labels = labels[8:].astype(int).tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index].float() / 255, self.labels[index]


def mnist_network() -> nn.Module:
    """Return the network of TensorFlow-Examples' multi-GPU MNIST, for [b, 1, 28, 28]."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 256, 3),
        nn.ReLU(),
        nn.Conv2d(256, 512, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512 * 16, 2048),
        nn.Dropout(0.75),
        nn.Linear(2048, 1024),
        nn.Dropout(0.75),
        nn.Linear(1024, 10),
    )


class Network(nn.Module):
    """conv5x5-pool-norm, conv5x5-norm-pool, two dense layers and the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 64, 5, padding=2), nn.Conv2d(64, 64, 5, padding=2)
        self.local3, self.local4, self.logits = (
            nn.Linear(2304, 384),
            nn.Linear(384, 192),
            nn.Linear(192, 10),
        )
        for layer, deviation in (
            (self.conv1, 0.05),
            (self.conv2, 0.05),
            (self.local3, 0.04),
            (self.local4, 0.04),
        ):
            nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
            assert layer.bias is not None
            nn.init.constant_(layer.bias, 0.0 if layer is self.conv1 else 0.1)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        """[b, 3, 24, 24] -> [b, 10] logits."""
        x = functional.local_response_norm(
            self.pool(functional.relu(self.conv1(x))), 9, 0.001, 0.75, 1.0
        )
        x = self.pool(
            functional.local_response_norm(functional.relu(self.conv2(x)), 9, 0.001, 0.75, 1.0)
        )
        x = functional.relu(self.local4(functional.relu(self.local3(x.flatten(1)))))
        return self.logits(x)  # type: ignore[no-any-return]


def sgd(network: Any, **options: Any) -> torch.optim.SGD:
    """Return the tutorial's optimizer, which decays the weights of two layers."""
    decayed = [network.local3.weight, network.local4.weight]
    rest = [p for p in network.parameters() if all(p is not d for d in decayed)]
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": 0.004}, {"params": rest}]
    return torch.optim.SGD(groups, lr=0.1, **options)


def batches(args: argparse.Namespace, channels_last: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this process's batches without end."""
    dataset = Digits(args.data) if args.model == "mnist" else Cifar(args.data)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch, sampler=sampler, drop_last=True)
    for epoch in range(10**6):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            yield images.to(memory_format=torch.channels_last) if channels_last else images, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--model", choices=("cifar10-tutorial", "mnist"), default="cifar10-tutorial"
    )
    parser.add_argument("--batch", type=int, default=128, help="images of a process in a step")
    parser.add_argument(
        "--intervals", type=int, default=5, help="number of timed intervals, after one untimed"
    )
    parser.add_argument("--steps", type=int, default=20, help="steps per interval")
    parser.add_argument("--channels-last", action="store_true")
    choices = ("float32", "bfloat16")
    parser.add_argument(
        "--precision", choices=choices, default="float32", help="bfloat16 uses autocast"
    )
    args = parser.parse_args()
    dist.init_process_group("gloo")
    network = mnist_network() if args.model == "mnist" else Network()
    network.to(memory_format=torch.channels_last if args.channels_last else torch.contiguous_format)  # type: ignore[call-overload]
    model = DistributedDataParallel(network)
    optimizer: torch.optim.Optimizer
    if isinstance(network, Network):
        optimizer = sgd(network)
        average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.9999))  # type: ignore[no-untyped-call]
    else:
        optimizer, average = torch.optim.Adam(network.parameters()), None
    source, rates, started = batches(args, args.channels_last), [], 0.0
    for step in range(args.steps * (args.intervals + 1)):
        images, labels = next(source)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bfloat16"):
            loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if average is not None:
            average.update_parameters(network)
        if (step + 1) % args.steps == 0:
            rates.append(
                args.batch * dist.get_world_size() * args.steps / (time.perf_counter() - started)
            )
            started = time.perf_counter()
    if dist.get_rank() == 0:
        report(args, rates[1:], float(loss.detach()))
    dist.barrier()  # A process that leaves while its peer still reports may abort.
    dist.destroy_process_group()


def report(args: argparse.Namespace, rates: list[float], loss: float) -> None:
    """Print the record as one line of JSON."""
    settings = {key: value for key, value in vars(args).items() if key != "data"}
    settings |= {"processes": dist.get_world_size(), "threads": torch.get_num_threads()}
    figures = {
        "n": len(rates),
        "median": statistics.median(rates),
        "min": min(rates),
        "max": max(rates),
    }
    record = {
        "program": "pytorch ddp",
        "model": args.model,
        "images_per_s": figures,
        "last_loss": loss,
    }
    versions = {"torch": torch.__version__}
    print(
        json.dumps({**record, "settings": settings, "versions": versions, "pid": os.getpid()}),
        flush=True,
    )


if __name__ == "__main__":
    main()
