"""Training over slow links between hosts, beside PyTorch DDP over Gloo: `python -m benchmarks.links
--data DIR`.

The hosts are network namespaces of this machine, which share its cores. Each host sends and
receives at the rate of its link (tc tbf); no latency is added. It needs root, ip and tc. In each
round every program runs in turn: Lockstep, Lockstep with the vector in one part, so that nothing is
hidden, and DDP. Bytes are those that host 0 sends, by its interface's counter: of a long run less
those of a short one, once. The hidden share of the exchange is 1 - wait / wait in one part.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.namespaces import INTERFACE, Hosts, reason

from benchmarks.age import RESULTS
from benchmarks.common import LOCKSTEP, options, ranged, save, spread

ROOT = Path(__file__).parents[1]
LINKS = {"1 Gbit/s": 1000, "100 Mbit/s": 100}  # Mbit/s
SHAPES = {"2 x 2": (2, 2), "4 x 1": (4, 1)}  # hosts, and processes on each
# images of a tower; steps of a long and a short run
MODELS = {"cifar10-tutorial": (128, 62, 2), "mnist": (128, 12, 2)}
# Python runs it before every program
ONE_PART = "from lockstep.core import vector\nvector.MIN_PART = 1 << 60\n"
PORT = "29500"


def shape_links(hosts: Hosts, rate: int) -> None:
    """Give each host's link a rate, in both directions."""
    for name, interface in hosts.interfaces():
        words = ["tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate", f"{rate}mbit"]
        subprocess.run(
            ["ip", "netns", "exec", name, *words, "burst", "128kb", "latency", "50ms"], check=True
        )


def sent_bytes(hosts: Hosts) -> int:
    """Return the bytes that host 0 has sent."""
    found = subprocess.run(
        ["ip", "-n", hosts.names[0], "-s", "-j", "link", "show", INTERFACE], capture_output=True
    )
    return int(json.loads(found.stdout)[0]["stats64"]["tx"]["bytes"])


def run(
    hosts: Hosts, per_host: int, command: list[str], folder: Path, code: str = ""
) -> tuple[str, int]:
    """Run `command` as one process of each rank, all after `code`. Return process 0's stdout, and
    what host 0 sent.
    """
    (folder / "sitecustomize.py").write_text(code)
    count, before = len(hosts.names) * per_host, sent_bytes(hosts)
    programs = []
    for process in range(count):
        host, local = divmod(process, per_host)
        numbers = {
            "RANK": process,
            "WORLD_SIZE": count,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": per_host,
        }
        variables = {name: str(number) for name, number in numbers.items()}
        variables |= {
            "MASTER_ADDR": hosts.addresses[0],
            "MASTER_PORT": PORT,
            "PYTHONPATH": f"{folder}:{ROOT}",
        }
        own = folder / f"h{host}"
        programs.append(hosts.start(host, *command, cwd=own, OMP_NUM_THREADS="1", **variables))
    outputs = [program.communicate() for program in programs]
    if any(program.returncode for program in programs):
        raise SystemExit("\n".join(error for _, error in outputs))
    return outputs[0][0], sent_bytes(hosts) - before


def lockstep(
    hosts: Hosts, per_host: int, model: str, steps: int, data: Path, code: str, folder: Path
) -> dict[str, Any]:
    """Train `steps` steps. Return images/s, seconds of waiting in a step, and the bytes that host 0
    sent.
    """
    towers, batch = len(hosts.names) * per_host, MODELS[model][0]
    command = [
        *LOCKSTEP,
        "train",
        model,
        "--data",
        data,
        "--no-portable",
        "--towers",
        towers,
    ]
    command += ["--tower-batch", batch, "--steps", steps, "--log-every", 1, "--name", "x", "--json"]
    _, sent = run(hosts, per_host, [str(word) for word in command], folder, code)
    lines = (folder / "h0/runs/x/metrics.jsonl").read_text().splitlines()
    timed = [event for event in map(json.loads, lines) if event["kind"] == "step"][2:]
    if not timed:
        return {"sent": sent}
    mean = sum(event["s_per_step"] for event in timed) / len(timed)
    waits = sum(event["split"]["communication"] for event in timed) / len(timed)
    return {
        "sent": sent,
        "images_per_s": towers * batch / mean,
        "wait_s": waits,
        "s_per_step": mean,
    }


