"""Where the time of a tower goes, on one core: `python -m benchmarks.split [--precision P]
[--rounds N]`.

Computes the layers of the two original networks one by one, forward and backward, on 128 random
images, and compares each with the speed of a matrix product of the same core and moment. The
products of a layer are those of a direct computation, so Winograd's scheme can exceed the speed of
a product. The remainder of a tower (distortions, mean loss, casts, the vector) is the difference to
a step of `lockstep train`.
"""

import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from benchmarks.common import options, save, spread, step_s
from benchmarks.kinds import kind, slug
from lockstep import numerics

numerics.prepare(1)  # must precede the import of torch

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from lockstep.models import mnist, tutorial  # noqa: E402
from lockstep.models.modules import conv_relu, flatten_hwc  # noqa: E402
from lockstep.recipes import get_recipe  # noqa: E402

IMAGES = 128
Layer = tuple[str, Callable[[Tensor], Tensor], list[Any]]  # name, function, modules with weights


def tutorial_layers(net: Any) -> list[Layer]:
    """Return the layers of the tutorial's network."""
    act = net.activations
    dense = [net.local3, net.local4, net.softmax_linear]
    return [
        ("conv1, ReLU, pool", lambda x: conv_relu(x, net.conv1, act["conv1"], (3, 2)), [net.conv1]),
        ("norm1", net.norm, []),
        ("conv2, ReLU", lambda x: conv_relu(x, net.conv2, act["conv2"]), [net.conv2]),
        ("norm2", net.norm, []),
        ("pool2", lambda x: flatten_hwc(functional.max_pool2d(x, 3, 2, ceil_mode=True)), []),
        ("dense layers", lambda x: dense[2](dense[1](dense[0](x).relu()).relu()), dense),
    ]


def mnist_layers(net: Any) -> list[Layer]:
    """Return the layers of the MNIST network."""
    act = net.activations
    dense = [net.dense1, net.dense2, net.logits]
    return [
        ("conv1, ReLU, pool", lambda x: conv_relu(x, net.conv1, act["conv1"], (2, 2)), [net.conv1]),
        ("conv2, ReLU", lambda x: conv_relu(x, net.conv2, act["conv2"]), [net.conv2]),
        (
            "conv3, ReLU, pool",
            lambda x: flatten_hwc(conv_relu(x, net.conv3, act["conv3"], (2, 2))),
            [net.conv3],
        ),
        (
            "dense layers",
            lambda x: dense[2](net.dropout(dense[1](net.dropout(dense[0](x))))),
            dense,
        ),
    ]


NETWORKS = {
    "cifar10-tutorial": (tutorial.Tutorial, (3, 24, 24), tutorial_layers),
    "mnist": (mnist.Mnist, (1, 28, 28), mnist_layers),
}


def peak(dtype: torch.dtype, size: int = 1024) -> float:
    """Return the multiplications a second of a product of two matrices [size, size]."""
    a, b, out = (torch.randn(size, size).to(dtype) for _ in range(3))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        torch.mm(a, b, out=out)
        times.append(time.perf_counter() - began)
    return size**3 / min(times)


def products(x: Tensor, modules: Sequence[Any], first: bool) -> int:
    """Return the multiplications for input `x`, forward and backward; the first layer needs no
    gradient of `x`.
    """
    count = 0
    for module in modules:
        places = 1
        if isinstance(module, nn.Conv2d):
            places = prod(functional.conv2d(x[:1], module.weight, padding=module.padding).shape[2:])
        count += (2 if first else 3) * IMAGES * module.weight.numel() * places
    return count


def timed(
    function: Callable[[Tensor], Tensor], x: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, float]:
    """Return the result for `x`, and the seconds of a forward and a backward pass."""
    wanted = [t for t in (x, *weights) if t.requires_grad]
    y = function(x)
    upstream = torch.randn_like(y)
    for _ in range(2):  # the first time, nothing is in the caches
        began = time.perf_counter()
        torch.autograd.grad(function(x), wanted, upstream)
        seconds = time.perf_counter() - began
    return y.detach(), seconds


def measured(model: str, dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """Return {layer: {"ms": of 128 images, "products": their number}} of a network in `dtype`."""
    build, shape, layers = NETWORKS[model]
    torch.manual_seed(0)
    net = build(shape, 10).to(dtype, memory_format=torch.channels_last)
    x = torch.rand(IMAGES, *shape).to(dtype, memory_format=torch.channels_last)
    rows: dict[str, dict[str, float]] = {}
    for name, function, modules in layers(net):
        weights = [p for module in modules for p in module.parameters()]
        first = not rows
        count = products(x, modules, first)
        x, seconds = timed(function, x.detach().requires_grad_(not first), weights)
        rows[name] = {"ms": 1e3 * seconds, "products": count}
    return rows


def main() -> None:
    parser = options(__doc__, "CIFAR-10 and MNIST")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    args = parser.parse_args()
    dtype = getattr(torch, args.precision)
    record: dict[str, Any] = {}
    rows: list[list[str]] = []
    torch.set_num_threads(1)
    for model in NETWORKS:
        measured(model, dtype)  # the first call makes memory and plans
        rounds, peaks = [], []
        for _ in range(2 * args.rounds):
            peaks.append(peak(dtype))
            rounds.append(measured(model, dtype))
        layers: dict[str, Any] = {
            name: {
                "ms": spread([each[name]["ms"] for each in rounds]),
                "products": rounds[0][name]["products"],
            }
            for name in rounds[0]
        }
        steps = 4 if model == "mnist" else 20
        words = model, "--no-portable", "--precision", args.precision
        recipe = get_recipe(model)
        seconds = step_s(*words, data=args.data, timed=steps)  # of one of the recipe's towers
        images_per_s = recipe.batch / recipe.towers / seconds
        record[model] = {
            "layers": layers,
            "products_per_s": spread(peaks),
            "images_per_s": images_per_s,
        }
        print(
            f"{model}: a product {spread(peaks)['median'] / 1e9:.0f} G/s, {images_per_s:.0f} "
            f"images/s"
        )
        for name, row in layers.items():
            share = row["products"] / row["ms"]["median"] * 1e3 / spread(peaks)["median"]
            span = f"{row['ms']['min']:.1f} to {row['ms']['max']:.1f}"
            cells = [
                model,
                name,
                f"{row['ms']['median']:.1f}",
                span,
                f"{row['products'] / 1e9:.2f}",
                f"{share:.0%}",
            ]
            print(*cells, sep="  ")
            rows.append(cells)
        print(f"    {'whole tower':20} {1e3 * IMAGES / images_per_s:7.1f} ms", flush=True)
    head = [
        "recipe",
        "layers",
        "ms",
        "range",
        "multiplications, 10^9",
        "speed, of a matrix product",
    ]
    table = {"head": head, "rows": rows, "precision": args.precision}
    own = kind() if args.precision == "bfloat16" else f"{kind()} {args.precision}"
    save(f"split-{slug(own)}", {"kind": kind(), "models": record, "table": table})


if __name__ == "__main__":
    main()
