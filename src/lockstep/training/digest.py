"""Digests of tensors: equal for equal bits, at the speed of reading memory, on the device the tensors are on."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

VALUES = 3  # float32 values that hold a short digest
_COLUMNS = 1024  # 8-byte words in a row: a tensor is viewed as int64 [rows, _COLUMNS]


def digest(tensors: Iterable[Tensor]) -> bytes:
    """32 bytes that tell the bits of `tensors`, of any shape and dtype, in their order. Waits for the device.

    Exact where one element differs; where several do, as good as a sum modulo 2^64 of every 1 024th word. The sums are
    of integers, so no order of additions matters: CPUs and GPUs of all kinds agree. SHA-256 of everything would take
    five times as long on a CPU, and a copy of it on a GPU.
    """
    found = hashlib.sha256()
    for tensor in tensors:
        words, rest = _words(tensor.detach().contiguous())
        found.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        if words is not None:
            found.update(words.sum(0).cpu().numpy().tobytes())
        found.update(rest.cpu().numpy().tobytes())
    return found.digest()


def short(tensors: Iterable[Tensor]) -> str:
    """The first 72 bits of `digest`, as 18 hexadecimal digits."""
    return digest(tensors).hex()[: 6 * VALUES]


def values(text: str) -> list[float]:
    """What `short` gave, as VALUES whole numbers below 2^24, which float32 holds exactly."""
    return [float(int(text[i : i + 6], 16)) for i in range(0, len(text), 6)]


def _words(tensor: Tensor) -> tuple[Tensor | None, Tensor]:
    """The bytes of `tensor`: int64 [rows, _COLUMNS], or None where there are too few, and the uint8 bytes left over."""
    raw = tensor.reshape(-1).view(torch.uint8)
    whole = len(raw) // (8 * _COLUMNS) * (8 * _COLUMNS)
    if whole == 0:
        return None, raw
    if raw.data_ptr() % 8:  # a part of another tensor, at a place where no 8-byte word begins
        raw = raw.clone()
    return raw[:whole].view(torch.int64).view(-1, _COLUMNS), raw[whole:]
