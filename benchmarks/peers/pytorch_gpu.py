"""The tutorial's network in plain PyTorch on one GPU: `python -m benchmarks.peers.pytorch_gpu
[--compile]`.

Images, distortions, weights and their average are on the GPU. The network computes in bfloat16 by
autocast, cuDNN chooses its kernels by timing, the optimizer is fused, and the host waits for the
GPU only after the last step. --compile fuses the distortions and, as CUDA graphs, the network with
its backward pass. The images are random ones. It prints one line of JSON, and needs torch and
numpy, but not Lockstep.
"""

import argparse
import json
import time

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.peers.pytorch_ddp import Network, sgd

CROP = 24  # pixels


def distorted(images: Tensor) -> Tensor:
    """Return random crops, flips, brightness and contrast of uint8 [b, 3, H, W], standardised."""
    count, channels, height, _ = images.shape

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(count, 1, 1, 1, device=images.device).uniform_(low, high)

    place = torch.arange(CROP, device=images.device)
    top, left = torch.randint(0, height - CROP + 1, (2, count, 1, 1, 1), device=images.device)
    rows = (top + place[:, None]).expand(count, channels, CROP, images.shape[3])
    columns = (left + place).expand(count, channels, CROP, CROP)
    crops = images.float().gather(2, rows).gather(3, columns)
    crops = torch.where(uniform(0, 1) < 0.5, crops.flip(3), crops) + uniform(-63, 63)
    mean = crops.mean((2, 3), keepdim=True)
    crops = (crops - mean) * uniform(0.2, 1.8) + mean
    deviation = crops.std((1, 2, 3), correction=0, keepdim=True)
    centred = crops - crops.mean((1, 2, 3), keepdim=True)
    values = centred / deviation.clamp(min=crops[0].numel() ** -0.5)
    return values.contiguous(memory_format=torch.channels_last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--warm", type=int, default=50, help="steps that are not measured")
    parser.add_argument("--steps", type=int, default=2000, help="steps that are measured")
    parser.add_argument("--examples", type=int, default=50_000, help="random images")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    shape = args.examples, 3, 32, 32
    images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
    labels = torch.randint(0, 10, (args.examples,), device=device)
    network = Network().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = [parameter.detach().clone() for parameter in network.parameters()]
    optimizer = sgd(network, fused=True)

    def loss_of(batch: Tensor, expected: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return functional.cross_entropy(network(batch), expected)

    distort = distorted
    if args.compile:
        distort = torch.compile(distorted)
        loss_of = torch.compile(loss_of, mode="reduce-overhead")

    def step() -> Tensor:
        chosen = torch.randint(0, args.examples, (args.batch,), device=device)
        loss = loss_of(distort(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        torch._foreach_lerp_(average, [p.detach() for p in network.parameters()], 1e-4)
        return loss.detach()

    for _ in range(args.warm):
        loss = step()
    float(loss)  # waits for the GPU
    began = time.perf_counter()
    for _ in range(args.steps):
        loss = step()
    last_loss = float(loss)
    seconds = time.perf_counter() - began
    record = {
        "batch": args.batch,
        "images_per_s": args.batch * args.steps / seconds,
        "step_ms": 1e3 * seconds / args.steps,
        "last_loss": last_loss,
        "torch": torch.__version__,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