def ddp(
    hosts: Hosts, per_host: int, model: str, steps: int, data: Path, folder: Path
) -> dict[str, Any]:
    """Train one untimed and one timed interval of half of `steps`. Return images/s, and the bytes
    that host 0 sent.
    """
    command = [
        sys.executable,
        "-m",
        "benchmarks.peers.pytorch_ddp",
        "--data",
        data,
        "--model",
        model,
    ]
    command += ["--batch", MODELS[model][0], "--intervals", 1, "--steps", steps // 2]
    command += ["--channels-last"]  # the faster layout
    output, sent = run(hosts, per_host, [str(word) for word in command], folder)
    return {
        "sent": sent,
        "images_per_s": json.loads(output.splitlines()[-1])["images_per_s"]["median"],
    }


def measured(
    hosts: Hosts, per_host: int, model: str, data: Path, first: bool
) -> dict[str, dict[str, float]]:
    """Return the figures of every program, in the first round with the bytes of a step."""
    _, long, short = MODELS[model]
    programs: dict[str, Callable[[int, Path], dict[str, Any]]] = {
        "lockstep": lambda steps, to: lockstep(hosts, per_host, model, steps, data, "", to),
        "in one part": lambda steps, to: lockstep(
            hosts, per_host, model, steps, data, ONE_PART, to
        ),
        "ddp": lambda steps, to: ddp(hosts, per_host, model, steps, data, to),
    }
    found = {}
    for name, program in programs.items():
        results = []
        for steps in (long, short) if first and name != "in one part" else (long,):
            with tempfile.TemporaryDirectory() as folder:
                results.append(program(steps, Path(folder)))
        sent = [result.pop("sent") for result in results]
        found[name] = results[0] | (
            {"bytes_per_step": (sent[0] - sent[1]) / (long - short)} if sent[1:] else {}
        )
        print(f"    {name:12} {found[name]}", flush=True)
    return found


def main() -> None:
    parser = options(__doc__, "CIFAR-10 and MNIST")
    parser.add_argument(
        "--only", default="", help="the cases whose name contains this; the record keeps others"
    )
    args = parser.parse_args()
    # programs of other folders read it
    args.data = args.data or Path(os.environ.get("LOCKSTEP_DATA", "data"))
    if problem := reason():
        raise SystemExit(problem)
    name = "links"
    file = RESULTS / f"{name}.json"
    cases: dict[str, Any] = (
        json.loads(file.read_text())["cases"] if args.only and file.exists() else {}
    )
    for model in MODELS:
        for shape, (count, per_host) in SHAPES.items():
            for link, rate in LINKS.items():
                case = f"{model}, {shape} processes, {link}"
                if args.only not in case:
                    continue
                print(case, flush=True)
                rounds = []
                for number in range(args.rounds):
                    with Hosts(count) as hosts:
                        shape_links(hosts, rate)
                        rounds.append(
                            measured(hosts, per_host, model, args.data.absolute(), number == 0)
                        )
                cases[case] = summary(rounds)
                print(f"    hidden {cases[case]['hidden']}", flush=True)
                save(name, {"cases": cases, "table": table(cases)})


def table(cases: dict[str, Any]) -> dict[str, Any]:
    """Return the table that docs show."""
    rows = []
    for case, found in cases.items():
        own, ddp, parts = (found["programs"][name] for name in ("lockstep", "ddp", "in one part"))
        rates = [f"{each['images_per_s']['median']:,.0f}" for each in (own, ddp)]
        sent = [f"{each['bytes_per_step']['median'] / 1e6:.1f}" for each in (own, ddp)]
        waits = [f"{each['wait_s']['median'] * 1e3:,.0f}" for each in (own, parts)]
        ratio = found["times_ddp"]
        hidden = ranged(found["hidden"], ".0%")
        rows.append(
            [case, *rates, f"{ranged(ratio, '.2f')} times", *sent, *waits, hidden, str(ratio["n"])]
        )
    head = [
        "hosts x processes, connection",
        "images/s",
        "images/s, DDP",
        "ratio",
        "MB sent in a step",
        "MB sent, DDP",
        "wait, ms",
        "wait in one part, ms",
        "saved by parts",
        "n",
    ]
    return {"head": head, "rows": rows}


def summary(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Return the spreads of all figures, and of the hidden share."""
    figures = {
        name: {
            key: spread([each[name][key] for each in rounds if key in each[name]])
            for key in rounds[0][name]
        }
        for name in rounds[0]
    }
    hidden = [1 - each["lockstep"]["wait_s"] / each["in one part"]["wait_s"] for each in rounds]
    ratio = [each["lockstep"]["images_per_s"] / each["ddp"]["images_per_s"] for each in rounds]
    return {"programs": figures, "hidden": spread(hidden), "times_ddp": spread(ratio)}


if __name__ == "__main__":
    main()
