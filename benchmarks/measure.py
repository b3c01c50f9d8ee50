"""Measurements of the real program: `python -m benchmarks.measure CASE [WHAT] [--rounds N] [--data
DIR] [--into DIR] [-- OPTION ...]`.

A case is a function that runs its variants once, in turn, and returns their figures. It runs for
several rounds; the record in benchmarks/results/ has each figure's median (of accuracies the mean),
n and range, as the table that docs show. The name of a figure decides its unit. In a case over
seeds, round n trains seed n; `seeds`, `photos`, `networks` and `folder` take the options after
`--`. With --into, the runs of `seeds` stay there, and started again it continues them: their times
are then not recorded. `million` and `unfamiliar` keep their files there.
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from PIL import Image

import lockstep
from benchmarks import multi_label as pairs, unfamiliar as ood
from benchmarks.common import (
    LOCKSTEP,
    bare,
    data_option,
    record_of,
    save,
    spread,
    step_s,
    warn,
)
from benchmarks.kinds import kind, slug
from benchmarks.million import compared, measured as of_pictures
from lockstep.config.precision import resolve
from lockstep.data.readers import load_cifar10
from lockstep.recipes import get_recipe
from lockstep.runs.run import Run
from lockstep.schema import dotted

Figures = dict[str, float]
# the fastest on this CPU: one without units for bfloat16 takes minutes for a few steps in it
PRECISION = resolve(get_recipe("cifar10-tutorial").replace(precision="auto"), "cpu")[0].precision
TUTORIAL = ("cifar10-tutorial", "--precision", PRECISION)

PERCENT = (
    "accuracy",
    "calibration error",
    "coverage",
    "exchanged labels",
    "F1",
    "marked",
    "AUROC",
    "another answer",
)


class Call(NamedTuple):
    """What a case gets: WHAT of the command line, the round, the folder of the data, a folder for
    all rounds, the options for `lockstep train`, and whether all runs are of this start.
    """

    what: str
    number: int
    data: Path | None
    folder: Path
    options: tuple[str, ...] = ()
    timed: bool = True


def run(call: Call, *words: object, cache: str = "cache") -> Any:
    """Run `lockstep WORDS` with a cache in the folder of all rounds. Return its record."""
    return record_of([*LOCKSTEP, *words, "--json"], XDG_CACHE_HOME=str(call.folder / cache))


def train(call: Call, *words: object, cache: str = "cache") -> Any:
    """Run `lockstep train` into the folder of all rounds. Return its result."""
    result = run(call, "train", *words, "--runs", call.folder, cache=cache)
    result["best"] = result["accuracy"]["ema"] or result["accuracy"]["raw"]
    return result


def overhead(call: Call) -> Figures:
    """The loop beside a bare PyTorch loop, the exact sum beside the backend's, two processes beside
    one.
    """

    def rate(processes: int, *more: str) -> float:
        seconds = step_s(*TUTORIAL, *more, data=call.data, processes=processes, timed=60)
        return get_recipe(TUTORIAL[0]).batch * processes / seconds

    one, loop, two = rate(1), bare(call.data, 1, 65, PRECISION), rate(2)
    backend = rate(2, "--reduction", "allreduce", "--set", "exact=false")
    return {
        "loop / bare loop, one process": one / loop,
        "exact tree / allreduce, two processes": two / backend,
        "two processes / one, a thread each": two / one,
        "one process, images/s": one,
    }


def processes(call: Call) -> Figures:
    """The time of a step of the two original networks with four towers, by the number of processes,
    as the header of TensorFlow's cifar10_multi_gpu_train.py has it by the number of GPUs.
    """
    figures = {}
    for name, timed in {"cifar10-tutorial": 20, "mnist": 5}.items():
        recipe = get_recipe(name)
        about = f"`{name}`, 4 towers of {recipe.batch // recipe.towers:,} images"
        for number, unit in {1: "process", 2: "processes", 4: "processes"}.items():
            words = name, "--precision", PRECISION
            seconds = step_s(*words, data=call.data, processes=number, towers=4, timed=timed)
            figures[f"{about}: {number} {unit}, ms"] = 1e3 * seconds
    return figures


def start(call: Call) -> Figures:
    """From the start of `lockstep train` to the line of step 0, and the seconds of two imports."""

    def first_step_s(*words: object) -> float:
        command = [
            *LOCKSTEP,
            "train",
            *words,
            "--log-every",
            1,
            "--runs",
            call.folder,
        ]
        began = time.perf_counter()
        program = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        if not any(" step 0," in text for text in program.stdout):
            raise SystemExit(f"no first step: {command}")
        took = time.perf_counter() - began
        program.send_signal(signal.SIGTERM)
        program.communicate()
        return took

    def import_s(name: str) -> float:
        code = (
            f"import time; began = time.perf_counter(); import {name}; "
            f"print(time.perf_counter() - began)"
        )
        return float(record_of([sys.executable, "-c", code]))

    tutorial = (*TUTORIAL, *data_option(call.data))
    return {
        "start to first step, digits": first_step_s("digits"),
        "start to first step, one process": first_step_s(
            *tutorial, "--towers", 1, "--processes", 1
        ),
        "start to first step, two processes": first_step_s(
            *tutorial, "--towers", 2, "--processes", 2
        ),
        "import lockstep": import_s("lockstep"),
        "`import torch` alone": import_s("torch"),
    }


def seeds(call: Call) -> Figures:
    """Accuracy and time of the recipe WHAT, a seed a round."""
    begun = call.folder / slug(" ".join([call.what, *call.options, f"seed {call.number}"]))
    first = (call.what, "--seed", call.number, "--name", begun.name, *call.options)
    words = (begun, "--resume") if begun.exists() else first
    result = train(call, *words, *data_option(call.data))
    figures = {"test accuracy": result["best"]}
    if "accuracy_without_augmentation" in result:
        figures["test accuracy without test-time augmentation"] = result[
            "accuracy_without_augmentation"
        ]
    if call.timed:
        figures["total time, with evaluation"] = result["total_s"]
        figures["training time"] = result["train_s"]
    return figures


def photos(call: Call) -> Figures:
    """The recipe `photos` on the folder WHAT, a seed a round; the first one starts with empty
    caches.
    """
    result = train(call, call.what, "--seed", call.number, *call.options)
    return of_photos(Path(call.what).name, call, result)


def networks(call: Call) -> Figures:
    """The recipe `photos` on the folder WHAT with EfficientNet-lite0 and lite2, as `photos`
    and with a cache for each.
    """
    figures: Figures = {}
    for model in ("efficientnet-lite0", "efficientnet-lite2"):
        cache = f"cache-{model}"
        options = ("--model", model, "--seed", call.number, *call.options)
        result = train(call, call.what, *options, cache=cache)
        short = model.removeprefix("efficientnet-")
        name = " ".join([f"{Path(call.what).name}, {short}", *call.options])
        figures |= of_photos(name, call, result, cache)
    return figures


def of_photos(name: str, call: Call, result: dict[str, Any], cache: str = "cache") -> Figures:
    """Return accuracy, calibration and time of a run of `photos`."""
    with patch.dict(os.environ, XDG_CACHE_HOME=str(call.folder / cache)):
        html = lockstep.report(result["run"], quiet=True).html
    error = float(html.split("calibration error: ")[1].split("%")[0]) / 100
    start = "with another seed" if call.number else "of the first start"
    found = {
        f"{name}: test accuracy": result["best"],
        f"{name}: expected calibration error": error,
    }
    return {**found, f"{name}: total time {start}": result["total_s"]}


def confident(call: Call) -> Figures:
    """The confident answers of the recipe `photos` on the test images of the folder WHAT, a seed a
    round.
    """
    name, result = Path(call.what).name, train(call, call.what, "--seed", call.number)
    found = result["confident"]
    return {
        f"{name}: test accuracy": result["best"],
        f"{name}: coverage": found["coverage"],
        f"{name}: accuracy of confident answers": found["accuracy"],
    }


def fit(call: Call) -> Figures:
    """The recipe `photos` on the folder WHAT, with each way to make a picture a square, a seed a
    round.
    """
    name = Path(call.what).name
    return {
        f"{name}, fit={way}: test accuracy": train(
            call, "photos", "--data", call.what, "--set", f"fit={way}", "--seed", call.number
        )["best"]
        for way in ("crop", "pad", "squash")
    }


def photos_tuned(call: Call) -> Figures:
    """The recipe `photos-tuned` on the folder WHAT, from a run of `photos`."""
    name, before = Path(call.what).name, train(call, call.what, "--name", f"start-{call.number}")
    result = train(
        call, "photos-tuned", "--data", call.what, "--init", before["run"], "--seed", call.number
    )
    first, then = (
        f"{name}: test accuracy {recipe}" for recipe in ("of `photos`", "after `photos-tuned`")
    )
    return {first: before["best"], then: result["best"]}


def unequal(call: Call) -> Figures:
    """`photos` on the folder WHAT with training images of half of its classes left out, for three
    ratios.
    """
    source, draw = Path(call.what).absolute(), random.Random(call.number)
    classes = sorted(path.name for path in (source / "train").iterdir())
    rare = draw.sample(classes, len(classes) // 2)
    smallest = min(len([*(source / "train" / name).iterdir()]) for name in classes)
    tests, figures = sum(path.is_file() for path in (source / "test").rglob("*")), {}
    for ratio in (4, 8, 16):
        folder = call.folder / f"data-{call.number}-{ratio}"
        for name in classes:
            (folder / "train" / name).mkdir(parents=True)
            chosen = draw.sample(sorted((source / "train" / name).iterdir()), smallest)
            for path in chosen[: round(smallest / ratio) if name in rare else smallest]:
                (folder / "train" / name / path.name).symlink_to(path)
        (folder / "test").symlink_to(source / "test")
        for setting in ("true", "false"):
            result = train(
                call,
                "photos",
                "--data",
                folder,
                "--set",
                f"balanced={setting}",
                "--seed",
                call.number,
            )
            found = run(call, "eval", result["run"])
            shares = [one["accuracy"] for one in found["classes"]]
            about = f"{source.name}, {ratio} : 1, balanced={setting}"
            figures[f"{about}: test accuracy, mean of the classes"] = statistics.mean(shares)
            confident = result["confident"]
            figures[f"{about}: coverage"] = confident["images"] / tests
            if confident["images"]:
                figures[f"{about}: accuracy of confident answers"] = (
                    confident["right"] / confident["images"]
                )
    return figures


def labels(call: Call) -> Figures:
    """What `data check --labels` finds of 5% exchanged labels among the training images of the
    folder WHAT.
    """
    source, draw = Path(call.what).absolute() / "train", random.Random(call.number)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    exchanged, classes = (
        {*draw.sample(files, round(0.05 * len(files)))},
        sorted({path.parent.name for path in files}),
    )
    copy, wrong = call.folder / f"copy-{call.number}", set[str]()
    for number, path in enumerate(files):
        own = path.parent.name
        name = draw.choice([each for each in classes if each != own]) if path in exchanged else own
        link = copy / name / f"{number}{path.suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
        if path in exchanged:
            wrong.add(str(link.relative_to(copy)))
    found = run(call, "data", "check", copy, "--labels")["labels"]
    first = {one["path"] for one in found["doubtful"][: found["images"] // 10]}
    return {
        f"{Path(call.what).name}: exchanged labels in the first tenth": len(first & wrong)
        / len(wrong)
    }


def multi_label(call: Call) -> Figures:
    """Several labels: pairs of digits of MNIST in `--data`, and photos of the folder WHAT in a
    grid, a seed a round; and scikit-learn on the same features, if it is installed.
    """
    figures: Figures = {}
    source = Path(call.what).absolute()
    draws = {
        "pairs of digits": pairs.digits(call.data),
        f"{source.name} in a grid": pairs.grid(source),
    }
    for name, draw in draws.items():
        folder = call.folder / slug(name)
        if not folder.exists():
            pairs.make(folder, draw)
        options = ("--multi-label", "--label-separator", ";", "--precision", "float32")
        result = train(call, folder, *options, "--seed", call.number)
        exact = of_photos(name, call, result)
        figures |= {what: value for what, value in exact.items() if "time" not in what}
        figures[f"{name}: macro F1"] = result["f1"]["macro"]
        confident = result["confident"]
        figures[f"{name}: accuracy of confident labels"] = confident["right"] / confident["labels"]
        if not call.number:
            with (
                suppress(ImportError),
                patch.dict(os.environ, XDG_CACHE_HOME=str(call.folder / "cache")),
            ):
                f1, error = pairs.of_scikit_learn(result["run"])
                figures[f"{name}: macro F1 of scikit-learn"] = f1
                figures[f"{name}: expected calibration error of scikit-learn"] = error
    return figures


def unfamiliar(call: Call) -> Figures:
    """The published ways to tell unfamiliar pictures, for the set in the folder WHAT: near, with
    half of its classes left out, and far, with the test pictures of the other sets in `--data`. The
    features stay in `--into`.
    """
    assert call.data is not None
    name = Path(call.what).name
    sets = {
        each.name: ood.kept_features(each, call.folder / f"{each.name}.pt")
        for each in sorted(call.data.iterdir())
    }
    train, test = sets.pop(name)
    others = {other: of_test for other, (_, of_test) in sets.items()}
    near, far = (
        ood.near(train, test, call.number),
        ood.far(train, test, others, call.number),
    )
    return {f"trained on {name}, {what}": value for what, value in (near | far).items()}


def folder(call: Call) -> Figures:
    """The recipe `folder` on the first WHAT training images of CIFAR-10 as JPEG files."""
    splits, place = load_cifar10(call.data), call.folder / "images"
    if not place.exists():
        for name, dataset in {
            "train": splits["train"].first(int(call.what)),
            "test": splits["test"],
        }.items():
            for title in dataset.classes:
                (place / name / title).mkdir(parents=True)
            pairs = zip(dataset.pixels(slice(None)).numpy(), dataset.labels.tolist(), strict=True)
            for number, (image, label) in enumerate(pairs):
                path = place / name / dataset.classes[label] / f"{number:05d}.jpg"
                Image.fromarray(image).save(path, quality=95, subsampling=0)
    options = ("--set", "image_px=32", "--seed", call.number, *call.options)
    result = train(call, "folder", "--data", place, *options)
    return {
        f"{int(call.what):,} images: test accuracy": result["best"],
        f"{int(call.what):,} images: total time": result["total_s"],
    }


def portable_accuracy(call: Call) -> Figures:
    """Accuracy of the recipe WHAT in both arithmetics, a seed a round."""
    words = (call.what, "--seed", call.number, "--precision", "float32", *data_option(call.data))
    return {
        f"{name}: test accuracy": train(call, *words, switch)["best"]
        for name, switch in ARITHMETICS.items()
    }


def drift(call: Call) -> Figures:
    """How many of CIFAR-10's test images get another answer than on one process from a network that
    PyTorch DDP has trained on two or four, a seed a round.
    """
    if call.data is None:
        raise SystemExit("drift trains on CIFAR-10: give its folder as --data")
    program = [sys.executable, "-m", "benchmarks.peers.ddp_drift"]
    one, *others = (
        record_of([*program, n, *data_option(call.data), "--seed", call.number])["answers"]
        for n in (1, 2, 4)
    )
    return {
        f"PyTorch DDP on {n} processes: another answer than on one": sum(
            answer != of_one for answer, of_one in zip(answers, one, strict=True)
        )
        / len(one)
        for n, answers in zip((2, 4), others, strict=True)
    }


def portable_cost(call: Call) -> Figures:
    """Milliseconds of a step of one tower of the recipe WHAT in both arithmetics, with one
    thread.
    """
    about = f"{call.what}, {kind()}"
    times = {
        f"{about}: {name}, ms": 1e3
        * step_s(call.what, "--precision", "float32", switch, data=call.data, timed=5)
        for name, switch in ARITHMETICS.items()
    }
    portable, native = times.values()
    return {f"{about}: portable / native": portable / native, **times}


def checked_cost(call: Call) -> Figures:
    """Milliseconds of a portable step of one tower of the recipe WHAT, with one thread, with its
    products checked and without.
    """
    about = f"{call.what}, {kind()}"
    words = call.what, "--precision", "float32", "--portable"
    checked, plain = (
        1e3 * step_s(*words, *switch, data=call.data, timed=10)
        for switch in (["--check-products"], [])
    )
    return {
        f"{about}: checked / not checked": checked / plain,
        f"{about}: checked, ms": checked,
        f"{about}: not checked, ms": plain,
    }


def portable_start(call: Call) -> Figures:
    """The first start of `photos` on the folder WHAT in both arithmetics, with empty caches."""
    name = Path(call.what).name
    times = {
        f"{name}: {arithmetic}, total time": train(
            call, call.what, switch, cache=f"{arithmetic}-{call.number}"
        )["total_s"]
        for arithmetic, switch in ARITHMETICS.items()
    }
    portable, native = times.values()
    return {f"{name}: portable / native, first start": portable / native, **times}


def million(call: Call) -> Figures:
    """Starts, memory, steps and stops with WHAT pictures."""
    count = int(call.what or 1_000_000)
    return {
        f"{name}, {count:,} pictures": value
        for name, value in of_pictures(call.folder, count).items()
    }


def parquet(call: Call) -> Figures:
    """Starts with WHAT pictures in Parquet files, beside those with the same pictures in a
    folder.
    """
    count = int(call.what or 100_000)
    figures = compared(call.folder, count)
    return {f"{name}, {count:,} pictures": value for name, value in figures.items()}


ARITHMETICS = {"portable": "--portable", "native": "--no-portable"}


CASES: dict[str, tuple[Callable[[Call], Figures], int]] = {  # name -> (a round, how many)
    "overhead": (overhead, 5),
    "processes": (processes, 3),
    "start": (start, 5),
    "drift": (drift, 3),
    "seeds": (seeds, 10),
    "photos": (photos, 5),
    "networks": (networks, 5),
    "confident": (confident, 5),
    "fit": (fit, 5),
    "photos-tuned": (photos_tuned, 1),
    "unequal": (unequal, 5),
    "labels": (labels, 5),
    "multi-label": (multi_label, 5),
    "unfamiliar": (unfamiliar, 5),
    "folder": (folder, 3),
    "portable-accuracy": (portable_accuracy, 10),
    "checked-cost": (checked_cost, 3),
    "portable-cost": (portable_cost, 5),
    "portable-start": (portable_start, 5),
    "million": (million, 1),
    "parquet": (parquet, 3),
}


def trains(folder: Path) -> dict[str, Any]:
    """Return the recipe that the last run in `folder` trained, by what differs from the built-in
    one; {} for none.
    """
    if not (runs := sorted(folder.glob("*/recipe.json"), key=lambda path: path.stat().st_mtime)):
        return {}
    recipe = Run.open(runs[-1].parent).recipe().replace(seed=0)
    own, built_in = (
        dotted(one.model_dump(mode="json")) for one in (recipe, get_recipe(recipe.name))
    )
    changes = {name: value for name, value in own.items() if value != built_in.get(name)}
    return {"trains": {"recipe": recipe.name, "changes": changes, "digest": recipe.digest()}}


def row(name: str, values: list[float]) -> list[str]:
    """Return the row of a figure: its name, median or mean, n and range."""
    form, unit = "{:,.2f}", " s"
    # Before it, there may be the name of a folder of the user.
    quantity = name.rpartition(": ")[2]
    if any(word in quantity for word in PERCENT):
        form, unit, values = "{:.2f}", "%", [100 * value for value in values]
    elif name.endswith(("images/s", ", ms")):
        form, unit = "{:,.1f}" if name.endswith("ms") else "{:,.0f}", ""
    elif " / " in quantity:
        unit = " times"
    elif "memory" in quantity:
        form, unit = "{:,.0f}", " MB"
    elif max(values) < 0.1:
        form, unit, values = "{:.1f}", " ms", [1e3 * value for value in values]
    middle = statistics.mean(values) if unit == "%" else statistics.median(values)
    span = (
        f"{form.format(min(values))} to {form.format(max(values))}"
        if len(values) > 1
        else "one run"
    )
    return [name, f"{form.format(middle)}{unit}", str(len(values)), span]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=CASES)
    parser.add_argument(
        "what",
        nargs="?",
        default="",
        help="a recipe, a folder of photos, or a number of images",
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("LOCKSTEP_DATA"), help="default: LOCKSTEP_DATA"
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--into", type=Path, help="a folder for files that stay")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, options = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    warn()
    if options and args.case not in ("seeds", "photos", "networks", "folder"):
        parser.error(f"{args.case} takes no options after --")
    if args.into and args.case not in ("seeds", "million", "parquet", "unfamiliar"):
        parser.error(f"{args.case} takes no --into: it begins anew")
    measured, count = CASES[args.case]
    rounds: list[Figures] = []
    # digits come with Lockstep
    data = Path(args.data) if args.data and args.what != "digits" else None
    place = args.into.absolute() if args.into else Path(tempfile.mkdtemp())
    try:
        for number in range(args.rounds or count):
            call = Call(args.what, number, data, place, tuple(options), not args.into)
            rounds.append(measured(call))
            print(number, rounds[-1], flush=True)
        of_recipe = trains(place)
    finally:
        if not args.into:
            shutil.rmtree(place)
    names = dict.fromkeys(name for each in rounds for name in each)
    values = {name: [each[name] for each in rounds if name in each] for name in names}
    own = slug(" ".join([Path(args.what).name, *options]))
    if args.case in ("checked-cost", "portable-cost"):  # is another on each kind of CPU
        own += f"-{slug(kind())}"
    rows = [
        row(*item)
        for item in values.items()
        if args.case != "unfamiliar" or ood.SHOWN.fullmatch(item[0])
    ]
    facts = {
        "kind": kind(),
        "figures": {name: spread(each) for name, each in values.items()},
        "rounds": rounds,
    }
    facts |= of_recipe
    table: dict[str, Any] = {"head": ["what", "result", "n", "range"], "rows": rows}
    precision = of_recipe.get("trains", {}).get("changes", {}).get("precision")
    if args.case in ("overhead", "processes", "start"):
        precision = PRECISION
    if precision and not args.case.startswith("portable"):  # native runs have another one
        table["precision"] = precision
    save("-".join(filter(None, [args.case, own])), {"table": table, **facts})
    print(*map("  ".join, rows), sep="\n")


if __name__ == "__main__":
    main()
