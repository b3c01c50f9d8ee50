"""The tables of docs/portable.md, from the records of `benchmarks.portable`: `python -m benchmarks.tables`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.figures import MILLISECONDS, PERCENT, TIMES, Unit, command, link, load, machine, replaced

PAGE = Path(__file__).parents[1] / "docs/portable.md"
END = "<!-- end -->"
DIGITS = 8  # of a SHA-256 that the page shows
KINDS = ("convolutions", "matrix products", "norms and sums", "others")
MS = Unit(MILLISECONDS.form, 1e3, MILLISECONDS.name)
SHARE = Unit(".0f", 100, "%")


def text() -> str:
    """Return the page with its tables made again."""
    page = replaced(PAGE.read_text(), f"<!-- table: digits -->\n\n{digits()}\n\n{END}")
    for title, render in (("configurations", configurations), ("cost", cost), ("accuracy", accuracy)):
        parts = [*map(render, names(title)), *([verdict()] if title == "configurations" else [])]
        page = replaced(page, "\n\n".join([f"<!-- table: {title} -->", *parts, END]))
    return page


def names(title: str) -> list[str]:
    """Return the names of the records of a table, in order, without those of a first look."""
    found = sorted(file.stem for file in RESULTS.glob(f"portable-{title}-*.json"))
    return [name for name in found if not name.endswith("-quick")]


def digits() -> str:
    """Return the table of the kinds of CPU on which whole `digits` was trained."""
    rows = []
    for name in names("digits"):
        found = load(name)
        measured = link(name) if "command" in found else f"hash only, by {found['source']}"
        rows.append([found["kind"], f"`{found['sha256'][:DIGITS]}`", found.get("unit", "not stated"), measured])
    return table(["kind of CPU", "weights of whole `digits`", "unit", "record"], rows)


def configurations(record: str) -> str:
    """Return the table of the weights in each configuration."""
    content = load(record)
    found: dict[str, Any] = content["weights"]
    recipes = list(next(iter(found.values()))["weights"])
    rows = [
        [f"{name}{note(one, content)}", *(cell(one["weights"].get(recipe, {})) for recipe in recipes)]
        for name, one in found.items()
    ]
    return f"{caption(record)}\n\n{table(['configuration', *(f'`{recipe}`' for recipe in recipes)], rows)}"


def verdict() -> str:
    """Return the text below the tables of configurations: whether portable weights are the same in all of them."""
    every: dict[str, set[str]] = defaultdict(set)
    for name in names("configurations"):
        for one in load(name)["weights"].values():
            for recipe, weights in one["weights"].items():
                every[recipe].update(portable(weights))
    same = all(len(hashes) == 1 for hashes in every.values())
    equal = "In each recipe, all portable weights are the same" if same else "Some portable weights differ"
    return f"""A cell has the first {DIGITS} digits of the SHA-256 of all weights after 3 steps: portable, then native
float32. One portable hash stands for both units, 8-bit integers and float32. {equal}."""


def cell(weights: Mapping[str, str]) -> str:
    """Return the hashes of one recipe in one configuration: portable ones as code, then the native one."""
    if not weights:
        return "not run"
    found = [f"`{sha[:DIGITS]}`" for sha in dict.fromkeys(portable(weights))]
    return ", ".join([*found, weights.get("native", "none")[:DIGITS]])


def portable(weights: Mapping[str, str]) -> list[str]:
    """Return the hashes of portable weights, by each unit."""
    return [sha for unit, sha in weights.items() if unit != "native"]


def note(one: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Return, in brackets, which torch a configuration has, if it is not that of the record."""
    own = content["versions"]["torch"]
    if one["torch"] == own:
        return ""
    init = {other["torch_nn_init"] for other in content["weights"].values() if other["torch"] == own}
    same = f", with `torch.nn.init` of {own}" if one["torch_nn_init"] in init else ""
    return f" (torch {one['torch']}{same})"


def cost(record: str) -> str:
    """Return the table of the times of a step."""
    rows = []
    for row in load(record)["rows"]:
        native, portable, ratio = (row["figures"][name] for name in ("native", "portable", "ratio"))
        whole = sum(row["split"].values())
        rows.append([
            f"`{row['recipe']}`, batch {row['batch']}", row["configuration"], row["unit"], MS.of(native["median"]),
            MS.of(portable["median"]), f"{TIMES.bare(ratio['median'])} ({TIMES.span((ratio['min'], ratio['max']))})",
            str(ratio["n"]), *(SHARE.of(row["split"][kind] / whole) for kind in KINDS),
        ])  # fmt: skip
    head = ["recipe", "instructions", "unit", "native", "portable", "portable / native", "n", *KINDS]
    return f"""{caption(record)}

{table(head, rows)}

A step is forward, backward, update and average of one tower, with one thread. The times are medians of n rounds, in
which both arithmetics took turns. The ratio is the median of the ratios of the rounds, with their range. The last four
columns are shares of the portable step."""


def accuracy(record: str) -> str:
    """Return the table of the test accuracies of a recipe in both arithmetics."""
    content = load(record)
    rows = [
        [f"`{content['recipe']}`, {content['runs'][0]['steps']:,} steps", arithmetic, PERCENT.of(found["mean"]),
         PERCENT.span((found["min"], found["max"])), str(found["n"])]
        for arithmetic, found in content["figures"].items()
    ]  # fmt: skip
    return f"{caption(record)}\n\n{table(['recipe', 'arithmetic', 'test accuracy (mean)', 'range', 'n'], rows)}"


def caption(record: str) -> str:
    """Return the line above a table."""
    content = load(record)
    where = f"{content['kind']}, {content['machine']['cores']} cores" if "kind" in content else machine(record)
    return f"{command(record)} on {where} ({link(record)}):"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    cells = [list(head), *map(list, rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], f"|{'---|' * len(cells[0])}", *lines[1:]])
