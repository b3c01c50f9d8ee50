"""Portable arithmetic: bits, cost and accuracy: `python -m benchmarks.portable [digits | configurations | cost]`.

`digits` trains the whole recipe, and keeps the hash of its weights for this kind of CPU (kinds.py). `configurations`
trains 3 steps of each recipe on invented images in a process for each configuration: threads, limits of the
instructions, CPUs that qemu-user emulates, and ARM where --arm-root is given. Portable weights must be the same in all.
`cost` times a step of portable and of native float32 arithmetic, in turns, with one thread. `--accuracy RECIPE` trains
the recipe over seeds in both arithmetics. The page docs/portable.md shows all records.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import options, parsed, save, spread, train
from benchmarks.kinds import kind, slug
from lockstep import hardware, numerics
from lockstep.kernels.portable import units
from lockstep.recipes import get_recipe

ROOT = Path(__file__).parents[1]
RECIPES = ("digits", "cifar10-tutorial", "mnist", "cifar10", "folder")
TIMED = RECIPES[:4]


class Configuration(NamedTuple):
    """A CPU, or limits of one. `command` runs its Python. In an emulator, only what does not take hours is computed."""

    name: str
    environment: Mapping[str, str] = {}
    threads: int = 1
    command: tuple[str, ...] = (sys.executable,)
    emulated: bool = False


KINDS, KINDS_IN_EMULATOR = "int8,float32,native", "int8,native"  # of units, see portable_steps.py
RECIPES_IN_EMULATOR = RECIPES[:2]
MACHINE = Configuration("this machine")
AVX512 = Configuration("AVX-512 without VNNI", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"})
AVX2 = Configuration("AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2"})
LEAST = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
ON_X86 = (
    AVX512,
    AVX2,
    Configuration("AVX2, torch and MKL without", {"ONEDNN_MAX_CPU_ISA": "AVX2", **LEAST}),
    Configuration("SSE4.1", {"ONEDNN_MAX_CPU_ISA": "SSE41", **LEAST}),
)


def configurations(arm_root: Path | None) -> Iterator[Configuration | str]:
    """Yield the configurations in which weights are compared, and the reason for each that is skipped."""
    yield MACHINE
    yield Configuration("this machine, 2 threads", threads=2)
    yield from ON_X86
    for cpu in ("Haswell", "EPYC", "max"):
        name, program = f"emulated x86: {cpu}", shutil.which("qemu-x86_64")
        command = (str(program), "-cpu", cpu, sys.executable)
        if not program:
            yield f"{name}: no qemu-x86_64"
        else:
            yield Configuration(name, {"MKL_CBWR": "AVX2"}, 1, command, emulated=True)
    program = shutil.which("qemu-aarch64")
    if not program or not arm_root:
        yield f"emulated ARM: {'--arm-root is not given' if program else 'no qemu-aarch64'}"
    else:
        python = arm_root.absolute() / "usr/bin/python3.11"
        yield Configuration(
            "emulated ARM", {}, 1, (program, "-L", str(arm_root.absolute()), str(python)), emulated=True
        )


def records(one: Configuration, *words: object) -> Iterator[dict[str, Any]]:
    """Run `benchmarks.portable_steps`. Yield the records that it prints, and one with `skipped` if it fails."""
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **numerics.of_program(one.threads), "PYTHONPATH": ":".join(paths), **one.environment}
    command = [*one.command, "-m", "benchmarks.portable_steps", *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=sys.stderr) as program:
        assert program.stdout
        yield from map(json.loads, program.stdout)
    if program.returncode:
        yield {"skipped": f"the program ended with {program.returncode}"}


def compare_weights(args: argparse.Namespace) -> None:
    """Train in each configuration, save the weights' SHA-256, and exit with 1 if portable ones differ."""
    found: dict[str, Any] = {}
    portable, skipped = defaultdict(set), []
    for one in configurations(args.arm_root):
        if isinstance(one, str):
            print(f"skipped: {one}")
            skipped.append(one)
            continue
        weights: dict[str, dict[str, str]] = defaultdict(dict)
        found[one.name] = {"environment": one.environment, "threads": one.threads, "weights": weights}
        recipes = [name for name in args.recipes if not one.emulated or name in RECIPES_IN_EMULATOR]
        for record in records(one, "weights", one.threads, KINDS_IN_EMULATOR if one.emulated else KINDS, *recipes):
            what = " ".join(record[name] for name in ("recipe", "unit") if name in record)
            if "sha256" in record:
                weights[record["recipe"]][record["unit"]] = record["sha256"]
                if record["unit"] != "native":
                    portable[record["recipe"]].add((record["sha256"], record["state"]))
                text = f"{record['sha256'][:16]} {record['seconds']:7.1f} s"
            elif "skipped" in record:
                text = f"skipped: {record['skipped']}"
                skipped.append(f"{one.name}, {what}: {record['skipped']}" if what else f"{one.name}: {text}")
            else:
                found[one.name] |= record
                what, text = "torch", record["torch"]
            print(f"{one.name:28} {what:25} {text}", flush=True)
    save_as("configurations", args, weights=found, skipped=skipped)
    if different := [recipe for recipe, digests in portable.items() if len(digests) > 1]:
        sys.exit(f"portable weights differ between configurations: {', '.join(different)}")


