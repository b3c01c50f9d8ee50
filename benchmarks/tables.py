"""The generated parts of README and docs: `python -m benchmarks.tables` writes them from records
and from the program.

A page has a part between `<!-- NAME: python -m benchmarks.tables writes it -->` and `<!-- end -->`.
NAME is `settings` or `commands` (see `manual`), or `records`, `joined`, `crossed` or `many` and the
names of records in benchmarks/results/, where * stands for any text. A record carries the table
that a page shows.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import manual
from benchmarks.age import RESULTS
from lockstep.classify.export import script
from lockstep.recipes import MEASURED, get_recipe

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PART = re.compile(
    r"(<!-- ([\w.* -]+): python -m benchmarks\.tables writes it -->\n).*?(<!-- end -->)", re.S
)
FLAGS_OF_ZEN = re.compile(r"(?<=AMD Zen \d) \([^)]*\)")


# recipe -> what `lockstep recipes` shows: the record, its row of the accuracy, its row of the time
# if it has one, and the images if the user brings them
SHOWN = {
    "digits": (
        "seeds-digits",
        "test accuracy",
        "total time, with evaluation",
        "",
    ),
    "cifar10": ("seeds-cifar10", "test accuracy", "total time, with evaluation", ""),
    "cifar10-tutorial": (
        "seeds-cifar10-tutorial-precision-bfloat16-steps-100000",
        "test accuracy",
        "",
        "",
    ),
    "mnist": ("seeds-mnist-precision-bfloat16", "test accuracy", "", ""),
    "folder": (
        "folder-50000",
        "50,000 images: test accuracy",
        "50,000 images: total time",
        "CIFAR-10",
    ),
    "photos": (
        "networks-hymenoptera",
        "hymenoptera, lite0: test accuracy",
        "hymenoptera, lite0: total time of the first start",
        "ants and bees",
    ),
    "photos-tuned": (
        "photos-tuned-hymenoptera",
        "hymenoptera: test accuracy after `photos-tuned`",
        "",
        "ants and bees",
    ),
}


# figure of the records of many pictures -> what the page calls it
OF_MANY = {
    "a first start in pieces, to the first step": "first start, interrupted and continued",
    "first start with a table: start to first step": "first start with a table",
    "second start: start to first step": "second start",
    "second start with a table: start to first step": "second start with a table",
    "one picture more: start to first step": "start after one picture was added",
    "10,000 pictures: start to first step": "second start with 10,000 pictures",
    "a step / that with 10,000 pictures": "time of a step, over that with 10,000 pictures",
    "second start: memory of the launcher": "memory of the launcher",
    "second start: memory of a worker": "memory of a worker process",
    "data check: total time": "`lockstep data check`",
    "report: total time": "`lockstep report`, 20,000 test pictures",
    "predict: total time": "`lockstep predict` of all pictures",
    "Ctrl-C to the end, at worst": "Ctrl-C in a first start, to the end, worst of five",
}


def shown(recipe: str, record: str, accuracy: str, time: str, images: str) -> dict[str, Any]:
    """Return what `lockstep recipes` shows of a record: also the machine and the options that its
    figures are of, and the command that made it.
    """
    content = load(record)
    results = {row[0]: row[1] for row in content["table"]["rows"]}
    how = f"measured on {FLAGS_OF_ZEN.sub('', machine(content))}"
    precision = content["trains"]["changes"].get("precision")
    if precision and get_recipe(recipe).precision != "auto":  # Else the hardware chooses it.
        how += f", --precision {precision}"
    return {
        "accuracy": results[accuracy],
        "time": results[time] if time else "-",
        "about": [how, *[f"images of {images}"] * bool(images)],
        "command": content["command"],
        "record": record,
    }


def measured() -> str:
    """Return the file of the package that `lockstep recipes` reads."""
    found = {recipe: shown(recipe, *rows) for recipe, rows in SHOWN.items()}
    return json.dumps(found, indent=1) + "\n"


def page(path: Path) -> str:
    """Return the text of a page, with its generated parts made again. The number of a Zen says what
    its instructions are.
    """
    return PART.sub(
        lambda found: f"{found[1]}\n{FLAGS_OF_ZEN.sub('', part(*found[2].split()))}\n\n{found[3]}",
        path.read_text(),
    )


def part(kind: str, *names: str) -> str:
    """Return a generated part."""
    if kind in ("settings", "commands"):
        return manual.text(kind)
    found = [name for pattern in names for name in records(pattern)]
    if kind in FORMS:
        return FORMS[kind](found)
    return "\n\n".join(f"{caption(name)}\n\n{table(name)}" for name in found)


def records(pattern: str) -> list[str]:
    """Return the names of the records that match, in order. Raises: ValueError."""
    found = sorted(file.stem for file in RESULTS.glob(f"{pattern}.json"))
    if not found:
        raise ValueError(f"no record {pattern}")
    return found


def load(record: str) -> Any:
    """Return the content of benchmarks/results/`record`.json. Raises: ValueError."""
    content = json.loads((RESULTS / f"{record}.json").read_text())
    if not re.fullmatch("[0-9a-f]{7,}", content.get("commit", "")):
        raise ValueError(f"{record} is not of a commit without changes: measure it again")
    return content


def table(record: str) -> str:
    """Return the table that a record carries. Neighbours that differ in their first cells only are
    one row.
    """
    content = load(record)["table"]
    rows = [
        ["; ".join(row[0] for row in alike), *rest]
        for rest, alike in groupby(content["rows"], key=lambda row: row[1:])
    ]
    return "\n".join(lines(content["head"], rows))


def joined(names: list[str]) -> str:
    """Return one table of all rows of these records, each with a link to its record."""
    tables = {name: load(name)["table"] for name in names}
    rows = {
        name: [[link(name, first), *rest] for first, *rest in one["rows"]]
        for name, one in tables.items()
    }
    return dated(tables[names[0]]["head"], rows)


def crossed(names: list[str]) -> str:
    """Return one table of these records, whose rows are "SUBJECT: QUANTITY" (or ", of "), result, n
    and range: a row for each subject, with a link to its record, and a column for each quantity.
    """
    cells: dict[str, dict[str, dict[str, str]]] = {}
    for name in names:
        for what, result, n, spread in load(name)["table"]["rows"]:
            subject, _, quantity = what.replace(", of ", ": ").rpartition(": ")
            known = f"n {n}" if spread == "one run" else f"{spread}, n {n}"
            row = cells.setdefault(name, {}).setdefault(link(name, subject), {})
            row[quantity] = f"{result} ({known})"
    found = [row for of_record in cells.values() for row in of_record.values()]
    quantities = list(dict.fromkeys(quantity for row in found for quantity in row))
    rows = {
        name: [[what, *(row.get(one, "") for one in quantities)] for what, row in of_record.items()]
        for name, of_record in cells.items()
    }
    return dated(["what", *quantities], rows)


def many(names: list[str]) -> str:
    """Return one table of these records of many pictures, whose rows are "QUANTITY, NUMBER
    pictures": a column for each record, a row for each quantity of `OF_MANY`.
    """
    columns = {name: defaultdict[str, str](str) for name in names}
    counts = {}
    for name, column in columns.items():
        for what, result, n, spread in load(name)["table"]["rows"]:
            quantity, counts[name] = re.split(r", (?=[\d,]+ pictures$)", what)
            column[quantity] = result if n == "1" else f"{result} ({spread}, n {n})"
    rows = [[text, *(columns[name][one] for name in names)] for one, text in OF_MANY.items()]
    head = ["what", *(link(name, counts[name]) for name in names)]
    origins = "; ".join(f"{counts[name]} on {made(load(name))}" for name in names)
    return "\n".join([*lines(head, rows), "", f"{origins}."])


def dated(head: list[str], rows: dict[str, list[list[str]]]) -> str:
    """Return one table of the rows of several records: machine, commit and date are a column, or
    where they are equal the line below.
    """
    origins = {name: made(load(name)) for name in rows}
    if len(set(origins.values())) == 1:
        found = [row for of_record in rows.values() for row in of_record]
        return "\n".join([*lines(head, found), "", f"Measured on {next(iter(origins.values()))}."])
    found = [[*row, origins[name]] for name, of_record in rows.items() for row in of_record]
    return "\n".join(lines([*head, "measured on"], found))


def lines(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(head)} |"
    yield f"{'|---' * len(head)}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def caption(record: str) -> str:
    """Return the line above a table: command, machine, commit, date and record."""
    content = load(record)
    precision = f", {content['table']['precision']}" if "precision" in content["table"] else ""
    changed = ", on changed source" if "changed" in content else ""
    about = f"{made(content)}{changed}{precision}"
    return f"`{content['command']}` on {about} ([record](../benchmarks/results/{record}.json)):"


def machine(content: Any) -> str:
    """Return the CPU of a record and its number of cores."""
    return f"{content['kind']}, {content['machine']['cores']} cores"


def made(content: Any) -> str:
    """Return on which machine, from which commit and when a record was made."""
    return f"{machine(content)}, commit {content['commit'][:7]}, {content['date']}"


def link(record: str, text: str) -> str:
    """Return a link to a record from a page of docs/."""
    return f"[{text}](../benchmarks/results/{record}.json)"


FORMS = {"joined": joined, "crossed": crossed, "many": many}


def main() -> None:
    for path in PAGES:
        path.write_text(page(path))
    (ROOT / "examples/use_exported.py").write_text(script())
    MEASURED.write_text(measured())


if __name__ == "__main__":
    main()
