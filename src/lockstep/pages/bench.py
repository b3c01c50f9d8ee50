"""The page of `lockstep bench`: speed over the number of processes, what limits it, and the prediction."""

from lockstep.bench.analysis import Record
from lockstep.pages import figures
from lockstep.pages.figures import Line, Panel
from lockstep.pages.page import NUMBERS, Figure, Headline, Section, Table, render
from lockstep.words import listed, plural, size


def page(summary: Record) -> str:
    """Return the page of the record that `lockstep bench --json` prints."""
    records, best = summary["records"], max(summary["records"], key=lambda record: record["images_per_s"])
    facts = [
        ("Recipe", summary["recipe"]), ("Precision", summary["precision"]), ("Device", summary["device"]),
        ("Images of a process", f"{summary['tower_batch']:,}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in summary["versions"].items())),
    ]  # fmt: skip
    if summary["modes"]:
        facts.append(("Left out", listed(summary["modes"])))
    headline = Headline(
        f"{best['images_per_s']:,.0f}",
        f"images/s on {plural(best['processes'], 'process')}, mean of {best['steps']} steps",
        facts,
    )
    sections = [speed(records), split(records)]
    if summary["analysis"]:
        sections += [limits(summary["analysis"]), prediction(summary)]
    return render(f"lockstep bench {summary['recipe']}", sections, headline)


def speed(records: list[Record]) -> Section:
    """Return images/s and, if one process was measured, efficiency over the number of processes."""
    first = records[0]["images_per_s"]
    rates = [Line("measured", [(record["processes"], record["images_per_s"]) for record in records])]
    if records[0]["processes"] == 1:
        rates.append(Line("ideal", [(r["processes"], r["processes"] * first) for r in records], dashed=True))
    drawn = [Figure(figures.lines(Panel("images/s", "processes", rates, from_zero=True)), "Images/s over processes")]
    if records[0]["processes"] == 1:
        efficiency = Line("efficiency", [(record["processes"], record["efficiency"]) for record in records])
        panel = Panel("efficiency", "processes", [efficiency], share=True, from_zero=True)
        drawn.append(Figure(figures.lines(panel), "Efficiency over processes"))
    rows = [
        [
            str(record["processes"]), f"{record['images_per_s']:,.0f}", f"{record['images_per_s_error']:,.0f}",
            *("-" if record[name] is None else f"{record[name]:.{digits}}" for name, digits in
              (("speed_up", "2f"), ("efficiency", "1%"), ("fraction_of_peak", "1%"))),
            f"{record['s_per_step'] * 1e3:.1f}", size(max(record["peak_memory_bytes"])),
        ]
        for record in records
    ]  # fmt: skip
    head = ["processes", "images/s", "standard error", "speed-up", "efficiency", "of peak", "ms a step", "memory"]
    return Section("Speed", figures=drawn, table=Table(head, rows))


def split(records: list[Record]) -> Section:
    """Return what the time of a step is spent on, by number of processes."""
    bars = [
        (plural(record["processes"], "process"), [(name, value * 1e3) for name, value in record["split"].items()])
        for record in records
    ]
    rows = [[name, *(f"{value:.2f}" for _, value in parts)] for name, parts in bars]
    drawn = Figure(figures.stacked(bars, "milliseconds"), "What the time of a step is spent on")
    table = Table(["milliseconds of a step", *records[0]["split"]], rows)
    return Section("Where the time goes", figures=[drawn], table=table, folded=NUMBERS)


def limits(analysis: Record) -> Section:
    """Return the verdict, and the parts of a step by leaving them out."""
    step = analysis["s_per_step"]
    rows = [[name, f"{value * 1e3:.2f} ms", f"{value / step:.1%}"] for name, value in analysis["parts_s"].items()]
    return Section("What limits it", [analysis["verdict"]], table=Table(["part of a step", "median", "share"], rows))


def prediction(summary: Record) -> Section:
    """Return the prediction for more devices, and what it assumes."""
    rows = [
        [
            f"{one['devices']:,}", f"{one['images_per_s']:,.0f}", f"{one['efficiency']:.1%}",
            f"{one['s_per_step'] * 1e3:.1f}", f"{one['exchange_s'] * 1e3:.2f}", f"{one['wait_s'] * 1e3:.2f}",
        ]
        for one in summary["prediction"]
    ]  # fmt: skip
    head = ["devices", "images/s", "efficiency", "ms a step", "ms of exchange", "ms of waiting"]
    text = f"Assumes: {'; '.join(summary['assumptions'])}."
    return Section("Prediction for more devices", [text], table=Table(head, rows))
