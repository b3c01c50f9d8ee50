"""The lines people read: the same words on a terminal, in a pipe and in log.txt."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from lockstep.report.events import EvaluationEvent, StepEvent


def block(lines: Sequence[tuple[str, str]]) -> list[str]:
    """(label, text) pairs, labels padded to one width."""
    width = max((len(label) for label, _ in lines), default=0)
    return [f"  {label:<{width}}  {text}" if label else f"  {text}" for label, text in lines]


def step_line(event: StepEvent) -> str:
    """A step, in the shape of TensorFlow's CIFAR-10 tutorial."""
    return (
        f"{datetime.fromtimestamp(event.time)}: step {event.step}, loss = {event.logged_loss:.2f} "
        f"({event.images_per_s:.1f} examples/sec; {event.s_per_step:.3f} sec/batch)"
    )


def live_line(event: StepEvent) -> str:
    """A step, for a line that is redrawn: what is left is an estimate from the latest steps."""
    left = timedelta(seconds=round((event.steps - 1 - event.step) * event.s_per_step))
    return (
        f"step {event.step + 1}/{event.steps}  epoch {event.epoch:.1f}  loss {event.logged_loss:.3f}  "
        f"acc {event.accuracy:.1%}  lr {event.rate:.2g}  {event.images_per_s:,.0f} img/s  {left} left"
    )


def evaluation_line(event: EvaluationEvent) -> str:
    """An evaluation: accuracy by weights."""
    first = next(iter(event.results.values()))
    parts = [f"{weights} {result.accuracy:.2%}" for weights, result in event.results.items()]
    where = f"{datetime.fromtimestamp(event.time)}: after {event.step} steps"
    return f"{where}, accuracy on {first.examples} {event.split} images: {', '.join(parts)}"
