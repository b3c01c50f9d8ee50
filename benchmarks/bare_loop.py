"""The tutorial's training step as a bare PyTorch loop, for comparison with Lockstep's loop.

Run it with torchrun. Network, distortions, SGD with weight decay and average of the weights are
those of `cifar10-tutorial`; the network computes in the precision asked for, with float32 master
weights. One all_reduce adds the gradients. The loop has no fixed order of additions, no keyed
randomness, no checks, no checkpoints and no log. Process 0 prints images per second.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional

from benchmarks.peers.pytorch_ddp import sgd
from lockstep.data.augmentations import Distort
from lockstep.data.readers import load_cifar10
from lockstep.data.transforms import Keys, to_device
from lockstep.models.tutorial import Tutorial


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    args = parser.parse_args()
    dtype = getattr(torch, args.precision)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    dataset, augmentation = load_cifar10(args.data)["train"], Distort()
    torch.manual_seed(0)
    master = Tutorial((3, 24, 24), 10)
    network = Tutorial((3, 24, 24), 10).to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = sgd(master, foreach=True)
    average = [p.detach().clone() for p in master.parameters()]
    generator = np.random.default_rng(dist.get_rank())
    started = 0.0
    for step in range(args.steps):
        if step == 5:
            started = time.perf_counter()
        with torch.no_grad():
            for copy, parameter in zip(network.parameters(), master.parameters(), strict=True):
                copy.copy_(parameter)
        index = generator.integers(len(dataset), size=128)
        values = augmentation.draw(Keys(0, np.full(128, step), index), dataset.images)
        raw = dataset.images[torch.from_numpy(index)]
        images = augmentation.train(raw, to_device(values, raw.device)).to(dtype)
        loss = functional.cross_entropy(network(images).float(), dataset.labels[index])
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        flat = torch.cat([g.reshape(-1).float() for g in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        parts = torch.split(flat, [g.numel() for g in gradients])
        for parameter, part in zip(master.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
        torch._foreach_lerp_(average, [p.detach() for p in master.parameters()], 1e-4)
        float(loss)
    if dist.get_rank() == 0:
        print((args.steps - 5) * 128 * dist.get_world_size() / (time.perf_counter() - started))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
