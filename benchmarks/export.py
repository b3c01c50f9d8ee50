"""Images/s of exported files beside `lockstep predict`: `python -m benchmarks.export [--data DIR] [--photos FOLDER]`.

Short runs of `digits`, with --data of `cifar10-tutorial`, and with --photos of `photos`, are exported to ONNX in each
round. `lockstep export` times the file and Lockstep on all test images, in memory and on one thread.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import lockstep, options, parsed, save, spreads


def rounds_of(run: Path, count: int, data: Path | None) -> list[dict[str, float]]:
    """Return images/s of the file and of Lockstep in `count` rounds."""
    found = []
    for number in range(count):
        rates: dict[str, float] = {}
        file = run.parent / f"{run.name}-{number}.onnx"
        record: dict[str, Any] = lockstep("export", run, "-o", file, data=data)
        rates["onnx"], rates["lockstep"] = record["images_per_s"], record["images_per_s_lockstep"]
        found.append(rates)
        print(f"{run.name}, round {number + 1}: {rates}", flush=True)
    return found


def main() -> None:
    parser = options(__doc__, data="CIFAR-10")
    parser.add_argument("--photos", type=Path, help="a folder of images with a folder for each class")
    args = parsed(parser)
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        jobs: list[tuple[str, tuple[object, ...], Path | None]] = [("digits", (), None)]
        if args.data:
            jobs.append(("cifar10-tutorial", ("--steps", 200), args.data))
        if args.photos:
            jobs.append(("photos", (), args.photos))
        for recipe, words, data in jobs:
            lockstep("train", recipe, *words, "--runs", name, "--name", recipe, data=data)
            figures[recipe] = spreads(rounds_of(Path(name, recipe), args.rounds, None))
    shown = {key: value for key, value in vars(args).items() if key in ("data", "photos") and value}
    sys.argv[1:] = [word for key in shown for word in (f"--{key}", "DIR")]
    save("export" + "-quick" * args.quick, {"figures": figures})
    for recipe, found in figures.items():
        for kind, f in found.items():
            print(f"{recipe:18} {kind:9} {f['median']:8,.0f} images/s ({f['min']:,.0f} to {f['max']:,.0f}, n {f['n']})")


if __name__ == "__main__":
    main()
