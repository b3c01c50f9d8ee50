"""Rows of docs/results.md, made from the records in benchmarks/results/. `benchmarks.tables` puts them together."""

import hashlib
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import typer

from benchmarks.common import RESULTS
from benchmarks.image_folders import CASES
from lockstep.commands.program import app
from lockstep.config.overrides import make, parse
from lockstep.config.recipe import Recipe
from lockstep.recipes import get_recipe

RECIPE_FLAGS = ("towers", "batch", "tower_batch", "epochs", "steps", "lr", "seed", "model", "precision")
FIRST_SETTINGS = (
    "augmentation", "batch", "dataset", "ema", "epochs", "eval_batch", "exact", "lr", "model", "name",
    "optimizer", "precision", "schedule", "seed", "steps", "threads_per_tower", "towers", "weight_decay",
)  # fmt: skip
LONG, FOUR_TOWERS = "cifar10-tutorial-100000-bfloat16", "cifar10-tutorial-4-towers-30000-bfloat16"
MNIST = "mnist-200-bfloat16"
WEIGHTS = {"ema": "averaged weights", "raw": "raw weights"}
COLUMNS = ("what", "result", "n", "range", "precision")


class Unit(NamedTuple):
    """The notation of a number.

    form: format specification. factor: multiplies the number before it is formatted. name: the unit behind it.
    """

    form: str
    factor: float
    name: str

    def bare(self, value: float) -> str:
        """Return the number without its unit."""
        return format(value * self.factor, self.form)

    def of(self, value: float) -> str:
        """Return the number with its unit."""
        return f"{self.bare(value)} {self.name}"

    def span(self, values: Iterable[float]) -> str:
        """Return the range of `values`, without unit."""
        several = list(values)
        return f"{self.bare(min(several))} to {self.bare(max(several))}"


RATE, TIMES = Unit(",.0f", 1, "images/s"), Unit(".2f", 1, "times")
PERCENT, COST, ABOUT = Unit(".2f", 100, "%"), Unit(".1f", 100, "%"), Unit(".0f", 100, "%")
SECONDS, START_SECONDS, MINUTES = Unit(".1f", 1, "s"), Unit(".2f", 1, "s"), Unit(".1f", 1 / 60, "min")
MILLISECONDS = Unit(".1f", 1, "ms")


@dataclass(frozen=True)
class Figure:
    """A measurement as a row of docs/results.md. The caption above the table has its command, machine and recipe."""

    what: str
    value: str
    n: int
    span: str
    precision: str
    record: str

    def row(self) -> str:
        """Return the row as Markdown."""
        return f"| {self.what} | {self.value} | {self.n} | {self.span} | {self.precision} |"


def over(
    what: str, spread: dict[str, Any], unit: Unit, precision: str, record: str, statistic: str = "median"
) -> Figure:
    """Return a figure of several measurements: the `statistic` of `spread`, which also has n, min and max."""
    value = unit.of(spread[statistic]) + (" (mean)" if statistic == "mean" else "")
    return Figure(what, value, spread["n"], unit.span((spread["min"], spread["max"])), precision, record)


def single(what: str, value: str, precision: str, record: str) -> Figure:
    """Return a figure of a single run."""
    return Figure(what, value, 1, "one run", precision, record)


def tables(*figures: Figure) -> str:
    """Return a Markdown table for each record of the figures, with the record's `caption` above it."""
    parts = []
    for record, rows in groupby(figures, key=lambda figure: figure.record):
        head = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
        parts.append("\n".join([caption(record), "", head, *(figure.row() for figure in rows)]))
    return "\n\n".join(parts)


def caption(record: str) -> str:
    """Return the line above a table: command, machine, record, and whether the recipe is still the same."""
    return f"{command(record)} on {machine(record)} ({link(record)}; {recipe_state(record)}):"


def replaced(page: str, text: str) -> str:
    """Return `page` with `text` in place of what begins with the same line, a marker, and ends with the same line."""
    begin, end = text.split("\n")[0], text.split("\n")[-1]
    before, rest = page.split(begin)
    return before + text + rest.partition(end)[2]


