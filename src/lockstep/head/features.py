"""Features: what the backbone of a network computes, once for each image and view.

With `recipe.head`, only the last layer is trained, and an augmentation with at most two views shows
each image as it is or mirrored. So the backbone computes every image before the first step, and the
training loop sees a dataset of features in place of images.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from lockstep import numerics
from lockstep.config.recipe import Recipe
from lockstep.core.backbone import Backbone
from lockstep.core.group import Group
from lockstep.core.tree import owned
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, ENVIRONMENT, LockstepError, option
from lockstep.files import Record, cache_key
from lockstep.messages import progress
from lockstep.pictures.pixels import Bytes, RowCache

_AT_A_TIME = 1024  # images whose features are exchanged and written together


def features_key(recipe: Recipe, fingerprint: Record, code: Record) -> str:
    """Return the key of what decides features besides the weights and the images.

    `fingerprint` is that of the session, and `code` the user's, if the network is: see
    `runs/provenance.py`.
    """
    return cache_key(
        "backbone",
        model=recipe.model,
        options=recipe.model_options,
        head=recipe.head,
        augmentation=recipe.augmentation.model_dump(mode="json"),
        arithmetic=recipe.arithmetic,
        precision=recipe.precision,
        threads=recipe.threads_per_tower,
        fingerprint=fingerprint,
        code=code,
    )


def features_of(
    backbone: Backbone,
    images: Dataset,
    group: Group,
    key: str,
    *,
    first_of_host: bool,
    threads: int,
    exact: bool,
) -> Dataset:
    """Return `images` with their features in place of pixels. Features that are not in their file
    are computed.

    All processes call this together. Each computes a part, with `threads` threads, and receives the
    other parts. The first process of each host writes the file. `key` is that of what decides the
    features besides weights and images: see `features_key`.
    Processes that compute different features are an error if the run is `exact`; otherwise no other
    run uses their file.
    Raises: LockstepError, in every process, in this case and if features are not finite.
    """
    ids = images.ids()
    computed = torch.frombuffer(bytearray.fromhex(backbone.identity()), dtype=torch.uint8)
    every = group.gather(computed.to(images.labels.device)).cpu()
    if exact and not every.eq(every[0]).all():
        raise LockstepError(
            "the hosts do not compute the same features with the layers before the head, so the "
            "weights would depend on which host computes which image. Give every host the same "
            f"libraries and model of CPU or GPU, or train with {option('portable', True)}",
            ENVIRONMENT,
        )
    known = [*dict.fromkeys(row.numpy().tobytes().hex() for row in every)]
    shape, weights = [*images.images.shape[1:]], backbone.weights_sha256()
    own = cache_key("features", key=key, weights=weights, shape=shape, computed=known)
    cache = RowCache(own, backbone.shape)
    rows = cache.find(ids)
    lacking = group.gather(rows < 0).any(0)
    if lacking.any():
        missing = np.flatnonzero(lacking.cpu())
        what = f"features of {len(missing):,} images"
        firsts = range(0, len(missing), _AT_A_TIME)
        most = len(missing) // group.processes + len(firsts)  # as parts are divided
        with progress(f"computing the {what}", most) as advance:
            # A part is written before the next is computed: an interrupted start continues there.
            for first in firsts:
                part = images.select(missing[first : first + _AT_A_TIME])
                features = _computed(backbone, part, group, threads, advance)
                with group.in_turn(first_of_host):
                    cache.find_or_make(part.ids(), features.__getitem__, what)
        rows = cache.find(ids)
    return replace(images, images=cache.images, rows=rows, mapped=True, row_ids=None)


def _computed(
    backbone: Backbone,
    images: Dataset,
    group: Group,
    threads: int,
    advance: Callable[[int], None],
) -> Bytes:
    """Return the features of all images, uint8 [N, 1, views, 4 * D]. Each process computes a part
    of them. Raises: LockstepError if features are not finite.
    """
    parts = [owned(len(images), group.processes, process) for process in range(group.processes)]
    part = parts[group.process]
    block = torch.zeros(max(map(len, parts)), *backbone.shape, dtype=torch.uint8)
    pool = numerics.pool(threads, "features")
    try:
        computed = pool.map(lambda row: backbone(images.pixels(slice(row, row + 1))), part)
        for row, features in enumerate(computed):
            block[row] = features[0]
            advance(1)
    finally:
        pool.shutdown(cancel_futures=True)
    everyone = group.gather(block.to(images.labels.device)).cpu()
    blocks = [features[: len(rows)] for features, rows in zip(everyone, parts, strict=True)]
    every = torch.cat(blocks)
    broken = ~every.view(torch.float32).isfinite().flatten(1).all(1)
    if broken.any():
        raise LockstepError(
            f"the features of {int(broken.sum())} of {len(images)} images are not finite, so no "
            f"head can be trained on them: the weights do not fit the network or its precision. "
            f"Give other weights as {option('init')}, or {option('precision', 'float32')}",
            DATA,
        )
    return every.numpy()
