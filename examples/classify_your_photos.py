"""Train a classifier on a folder of photos by transfer learning, and classify new pictures with it.

    python examples/classify_your_photos.py photos/ new.jpg more/

The folder photos/ has a subfolder of images for each class, such as photos/cat/ and photos/dog/.
docs/own-images.md explains other layouts and the result.
"""

import sys
from typing import Any

import lockstep


def classify(photos: str, pictures: list[str], **options: Any) -> None:
    """Train on the folder `photos`, then print a line for each picture.

    Args:
        photos: A folder with a subfolder of images for each class.
        pictures: The files and folders to classify.
        options: Further arguments of lockstep.train.
    """
    run = lockstep.train(photos, **options)
    if not run.complete:
        raise SystemExit(f"stopped: continue with lockstep.train({str(run.path)!r}, resume=True)")
    print(
        f"\n{run.accuracy:.1%} of the test images are classified correctly. The classifier is in "
        f"{run.path}."
    )
    for prediction in lockstep.load(run).predict(pictures, top=2):
        if prediction.error:
            print(f"{prediction.source}: {prediction.error}", file=sys.stderr)
        else:
            print(
                f"{prediction.source}: "
                + ", ".join(f"{label} {share:.0%}" for label, share in prediction.top)
            )


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit("usage: python classify_your_photos.py FOLDER PICTURE [PICTURE ...]")
    try:
        classify(sys.argv[1], sys.argv[2:])
    except lockstep.LockstepError as error:
        raise SystemExit(f"error: {error}") from None
