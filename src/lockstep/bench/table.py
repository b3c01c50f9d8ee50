"""The text of `lockstep bench`: aligned lines."""

from lockstep.bench.analysis import Record
from lockstep.words import plural

_COLUMNS = (
    "processes images/s   +/- jitter speed-up efficiency of peak   MiB ms a step: data compute exchange report update"
)


def head(record: Record) -> list[str]:
    """Return the subject of the measurement and the names of the columns. MiB is the most that a process held."""
    modes = f", {' and '.join(record['modes'])}" if record["modes"] else ""
    images = record["batch"] // record["towers"]
    return [
        f"{record['recipe']}, {record['precision']}, {images} images a process{modes}; {record['device']}",
        _COLUMNS,
    ]


def row(record: Record) -> str:
    """Return the line of one number of processes."""
    speed_up, efficiency = record["speed_up"], record["efficiency"]
    scaling = f"{'-':>8} {'-':>10}" if speed_up is None else f"{speed_up:>8.2f} {efficiency:>10.1%}"
    ms = {part: f"{seconds * 1e3:.1f}" for part, seconds in record["split"].items()}
    return (
        f"{record['processes']:>9} {record['images_per_s']:>8,.0f} {record['images_per_s_error']:>5,.0f} "
        f"{record['images_per_s_jitter']:>6,.0f} {scaling} {record['fraction_of_peak']:>7.1%} "
        f"{max(record['peak_memory_bytes']) / 2**20:>5,.0f} {record['s_per_step'] * 1e3:>9.1f}: "
        f"{ms['data']:>4} {ms['compute']:>7} {ms['communication']:>8} {ms['report']:>6} {ms['update']:>6}"
    )


def closing(summary: Record) -> list[str]:
    """Return the lines below the table: the parts of a step, the verdict and the prediction, where there are any."""
    analysis, prediction = summary["analysis"], summary["prediction"]
    if analysis is None or prediction is None:
        return []
    return ["", *_analysis(analysis), "", *_prediction(prediction, summary["assumptions"] or [])]


def _analysis(analysis: Record) -> list[str]:
    step = analysis["s_per_step"]
    lines = [f"a step of {plural(analysis['processes'], 'process')}, by leaving parts out (medians)"]
    sources = {
        "data": "saved by constant input (--synthetic)",
        "communication": "saved by leaving out the exchange as well (--independent); includes waiting for others",
        "compute": "the rest: forward, backward, update, loop",
    }
    for name, source in sources.items():
        seconds = analysis["parts_s"][name]
        lines.append(f"  {name:<13}  {seconds * 1e3:>7.1f} ms  {seconds / step:>6.1%}  {source}")
    lines += [
        f"  {'work':<13}  {analysis['flops_per_step'] / 1e9:>7.1f} GFLOP a step of a process, forward and backward: "
        "matrix products and convolutions, as executed",
        f"  {'peak':<13}  {analysis['peak_flops_per_s'] / 1e9:>7.0f} GFLOP/s a process: a square matrix product in "
        f"{analysis['peak_precision']}, measured in all of them at once",
        "",
        f"verdict: {analysis['verdict']}",
    ]
    return lines


def _prediction(prediction: list[Record], assumptions: list[str]) -> list[str]:
    lines = ["prediction", "  devices    images/s  efficiency  ms a step  exchange ms  wait ms    batch"]
    for line in prediction:
        lines.append(
            f"  {line['devices']:>7}  {line['images_per_s']:>10,.0f}  {line['efficiency']:>10.1%}  "
            f"{line['s_per_step'] * 1e3:>9.1f}  {line['exchange_s'] * 1e3:>11.2f}  {line['wait_s'] * 1e3:>7.2f}  "
            f"{line['batch']:>7,}"
        )
    return [*lines, *(f"  assumes: {text}" for text in assumptions)]