def load(record: str) -> Any:
    """Return the content of benchmarks/results/`record`.json."""
    return json.loads((RESULTS / f"{record}.json").read_text())


def names(pattern: str) -> list[str]:
    """Return the names of the records that match, in order, without those of a first look."""
    found = sorted(file.stem for file in RESULTS.glob(f"{pattern}.json"))
    return [name for name in found if not name.endswith("-quick")]


def rows_of(record: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a record of the suite, keyed by what they measure."""
    return {row["figure"]: row for row in load(record)["rows"]}


def evaluations(record: str) -> dict[int, dict[str, float]]:
    """Return the evaluations in the record of a run: step -> {"ema": accuracy, "raw": accuracy}."""
    by_step: dict[int, dict[str, float]] = {}
    for row in load(record)["evaluations"]:
        by_step.setdefault(row["step"], {})[row["weights"]] = row["accuracy"]
    return by_step


def machine(record: str) -> str:
    """Return the CPU of a record and its number of cores."""
    host = load(record)["machine"]
    return f"{host['cpu'].replace('(R)', '').removesuffix(' Processor')}, {host['cores']} cores"


def command(record: str) -> str:
    """Return the command that reproduces a record."""
    content = load(record)
    return f"`{content['command']}`" if "command" in content else "No command (the port is not part of this repository)"


def link(record: str, root: str = "../") -> str:
    """Return a link to a record. `root` is the path from the linking file's folder to the repository."""
    return f"[{record}]({root}benchmarks/results/{record}.json)"


def recipe_state(record: str) -> str:
    """Return, in words, whether today's recipe of the record's command has the digest in the record."""
    content = load(record)
    then = content.get("result", content).get("digest")
    if then is None:
        return "the record has no digest of its recipe"
    recipe = recipe_of(content["command"])
    if then == recipe.digest():
        return "same recipe as today"
    if recipe.precision == "auto":  # a run's digest covers the precision that was chosen for it
        for precision in ("bfloat16", "float32"):
            if then == make(recipe.model_dump(mode="json"), {"precision": precision}).digest():
                return f"same recipe as today, in {precision}"
    if then == first_digest(recipe):
        return "same settings as today, by the digest of that time"
    return f"another recipe: digest `{then[:8]}`, today `{recipe.digest()[:8]}`"


def first_digest(recipe: Recipe) -> str | None:
    """Return the digest of `recipe` as the oldest records computed it: over all settings, including defaults.

    None if the recipe uses a setting that is newer than these records.
    """
    newer = [name for name in Recipe.model_fields if name not in FIRST_SETTINGS]
    if any(getattr(recipe, name) != Recipe.model_fields[name].default for name in newer):
        return None
    values = recipe.model_dump(mode="json", include=set(FIRST_SETTINGS))
    if values["schedule"].pop("per_tower", False):
        return None
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def recipe_of(command: str) -> Recipe:
    """Return the recipe that the `command` of a record trains, with its own seed if it trains several."""
    words = shlex.split(command)
    if words[:3] == ["python", "-m", "benchmarks.peers.loss_curve"]:
        return get_recipe("mnist")
    if words[:2] == ["python", "-m"] and words[2] in ("benchmarks.photos", "benchmarks.labels", "benchmarks.unlike"):
        return get_recipe("photos-tuned" if "--tuned" in words else "photos")
    if words[:3] == ["python", "-m", "benchmarks.seeds"]:
        return get_recipe(words[3])
    if words[:3] == ["python", "-m", "benchmarks.image_folders"]:
        words = ["lockstep", "train", "folder", *CASES[words[3]].changes]
    assert words[:2] == ["lockstep", "train"], command
    train = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    options = train.make_context("train", words[2:]).params
    changes = parse(options["settings"] or [], {name: options[name] for name in RECIPE_FLAGS})
    return make(get_recipe(options["what"]).model_dump(mode="json"), changes)