def train_whole(args: argparse.Namespace) -> None:
    """Train whole `digits` on this CPU. Save the SHA-256 of its weights, and the unit that computed them."""
    record = train("digits", data=None)
    unit = type(units.unit()).__name__.lower()
    print(f"{kind():28} {unit:8} {record['weights_sha256']}")
    save_as("digits", args, sha256=record["weights_sha256"], unit=unit)


def compare_times(args: argparse.Namespace) -> None:
    """Time the recipes on this machine, without VNNI and with AVX2 alone. Save the record."""
    rows = []
    for one, name in product((MACHINE, AVX512, AVX2), [name for name in TIMED if name in args.recipes]):
        (record,) = records(one, "times", name, args.rounds)
        if "skipped" in record:
            sys.exit(record["skipped"])
        rounds = record.pop("rounds")
        figures = {each: spread([times[each] for times in rounds]) for each in rounds[0]}
        ratio = figures["ratio"] = spread([times["portable"] / times["native"] for times in rounds])
        rows.append({"configuration": one.name, "environment": one.environment, **record, "figures": figures})
        ms = ", ".join(f"{each} {figures[each]['median'] * 1e3:.1f} ms" for each in rounds[0])
        text = f"{ms}; {ratio['median']:.2f} times ({ratio['min']:.2f} to {ratio['max']:.2f})"
        print(f"{one.name:20} {name:17} {record['unit']:8} {text}", flush=True)
    save_as("cost", args, rows=rows)


def compare_accuracies(args: argparse.Namespace) -> None:
    """Train a recipe over seeds in both arithmetics, on all cores. Save the record after each run."""
    runs: list[dict[str, Any]] = []
    length = ["--steps", args.steps] if args.steps else []

    def trained(case: tuple[int, str]) -> dict[str, Any]:
        seed, arithmetic = case
        switch = "--portable" if arithmetic == "portable" else "--no-portable"
        record = train(args.accuracy, "--seed", seed, switch, "--precision", "float32", *length, data=args.data)
        kept = {key: record[key] for key in ("steps", "digest", "weights_sha256", "train_s")}
        accuracy = record["accuracy"]["ema"] or record["accuracy"]["raw"]
        return {"arithmetic": arithmetic, "seed": seed, "accuracy": accuracy, **kept}

    at_once = max(1, hardware.cores() // get_recipe(args.accuracy).towers)
    with ThreadPoolExecutor(at_once) as pool:
        for run in pool.map(trained, product(range(args.seeds), ("portable", "native"))):
            runs.append(run)
            print(f"seed {run['seed']}, {run['arithmetic']}: {run['accuracy']:.2%}, {run['train_s']:.1f} s", flush=True)
            by_arithmetic: dict[str, list[float]] = defaultdict(list)
            for one in runs:
                by_arithmetic[one["arithmetic"]].append(one["accuracy"])
            means = {key: spread(values) | {"mean": statistics.mean(values)} for key, values in by_arithmetic.items()}
            save(f"portable-accuracy-{args.accuracy}", {"recipe": args.accuracy, "figures": means, "runs": runs})


def save_as(part: str, args: argparse.Namespace, **record: object) -> None:
    """Save a record of this kind of CPU. Only a run on the same kind replaces it."""
    cpu = kind()
    save(f"portable-{part}-{slug(cpu)}{'-quick' * args.quick}", {"kind": cpu, "cpu": hardware.cpu(), **record})


def main() -> None:
    parser = options(__doc__, "the dataset of --accuracy", quick="digits only, 2 rounds")
    parser.add_argument("part", nargs="?", choices=("digits", "configurations", "cost"), help="default: all")
    parser.add_argument("--recipes", nargs="+", default=[*RECIPES], choices=RECIPES, metavar="RECIPE")
    parser.add_argument("--arm-root", type=Path, help="folder of an ARM Linux with Python 3.11, torch and Lockstep")
    parser.add_argument("--accuracy", metavar="RECIPE", help="train this recipe over seeds, and do nothing else")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, help="of --accuracy (default: the whole run)")
    args = parsed(parser)
    args.recipes = ["digits"] if args.quick else args.recipes
    sys.argv[1:] = ["ROOT" if word == str(args.arm_root) else word for word in sys.argv[1:]]  # for the records
    if args.accuracy:
        compare_accuracies(args)
        return
    for part, measure in (("digits", train_whole), ("cost", compare_times), ("configurations", compare_weights)):
        if args.part in (None, part):
            measure(args)


if __name__ == "__main__":
    main()
