"""Run: the folder of one run. It never overwrites another folder. Reading it needs no torch.

recipe.json environment.json metrics.jsonl log.txt tb/ checkpoints/ model.safetensors result.json
"""

import contextlib
import fcntl
import itertools
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import Field

from lockstep.config.recipe import Recipe
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.files import (
    finite,
    first_link,
    flush,
    open_lock,
    open_to_read,
    parse_json,
    read_json,
    remove_abandoned,
    replace,
)  # fmt: skip
from lockstep.messages import logger
from lockstep.runs.statefile import Entries, checkpoints_in, facts_if_valid, facts_of
from lockstep.settings import validated
from lockstep.words import listed

# What a run writes. A link in the place of one of them, or in one of the folders, would lead elsewhere.
_FOLDERS = ("checkpoints", "tb")
_FILES = ("recipe.json", "environment.json", "result.json", "metrics.jsonl", "log.txt", "model.safetensors")

# The paths, in its folder, that a run makes before its first step.
_FIRST_FOLDERS = re.compile(r"tb|checkpoints")
_FIRST_FILES = re.compile(
    r"\.lock|(recipe|environment)\.json|\.(recipe|environment)\.json-\d+|metrics\.jsonl|log\.txt"
    r"|tb/events\.out\.tfevents\.[^/]+"
    r"|checkpoints/(step-0{9}\.safetensors|\.step-0{9}\.safetensors-\d+)"
)

_TEMPORARY = re.compile(rf"\.({'|'.join(map(re.escape, _FILES))})-\d+")


_Step = Annotated[int, Field(ge=0, lt=1 << 53)]
_Number = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]
_Time = Annotated[float, Field(ge=0, le=1e11)]


class _Session(Entries):
    step: _Step
    data: str | None = None
    data_sha256: dict[str, str] = Field({})
    model_source: dict[str, str] = Field({})
    device: str = ""
    versions: dict[str, str | None] = Field({})


class _Result(Entries):
    steps: _Step
    best_step: _Step | None = None
    accuracy: dict[str, _Number | None]
    accuracy_interval: list[_Number] = Field(min_length=2, max_length=2)
    train_s: _Number
    total_s: _Number
    images_per_s: _Number
    processes: _Step
    peak_memory_bytes: list[_Step]
    weights_sha256: str


class _StepRow(Entries):
    step: _Step
    time: _Time | None = None
    loss: _Number | None = None
    accuracy: _Number | None = None
    learning_rate: _Number | None = None
    s_per_step: _Number | None = None
    split: dict[str, _Number] = Field({})


class _EvaluationRow(Entries):
    step: _Step
    split: str
    weights: str
    accuracy: _Number
    loss: _Number | None


class _DigestRow(Entries):
    step: _Step
    digest: str


_ROWS: dict[str, type[Entries]] = {
    "step": _StepRow,
    "evaluation": _EvaluationRow,
    "digest": _DigestRow,
}  # of metrics.jsonl, by kind


class LostRunError(LockstepError):
    """Another program has locked the run since this one did."""


