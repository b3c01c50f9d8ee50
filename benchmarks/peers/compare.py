"""Throughput of Lockstep and its peers, in turn: `python -m benchmarks.peers.compare MODEL
--tensorflow PYTHON`.

MODEL is cifar10-tutorial or mnist. Each round runs every program once, on two cores: Lockstep and
the DDP script as two processes with one thread each, TensorFlow with two towers in one process and
its default number of threads. The DDP script runs in both layouts of memory, and the table compares
with the faster one. The record lists the settings of each program.

The throughput of a program is the median over the rounds. In a round it is the median over
intervals, or for Lockstep the mean without the first five steps. Only programs of equal precision
are compared.

Each kind of CPU (`benchmarks.kinds`) has its own record, which only a run on that kind replaces. It
is written after every round. With --jax PYTHON, JAX is the only peer, in float32, with its default
number of threads and the images of both towers as one batch.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import record_of, save, spread, train, warn
from benchmarks.kinds import kind, slug
from lockstep import hardware

Record = dict[str, Any]
Round = dict[str, float]  # program and precision -> images/s
# program -> what the table calls it
PEERS = {
    "tensorflow": "TensorFlow",
    "pytorch ddp": "PyTorch DDP",
    "pytorch ddp contiguous": "PyTorch DDP",
    "jax": "JAX",
}
PACKAGES = {"tensorflow": "tensorflow-cpu", "jax": "jax"}  # which a Python of its own has
HEAD = ["recipe", "kind of CPU", "precision", "Lockstep, images/s"]


def lockstep(args: argparse.Namespace, precision: str) -> Callable[[], Record]:
    def run() -> Record:
        steps = {"mnist": 10, "cifar10-tutorial": 100}[args.model]
        options = ["--towers", 2, "--processes", 2, "--precision", precision, "--steps", steps]
        record = train(args.model, *options, data=args.data)
        return {
            "rate": record["images_per_s"],
            "settings": {"options": " ".join(map(str, options))},
            "versions": {},
        }

    return run


def peer(
    python: list[str], module: str, *options: str, args: argparse.Namespace
) -> Callable[[], Record]:
    def run() -> Record:
        intervals = (
            ["--steps", "1", "--intervals", "4"] if args.model == "mnist" else ["--steps", "10"]
        )
        record = record_of([*python, "-m", module, *options, "--data", args.data, *intervals])
        kept = {key: record[key] for key in ("settings", "versions")}
        return {
            "rate": record["images_per_s"]["median"],
            "program": f"{module.replace('.', '/')}.py",
            **kept,
        }

    return run


def programs(args: argparse.Namespace) -> dict[str, Callable[[], Record]]:
    module = {"mnist": "mnist", "cifar10-tutorial": "tutorial"}[args.model]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    if args.jax:
        jax = peer([args.jax], "benchmarks.peers.jax_cpu", "--model", args.model, args=args)
        return {"lockstep float32": lockstep(args, "float32"), "jax float32": jax}
    runs: dict[str, Callable[[], Record]] = {}
    for precision in ("bfloat16", "float32"):
        words = ["--precision", precision]
        runs[f"lockstep {precision}"] = lockstep(args, precision)
        tensorflow = f"benchmarks.peers.tensorflow_{module}"
        runs[f"tensorflow {precision}"] = peer(
            [args.tensorflow], tensorflow, "--towers", "2", *words, args=args
        )
        words += ["--model", "mnist", "--batch", "1024"] * (args.model == "mnist")
        for layout, more in {"": ["--channels-last"], " contiguous": []}.items():
            runs[f"pytorch ddp{layout} {precision}"] = peer(
                torchrun, "benchmarks.peers.pytorch_ddp", *words, *more, args=args
            )
    return runs


def refuse_without(package: str, python: str) -> None:
    """Raise a SystemExit that says what to do, if `python` cannot import a package. See `warn`."""
    warn()
    try:
        done = subprocess.run(
            [python, "-c", f"import {package}"], capture_output=True, text=True, check=False
        )
        fault = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except OSError as error:
        fault = [str(error)]
    if fault:
        raise SystemExit(
            f"--{package} {python}: {fault[0]}. Give a Python that has it: python3 -m venv DIR && "
            f"DIR/bin/pip install {PACKAGES[package]}, then --{package} DIR/bin/python"
        )


def rows(rounds: list[Round], programs: dict[str, Record]) -> list[Record]:
    """Return a row for each peer: its throughput, Lockstep's in the same precision, and Lockstep's
    over the peer's.

    A program is called "NAME PRECISION". The ratio is the median of those of single rounds.
    """
    made = []
    for name in rounds[0]:
        title, _, precision = name.rpartition(" ")
        if title not in PEERS:
            continue
        ours, theirs = ([each[one] for each in rounds] for one in (f"lockstep {precision}", name))
        of_rounds = spread([a / b for a, b in zip(ours, theirs, strict=True)])
        program, version = (
            programs[name]["program"],
            next(iter(programs[name]["versions"].values())),
        )
        fixed = {
            "precision": precision,
            "peer": PEERS[title],
            "version": version,
            "program": program,
        }
        rates = {"lockstep_images_per_s": spread(ours), "images_per_s": spread(theirs)}
        made.append(
            {
                **fixed,
                "ratio": of_rounds["median"],
                **{key: of_rounds[key] for key in ("n", "min", "max")},
                **rates,
            }
        )
    return made


def table(model: str, cpu: str, rows: list[Record]) -> Record:
    """Return rows as docs show them, one for each precision, against the faster layout of a peer. A
    ratio below 1 is in bold: the peer is faster.
    """
    by: dict[str, dict[str, str]] = {}
    columns = [
        name for name in dict.fromkeys(PEERS.values()) if any(row["peer"] == name for row in rows)
    ]
    for row in sorted(rows, key=lambda row: (row["precision"], -row["ratio"])):
        ratio = shown(row, ".2f", "ratio")
        ours = shown(row["lockstep_images_per_s"], ",.0f", "median")
        found = by.setdefault(row["precision"], {"": ours})
        found[row["peer"]] = f"**{ratio}**" if row["ratio"] < 1 else ratio
    texts = [
        [f"`{model}`", cpu, precision, *(found[name] for name in ("", *columns))]
        for precision, found in by.items()
    ]
    return {"head": [*HEAD, *(f"over {name}" for name in columns)], "rows": texts}


def shown(found: Record, form: str, key: str) -> str:
    """Return `key` of `found`, with its range and n in brackets."""
    spread = f"{found['min']:{form}} to {found['max']:{form}}"
    return f"{found[key]:{form}} ({spread}, n {found['n']})"


def main() -> None:
    parser, known = argparse.ArgumentParser(description=__doc__), os.environ.get("LOCKSTEP_DATA")
    parser.add_argument(
        "--data", type=Path, default=known, required=not known, help="default: LOCKSTEP_DATA"
    )
    parser.add_argument(
        "--tensorflow", default=sys.executable, metavar="PYTHON", help="a Python with tensorflow"
    )
    parser.add_argument("--jax", metavar="PYTHON", help="a Python with jax, the only peer then")
    parser.add_argument("model", choices=("cifar10-tutorial", "mnist"))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    own = "jax" if args.jax else "tensorflow"
    refuse_without(own, args.jax or args.tensorflow)
    if hardware.cores() != 2:
        raise SystemExit(f"give it two cores, not {hardware.cores()}: taskset -c 0,1 python -m ...")
    cpu, runs = kind(), programs(args)
    name = f"peers-{'jax-' if args.jax else ''}{args.model}-{slug(cpu)}"
    rounds: list[Round] = []
    ran: dict[str, Record] = {}
    sys.argv[1:] = [args.model, "--data", "DIR", f"--{own}", "PYTHON"]
    sys.argv += ["--rounds", str(args.rounds)]
    for _ in range(args.rounds):
        made = {}
        for program, run in runs.items():
            record = run()
            made[program], ran[program] = record.pop("rate"), record
            print(f"{program:22} {made[program]:7.0f} images/s", flush=True)
        rounds.append(made)
        found = rows(rounds, ran)
        found_table = table(args.model, cpu, found)
        facts = {"rows": found, "rounds": rounds, "programs": ran}
        save(name, {"kind": cpu, "table": found_table, **facts})
        print(*map("  ".join, found_table["rows"]), sep="\n")


if __name__ == "__main__":
    main()
