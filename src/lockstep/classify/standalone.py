"""Classify images by a file of `lockstep export`, without Lockstep: python use_exported.py
FILE.onnx IMAGE...

It needs numpy, Pillow and onnxruntime, and pillow-heif to read HEIC. `lockstep export` writes this
script next to the file. It reads images by Lockstep's own code, so it sees the same pixels.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

from lockstep.errors import DATA, LockstepError, printable
from lockstep.pictures.decode import decode_image


class Exported:
    """A file of `lockstep export`.

    Attributes:
        metadata: the classes, how images become pixels, and from which values on an
            answer is sure or like.
    """

    def __init__(self, file: str) -> None:
        """Load the file. Raises: what onnxruntime raises."""
        self._session = onnxruntime.InferenceSession(file)
        self.metadata = json.loads(self._session.get_modelmeta().custom_metadata_map["lockstep"])

    def predict(self, image: Path | bytes) -> tuple[str, float, str | None]:
        """Return the class of an image file, its probability, and "sure", "unsure" or "unlike";
        None if not known.

        Raises: LockstepError if it cannot be read.
        """
        pixels = decode_image(image, **self.metadata["decoding"])
        (row,), *similarity = self._session.run(None, {"images": pixels[None]})
        best = int(row.argmax())
        if not np.isfinite(row).all():
            raise LockstepError("the network's output is not finite", DATA)
        sure_from = self.metadata["sure_from"]
        answer = None
        if similarity and similarity[0] < self.metadata["like_from"]:
            answer = "unlike"
        elif sure_from:
            sure = sure_from[best] is not None and row[best] >= sure_from[best]
            answer = "sure" if sure else "unsure"
        return self.metadata["classes"][best], float(row[best]), answer


def main(file: str, *images: str) -> int:
    """Print the class of each image. Return the exit code: 3 if one of them cannot be read."""
    try:
        exported = Exported(file)
    except Exception as error:
        print(printable(f"{file} cannot be used: {error}"), file=sys.stderr)
        return DATA
    code = 0
    for image in images:
        try:
            label, probability, answer = exported.predict(Path(image))
            mark = f"  ({answer})" if answer else ""
            print(printable(f"{image}  {label} {probability:.2%}{mark}"), flush=True)
        except LockstepError as error:
            print(printable(f"{image}: {error}"), file=sys.stderr)
            code = DATA
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 2 else str(__doc__).partition("\n")[0])
