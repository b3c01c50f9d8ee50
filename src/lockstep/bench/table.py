"""What `lockstep bench` says: lines of plain text, aligned."""

from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]

_COLUMNS = (
    "processes images/s   +/- jitter speed-up efficiency of peak   MiB ms a step: data compute exchange report update"
)


def head(record: Record) -> list[str]:
    """What is measured, and the columns of `row`: MiB is the most that a process has held."""
    modes = f", {' and '.join(record['modes'])}" if record["modes"] else ""
    per = record["batch"] // record["towers"]
    return [f"{record['recipe']}, {record['precision']}, {per} images a process{modes}; {record['device']}", _COLUMNS]


def row(record: Record) -> str:
    """One number of processes."""
    speed_up, efficiency = record["speed_up"], record["efficiency"]
    scaling = f"{'-':>8} {'-':>10}" if speed_up is None else f"{speed_up:>8.2f} {efficiency:>10.1%}"
    ms = {part: f"{seconds * 1e3:.1f}" for part, seconds in record["split"].items()}
    return (
        f"{record['processes']:>9} {record['images_per_s']:>8,.0f} {record['images_per_s_error']:>5,.0f} "
        f"{record['images_per_s_jitter']:>6,.0f} {scaling} {record['fraction_of_peak']:>7.1%} "
        f"{max(record['peak_memory_bytes']) / 2**20:>5,.0f} {record['s_per_step'] * 1e3:>9.1f}: "
        f"{ms['data']:>4} {ms['compute']:>7} {ms['communication']:>8} {ms['report']:>6} {ms['update']:>6}"
    )


def analysis(report: Record) -> list[str]:
    """What the time goes into, and the verdict."""
    found, processes = report["analysis"], report["analysis"]["processes"]
    step = found["s_per_step"]
    lines = [f"a step of {processes} {'process' if processes == 1 else 'processes'}, by leaving parts out (medians)"]
    sources = {
        "data": "what constant input saves (--synthetic)",
        "communication": "what no exchange saves then (--independent): waiting for the others included",
        "compute": "the rest: forward, backward, update, loop",
    }
    for name, source in sources.items():
        seconds = found["parts_s"][name]
        lines.append(f"  {name:<13}  {seconds * 1e3:>7.1f} ms  {seconds / step:>6.1%}  {source}")
    lines += [
        f"  {'work':<13}  {found['flops_per_step'] / 1e9:>7.1f} GFLOP a step of a process, forward and backward: "
        "matrix products and convolutions, as executed",
        f"  {'peak':<13}  {found['peak_flops_per_s'] / 1e9:>7.0f} GFLOP/s a process: a square matrix product in "
        f"{found['peak_precision']}, measured in all of them at once",
        "",
        f"verdict: {found['verdict']}",
    ]
    return lines


def prediction(report: Record) -> list[str]:
    """What more devices would do, and what that rests on."""
    lines = ["prediction", "  devices    images/s  efficiency  ms a step  exchange ms    batch"]
    for line in report["prediction"]:
        lines.append(
            f"  {line['devices']:>7}  {line['images_per_s']:>10,.0f}  {line['efficiency']:>10.1%}  "
            f"{line['s_per_step'] * 1e3:>9.1f}  {line['exchange_s'] * 1e3:>11.2f}  {line['batch']:>7,}"
        )
    return [*lines, *(f"  assumes: {text}" for text in report["assumptions"])]


def closing(report: Record) -> Sequence[str]:
    """All that follows the table."""
    return ["", *analysis(report), "", *prediction(report)]
