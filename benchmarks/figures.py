"""From a record in benchmarks/results/ to a row of text: what `benchmarks.tables` is made of."""

import hashlib
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import typer

from benchmarks.common import RESULTS
from lockstep.cli import app
from lockstep.config.overrides import make, parse
from lockstep.config.recipe import Recipe
from lockstep.recipes import named

RECIPE_FLAGS = ("towers", "batch", "tower_batch", "epochs", "steps", "lr", "seed", "model", "precision")
FIRST_SETTINGS = (
    "augmentation", "batch", "dataset", "ema", "epochs", "eval_batch", "exact", "lr", "model", "name",
    "optimizer", "precision", "schedule", "seed", "steps", "threads_per_tower", "towers", "weight_decay",
)  # fmt: skip
WEIGHTS = {"ema": "averaged weights", "raw": "raw weights"}
COLUMNS = ("what", "result", "n", "range", "precision")


class Unit(NamedTuple):
    """How a number is written: its format, the factor before it is formatted, and the unit behind it."""

    form: str
    factor: float
    name: str

    def bare(self, value: float) -> str:
        """The number alone."""
        return format(value * self.factor, self.form)

    def of(self, value: float) -> str:
        """The number with its unit."""
        return f"{self.bare(value)} {self.name}"

    def span(self, values: Iterable[float]) -> str:
        """The least and the most of `values`."""
        several = list(values)
        return f"{self.bare(min(several))} to {self.bare(max(several))}"


RATE, TIMES, MEMORY = Unit(",.0f", 1, "images/s"), Unit(".2f", 1, "times"), Unit(",.0f", 2**-20, "MiB")
PERCENT, COST, ABOUT = Unit(".2f", 100, "%"), Unit(".1f", 100, "%"), Unit(".0f", 100, "%")
SECONDS, START_SECONDS, MINUTES = Unit(".1f", 1, "s"), Unit(".2f", 1, "s"), Unit(".1f", 1 / 60, "min")
MILLISECONDS, SHARE = Unit(".1f", 1, "ms"), Unit(".3f", 1, "%")


@dataclass(frozen=True)
class Figure:
    """A measurement as a row of docs/results.md; its machine, command and recipe stand in the caption above it."""

    what: str
    value: str
    n: int
    span: str
    precision: str
    record: str

    def row(self) -> str:
        """The row, as Markdown."""
        return f"| {self.what} | {self.value} | {self.n} | {self.span} | {self.precision} |"


def over(
    what: str, found: dict[str, Any], unit: Unit, precision: str, record: str, statistic: str = "median"
) -> Figure:
    """A figure of several measurements: `statistic` of `found`, which has n, min and max as well."""
    value = unit.of(found[statistic]) + (" (mean)" if statistic == "mean" else "")
    return Figure(what, value, found["n"], unit.span((found["min"], found["max"])), precision, record)


def single(what: str, value: str, precision: str, record: str) -> Figure:
    """A figure of one run."""
    return Figure(what, value, 1, "one run", precision, record)


def tables(*figures: Figure) -> str:
    """A table for each record the figures are from, under its `caption`; as Markdown."""
    parts = []
    for record, rows in groupby(figures, key=lambda figure: figure.record):
        head = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
        parts.append("\n".join([caption(record), "", head, *(figure.row() for figure in rows)]))
    return "\n\n".join(parts)


def caption(record: str) -> str:
    """Where the figures below it come from: command, machine, record, and whether the recipe is still the same."""
    return f"{command(record)} on {machine(record)} ({link(record)}; {recipe_state(record)}):"


def load(record: str) -> Any:
    """The content of benchmarks/results/`record`.json."""
    return json.loads((RESULTS / f"{record}.json").read_text())


def rows_of(record: str) -> dict[str, dict[str, Any]]:
    """The rows of a record of the suite, by what they measure."""
    return {row["figure"]: row for row in load(record)["rows"]}


def evaluations(record: str) -> dict[int, dict[str, float]]:
    """Of a record of one run: step -> {"ema": accuracy, "raw": accuracy}."""
    found: dict[int, dict[str, float]] = {}
    for row in load(record)["evaluations"]:
        found.setdefault(row["step"], {})[row["weights"]] = row["accuracy"]
    return found


def machine(record: str) -> str:
    """The CPU of a record and its number of cores."""
    found = load(record)["machine"]
    return f"{found['cpu'].replace('(R)', '').removesuffix(' Processor')}, {found['cores']} cores"


def command(record: str) -> str:
    """The command that reproduces a record."""
    found = load(record)
    return f"`{found['command']}`" if "command" in found else "No command (the port is not part of this repository)"


def link(record: str, root: str = "../") -> str:
    """A link to a record, from a folder from which `root` is the repository."""
    return f"[{record}]({root}benchmarks/results/{record}.json)"


def recipe_state(record: str) -> str:
    """Whether the recipe that the record's command trains today has the digest in the record."""
    found = load(record)
    then = found.get("result", found).get("digest")
    if then is None:
        return "the record has no digest of its recipe"
    recipe = recipe_of(found["command"])
    if then == recipe.digest():
        return "same recipe as today"
    if recipe.precision == "auto":  # a run's digest is of the precision that was chosen
        for precision in ("bfloat16", "float32"):
            if then == make(recipe.model_dump(mode="json"), {"precision": precision}).digest():
                return f"same recipe as today, in {precision}"
    if then == first_digest(recipe):
        return "same settings as today, by the digest of that time"
    return f"another recipe: digest `{then[:8]}`, today `{recipe.digest()[:8]}`"


def first_digest(recipe: Recipe) -> str | None:
    """The digest as the oldest records have it: of all settings there were, also those at their default.

    None if the recipe uses a setting that is newer.
    """
    newer = [name for name in Recipe.model_fields if name not in FIRST_SETTINGS]
    if any(getattr(recipe, name) != Recipe.model_fields[name].default for name in newer):
        return None
    values = recipe.model_dump(mode="json", include=set(FIRST_SETTINGS))
    if values["schedule"].pop("per_tower", False):
        return None
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def recipe_of(command: str) -> Recipe:
    """The recipe that the `command` of a record trains (with the first seed, if it trains several)."""
    words = shlex.split(command)
    if words[:3] == ["python", "-m", "benchmarks.seeds"]:
        return make(named(words[3]).model_dump(mode="json"), {"seed": 0})
    if words[:3] == ["python", "-m", "benchmarks.peers.loss_curve"]:
        return named("mnist")
    assert words[:2] == ["lockstep", "train"], command
    train = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    given = train.make_context("train", words[2:]).params
    changes = parse(given["settings"] or [], {name: given[name] for name in RECIPE_FLAGS})
    return make(named(given["what"]).model_dump(mode="json"), changes)
