"""CIFAR-10 without loss in two files of 50 MB each, to be carried to a machine without a network.

    python -m benchmarks.gpu.packed pack FOLDER OUT     writes OUT/cifar-a.zip and cifar-b.zip
    python -m benchmarks.gpu.packed unpack OUT FOLDER   undoes it, also with only one of both

Sheets of 500 images as lossless WebP (4.4 bits a value), labels as they are, and the SHA-256 of
each file.
"""

import argparse
import hashlib
import io
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Bytes = NDArray[np.uint8]

PARTS = {
    "a": ("data_batch_1", "data_batch_2", "data_batch_3"),
    "b": ("data_batch_4", "data_batch_5", "test_batch"),
}
_SIDE, _COLUMNS, _SHEET = 32, 20, 500  # pixels, images in a row of a sheet, images of a sheet
_HASHES = "sha256.json"
_THREADS = 8


def pack(folder: Path, out: Path) -> None:
    """Write the parts of the files in `folder`, each of a multiple of 20 images, to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    for part, names in PARTS.items():
        with zipfile.ZipFile(out / f"cifar-{part}.zip", "w", zipfile.ZIP_STORED) as archive:
            hashes = {}
            for name in names:
                content = (folder / f"{name}.bin").read_bytes()
                hashes[name] = hashlib.sha256(content).hexdigest()
                records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * _SIDE * _SIDE)
                archive.writestr(f"{name}.labels", records[:, 0].tobytes())
                for start in range(0, len(records), _SHEET):
                    picture = _sheet(records[start : start + _SHEET, 1:])
                    archive.writestr(f"{name}-{start:05d}.webp", picture)
            archive.writestr(_HASHES, json.dumps(hashes))


def unpack(out: Path, folder: Path) -> list[str]:
    """Write the files of the parts in `out` to `folder`, and return their names.

    Raises: SystemExit if a part is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in sorted(out.glob("cifar-[ab].zip")):
        with zipfile.ZipFile(path) as archive:
            for name, expected in json.loads(archive.read(_HASHES)).items():
                labels = np.frombuffer(archive.read(f"{name}.labels"), np.uint8)
                files = sorted(file for file in archive.namelist() if file.startswith(f"{name}-"))
                with ThreadPoolExecutor(_THREADS) as pool:
                    images = [*pool.map(_images, map(archive.read, files))]
                content = np.column_stack((labels, np.concatenate(images))).tobytes()
                if hashlib.sha256(content).hexdigest() != expected:
                    raise SystemExit(f"{path}: {name} is damaged. Copy the file again")
                (folder / f"{name}.bin").write_bytes(content)
                written.append(f"{name}.bin")
    return written


def _sheet(images: Bytes) -> bytes:
    """Return `images` [n, 3072], each by colours, as one picture."""
    rows = len(images) // _COLUMNS
    pixels = images.reshape(rows, _COLUMNS, 3, _SIDE, _SIDE).transpose(0, 3, 1, 4, 2)
    picture = Image.fromarray(
        np.ascontiguousarray(pixels).reshape(rows * _SIDE, _COLUMNS * _SIDE, 3)
    )
    content = io.BytesIO()
    picture.save(content, "WEBP", lossless=True, quality=75, method=4, exact=True)
    return content.getvalue()


def _images(picture: bytes) -> Bytes:
    """Return the images [n, 3072] of a sheet."""
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
    if args.what == "pack":
        pack(args.source, args.target)
    else:
        print("unpacked", *unpack(args.source, args.target))


if __name__ == "__main__":
    main()
