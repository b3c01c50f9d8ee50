"""Throughput compared with other programs, by kind of CPU: tables and headlines from the records of `compare`."""

from pathlib import Path
from typing import Any

from benchmarks.figures import RATE, TIMES, Unit, link, load, names

Row = dict[str, Any]
COMPARED, PRECISIONS = ("cifar10-tutorial", "mnist"), ("float32", "bfloat16")
SECTION = "docs/results.md#throughput-compared-with-other-programs"


def section() -> str:
    """Return the section of docs/results.md."""
    kinds = sorted({kind for model in COMPARED for kind, _ in fastest_tensorflow(model)})
    pairs = [(model, precision) for model in COMPARED for precision in PRECISIONS]
    heads = [f"`{model}` {precision}" for model, precision in pairs]
    lines = []
    for kind in kinds:
        found = [fastest_tensorflow(model).get((kind, precision)) for model, precision in pairs]
        lines.append(f"| {' | '.join([kind, *(over_peer(row) if row else '' for row in found)])} |")
    return f"""## Throughput compared with other programs

All programs train the same network on the same two cores, in turn. Lockstep and the DDP script use two processes with
one thread each. TensorFlow computes two towers in one process, with its default number of threads. Only programs of
equal precision are compared.

Lockstep's throughput over that of the fastest TensorFlow program that is known on each kind of CPU, two towers each.
Brackets have the range and the number of rounds, where they are known. Lockstep is slower where a figure is bold. An
empty cell has not been measured:

| kind of CPU | {" | ".join(heads)} |
|---{"|---" * len(heads)}|
{chr(10).join(lines)}

`python -m benchmarks.peers.compare MODEL --tensorflow PYTHON` makes the record of a model for the kind of CPU on which
it runs. Its ratios are those of the medians, and their ranges are over single rounds. A review stated its ratios and
its images/s separately: the ratio need not be the quotient of the two.

{all_programs()}

Targets: in float32 1.6 times TensorFlow's throughput (`mnist`: 1.3 times), and twice in bfloat16 where the CPU has
units for it. Missed.
"""


def all_programs() -> str:
    """Return the table of every program that Lockstep was compared with, on each kind of CPU."""
    heads = "recipe", "kind of CPU", "precision", "Lockstep, images/s", "program", "images/s", "ratio", "from"
    lines = [f"| {' | '.join(heads)} |", f"{'|---' * len(heads)}|"]
    for model in COMPARED:
        for row in compared(model):
            program = row.get("program", "not stated")
            if program.endswith(".py"):
                program = f"[{Path(program).stem}](../{program})"
            rates = [known(row.get(key, {}), RATE) for key in ("lockstep_images_per_s", "images_per_s")]
            peer = f"{row['peer']} {row['version']}: {program}"
            source = link(row["record"]).replace(f"[{row['record']}]", f"[{row['source']}]")
            cells = f"`{model}`", row["kind"], row["precision"], rates[0], peer, rates[1], over_peer(row), source
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def compared(model: str) -> list[Row]:
    """Return the rows of all records of peers of `model`, by kind of CPU, float32 first."""
    rows: list[Row] = []
    for name in names(f"peers-{model}-*"):
        record = load(name)
        fixed = {"kind": record["kind"], "record": name, "source": "record"}
        rows += [{**fixed, **row} for row in record["rows"]]
    return sorted(rows, key=lambda row: (row["kind"], PRECISIONS.index(row["precision"]), row["peer"], ends(row)))


def fastest_tensorflow(model: str) -> dict[tuple[str, str], Row]:
    """Return the row of the fastest TensorFlow program for each kind of CPU and precision."""
    fastest: dict[tuple[str, str], Row] = {}
    for row in compared(model):
        if row["peer"] == "TensorFlow":  # The least ratio comes first.
            fastest.setdefault((row["kind"], row["precision"]), row)
    return fastest


def ends(row: Row) -> list[float]:
    """Return the ratio of `row`, or the ends of its range where it states only that."""
    return [row["ratio"]] if "ratio" in row else [row["min"], row["max"]]


def over_peer(row: Row) -> str:
    """Return the ratio of `row`, in bold where a peer is faster."""
    text = known(row, TIMES, "ratio")
    return f"**{text}**" if min(ends(row)) < 1 else text


def known(found: Row, unit: Unit, key: str = "median") -> str:
    """Return `key` of `found`, then its range and n in brackets; what it lacks is left out."""
    texts = [unit.bare(found[key])] if key in found else []
    texts += [unit.span((found["min"], found["max"]))] if "min" in found else []
    texts += [f"n {found['n']}"] if "n" in found else []
    return f"{texts[0]} ({', '.join(texts[1:])})" if texts[1:] else "".join(texts)


def headlines() -> list[tuple[str, str, str, str, str]]:
    """Return rows of README's table."""
    ddp = [row for row in compared("cifar10-tutorial") if row["peer"] == "PyTorch DDP"]
    tensorflow = [headline(model, list(fastest_tensorflow(model).values())) for model in COMPARED]
    return [*tensorflow, headline("cifar10-tutorial", ddp)]


def headline(model: str, rows: list[Row]) -> tuple[str, str, str, str, str]:
    """Return the headline of `model` against one peer: the range over kinds of CPU, and where Lockstep is behind."""
    spans, behind = [], []
    for precision in PRECISIONS:
        found = [row for row in rows if row["precision"] == precision]
        span = least_to_greatest([value for row in found for value in ends(row)], TIMES)
        spans.append(f"{span} times in {precision}")
        slower = [row for row in found if min(ends(row)) < 1]
        behind += [f"{row['kind']} in {precision} ({TIMES.bare(min(ends(row)))})" for row in slower]
    result = ", ".join(spans) + (f". **Slower on {' and on '.join(behind)}**" if behind else "")
    kinds, counts = sorted({row["kind"] for row in rows}), [row["n"] for row in rows if "n" in row]
    n = least_to_greatest(counts, Unit("d", 1, "")) + ", or not stated" * (len(counts) < len(rows))
    where = f"{len(kinds)} kinds of CPU" if len(kinds) > 1 else kinds[0]
    what = f"`{model}`, 2 towers: throughput over {rows[0]['peer']}'s{', range over kinds of CPU' * (len(kinds) > 1)}"
    return what, result, n, f"{where}, 2 cores", f"[by kind]({SECTION})"


def least_to_greatest(values: list[float], unit: Unit) -> str:
    """Return the range of `values`, which may be a single number."""
    return " to ".join(dict.fromkeys((unit.bare(min(values)), unit.bare(max(values)))))
