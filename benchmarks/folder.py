"""Folders of images, from decoding to training: `python -m benchmarks.folder [--quick] [--data DIR]`.

Writes CIFAR-10 as JPEG files into a temporary folder, which also holds the caches, and measures

1. images decoded per second of CPU time, compared with Pillow alone in the same steps: open, convert, crop, resize;
2. the share of a training step that waits for images, on two processes, with the cache and decoding on the fly;
3. the seconds in which a later start reads a folder of 100 000 files;
4. the peak memory of a process that trains on 200 000 files.

Needs about 4 GB in the system's folder for temporary files, and 15 minutes; with --quick a tenth of both.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import bench, figure, finish, options, parsed, record_of, train
from benchmarks.input_pipeline import rate
from lockstep import numerics

if TYPE_CHECKING:
    from numpy.typing import NDArray

IMAGE_PX = 64
PHOTO_PX = 256  # side of the larger files
QUALITIES = (95, 90, 85, 80)  # One image at several qualities gives several different files.
ROUND_S = 2.0

# Prints the seconds of reading a folder whose index and cache are there, in a fresh process.
READ = """
import sys, time
from pathlib import Path
from lockstep.data.folder.reader import load
began = time.perf_counter()
splits = load(Path(sys.argv[1]), image_px=64, test_share=0.2, skip_unreadable=False)
print(time.perf_counter() - began)
assert sum(map(len, splits.values())) == int(sys.argv[2])
"""


def write_files(folder: Path, data: Path | None, count: int, side: int | None = None) -> None:
    """Write `count` different JPEG files, images of CIFAR-10, as FOLDER/CLASS/NUMBER.jpg. `side` enlarges them."""
    from PIL import Image

    from lockstep.data.cifar import load_cifar10

    train_set = load_cifar10(data)["train"]
    images: NDArray[np.uint8] = train_set.images[:].numpy()
    for name in train_set.classes:
        (folder / name).mkdir(parents=True)
    for number in range(count):
        row, quality = number % len(images), QUALITIES[number // len(images)]
        image = Image.fromarray(images[row])
        if side is not None:
            image = image.resize((side, side), Image.Resampling.BICUBIC)
        image.save(folder / train_set.classes[int(train_set.labels[row])] / f"{number}.jpg", quality=quality)


def pillow_alone(path: Path) -> "NDArray[np.uint8]":
    """Return the pixels as a short program would read them: the middle square, bicubic, as RGB."""
    from PIL import Image

    with Image.open(path) as file:
        image = file.convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = image.crop((left, top, left + side, top + side))
        return np.asarray(square.resize((IMAGE_PX, IMAGE_PX), Image.Resampling.BICUBIC))


def decoding(folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Return images per CPU second of decode_image and of Pillow alone, measured in turn."""
    from lockstep.data.decode import decode_image

    paths = sorted(folder.rglob("*.jpg"))

    def of(decode: Callable[[Path], object]) -> float:
        def work(number: int) -> None:
            decode(paths[number % len(paths)])

        return rate(work, 1, ROUND_S)

    ours, pillow = [], []
    for path in paths:  # into the page cache
        path.read_bytes()
    for _ in range(rounds):
        ours.append(of(lambda path: decode_image(path, IMAGE_PX)))
        pillow.append(of(pillow_alone))
    return ours, pillow


def waiting(folder: Path, *options: object) -> float:
    """Return the share of a step of process 0 that waits for images, on two processes."""
    record = bench("folder", "--processes", 2, "--steps", 20, "--warmup", 5, *options, data=folder)
    split: dict[str, float] = record["split"]
    return split["data"] / sum(split.values())


def read_s(folder: Path, count: int) -> float:
    """Return the seconds in which a fresh process reads the folder."""
    return float(record_of([sys.executable, "-c", READ, folder, count]))


def main() -> None:
    args = parsed(options(__doc__, "CIFAR-10", quick="a tenth of the files and 2 rounds"))
    numerics.prepare(1)  # must precede the import of torch
    rounds, part = args.rounds, 10 if args.quick else 1
    rows: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(place / "cache")  # for this program and those that it starts
        for side in (None, PHOTO_PX):
            folder = place / f"decode-{side or 32}"
            write_files(folder, args.data, 500, side)
            ours, pillow = decoding(folder, rounds)
            ratios = [a / b for a, b in zip(ours, pillow, strict=True)]
            title = f"decoded / Pillow alone, files of {side or 32} px, image_px {IMAGE_PX}"
            rows.append(figure(title, "x", ratios, 0.9, at_least=True))
            figures[f"images_per_s_{side or 32}_px"] = {"lockstep": ours, "pillow": pillow}
        folder = place / "train"
        write_files(folder, args.data, 20_000 // part)
        for words, title, target in (((), "with the cache", 0.05), (("--cache-limit", 0), "on the fly", 1.0)):
            shares = [waiting(folder, *words) for _ in range(rounds)]
            rows.append(figure(f"waiting for images, two processes, {title}", "", shares, target, at_least=False))
        folder, count = place / "start", 100_000 // part
        write_files(folder, args.data, count)
        began = time.perf_counter()
        read_s(folder, count)
        figures["first_start_s"] = time.perf_counter() - began
        times = [read_s(folder, count) for _ in range(rounds)]
        rows.append(figure(f"later start, {count:,} files", "s", times, 1.0, at_least=False))
        folder, count = place / "memory", 200_000 // part
        write_files(folder, args.data, count)
        result = train("folder", "--steps", 20, "--set", "min_steps=1", "--processes", 2, data=folder)
        peaks = [peak / 2**30 for peak in result["peak_memory_bytes"]]
        rows.append(figure(f"peak memory of a process, {count:,} files", "GiB", peaks, 2.0, at_least=False))
    finish("folder", rows, args.quick, image_px=IMAGE_PX, **figures)


if __name__ == "__main__":
    main()
