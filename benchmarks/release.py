"""Rehearse a release: `python -m benchmarks.release`, which `make release` calls.

Build the wheel and the sdist into dist/, install the wheel into an environment that has nothing
else, and run there what README tells a reader to type: its shell commands that need no network, and
its Python. The commands of the first block must print the published hash.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import documents, synthetic
from tests.documents import ROOT

DIST = ROOT / "dist"
PUBLISHED = json.loads((ROOT / "tests/golden/portable_sha256.json").read_text())["digits"]


def build(folder: Path) -> Path:
    """Build the wheel and the sdist into a folder, and return the path of the wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*.whl"))


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel with the extras that README names into a new environment. Return the folder
    of its programs.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    words = ["pip", "install", "--quiet", "--no-compile", "--constraint", "constraints.txt"]
    words = [str(folder / "bin/python"), "-m", *words, f"{wheel}[export,serve]"]
    subprocess.run(words, cwd=ROOT, check=True)
    return folder / "bin"


def run_readme(programs: Path, folder: Path) -> int:
    """Run README's commands in a folder, with the programs of an environment. Return their number.

    Raises: SystemExit at the first that fails, or that prints another hash.
    """
    documents.furnish(folder)
    (folder / "data").mkdir()
    synthetic.cifar10(folder / "data")
    removed = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in removed}
    environment |= {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "LOCKSTEP_DATA": str(folder / "data"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }

    def run(*words: str) -> str:
        print(f"  {words[-1].strip().splitlines()[0]}", end="", flush=True)
        started = time.perf_counter()
        done = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        print(f"  ({time.perf_counter() - started:.0f} s)", flush=True)
        if done.returncode:
            raise SystemExit(f"README: {words[-1]}\n{done.stdout}{done.stderr}")
        return done.stdout

    blocks = documents.blocks((ROOT / "README.md").read_text())
    shell = [commands for block in blocks if (commands := documents.runnable(block))]
    hashes = {
        one
        for command in shell[0]
        for one in re.findall(r"\bsha256 +([0-9a-f]{64})", run("bash", "-ec", command))
    }
    if hashes != {PUBLISHED}:
        raise SystemExit(f"README's first commands print {sorted(hashes)}, and not {PUBLISHED}.")
    later = [command for commands in shell[1:] for command in commands]
    python = [block.text for block in blocks if block.language == "python"]
    for command in later:
        run("bash", "-ec", command)
    for text in python:
        run("python", "-c", text)
    return len(shell[0]) + len(later) + len(python)


def main() -> None:
    """Build, install and try the package of this version."""
    wheel = build(DIST)
    with tempfile.TemporaryDirectory() as name:
        print(f"Installing {wheel.name} into a bare environment.", flush=True)
        programs = install(wheel, Path(name, "environment"))
        (place := Path(name, "place")).mkdir()
        count = run_readme(programs, place)
    print(f"{wheel.relative_to(ROOT)}: all {count} commands of README work.")


if __name__ == "__main__":
    main()
