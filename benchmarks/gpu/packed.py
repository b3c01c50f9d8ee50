"""CIFAR-10 without loss in two files of 50 MB each, to be carried to a machine without a network.

    python -m benchmarks.gpu.packed pack FOLDER OUT     writes OUT/cifar-a.zip and cifar-b.zip
    python -m benchmarks.gpu.packed unpack OUT FOLDER   undoes it, also with only one of both

The images of each file as one lossless WebP (4.4 bits a value), labels as they are, and the SHA-256
of the file.
"""

import argparse
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Bytes = NDArray[np.uint8]

PARTS = {
    "a": ("data_batch_1", "data_batch_2", "data_batch_3"),
    "b": ("data_batch_4", "data_batch_5", "test_batch"),
}
_SIDE, _COLUMNS = 32, 20  # pixels; images in a row, so that 10,000 fit into a WebP's 16,383 pixels


def pack(folder: Path, out: Path) -> None:
    """Write the parts of the files in `folder`, each of a multiple of 20 images, to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    for part, names in PARTS.items():
        with zipfile.ZipFile(out / f"cifar-{part}.zip", "w") as archive:
            for name in names:
                content = (folder / f"{name}.bin").read_bytes()
                records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * _SIDE * _SIDE)
                archive.writestr(f"{name}.sha256", hashlib.sha256(content).hexdigest())
                archive.writestr(f"{name}.labels", records[:, 0].tobytes())
                archive.writestr(f"{name}.webp", _picture(records[:, 1:]))


def unpack(out: Path, folder: Path) -> list[str]:
    """Write the files of the parts in `out` to `folder`, and return their names.

    Raises: SystemExit if a part is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for part, names in PARTS.items():
        path = out / f"cifar-{part}.zip"
        if not path.exists():
            continue
        with zipfile.ZipFile(path) as archive:
            for name in names:
                labels = np.frombuffer(archive.read(f"{name}.labels"), np.uint8)
                images = _images(archive.read(f"{name}.webp"))
                content = np.column_stack((labels, images)).tobytes()
                if hashlib.sha256(content).hexdigest().encode() != archive.read(f"{name}.sha256"):
                    raise SystemExit(f"{path}: {name} is damaged. Copy the file again")
                (folder / f"{name}.bin").write_bytes(content)
                written.append(f"{name}.bin")
    return written


def _picture(images: Bytes) -> bytes:
    """Return `images` [n, 3072], each by colours, as one picture."""
    pixels = images.reshape(-1, _COLUMNS, 3, _SIDE, _SIDE).transpose(0, 3, 1, 4, 2)
    content = io.BytesIO()
    sheet = Image.fromarray(pixels.reshape(-1, _COLUMNS * _SIDE, 3))
    sheet.save(content, "WEBP", lossless=True, quality=75, method=4, exact=True)
    return content.getvalue()


def _images(picture: bytes) -> Bytes:
    """Return the images [n, 3072] of a picture."""
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
    cut = pixels.reshape(-1, _SIDE, _COLUMNS, _SIDE, 3).transpose(0, 2, 4, 1, 3)
    return cut.reshape(-1, 3 * _SIDE * _SIDE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    done = {"pack": pack, "unpack": unpack}[args.what](args.source, args.target)
    print(args.what, *done or ())


if __name__ == "__main__":
    main()
