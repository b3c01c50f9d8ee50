"""Features: what the layers before the head of a network compute, once for each image and view.

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
    ids, stored = images.ids(), RowCache(f"features {key} {backbone.identity()}", backbone.shape)
    rows = stored.find(ids)
    if (lacking := group.gather(rows < 0).any(0)).any():
        missing = images.select(np.flatnonzero(lacking.cpu()))
        features = _computed(backbone, missing, group, threads)
        broken = ~torch.from_numpy(features).view(torch.float32).isfinite().flatten(1).all(1)
        if broken.any():
            raise LockstepError(
                f"the features of {int(broken.sum())} of {len(missing)} images are not finite, so "
                f"no head can be "
                f"trained on them: the weights do not fit the network or its precision. Give other "
                f"weights as "
                f"{option('init')}, or {option('precision', 'float32')}",
                DATA,
            )
        made = dict(zip(missing.ids(), features, strict=True))
        with group.in_turn(first_of_host):
            rows = stored.find_or_make(
                ids, lambda row: made[ids[row]], f"features of {len(missing):,} images"
            )
    return replace(images, images=stored.images, rows=rows, mapped=True, row_ids=None)


def _computed(backbone: Backbone, images: Dataset, group: Group, threads: int) -> Bytes:
    """Return the features of all images, uint8 [N, 1, views, 4 * D]. Each process computes a part
    of them.
    """
    parts = [owned(len(images), group.processes, process) for process in range(group.processes)]
    own = parts[group.process]
    block = torch.zeros(max(map(len, parts)), *backbone.shape, dtype=torch.uint8)
    pool = numerics.pool(threads, "features")
    try:
        with progress(f"computing the features of {len(images):,} images", len(own)) as advance:
            for row, features in enumerate(
                pool.map(lambda i: backbone(images.pixels(slice(i, i + 1))), own)
            ):
                block[row] = features[0]
                advance(1)
    finally:
        pool.shutdown(cancel_futures=True)
    everyone = group.gather(block.to(images.labels.device)).cpu()
    return torch.cat(
        [part[: len(rows)] for part, rows in zip(everyone, parts, strict=True)]
    ).numpy()
