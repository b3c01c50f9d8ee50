"""Numbers in words: counts, durations, sizes and lists, for messages and tables."""

from collections.abc import Sequence


def plural(count: int, word: str) -> str:
    """Return `1 step` or `2 steps`. The plural ends in -s, or after an s in -es."""
    return f"{count} {word if count == 1 else plural_word(word)}"


def plural_word(word: str) -> str:
    """Return the plural of `word`: with -s, or after an s with -es."""
    return f"{word}es" if word.endswith("s") else f"{word}s"


def listed(words: Sequence[str], last: str = "and") -> str:
    """Return `a`, `a and b`, or `a, b and c`; `last` is the word before the last one."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


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
