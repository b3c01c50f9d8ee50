"""Classify images by a file of `lockstep export`, without Lockstep: python use_exported.py
FILE IMAGE|FOLDER...

It needs numpy, Pillow, and the runtime of the file: onnxruntime, ai-edge-litert or openvino. To
read HEIC, it needs pillow-heif. `lockstep export` writes this
script next to the file. It reads images by Lockstep's own code, so it sees the same pixels.
"""

import re
import sys
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lockstep.classify.runtimes import RUNTIMES
from lockstep.errors import DATA, LockstepError, printable
from lockstep.pages.verdict import verdict
from lockstep.pictures.decode import Decoding, decode_image

# of the files that are taken in a folder
_SUFFIX = re.compile(
    r"\.(jpe?g|jpe|jfif|png|webp|bmp|dib|gif|tiff?|hei[cf]|hif|avif|p[bgnp]m)", re.IGNORECASE
)
Picture: TypeAlias = Path | bytes | NDArray[np.uint8]


class Exported:
    """A file of `lockstep export`.

    Attributes:
        metadata: the classes, how images become pixels, and the thresholds: of a label that is
            found, of a confident answer, and of an image that is not unfamiliar.
    """

    def __init__(self, file: str) -> None:
        """Load the file. Raises: LockstepError for a suffix of no format; what its runtime
        raises.
        """
        if not (opened := RUNTIMES.get(Path(file).suffix.lower())):
            raise LockstepError(f"give a file that ends in {', '.join(RUNTIMES)}", DATA)
        self.metadata, self._run = opened(file)

    def predict(self, image: Picture) -> tuple[str, float, str | None]:
        """Return the most probable class of an image (a file, its bytes, or its pixels uint8
        [H, W, C] at the network's size), its probability, and "confident", "unsure" or
        "unfamiliar"; None if not known. With multi-label data it is "no", or "no, unfamiliar", for
        a class that is not found.

        Raises: LockstepError if it cannot be read.
        """
        return self.predict_labels(image)[0]

    def predict_labels(self, image: Picture) -> list[tuple[str, float, str | None]]:
        """Return what `predict` does of each label that is found, the most probable first; of the
        most probable class, if none is found or an image has one label.

        Raises: LockstepError if it cannot be read.
        """
        height, width, channels = self.metadata["image_shape"]
        if isinstance(image, np.ndarray):
            pixels = image
        elif height != width or channels not in (1, 3):
            raise LockstepError(f"give pixels uint8 [{height}, {width}, {channels}]", DATA)
        else:
            pixels = decode_image(image, Decoding(**self.metadata["decoding"]))
        (row,), *similarity = self._run(pixels[None])
        if not np.isfinite(row).all():
            raise LockstepError("the network's output is not finite", DATA)
        unfamiliar = bool(similarity) and similarity[0] < self.metadata["familiar_from"]
        thresholds, confident_from = self.metadata["thresholds"], self.metadata["confident_from"]
        names = self.metadata["classes"]
        ranked, found = verdict(row, thresholds, confident_from, unfamiliar)
        marks: dict[int, Any] = found or {ranked[0]: "no, unfamiliar" if unfamiliar else "no"}
        return [(names[label], float(row[label]), mark) for label, mark in marks.items()]


def images_in(place: Path) -> list[Path]:
    """Return the images in a folder and those below it, sorted, or the file `place` itself. Hidden
    files are left out.
    """
    if not place.is_dir():
        return [place]
    return sorted(
        path
        for path in place.rglob("*")
        if _SUFFIX.fullmatch(path.suffix)
        and not any(part[0] == "." for part in path.relative_to(place).parts)
    )


def main(file: str, *places: str) -> int:
    """Print the class or labels of each image in `places`, files and folders. Return the exit code:
    3 if one cannot be read, or a folder has none.
    """
    try:
        exported = Exported(file)
    except Exception as error:
        print(printable(f"{file} cannot be used: {error}"), file=sys.stderr)
        return DATA
    code, space = 0, " " if exported.metadata["thresholds"] else "  "
    images = {place: images_in(Path(place)) for place in places}
    for place in places:
        if not images[place]:
            print(printable(f"{place}: no images in this folder"), file=sys.stderr)
            code = DATA
    for image in (image for place in places for image in images[place]):
        try:
            found = exported.predict_labels(image)
            texts = [
                f"{label} {probability:.2%}" + (f"{space}({mark})" if mark else "")
                for label, probability, mark in found
            ]
            print(printable(f"{image}  {', '.join(texts)}"), flush=True)
        except LockstepError as error:
            print(printable(f"{image}: {error}"), file=sys.stderr)
            code = DATA
    return code


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print(f"usage: python {sys.argv[0]} FILE IMAGE|FOLDER...", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))
