"""Run: the folder of one run. It never overwrites another, and needs no torch to be found.

recipe.json environment.json metrics.jsonl log.txt checkpoints/ model.safetensors result.json
"""

import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.recipe import Recipe, validated


class Run:
    """A run's folder: create one with `create`, or `open` one that exists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.log = path / "log.txt"
        self.model = path / "model.safetensors"
        self._lock: IO[str] | None = None

    @staticmethod
    def create(path: Path, recipe: Recipe) -> "Run":
        """A new folder at `path`. Raises: LockstepError if there is something already, or it cannot be written."""
        refuse_existing(path)
        run = Run(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            run.checkpoints.mkdir()
            run.write("recipe.json", recipe.model_dump(mode="json"))
        except FileExistsError:
            refuse_existing(path)
            raise
        except OSError as error:
            raise LockstepError(f"cannot write the run folder {path}: {error.strerror}", ENVIRONMENT) from None
        run.lock()
        return run

    @staticmethod
    def open(path: Path) -> "Run":
        """The run at `path`. Raises: LockstepError if it is none."""
        if not path.is_dir():
            raise LockstepError(f"{path} is no folder: give the folder of a run, as in runs/digits-1")
        if not (path / "recipe.json").is_file():
            raise LockstepError(f"{path} is not a run: it has no recipe.json")
        return Run(path)

    def recipe(self) -> Recipe:
        """The recipe the run was started with."""
        try:
            fields = json.loads((self.path / "recipe.json").read_text())
        except (OSError, ValueError) as error:
            raise LockstepError(f"{self.path / 'recipe.json'} cannot be read: {error}", DATA) from None
        return validated(Recipe, fields)

    def result(self) -> dict[str, Any] | None:
        """The final record, or None while the run has not ended."""
        record: dict[str, Any] | None = self.read("result.json")
        return record

    def lock(self) -> None:
        """Keep other programs from writing here until this process ends, however it ends."""
        try:
            self._lock = (self.path / ".lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockstepError(
                f"another program is training in {self.path}: wait for it to end", ENVIRONMENT
            ) from None
        except OSError as error:
            raise LockstepError(f"cannot write the run folder {self.path}: {error.strerror}", ENVIRONMENT) from None

    def unlock(self) -> None:
        """Let other programs write here."""
        if self._lock is not None:
            self._lock.close()

    def write(self, name: str, record: Any) -> None:
        """Replace the JSON file `name`, whole or not at all."""
        temporary = self.path / f".{name}-{os.getpid()}"
        temporary.write_text(json.dumps(record, indent=1) + "\n")
        temporary.replace(self.path / name)

    def read(self, name: str) -> Any:
        """The JSON file `name`, or None if there is none."""
        path = self.path / name
        return json.loads(path.read_text()) if path.is_file() else None

    def forget_ahead(self, step: int) -> None:
        """Drop the metrics of steps a resumed run will do again: those after `step` updates."""
        if not self.metrics.is_file():
            return
        kept = []
        for line in self.metrics.read_text().splitlines(keepends=True):
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the last line of a run that was killed
            if row["step"] < step + (row["kind"] == "evaluation"):
                kept.append(line)
        temporary = self.metrics.with_suffix(".rewriting")
        temporary.write_text("".join(kept))
        temporary.replace(self.metrics)


def refuse_existing(path: Path) -> None:
    """Raise a LockstepError if there is anything at `path`."""
    if path.exists():
        name = path.name
        raise LockstepError(
            f"{path} exists, and a run is never overwritten: continue it with --resume, or choose another --name "
            f"than {name}"
        )


def fresh_path(runs: Path, stem: str) -> Path:
    """The first of runs/<stem>-1, -2, ... that is not there."""
    number = 1
    while (runs / f"{stem}-{number}").exists():
        number += 1
    return runs / f"{stem}-{number}"


def newest(runs: Path, recipe_name: str) -> Path:
    """The run of `recipe_name` in `runs` that was started last. Raises: LockstepError if there is none."""
    found = []
    for recipe_json in runs.glob("*/recipe.json"):
        fields = json.loads(recipe_json.read_text())
        if fields.get("name") == recipe_name:
            found.append((recipe_json.stat().st_mtime_ns, recipe_json.parent))
    if not found:
        raise LockstepError(f"no run of {recipe_name} in {runs}/ to resume: leave out --resume to start one")
    return max(found)[1]