class Run:
    """The folder of a run. `lockstep.train` returns one, and `Run.open` takes an existing folder.

        run = Run.open("runs/first")
        print(run.state, run.accuracy, run.classes)
        print(run.metrics()[-1]["accuracy"])

    Attributes:
        path: the folder.
        checkpoints, metrics_path, summaries, log, model: the paths of its parts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics_path = path / "metrics.jsonl"
        self.summaries = path / "tb"
        self.log = path / "log.txt"
        self.model = path / "model.safetensors"
        self._lock: IO[str] | None = None
        self._token = ""

    @staticmethod
    def create(path: Path, recipe: Recipe, numbered: bool = False) -> "Run":
        """Make a new folder at `path`, and lock it; if it exists and the name is `numbered`, at the next free number.

        The folder of a run that was stopped before its first step is emptied and used again, with a message.
        Raises: LockstepError if anything else is there, or the folder cannot be written.
        """
        try:
            made = [path, *(folder for folder in path.parents if not folder.exists())]
            path.parent.mkdir(parents=True, exist_ok=True)
            while True:
                try:
                    path.mkdir()  # atomic: of two programs, one succeeds
                    break
                except FileExistsError:
                    if not numbered:
                        refuse_existing(path)
                        break
                    path = fresh_path(path.parent, path.name.rpartition("-")[0])
            for folder in made:  # Else a power failure could take the whole run, whose files are flushed.
                flush(folder.parent)
            run = Run(path)
            run.lock()  # before any write: of two programs that reuse one folder, one succeeds
            try:
                run._empty()
                run.checkpoints.mkdir()
                run.write("recipe.json", recipe.model_dump(mode="json"))
            except BaseException:
                run.unlock()
                raise
        except OSError as error:
            raise LockstepError(f"cannot write the run folder {path}: {error.strerror}", ENVIRONMENT) from None
        return run

    def _empty(self) -> None:
        """Delete the files of a run that made no step. This program must hold the lock.

        recipe.json stays until it is replaced, because `eval --watch` waits for it.
        """
        leftovers = [path for path in self.path.iterdir() if path.name not in (".lock", "recipe.json")]
        if not leftovers and not (self.path / "recipe.json").exists():
            return
        if not _has_no_step(self.path):  # Another program trained here since the last check.
            raise _exists(self.path)
        for path in leftovers:
            (shutil.rmtree if path.is_dir() else os.unlink)(path)
        logger.warning(f"{self.path} was stopped before its first step: starting again")

    @staticmethod
    def open(path: Path | str) -> "Run":
        """Return the run at `path`, also for when the current folder is another one.

        Raises: LockstepError if the folder is not a run.
        """
        return Run.existing(Path(path).absolute())

    @staticmethod
    def existing(path: Path) -> "Run":
        """Return the run at `path`, which messages name as it is given. Raises: LockstepError as `open`."""
        if not path.is_dir():
            raise LockstepError(f"{path} is not a folder: give the folder of a run, as in runs/digits-1")
        if not (path / "recipe.json").is_file():
            raise LockstepError(f"{path} is not a run: it has no recipe.json")
        return Run(path)

    def __repr__(self) -> str:
        try:
            text = self.state if self.accuracy is None else f"{self.state}, accuracy {self.accuracy:.2%}"
        except LockstepError as error:
            text = str(error)
        return f"<Run {self.path}: {text}>"

    @property
    def complete(self) -> bool:
        """Return whether the run has made its last step and has been evaluated."""
        return (self.path / "result.json").is_file()

    @property
    def state(self) -> str:
        """Return "complete", "training" (by some program, now) or "stopped" (`resume` continues the run)."""
        if self.complete:
            return "complete"
        return "training" if self.is_held() else "stopped"

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy of the classifier's weights, in [0, 1], after the last step; None before it.

        The classifier has the averaged weights if the recipe keeps an average, else the raw ones.
        Raises: LockstepError if the result is damaged.
        """
        known: dict[str, float | None] = (self.result() or {}).get("accuracy", {})
        return known.get("raw") if known.get("ema") is None else known["ema"]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Return the names of the classes in order of label; None if the run has no checkpoint yet that has them.

        Raises: LockstepError if the file that has them is damaged.
        """
        for path in (self.model, *[*checkpoints_in(self.checkpoints).values()][-1:]):
            with contextlib.suppress(FileNotFoundError):
                names = facts_of(path).get("classes")
                return tuple(names) if names else None
        return None

    def recipe(self) -> Recipe:
        """Return the recipe that the run was started with. Raises: LockstepError."""
        return validated(Recipe, self.read("recipe.json", Entries) or {})

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl, in order of time. Damaged lines are left out.

        The key "kind" says what a row holds: "step", "evaluation" or "digest". Rows are of steps 0, 10, 20 and so on
        (`log_every`), and of each evaluation. docs/usage.md lists the keys.
        """
        lines = self.metrics_path.read_bytes().splitlines() if self.metrics_path.is_file() else ()
        return [row for line in lines if (row := _row(line)) is not None]

    def last_loss(self) -> float | None:
        """Return the loss of the last step in metrics.jsonl that was not skipped, None if there is none."""
        rows = (row for row in reversed(self.metrics()) if row["kind"] == "step" and not row.get("skipped"))
        loss: float | None = next((row.get("loss") for row in rows), None)
        return loss

    def check_recipe(self) -> None:
        """Raise a LockstepError if the newest checkpoint was trained by another recipe than recipe.json."""
        newest = [*checkpoints_in(self.checkpoints).values()][-1:]
        if newest and (facts := facts_if_valid(newest[0])):  # Loading a damaged checkpoint reports it.
            self.require_recipe(newest[0], facts)

    def require_recipe(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Raise a LockstepError if what `path` states, its `facts`, is of another recipe than recipe.json."""
        if facts.get("recipe_digest") != self.recipe().digest():
            raise LockstepError(f"{path} was trained by another recipe than recipe.json states")

    def data(self) -> Path | None:
        """Return the data folder that the last session was given, or None.

        The run may be somebody else's, and name any folder of this host. So a job that reads this folder without having
        got it from the user says in a message which one it reads.
        """
        known = (self.sessions() or [{}])[-1].get("data")
        return Path(known) if known else None

    def sessions(self) -> list[dict[str, Any]]:
        """Return the entries of environment.json, one for each session, [] if there are none. Raises: LockstepError."""
        sessions = self.read("environment.json") or []
        try:
            if not isinstance(sessions, list):
                raise ValueError("it is not a list of sessions")
            for session in sessions:
                _Session.check(session)
        except ValueError as error:
            raise self._unreadable("environment.json", error) from None
        return sessions

    def result(self) -> dict[str, Any] | None:
        """Return the final record, or None if the run is not complete. Raises: LockstepError if it is damaged."""
        result: dict[str, Any] | None = self.read("result.json", _Result)
        return result

    def lock(self) -> None:
        """Keep other programs from writing here until `unlock`, or until this process ends in any way.

        Raises:
            LockstepError: if another program holds the lock, or if there is a symbolic link, or a file in the place of
                a folder or the reverse, where the run writes.
        """
        paths = [self.path / name for name in (".lock", *_FILES, *_FOLDERS)]
        if link := first_link(paths):
            raise LockstepError(
                f"{link} is a symbolic link, and Lockstep does not write through links: remove it", ENVIRONMENT
            )
        for path in paths:
            wanted, fits = ("folder", path.is_dir()) if path.name in _FOLDERS else ("file", path.is_file())
            if path.exists() and not fits and path != self.summaries:  # Training continues without summaries.
                raise LockstepError(f"{path} is no {wanted}, and the run needs a {wanted} there: move it away", DATA)
        try:
            self._lock = os.fdopen(open_lock(self.path / ".lock"), "r+")
            if self.is_held():  # `eval --watch` holds the lock for an instant when it calls is_held().
                time.sleep(0.1)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._token = uuid.uuid4().hex
            self._lock.write(self._token)
            self._lock.truncate()
            self._lock.flush()
        except BlockingIOError:
            self.unlock()
            raise LockstepError(
                f"another program is training in {self.path}: wait for it to end", ENVIRONMENT
            ) from None
        except OSError as error:
            raise LockstepError(f"cannot write the run folder {self.path}: {error.strerror}", ENVIRONMENT) from None

    def require_lock(self) -> None:
        """Raise a LostRunError if another program has locked the run since this one did.

        On the hosts of a network file system, a lock may not keep out the other hosts. A process that was cut off from
        its run then finds the token of the program that has taken over.
        """
        try:
            token = (self.path / ".lock").read_bytes()
        except OSError as error:
            raise LockstepError(
                f"{self.path / '.lock'} cannot be read ({error.strerror}), so another program may be writing there",
                ENVIRONMENT,
            ) from None
        if token != self._token.encode():
            raise LostRunError(
                f"another program has continued {self.path}, so this one must not write there any more: it ends",
                ENVIRONMENT,
            )

    def is_held(self) -> bool:
        """Return whether a program is training here now. In a copy of a run without a lock file, none is.

        Raises: LockstepError if the lock is not a file that can be read.
        """
        try:
            with open_to_read(self.path / ".lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        except OSError as error:
            raise self._unreadable(".lock", error.strerror) from None
        return False

    def unlock(self) -> None:
        """Allow other programs to write here."""
        if self._lock is not None:
            self._lock.close()

    def write(self, name: str, record: Any) -> None:
        """Replace the JSON file `name` atomically. A number that is not finite becomes null."""
        replace(self.path / name, (json.dumps(finite(record), indent=1, allow_nan=False) + "\n").encode())

    def read(self, name: str, entries: type[Entries] | None = None) -> Any:
        """Return the content of the JSON file `name`, with the given `entries`, or None if it does not exist.

        Raises: LockstepError.
        """
        if not (self.path / name).is_file():
            return None
        try:
            value = read_json(self.path / name)
            if entries is not None:
                entries.check(value)
            return value
        except (OSError, ValueError) as error:
            raise self._unreadable(name, error) from None

    def _unreadable(self, name: str, problem: object) -> LockstepError:
        what = "restore it" if name == "recipe.json" else "remove it to go on without it"
        return LockstepError(f"{self.path / name} cannot be read ({problem}): {what}", DATA)

    def evaluations(self, step: int) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl for evaluations after `step` updates."""
        return [row for row in self.metrics() if row["kind"] == "evaluation" and row["step"] == step]

    def judged(self) -> dict[int, dict[str, Any]]:
        """Return the rows of metrics.jsonl by which training chooses: of the classifier's weights, by step.

        Raises: LockstepError if recipe.json is damaged.
        """
        recipe = self.recipe()
        kind = ("evaluation", recipe.evaluated_split, "raw" if recipe.ema is None else "ema")
        names = ("kind", "split", "weights")
        return {row["step"]: row for row in self.metrics() if tuple(map(row.get, names)) == kind}

    def best_step(self, steps: Sequence[int]) -> int | None:
        """Return which of `steps` has the best accuracy in metrics.jsonl, the first of equals; None if none has one.

        The accuracy is that of the classifier's weights in training. Raises: LockstepError if recipe.json is damaged.
        """
        known = {step: row["accuracy"] for step, row in self.judged().items()}
        return max((step for step in sorted(steps) if step in known), key=known.__getitem__, default=None)

    def forget_ahead(self, step: int, evaluation: bool) -> None:
        """Delete the metrics that a resumed run will repeat: of later steps, and of the `evaluation` after `step` ones.

        Damaged lines, such as the last one of a killed run, are deleted too, with a message; and temporary files.
        """
        remove_abandoned(path for path in self.path.iterdir() if _TEMPORARY.fullmatch(path.name))
        if not self.metrics_path.is_file():
            return
        kept, damaged = [], []
        for number, line in enumerate(self.metrics_path.read_bytes().splitlines(), start=1):
            row = _row(line)
            if row is None:
                damaged.append(str(number))
            elif row["step"] < step + (row["kind"] == "evaluation" and not evaluation):
                kept.append(line + b"\n")
        if damaged:
            lines = f"line {damaged[0]} was" if len(damaged) == 1 else f"lines {', '.join(damaged)} were"
            logger.warning(f"{self.metrics_path}: {lines} damaged and deleted")
        replace(self.metrics_path, b"".join(kept))


def _row(line: bytes) -> dict[str, Any] | None:
    """Return a line of metrics.jsonl as a row, or None if the line is damaged."""
    try:
        row: dict[str, Any] = parse_json(line)
        _ROWS[row["kind"]].check(row)
        return row
    except (ValueError, KeyError, TypeError):
        return None


def is_begun(path: Path) -> bool:
    """Return whether there is anything at `path` but a run that a program began, and left before it had a recipe."""
    return os.path.lexists(path) and ((path / "recipe.json").is_file() or not _has_no_step(path))


def refuse_existing(path: Path) -> None:
    """Raise a LockstepError if `path` exists, unless it is a run without a step that no program is training."""
    if os.path.lexists(path) and (not _has_no_step(path) or Run(path).is_held()):
        raise _exists(path)


def _exists(path: Path) -> LockstepError:
    return LockstepError(
        f"{path} exists, and a run is never overwritten: continue it with --resume, or choose another --name "
        f"than {path.name}"
    )


def _has_no_step(path: Path) -> bool:
    """Return whether the folder at `path` is a run that contains only what a run makes before its first step."""
    if path.is_symlink() or not ((path / ".lock").is_file() or (path / "recipe.json").is_file()):
        return False
    for member in path.rglob("*"):
        name = member.relative_to(path).as_posix()
        allowed = _FIRST_FOLDERS if member.is_dir() else _FIRST_FILES
        if member.is_symlink() or not (member.is_dir() or member.is_file()) or not allowed.fullmatch(name):
            return False
    metrics = path / "metrics.jsonl"
    return not metrics.is_file() or not metrics.read_bytes().strip()


def fresh_path(runs: Path, stem: str) -> Path:
    """Return the first of runs/<stem>-1, -2, ... that does not exist."""
    return next(path for number in itertools.count(1) if not (path := runs / f"{stem}-{number}").exists())


def newest(runs: Path, recipe_names: Sequence[str], data: Path | None = None) -> Path:
    """Return the run in `runs` that was started last of those with one of `recipe_names`, and on `data` if it is given.

    Raises: LockstepError if there is none.
    """
    started = []
    for recipe_json in runs.glob("*/recipe.json"):
        with contextlib.suppress(LockstepError):  # Skip a run whose recipe cannot be read.
            run = Run(recipe_json.parent)
            same = data is None or os.path.realpath(run.data() or "") == os.path.realpath(data)
            if same and run.recipe().name in recipe_names:
                started.append((recipe_json.stat().st_mtime_ns, recipe_json.parent))
    if not started:
        what = listed(recipe_names, "or") + (f" on {data}" if data is not None else "")
        raise LockstepError(f"no run of {what} in {runs}/ to resume: leave out --resume to start one")
    return max(started)[1]
