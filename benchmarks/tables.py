"""The generated parts of README and docs: `python -m benchmarks.tables` writes them from records
and from the program.

A page has a part between `<!-- NAME: python -m benchmarks.tables writes it -->` and `<!-- end -->`.
NAME is `settings` or `commands` (see `manual`), or `records`, `joined` or `crossed` and the names
of records in benchmarks/results/, where * stands for any text. A record carries the table that a
page shows.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import age, manual
from benchmarks.age import RESULTS
from lockstep.classify.export import script
from lockstep.config.overrides import make
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
        "`digits`: test accuracy",
        "`digits`: total time, with evaluation",
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
        "50000 images: test accuracy",
        "50000 images: total time",
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
        "accuracy": results[accuracy].removesuffix(" (mean)"),
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
    if kind in ("joined", "crossed"):
        rows = joined(found) if kind == "joined" else crossed(found)
        return f"{rows}\n\n{made(found)}"
    return "\n\n".join(f"{caption(name)}\n\n{table(name)}" for name in found)


def records(pattern: str) -> list[str]:
    """Return the names of the records that match, in order. Raises: ValueError."""
    found = sorted(file.stem for file in RESULTS.glob(f"{pattern}.json"))
    if not found:
        raise ValueError(f"no record {pattern}")
    return found


def load(record: str) -> Any:
    """Return the content of benchmarks/results/`record`.json."""
    return json.loads((RESULTS / f"{record}.json").read_text())


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
    rows = [[link(name, row[0]), *row[1:]] for name in names for row in load(name)["table"]["rows"]]
    return "\n".join(lines(load(names[0])["table"]["head"], rows))


def crossed(names: list[str]) -> str:
    """Return one table of these records, whose rows are "SUBJECT: QUANTITY" (or ", of "), result, n
    and range: a row for each subject, with a link to its record, and a column for each quantity.
    """
    cells: dict[str, dict[str, str]] = {}
    for name in names:
        for what, result, n, spread in load(name)["table"]["rows"]:
            subject, _, quantity = what.replace(", of ", ": ").rpartition(": ")
            known = f"n {n}" if spread == "one run" else f"{spread}, n {n}"
            cells.setdefault(link(name, subject), {})[quantity] = f"{result} ({known})"
    quantities = list(dict.fromkeys(quantity for row in cells.values() for quantity in row))
    rows = [
        [subject, *(row.get(quantity, "") for quantity in quantities)]
        for subject, row in cells.items()
    ]
    return "\n".join(lines(["what", *quantities], rows))


def made(names: list[str]) -> str:
    """Return the line below a table of several records: on which machines, and which of them by
    older code or another recipe.
    """
    by = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))
    for name in names:
        content = load(name)
        about = ", by another recipe" * bool(changed(content))
        about += ", by older code" * (not age.is_of_today(name, content))
        by[machine(content).removesuffix(", 2 cores")][about].append(name)
    found = {about for abouts in by.values() for about in abouts}
    if len(by) > 1 and len(found) == 1:  # their rows name the machines
        return f"All{found.pop().replace(',', '', 1)}." if any(found) else ""
    texts = [
        f"{', '.join(same)} on {cpu}{about}" if len(abouts) > 1 else f"on {cpu}{about}"
        for cpu, abouts in by.items()
        for about, same in abouts.items()
    ]
    text = "; ".join(texts)
    return f"{text[0].upper()}{text[1:]}."


def lines(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(head)} |"
    yield f"{'|---' * len(head)}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def caption(record: str) -> str:
    """Return the line above a table: command, machine and record, and whether its recipe or the
    code has changed since.
    """
    content = load(record)
    command = f"`{content['command']}`" if "command" in content else "No command of this repository"
    precision = f"; {content['table']['precision']}" if "precision" in content["table"] else ""
    since = changed(content) + ("" if age.is_of_today(record, content) else "; by older code")
    return f"{command} on {machine(content)} ({link(record, record)}{precision}{since}):"


def machine(content: Any) -> str:
    """Return the CPU of a record and its number of cores."""
    host = content.get("machine", {})
    cpu = content.get("kind") or host.get("cpu", "machines of the originals").replace("(R)", "")
    return (
        f"{cpu.removesuffix(' Processor')}, {host['cores']} cores" if "cores" in host else str(cpu)
    )


def link(record: str, text: str) -> str:
    """Return a link to a record from a page of docs/."""
    return f"[{text}](../benchmarks/results/{record}.json)"


def changed(content: Any) -> str:
    """Return "" if today's recipe is that of the record, as far as it states one; else both
    digests.
    """
    if (trains := content.get("trains")) is None:
        return ""
    today = make(get_recipe(trains["recipe"]).model_dump(mode="json"), trains["changes"]).digest()
    return (
        ""
        if today == trains["digest"]
        else f"; another recipe: digest `{trains['digest'][:8]}`, now `{today[:8]}`"
    )


def main() -> None:
    for path in PAGES:
        path.write_text(page(path))
    (ROOT / "examples/use_exported.py").write_text(script())
    MEASURED.write_text(measured())


if __name__ == "__main__":
    main()
