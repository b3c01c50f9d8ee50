"""Numbers in words: counts, durations, sizes and lists, for messages and tables."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_FEW = 200  # examples below which an accuracy is stated with its interval


class Words:
    """The words that differ with the labels of images. These are for images with one label each."""

    labels, ending = "one label each", ""  # of the word "label"
    accuracy, short = "accuracy", "acc"  # names of the share of images that are correct
    tutorial = "precision @ 1"  # its name in TensorFlow's CIFAR-10 evaluator
    exactly = ""  # after images that are correct
    curve = ""  # after the name of an accuracy in training
    correct = "are classified correctly"  # after the number of images of a class
    headline = "{1} are classified correctly"  # of a page; the accuracy stands before it
    answers = "{} images"  # that may be confident, of a split
    compared = "the probability of the predicted class and the share of correct images"
    mistaken = "Misclassified images"


class MultiLabelWords(Words):
    """The words for multi-label data."""

    labels, ending = "any number of labels", "s"
    accuracy, short = "exact matches", "exact"
    tutorial = "exact matches"
    exactly = " with exactly their labels"
    curve = " (images that get exactly their labels, with the threshold 0.5)"
    correct = "get this label"
    headline = "macro F1, the mean over the labels. {} {} get exactly their labels"
    answers = "labels that are found"
    compared = "the probability of a label and the share of images that have it"
    mistaken = "Images with a wrong or missed label"


def words_of(multi_label: bool) -> type[Words]:
    """Return the words for the kind of data."""
    return MultiLabelWords if multi_label else Words


def plural(count: int, word: str) -> str:
    """Return `1 step` or `2 steps`. The plural ends in -s, or after an s in -es."""
    return f"{count} {word if count == 1 else word + 'es' if word.endswith('s') else word + 's'}"


def noted(items: Sequence[str], word: str, what: str, remedy: str = "") -> list[str]:
    """Return one text that counts `items`, names the first, and says what to do; none if there are
    no items.
    """
    if not items:
        return []
    more = f" and {len(items) - 1} more" if len(items) > 1 else ""
    text = f"{plural(len(items), word)} {what} ({items[0]}{more})"
    return [f"{text}: {remedy}" if remedy else text]


def few(words: Sequence[str]) -> str:
    """Return up to five words with commas, and how many more there are."""
    more = f" and {len(words) - 5} more" if len(words) > 5 else ""
    return ", ".join(words[:5]) + more


def wilson_interval(correct: int, examples: int) -> list[float]:
    """Return the 95% interval [low, high] of a share of which `correct` of `examples` were seen.

    Source: Wilson 1927, equation for the score interval without continuity correction.
    """
    z = 1.959964  # the 97.5% quantile of the normal distribution
    share = correct / examples
    weight = z * z / examples
    middle = share + weight / 2
    half = z * math.sqrt((share * (1 - share) + weight / 4) / examples)
    return [max(0.0, (middle - half) / (1 + weight)), min(1.0, (middle + half) / (1 + weight))]


def counted(correct: int, examples: int, what: str = "") -> str:
    """Return `144 of 153 test images`; of fewer than 200 with the 95% interval of the share."""
    text = f"{correct} of {examples} {what}".rstrip()
    if examples >= _FEW:
        return text
    return f"{text}; 95% interval {cell_text(wilson_interval(correct, examples))}"


def folds_text(folds: Mapping[str, Any]) -> str:
    """Return what the heads of all folds answered, by the record of jobs/folds.py."""
    words, confident = words_of("labels" in folds["confident"]), folds["confident"]
    return (
        f"{folds['accuracy']:.2%} ({folds['correct']:,} of {folds['examples']:,} images"
        f"{words.exactly} in {folds['folds']} folds; 95% interval "
        f"{cell_text(folds['accuracy_interval'])}); confident: coverage "
        f"{cell_text(confident['coverage'])}, accuracy {cell_text(confident['accuracy'])}"
    )


def loss_text(loss: float | None) -> str:
    """Return a mean loss as `0.1234`; as `not finite` if it is not, or is None, as records state
    it.
    """
    return "not finite" if loss is None or not math.isfinite(loss) else f"{loss:.4f}"


def scores_text(scores: Mapping[str, Mapping[str, float | None]]) -> str:
    """Return the `scores` of multi-label data, which `core/task.py` computes, in words."""
    parts = []
    for name in ("f1", "mean_average_precision"):
        macro, micro = (
            "-" if value is None else f"{value:.2%}"
            for value in (scores[name]["macro"], scores[name]["micro"])
        )
        words = "F1" if name == "f1" else name.replace("_", " ")
        parts.append(f"macro {words} {macro}, micro {words} {micro}")
    return "; ".join(parts)


def label_rows(classes: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the table of how well each label is found, its head first, from the rows of
    `core/task.py`.
    """
    counts = ["examples", "found", "right"]
    shares = ["precision", "recall", "f1", "f1_interval", "average_precision", "threshold"]
    keys = counts + shares
    names = [key.replace("_", " ").replace("f1", "F1") for key in keys]
    rows = [[row["name"], *(cell_text(row[key]) for key in keys)] for row in classes]
    return [["class", *names], *rows]


def cell_text(value: float | Sequence[float] | None) -> str:
    """Return a count, a share or the interval of a share; `-` if it is not known."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.1%}"
    low, high = value
    return f"{100 * low:.1f} to {high:.1%}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """Return `a`, `a and b`, or `a, b and c`; `last` is the word before the last one."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def rate_text(result: Mapping[str, Any]) -> str:
    """Return the speed of a run by its `result`: images a second, or for a head steps, which
    compute no images.
    """
    if not result["steps_per_s"]:
        return "no step"
    if result["images_per_s"] is None:
        return f"{result['steps_per_s']:,.0f} steps/s"
    return f"{result['images_per_s']:,.0f} images/s"


def gpu_text(result: Mapping[str, Any]) -> str:
    """Return how busy each GPU was, if that is known, and the most memory of each process; "" for a
    run on CPUs.
    """
    if "gpu_utilization" not in result:
        return ""
    busy = [
        f"GPU {number} busy {share:.0%} of the time; "
        for number, share in result["gpu_utilization"].items()
    ]
    memory = listed([*map(size, result.get("peak_memory_bytes", ()))])
    return f"{''.join(busy)}memory of each process at most {memory}"


def duration(seconds: float) -> str:
    """Return a duration rounded to its greatest unit: `7 s`, `12 min`, `3.2 h`."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.{1 if seconds < 9.5 * size else 0}f} {unit}"
    return f"{max(1, round(seconds))} s"


def size(count: int) -> str:
    """Return a number of bytes as `12 kB`, `1.2 MB` or `1.2 GB`."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{max(1, round(count / 1e3))} kB"


def entries(doc: str, section: str) -> dict[str, str]:
    """Return the entries of a section of a docstring: name -> text. They are the help of options
    and the manual's tables.
    """
    _, _, text = doc.partition(f"\n\n{section}:\n")
    found = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text.partition("\n\n")[0], re.M)
    return {name: " ".join(entry.split()) for name, entry in found}
