"""Run: the folder of one run. It never overwrites another, and needs no torch to be found.

recipe.json environment.json metrics.jsonl log.txt tb/ checkpoints/ model.safetensors result.json
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from lockstep.config.recipe import Recipe, validated
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.files import open_lock, replace

# What a run makes before its first step, as paths in its folder.
_FIRST_FOLDERS = re.compile(r"tb|checkpoints(/(step-0{9}|\.writing-0{9}-\d+))?")
_FIRST_FILES = re.compile(
    r"\.lock|(recipe|environment)\.json|\.(recipe|environment)\.json-\d+|metrics\.jsonl|log\.txt"
    r"|tb/events\.out\.tfevents\.[^/]+"
    r"|checkpoints/(step-0{9}|\.writing-0{9}-\d+)/(state\.safetensors|manifest\.json)"
)


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
    def create(
        path: Path, recipe: Recipe, numbered: bool = False, note: Callable[[str], None] = lambda text: None
    ) -> "Run":
        """A new folder at `path`, or if that is taken and the name is `numbered`, at the next free number.

        The folder of a run that was stopped before its first step is emptied and used, and `note` is told.
        Raises: LockstepError if there is something else already, or it cannot be written.
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
                        break
                    path = fresh_path(path.parent, path.name.rpartition("-")[0])
            run = Run(path)
            run.lock()  # before anything is written: of two programs that start anew in one folder, one gets it
            try:
                run._empty(note)
                run.checkpoints.mkdir()
                run.write("recipe.json", recipe.model_dump(mode="json"))
            except BaseException:
                run.unlock()
                raise
        except OSError as error:
            raise LockstepError(f"cannot write the run folder {path}: {error.strerror}", ENVIRONMENT) from None
        return run

    def _empty(self, note: Callable[[str], None]) -> None:
        """Delete what a run left that never made a step, and tell `note`. This program holds the lock.

        recipe.json stays until it is replaced, so that a watcher always finds one.
        """
        found = [path for path in self.path.iterdir() if path.name not in (".lock", "recipe.json")]
        if not found and not (self.path / "recipe.json").exists():
            return
        if not _has_no_step(self.path):  # another program trained here since this one looked
            raise _exists(self.path)
        for path in found:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        note(f"{self.path} was stopped before its first step: started anew")

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
        """Keep other programs from writing here until this process ends, however it ends.

        Raises: LockstepError if one is, or if a file of the run is a link: what that points to is not ours to write.
        """
        for path in (self.path / ".lock", self.log, self.metrics):
            if path.is_symlink():
                raise LockstepError(f"{path} is a link, and is not written through: remove it", ENVIRONMENT)
        try:
            self._lock = os.fdopen(open_lock(self.path / ".lock"), "r+")
            if self.is_held():  # perhaps only by a watcher that asks, for a moment, whether it is
                time.sleep(0.1)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise LockstepError(
                f"another program is training in {self.path}: wait for it to end", ENVIRONMENT
            ) from None
        except OSError as error:
            raise LockstepError(f"cannot write the run folder {self.path}: {error.strerror}", ENVIRONMENT) from None

    def is_held(self) -> bool:
        """Whether a program is training here now. A copy of a run may have no lock file: nobody trains there."""
        try:
            with (self.path / ".lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
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
        lines = self.metrics.read_bytes().splitlines() if self.metrics.is_file() else ()
        rows = [row for line in lines if (row := _row(line)) is not None]
        return [row for row in rows if row["kind"] == "evaluation" and row["step"] == step]

    def forget_ahead(self, step: int, note: Callable[[str], None] = lambda text: None) -> None:
        """Drop the metrics of steps a resumed run will do again: those after `step` updates.

        Drop damaged lines, too, and tell `note`: the last one of a killed run, or what a disk or an editor did.
        """
        if not self.metrics.is_file():
            return
        kept, damaged = [], []
        for number, line in enumerate(self.metrics.read_bytes().splitlines(), start=1):
            row = _row(line)
            if row is None:
                damaged.append(str(number))
            elif row["step"] < step + (row["kind"] == "evaluation"):
                kept.append(line + b"\n")
        if damaged:
            lines = f"line {damaged[0]} was" if len(damaged) == 1 else f"lines {', '.join(damaged)} were"
            note(f"{self.metrics}: {lines} damaged and dropped")
        replace(self.metrics, b"".join(kept))


def _row(line: bytes) -> dict[str, Any] | None:
    """A line of metrics.jsonl, or None if it is damaged."""
    try:
        row = json.loads(line)
        whole = isinstance(row["step"], int)
        if row["kind"] == "evaluation":
            whole = whole and all(isinstance(row[name], str) for name in ("split", "weights"))
            whole = whole and all(isinstance(row[name], float | int) for name in ("accuracy", "loss"))
        return row if whole else None
    except (ValueError, KeyError, TypeError):
        return None


def refuse_existing(path: Path) -> None:
    """Raise a LockstepError if there is anything at `path` but a run that nobody trains and that never made a step."""
    if os.path.lexists(path) and (not _has_no_step(path) or Run(path).is_held()):
        raise _exists(path)


def _exists(path: Path) -> LockstepError:
    return LockstepError(
        f"{path} exists, and a run is never overwritten: continue it with --resume, or choose another --name "
        f"than {path.name}"
    )


def _has_no_step(path: Path) -> bool:
    """Whether the folder at `path` is a run's, and holds only what a run makes before its first step."""
    if path.is_symlink() or not ((path / ".lock").is_file() or (path / "recipe.json").is_file()):
        return False
    for found in path.rglob("*"):
        name = found.relative_to(path).as_posix()
        allowed = _FIRST_FOLDERS if found.is_dir() else _FIRST_FILES
        if found.is_symlink() or not (found.is_dir() or found.is_file()) or not allowed.fullmatch(name):
            return False
    metrics = path / "metrics.jsonl"
    return not metrics.is_file() or not metrics.read_bytes().strip()


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
