"""lockstep diff."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.commands.options import Json
from lockstep.commands.verify import difference_lines
from lockstep.errors import printable

_VERDICTS = {True: "the same bits, as far as both have recorded", False: "not the same bits", None: "nothing in common"}

_OTHER_DATA = "differs, so the arithmetic probes, which depend on it, are not compared"
_EXPLAINED = "(this decides no bit: both runs are in portable arithmetic)"


def diff(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Another run's folder.")],
    json_output: Json = False,
) -> None:
    """Compare two runs by their folders alone: nothing is computed, and none of their code is executed.

    Prints how the recipes, the data, the user's code and the environments of the last sessions differ, the first
    step whose digests differ, the tensors that differ at the first common checkpoint that does, with units in the last
    place (ulp), and the results side by side. The exit code is 0 whether or not they differ; --json has it as "same".

    \b
    Examples:
      lockstep diff runs/digits-1 runs/digits-2
      lockstep diff runs/mine downloaded/run --json
    """
    from lockstep.runs.diff import difference

    record = difference(first, second)
    print(json.dumps(record) if json_output else "\n".join(map(printable, _lines(record))))


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        ("runs", [f"{' -> '.join(record['runs'])}: {_VERDICTS[record['same']]}"]),
        ("recipe", record["recipe"]["differences"] or ["the same"]),
        ("data", [{True: "the same", False: _OTHER_DATA, None: "not recorded in both"}[record["data"]["same"]]]),
        ("code", _listed(record["code"])),
        ("environment", _listed(record["environment"]) + [_EXPLAINED] * _decides_nothing(record)),
        ("digests", [_digests(record["digests"])]),
        ("tensors", list(_tensors(record["tensors"]))),
        *_results(*record["results"]),
    ]
    width = max(len(label) for label, _ in rows)
    for label, texts in rows:
        for number, text in enumerate(texts):
            yield f"{'' if number else label:<{width}}  {text}"


def _decides_nothing(record: Mapping[str, Any]) -> bool:
    """Return whether the environments differ, but in nothing that portable arithmetic depends on."""
    changes = record["environment"] or ()
    # Another version of torch may draw other initial weights.
    return bool(changes) and record["recipe"]["portable"] and not any(text.startswith("versions.") for text in changes)


def _listed(changes: list[str] | None) -> list[str]:
    return ["not recorded in both"] if changes is None else changes or ["the same"]


def _digests(digests: Mapping[str, Any]) -> str:
    if not digests["common"]:
        return "none of the same step in both"
    count = f"{digests['common']} compared"
    if digests["first_different_step"] is None:
        return f"all equal: {count}, the last after {digests['last_equal_step']} steps"
    equal = digests["last_equal_step"]
    before = "no earlier one is equal" if equal is None else f"equal after {equal} steps"
    return f"differ after {digests['first_different_step']} steps; {before} ({count})"


def _tensors(tensors: Mapping[str, Any] | None) -> Iterator[str]:
    if tensors is None:
        yield "no common checkpoint"
        return
    differing = tensors["differing"]
    yield f"{len(differing) or 'none'} of {tensors['count']} differ after {tensors['step']} steps"
    yield from difference_lines(differing)


def _results(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    names: dict[str, Callable[[Any], str]] = {
        "steps": str, "accuracy": _accuracy, "train_s": lambda value: f"{value} s", "processes": str,
        "weights_sha256": str,
    }  # fmt: skip
    for name, text in names.items():
        pair = [text(one[name]) if name in one else "not known" for one in (first, second)]
        yield name, [pair[0] if pair[0] == pair[1] else f"{pair[0]} -> {pair[1]}"]


def _accuracy(accuracy: Mapping[str, float]) -> str:
    return ", ".join(f"{weights} {value:.2%}" for weights, value in accuracy.items())
