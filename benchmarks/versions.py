"""The hashes of portable runs by several releases of PyTorch: `python -m benchmarks.versions 2.13.0
2.14.1`.

Each release is installed with Lockstep into an environment of its own, which is removed afterwards.
pip's settings decide which build that is, and where it comes from. A release of which a recipe is
refused has the refusal.
"""

import argparse
import subprocess
import tempfile
import venv
from pathlib import Path

from benchmarks.common import record_of, save, warn

ROOT = Path(__file__).parents[1]
RUNS: dict[str, list[object]] = {
    "digits": ["digits"],
    "cifar10-tutorial, 20 steps": [
        "cifar10-tutorial",
        "--portable",
        "--steps",
        20,
        "--dataset",
        "benchmarks.gpu_check:colour32",
    ],
}


def found(release: str, folder: Path) -> list[str]:
    """Return a row: the release, and what each of `RUNS` ends with. Raises: CalledProcessError if
    pip fails.
    """
    venv.create(folder, with_pip=True)
    python, row = folder / "bin/python", [release]
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", f"torch=={release}", ROOT], check=True
    )
    for words in RUNS.values():
        command = [
            python,
            "-P",
            "-m",
            "lockstep",
            "train",
            *words,
            "--runs",
            folder / "runs",
            "--device",
            "cpu",
        ]
        try:
            row.append(
                f"`{record_of([*command, '--json'], PYTHONPATH=str(ROOT))['weights_sha256'][:8]}`"
            )
        except SystemExit as refused:
            # without the program and the remedy
            row.append(str(refused).strip().splitlines()[-1].split(": ")[1])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="+", help="as in 2.13.0")
    warn()
    rows = []
    for release in parser.parse_args().releases:
        with tempfile.TemporaryDirectory(prefix="lockstep-versions-") as folder:
            rows.append(found(release, Path(folder)))
        print(*rows[-1], flush=True)
        save("versions", {"table": {"head": ["PyTorch", *RUNS], "rows": rows}})


if __name__ == "__main__":
    main()
