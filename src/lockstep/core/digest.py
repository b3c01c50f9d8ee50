"""Digests of tensors: equal for equal bits, computed at the speed of reading memory, on the
tensors' own device.
"""

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

_COLUMNS = 1024  # 8-byte words in a row: a tensor is viewed as int64 [rows, _COLUMNS]


def digest(tensors: Iterable[Tensor]) -> bytes:
    """Return 32 bytes that depend on every bit of `tensors` (any shapes and dtypes) and on their
    order.

    One changed element always changes the digest. If several change, the digest is as reliable as a
    sum modulo 2^64 over every 1,024th word. The sums are of integers, so their order does not
    matter, and CPUs and GPUs agree. SHA-256 of all bytes would take five times as long on a CPU,
    and would need a copy on a GPU. Waits for the device.

    Processes use it to compare what they computed. Use `add_to` to identify content, for example as
    the key of a cache: other tensors with an equal sum are easily made.
    """
    result = hashlib.sha256()
    row = 8 * _COLUMNS
    for tensor in tensors:
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        # A view into another tensor may start in the middle of an 8-byte word.
        if raw.data_ptr() % 8:
            raw = raw.clone()
        whole = len(raw) // row * row
        result.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        if whole:
            sums = raw[:whole].view(torch.int64).view(-1, _COLUMNS).sum(0)
            result.update(sums.cpu().numpy().tobytes())
        result.update(raw[whole:].cpu().numpy().tobytes())
    return result.digest()


def add_to(sha256: "hashlib._Hash", tensors: Mapping[str, Tensor]) -> str:
    """Add the names, types, shapes and bits of all `tensors` to `sha256`, and return it in hex."""
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha256.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        sha256.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()
