"""Features: what the backbone of a network computes, once for each image and view.

With `recipe.head`, only the last layer is trained, and an augmentation with at most two views shows
each image as it is or mirrored. So the backbone computes every image before the first step, and the
training loop sees a dataset of features in place of images.
"""

from dataclasses import replace

import numpy as np
import torch

from lockstep import numerics
from lockstep.core.backbone import Backbone
from lockstep.core.group import Group
from lockstep.core.tree import owned
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError, option
from lockstep.messages import progress
from lockstep.pictures.pixels import Bytes, RowCache


def features_of(
    backbone: Backbone,
    images: Dataset,
    group: Group,
    key: str,
    *,
    first_of_host: bool,
    threads: int,
) -> Dataset:
    """Return `images` with their features in place of pixels. Those that their file lacks are
    computed.

    All processes call this together. Each computes a part, by `threads` threads, and receives the
    others'. The first process of each host writes the file. `key` is what decides the features
    besides network and images.
    Raises: LockstepError, in every process, if features are not finite.
    """
    ids = images.ids()
    cache = RowCache(f"features {key} {backbone.identity()}", backbone.shape)
    rows = cache.find(ids)
    lacking = group.gather(rows < 0).any(0)
    if lacking.any():
        missing = images.select(np.flatnonzero(lacking.cpu()))
        features = _computed(backbone, missing, group, threads)
        broken = ~torch.from_numpy(features).view(torch.float32).isfinite().flatten(1).all(1)
        if broken.any():
            raise LockstepError(
                f"the features of {int(broken.sum())} of {len(missing)} images are not finite, so "
                f"no head can be trained on them: the weights do not fit the network or its "
                f"precision. Give other weights as {option('init')}, or "
                f"{option('precision', 'float32')}",
                DATA,
            )
        made = dict(zip(missing.ids(), features, strict=True))
        with group.in_turn(first_of_host):
            what = f"features of {len(missing):,} images"
            rows = cache.find_or_make(ids, lambda row: made[ids[row]], what)
    return replace(images, images=cache.images, rows=rows, mapped=True, row_ids=None)


def _computed(backbone: Backbone, images: Dataset, group: Group, threads: int) -> Bytes:
    """Return the features of all images, uint8 [N, 1, views, 4 * D]. Each process computes a part
    of them.
    """
    parts = [owned(len(images), group.processes, process) for process in range(group.processes)]
    part = parts[group.process]
    block = torch.zeros(max(map(len, parts)), *backbone.shape, dtype=torch.uint8)
    pool = numerics.pool(threads, "features")
    try:
        computed = pool.map(lambda row: backbone(images.pixels(slice(row, row + 1))), part)
        with progress(f"computing the features of {len(images):,} images", len(part)) as advance:
            for row, features in enumerate(computed):
                block[row] = features[0]
                advance(1)
    finally:
        pool.shutdown(cancel_futures=True)
    everyone = group.gather(block.to(images.labels.device)).cpu()
    blocks = [features[: len(rows)] for features, rows in zip(everyone, parts, strict=True)]
    return torch.cat(blocks).numpy()
