"""What more devices would do: a latency-bandwidth model of the exchange, as `reduce/process.py` makes it."""

import math
from typing import Any, NamedTuple


class Link(NamedTuple):
    """What connects the devices: seconds a message, and bytes a second each way, of every device at once."""

    latency_s: float
    bytes_per_s: float


def exchange_s(kind: str, devices: int, size: int, link: Link) -> float:
    """Seconds in which `devices` devices of one tower each add vectors of `size` bytes with the reduction `kind`.

    tree: every device sends each other one its slice of 1/W, then the sum of its own, one message after the other:
    2 (W - 1) messages, 2 (W - 1) / W of the vector. allreduce: a ring's, which are as many. central: one device
    receives W - 1 vectors, then broadcasts the total along a binary tree. central-cpu: the same, as copies between
    device and CPU are taken to be free.
    """
    others = devices - 1
    if kind in ("central", "central-cpu"):
        return (others + math.ceil(math.log2(devices))) * (link.latency_s + size / link.bytes_per_s)
    return 2 * others * link.latency_s + 2 * others / devices * size / link.bytes_per_s


def predict(
    step_s: float, tower_batch: int, size: int, kind: str, link: Link, devices: tuple[int, ...] = (8, 64, 512)
) -> list[dict[str, Any]]:
    """A row for each number of devices: a step of one takes `step_s` without exchange, and none of that overlaps it."""
    rows = []
    for count in devices:
        exchange = exchange_s(kind, count, size, link)
        rows.append(
            {
                "devices": count,
                "batch": count * tower_batch,
                "s_per_step": step_s + exchange,
                "exchange_s": exchange,
                "images_per_s": count * tower_batch / (step_s + exchange),
                "efficiency": step_s / (step_s + exchange),
            }
        )
    return rows


def assumptions(step_s: float, size: int, kind: str, link: Link) -> list[str]:
    """What a prediction rests on, in words."""
    how = {
        "tree": "2 (W - 1) messages and 2 (W - 1) / W of the vector a device, straight to each other",
        "allreduce": "a ring: 2 (W - 1) messages and 2 (W - 1) / W of the vector a device",
        "central": "W - 1 whole vectors into one device, then log2 W down a tree",
        "central-cpu": "W - 1 whole vectors into one CPU, then log2 W down a tree; copies from and to the devices free",
    }[kind]
    return [
        f"every device computes as fast as one process here: {step_s * 1e3:.1f} ms a step, always with one tower",
        f"{link.latency_s * 1e6:g} us a message and {link.bytes_per_s / 1e9:g} GB/s each way, for all devices at once "
        "(--latency, --link)",
        f"reduction {kind}: {how}; the vector has {size / 2**20:.1f} MiB",
        "computing and exchange do not overlap; no device is slower than another; adding what arrives is free",
    ]
