"""The images whose labels are doubtful, as lines and as a page. The record is that of
jobs/labels.py.
"""

from pathlib import Path

from lockstep.files import Record
from lockstep.pages.page import Picture, Section, address, render
from lockstep.pictures.decode import Decoding, decode_image
from lockstep.pictures.rows import read_picture
from lockstep.text import plural

_LINES, _PICTURES = 20, 500  # --json has all
_PICTURE_PX = 160


def lines_of(record: Record) -> list[str]:
    """Return a line that counts the doubtful labels, and one for each of the most doubtful."""
    lines = [f"  {image['path']}: {', '.join(_both(image))}" for image in record["doubtful"]]
    return [_summary(record, _LINES), *lines[:_LINES]]


def page(record: Record) -> str:
    """Return a page with the pictures of the most doubtful labels. It is an error if one cannot be
    read.
    """
    folder, pictures = record["folder"], []
    for image in record["doubtful"][:_PICTURES]:
        path, both = image["path"], _both(image)
        source = address(decode_image(read_picture(Path(folder, path)), Decoding(_PICTURE_PX)))
        pictures.append(Picture(source, ", ".join([path, *both]), [*both, path]))
    return render(
        folder, [Section("Doubtful labels", [_summary(record, _PICTURES)], pictures=pictures)]
    )


def _both(image: Record) -> list[str]:
    """Return the label and the class that fits better, with their probabilities; with multi-label
    data, a label that rather should not be there, or one that is missing.
    """
    label, better = image["label"], image["better"]
    labelled = f"labelled {label}" if label else f"not labelled {better}"
    rather = f"rather {better}" if better else f"rather not {label}"
    return [
        f"{labelled} ({image['probability']:.1%})",
        f"{rather} ({image['probability_of_better']:.1%})",
    ]


def _summary(record: Record, most: int) -> str:
    count = len(record["doubtful"])
    text = (
        f"doubtful labels: {count:,} of {plural(record['images'], 'image')}, by classifiers "
        f"that did not see them"
    )
    return (
        f"{text}; the {most} most doubtful are shown, and --json has all" if count > most else text
    )
