"""Lines for people: the same words on a terminal, in a pipe and in log.txt."""

from collections.abc import Sequence
from datetime import datetime
from statistics import fmean

from lockstep.core.events import EvaluatingEvent, EvaluationEvent, StepEvent

_GAP = "  "
_BAR = (5, 20)  # least and greatest width of a bar, in columns


def block(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return a line per (label, text), with the labels padded to one width."""
    width = max((len(label) for label, _ in lines), default=0)
    return [f"  {label:<{width}}  {text}" if label else f"  {text}" for label, text in lines]


def step_line(event: StepEvent) -> str:
    """Return a step in the shape of TensorFlow's CIFAR-10 tutorial, with the accuracy on its batch."""
    return (
        f"{datetime.fromtimestamp(event.time)}: step {event.step}, loss = {event.loss:.2f} "
        f"({event.images_per_s:.1f} examples/sec; {event.s_per_step:.3f} sec/batch), "
        f"accuracy = {100 * event.accuracy:.1f} %"
    )


def live_line(event: StepEvent, width: int, ascii_only: bool = False) -> str:
    """Return a step in at most `width` columns, for a line that is redrawn. The ETA follows from the latest steps."""
    done = event.step + 1
    step = f"step {done:>{len(str(event.steps))}}/{event.steps}"
    parts = [
        (1, step),
        (8, f"epoch {event.epoch:.1f}"),
        (3, f"loss {event.loss:.3f}"),
        (4, f"acc {event.accuracy:.1%}"),
        (9, f"lr {event.learning_rate:.2g}"),
        (5, f"{event.images_per_s:,.0f} img/s"),
        *[(7, f"gpu {fmean(used):.0f}%") for used in [event.gpu_utilisation] if used],
        (2, f"ETA {_clock((event.steps - done) * event.s_per_step)}"),
    ]
    return _fitted(done / event.steps, parts, width, ascii_only)


def evaluating_line(event: EvaluatingEvent, left_s: float | None, width: int, ascii_only: bool = False) -> str:
    """Return the progress of an evaluation in at most `width` columns.

    left_s: estimate of the remaining seconds, None if there is no estimate yet.
    """
    parts = [(1, f"evaluating on {event.split}"), (7, f"after {event.step} steps")]
    if left_s is not None:
        parts.append((2, f"ETA {_clock(left_s)}"))
    return _fitted(event.share, parts, width, ascii_only)


def evaluation_line(event: EvaluationEvent) -> str:
    """Return the accuracies of an evaluation, one for each kind of weights."""
    first = next(iter(event.results.values()))
    parts = [f"{weights} {result.accuracy:.2%}" for weights, result in event.results.items()]
    prefix = f"{datetime.fromtimestamp(event.time)}: after {event.step} steps"
    return f"{prefix}, accuracy on {first.examples} {event.split} images: {', '.join(parts)}"


def _fitted(share: float, parts: Sequence[tuple[int, str]], width: int, ascii_only: bool) -> str:
    """Return a bar, the percentage of `share` and the texts of `parts`, in at most `width` columns.

    parts: (rank, text) in the order in which they are shown. The percentage has rank 0 and the bar rank 6. If not
    everything fits, the parts of the highest ranks are left out. The bar fills the remaining columns.
    """
    # Round down, so that only the end shows 100 %. The addend corrects products such as 100 * 0.29 = 28.999...
    shown = [(6, " " * _BAR[0]), (0, f"{int(100 * share + 1e-9):3d}%"), *parts]
    room = width + len(_GAP)
    kept: set[int] = set()
    for rank, text in sorted(shown):
        room -= len(text) + len(_GAP)
        if room < 0:
            break
        kept.add(rank)
    texts = [text for rank, text in shown if rank in kept]
    if 6 in kept:
        spare = width - len(_GAP.join(texts))
        texts[0] = _bar(share, min(_BAR[1], _BAR[0] + spare), ascii_only)
    return _GAP.join(texts)


def _bar(share: float, columns: int, ascii_only: bool) -> str:
    """Return a bar of which `share` is filled, in ASCII characters if `ascii_only`."""
    filled, empty = "#-" if ascii_only else "━─"
    done = int(share * columns)
    return filled * done + empty * (columns - done)


def _clock(seconds: float) -> str:
    """Return `seconds` as minutes and seconds, or from an hour on as hours and minutes: 0:07, 12:34, 1h02m."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}h{minute:02d}m" if hours else f"{minutes}:{second:02d}"
