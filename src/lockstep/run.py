"""Run: the folder of one run. It never overwrites another, and needs no torch to be found.

recipe.json environment.json metrics.jsonl log.txt tb/ checkpoints/ model.safetensors result.json
"""

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import IO, Any

from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.files import open_lock, replace
from lockstep.recipe import Recipe, validated


class Run:
    """A run's folder: create one with `create`, or `open` one that exists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.summaries = path / "tb"
        self.profile = path / "profile"
        self.log = path / "log.txt"
        self.model = path / "model.safetensors"
        self._lock: IO[str] | None = None

    @staticmethod
    def create(path: Path, recipe: Recipe, numbered: bool = False) -> "Run":
        """A new folder at `path`, or if that is taken and the name is `numbered`, at the next free number.

        Raises: LockstepError if there is something already, or it cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            while True:
                try:
                    path.mkdir()  # atomic: of two programs one gets it
                    break
                except FileExistsError:
                    if not numbered:
                        refuse_existing(path)
                    path = fresh_path(path.parent, path.name.rpartition("-")[0])
            run = Run(path)
            run.checkpoints.mkdir()
            run.write("recipe.json", recipe.model_dump(mode="json"))
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
        return validated(Recipe, self.read("recipe.json"))

    def vouch(self) -> None:
        """Raise a LockstepError if the newest checkpoint was not trained by the recipe that recipe.json states."""
        for path in sorted(self.checkpoints.glob("step-*/manifest.json"))[-1:]:
            try:
                stated = json.loads(path.read_text())["recipe_digest"]
            except (OSError, ValueError, KeyError, TypeError):
                return  # a damaged checkpoint, which whoever loads it names
            if stated != self.recipe().digest():
                raise LockstepError(f"{path.parent} was trained by another recipe than the run's recipe.json states")

    def data(self) -> Path | None:
        """The data folder that the last session was given, or None."""
        sessions = self.read("environment.json") or [{}]
        known = sessions[-1].get("data")
        return Path(known) if known else None

    def result(self) -> dict[str, Any] | None:
        """The final record, or None while the run has not ended."""
        record: dict[str, Any] | None = self.read("result.json")
        return record

    def lock(self) -> None:
        """Keep other programs from writing here until this process ends, however it ends."""
        try:
            self._lock = os.fdopen(open_lock(self.path / ".lock"), "r+")
            if self.is_held():  # perhaps only by a watcher that asks, for a moment, whether it is
                time.sleep(0.1)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockstepError(
                f"another program is training in {self.path}: wait for it to end", ENVIRONMENT
            ) from None
        except OSError as error:
            raise LockstepError(f"cannot write the run folder {self.path}: {error.strerror}", ENVIRONMENT) from None

    def is_held(self) -> bool:
        """Whether a program is training here now."""
        with (self.path / ".lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def unlock(self) -> None:
        """Let other programs write here."""
        if self._lock is not None:
            self._lock.close()

    def write(self, name: str, record: Any) -> None:
        """Replace the JSON file `name`, whole or not at all."""
        replace(self.path / name, (json.dumps(record, indent=1) + "\n").encode())

    def read(self, name: str) -> Any:
        """The JSON file `name`, or None if there is none. Raises: LockstepError if it is damaged."""
        path = self.path / name
        try:
            return json.loads(path.read_text()) if path.is_file() else None
        except (OSError, ValueError) as error:
            raise LockstepError(f"{path} cannot be read ({error}): remove it to go on without it", DATA) from None

    def evaluations(self, step: int) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl on evaluations after `step` updates."""
        rows = map(json.loads, self.metrics.read_text().splitlines()) if self.metrics.is_file() else ()
        return [row for row in rows if row["kind"] == "evaluation" and row["step"] == step]

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
        with contextlib.suppress(LockstepError):  # one that cannot be read is not the one meant
            if Run(recipe_json.parent).recipe().name == recipe_name:
                found.append((recipe_json.stat().st_mtime_ns, recipe_json.parent))
    if not found:
        raise LockstepError(f"no run of {recipe_name} in {runs}/ to resume: leave out --resume to start one")
    return max(found)[1]
