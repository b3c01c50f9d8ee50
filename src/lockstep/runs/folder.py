"""The folder of a run: `Run` reads it, and needs no torch. `Folder` is the one that process 0
trains.

recipe.json environment.json metrics.jsonl log.txt tb/ checkpoints/ model.safetensors result.json,
and the pages of `lockstep report`: report.html
"""

import contextlib
import fcntl
import itertools
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import IO, Annotated, Any, Literal

from pydantic import Field

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.errors import DATA, ENVIRONMENT, LockstepError, option
from lockstep.files import (
    Record,
    finite,
    flush,
    given,
    near,
    open_to_read,
    open_to_write,
    parse_json,
    read_json,
    read_lines,
    remove_abandoned,
    replace,
    unreadable,
)
from lockstep.messages import logger
from lockstep.runs import saver, statefile
from lockstep.runs.statefile import (
    Entries,
    StateFile,
    Tensors,
    checkpoints_in,
    facts_if_valid,
    file_name,
)
from lockstep.schema import validated

_NONE: Tensors = MappingProxyType({})

_Count = Annotated[int, Field(ge=0, lt=1 << 53)]
_Number = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]


class _Session(Entries):
    step: _Count
    data: str | None = None
    data_sha256: dict[str, str] = Field({})
    model_source: dict[str, str] = Field({})
    device: str = ""
    versions: dict[str, str | None] = Field({})


class _Result(Entries):
    steps: _Count
    accuracy: dict[str, _Number | None]
    accuracy_interval: list[_Number] = Field(min_length=2, max_length=2)
    train_s: _Number
    weights_sha256: str
    warnings: list[str] = Field([])
    peak_memory_bytes: list[_Count] = Field([])
    gpu_utilization: dict[str, _Number] = Field({})


class _StepRow(Entries):
    step: _Count
    loss: _Number | None = None
    accuracy: _Number | None = None


class _EvaluationRow(Entries):
    step: _Count
    split: str
    weights: str
    accuracy: _Number


_ROWS: dict[str, type[Entries]] = {"step": _StepRow, "evaluation": _EvaluationRow}


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

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """Return the run at `path`. Raises: LockstepError if the folder is not a run."""
        path = given(path)
        if not path.is_dir():
            raise LockstepError(
                f"{path} is not a folder: {near(path)}give the folder of a run, as in runs/digits-1"
            )
        if not (path / "recipe.json").is_file():
            raise LockstepError(f"{path} is not a run: it has no recipe.json")
        return cls(path)

    def __repr__(self) -> str:
        try:
            text = (
                self.state
                if self.accuracy is None
                else f"{self.state}, accuracy {self.accuracy:.2%}"
            )
        except LockstepError as error:
            text = str(error)
        return f"<Run {self.path}: {text}>"

    @property
    def complete(self) -> bool:
        """Return whether the run has made its last step and has been evaluated."""
        return (self.path / "result.json").is_file()

    @property
    def state(self) -> str:
        """Return "complete", "training" (by some program, now) or "stopped" (`resume` continues the
        run).
        """
        if self.complete:
            return "complete"
        return "training" if self.is_held() else "stopped"

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy of the classifier's weights, in [0, 1], after the last step; None
        before it.

        The classifier has the averaged weights if the recipe keeps an average, else the raw ones.
        Raises: LockstepError if the result is damaged.
        """
        known: dict[str, float | None] = (self.result() or {}).get("accuracy", {})
        return known.get("raw") if known.get("ema") is None else known["ema"]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Return the names of the classes in order of label; None if the run has no checkpoint yet
        that has them.

        Raises: LockstepError if the file that has them is damaged.
        """
        for path in (self.model, *[*checkpoints_in(self.checkpoints).values()][-1:]):
            with contextlib.suppress(FileNotFoundError):
                names = statefile.facts_of(path).get("classes")
                return tuple(names) if names else None
        return None

    @property
    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, valid or damaged, the newest first. Reads no
        file.
        """
        return [*reversed(checkpoints_in(self.checkpoints))]

    def recipe(self) -> Recipe:
        """Return the recipe that the run was started with. Raises: LockstepError."""
        return validated(Recipe, self.read("recipe.json") or {})

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl, in order of time. Damaged lines are left out.

        The key "kind" says what a row holds: "step" or "evaluation". Rows are of steps 0, 10, 20
        and so on (`log_every`), and of each evaluation. docs/usage.md lists the keys.
        Raises: LockstepError if the file cannot be read.
        """
        return [row for line in read_lines(self.metrics_path) if (row := _row(line)) is not None]

    def judged(self) -> dict[int, dict[str, Any]]:
        """Return the rows of metrics.jsonl by which training chooses: of the classifier's weights,
        by step.

        Raises: LockstepError if recipe.json is damaged.
        """
        recipe = self.recipe()
        kind = {
            "kind": "evaluation",
            "split": recipe.evaluated_split,
            "weights": recipe.own_weights,
        }
        return {row["step"]: row for row in self.metrics() if row.items() >= kind.items()}

    def last_loss(self) -> float | None:
        """Return the loss of the last step in metrics.jsonl that was not skipped, None if there is
        none.
        """
        rows = (
            row
            for row in reversed(self.metrics())
            if row["kind"] == "step" and not row.get("skipped")
        )
        return next((row.get("loss") for row in rows), None)

    @property
    def newest(self) -> Path | None:
        """Return the newest checkpoint whose facts can be read, or None."""
        return next(
            filter(facts_if_valid, reversed(checkpoints_in(self.checkpoints).values())), None
        )

    def facts(self) -> dict[str, Any]:
        """Return the facts in the newest checkpoint that is not damaged, {} if there is none."""
        return facts_if_valid(newest) if (newest := self.newest) else {}

    def sessions(self) -> list[dict[str, Any]]:
        """Return the entries of environment.json, one for each session, [] if there are none.
        Raises: LockstepError.
        """
        return list(self.read("environment.json", _Session, each=True) or ())

    def data(self) -> Path | None:
        """Return the data folder that the last session was given, or None.

        The run may be somebody else's, and name any folder of this host. So a job that reads this
        folder without having got it from the user says in a message which one it reads.
        """
        known = (self.sessions() or [{}])[-1].get("data")
        return Path(known) if known else None

    def result(self) -> dict[str, Any] | None:
        """Return the final record, or None if the run is not complete. Raises: LockstepError if it
        is damaged.
        """
        result: Record | None = self.read("result.json", _Result)
        return result

    def read(self, name: str, entries: type[Entries] = Entries, each: bool = False) -> Any:
        """Return the JSON object in the file `name`, or with `each` the list of them; None if there
        is no file.

        Raises: LockstepError, also if an object does not have the `entries`.
        """
        path = self.path / name
        if not path.is_file():
            return None
        try:
            value = read_json(path)
            if each and not isinstance(value, list):
                raise ValueError("it is not a list")
            for one in value if each else [value]:
                entries.check(one)
            return value
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from None

    def load(self, which: int | Literal["best"] | None = None) -> StateFile:
        """Return the checkpoint after `which` updates, or the best one; by default the newest valid
        one.

        Raises: LockstepError if there is none, or it is damaged.
        """
        if which is None:
            if (newest := statefile.latest(self.checkpoints)) is None:
                raise self.no_checkpoint()
            return newest
        if not (there := sorted(self.steps)):
            raise self.no_checkpoint()
        available = f"its checkpoints are those after {', '.join(map(str, there))} steps"
        known = {
            step: row["accuracy"] for step, row in sorted(self.judged().items()) if step in there
        }
        if which == "best" and not known:
            raise LockstepError(
                f"{option('checkpoint', 'best')}: no checkpoint of {self.path} was evaluated in "
                f"training: {available}. "
                f"Train with {option('eval_every')} N to know the best"
            )
        # the first of equals
        step = max(known, key=known.__getitem__) if which == "best" else which
        try:
            return statefile.read(self.checkpoints / file_name(step))
        except FileNotFoundError:
            raise LockstepError(
                f"{option('checkpoint', step)}: {self.path} has no such checkpoint: {available}"
            ) from None

    def no_checkpoint(self) -> LockstepError:
        """Return the error for a run without a checkpoint."""
        return LockstepError(f"{self.path} has no checkpoint yet", DATA)

    def is_held(self) -> bool:
        """Return whether a program is training here now. In a copy of a run without a lock file,
        none is.

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
            raise unreadable(self.path / ".lock", error) from None
        return False


class Folder(Run):
    """The folder of a run as process 0 trains it: locked, and every file in it is written by this
    program alone.

    Attributes:
        checkpoint: the checkpoint that a resumed run continues from, or None.
        earlier: the entries of environment.json, of earlier sessions.
        saver: writes the checkpoints.
    """

    def __init__(self, path: Path, placement: Placement = Placement()) -> None:  # noqa: B008  a frozen constant
        super().__init__(path)
        self.checkpoint: StateFile | None = None
        self.earlier: list[Record] = []
        self.saver = saver.Saver(
            self.checkpoints,
            keep=placement.keep,
            every_s=placement.save_every_s,
            fence=self.require_lock,
        )
        self._lock: IO[str] | None = None
        self._token = ""

    @staticmethod
    def create(
        path: Path,
        recipe: Recipe,
        placement: Placement = Placement(),  # noqa: B008  a frozen constant
        numbered: bool = False,
        frozen: Tensors = _NONE,
    ) -> "Folder":
        """Make a new folder at `path`, and lock it; if it exists and the name is `numbered`, at the
        next free number.

        `frozen` is the layers before a head, which all checkpoints share.
        Raises: LockstepError if a run is there, or the folder cannot be written.
        """
        made = [path, *(folder for folder in path.parents if not folder.exists())]
        try:
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
            for (
                new
            ) in made:  # Else a power failure could take the whole run, whose files are flushed.
                flush(new.parent)
        except OSError as error:
            raise folder_error(path, error) from None
        folder = Folder(path, placement)
        with folder._locked():
            if is_begun(path):  # Another program trained here since the last check.
                raise _exists(path)
            folder.write("recipe.json", recipe.model_dump(mode="json"))
            statefile.keep_frozen(folder.checkpoints, frozen, folder.require_lock)
        return folder

    @staticmethod
    def resume(path: Path, placement: Placement = Placement(), frozen: Tensors = _NONE) -> "Folder":  # noqa: B008
        """Lock the run at `path`, and read its newest valid checkpoint. Raises: LockstepError.

        The `frozen` layers replace those of the run if they are damaged or missing.
        """
        Run.open(path)
        folder = Folder(path, placement)
        with folder._locked():
            statefile.keep_frozen(folder.checkpoints, frozen, folder.require_lock)
            folder.checkpoint = statefile.latest(folder.checkpoints)
            if folder.checkpoint is None:
                logger.warning(f"{path} has no checkpoint: it starts again before its first step")
            folder.earlier = folder.sessions()
        return folder

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other programs from writing here until `close`, until an error in the context, or
        until this one ends.

        Raises: LockstepError if another program holds the lock, or the folder cannot be written.
        """
        try:
            self._lock = os.fdopen(open_to_write(self.path / ".lock"), "r+")
            # Perhaps `eval --watch` only tests the lock now, and frees it at once.
            if self.is_held():
                time.sleep(0.1)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._token = uuid.uuid4().hex
            self._lock.write(self._token)
            self._lock.truncate()
            self._lock.flush()
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise LockstepError(
                    f"another program is training in {self.path}: wait for it to end", ENVIRONMENT
                ) from None
            if isinstance(error, OSError):
                raise folder_error(self.path, error) from None
            raise

    def require_lock(self) -> None:
        """Raise a LockstepError if another program has locked the run since this one did; OSError
        if that is unknown.

        On the hosts of a network file system, a lock may not keep out the other hosts. A process
        that was cut off from its run then finds the token of the program that has taken over.
        """
        if (self.path / ".lock").read_bytes() != self._token.encode():
            raise LockstepError(
                f"another program has continued {self.path}, so this one must not write there any "
                f"more: it ends",
                ENVIRONMENT,
            )

    def write(self, name: str, record: Any) -> None:
        """Replace the JSON file `name` atomically. A number that is not finite becomes null."""
        replace(
            self.path / name,
            (json.dumps(finite(record), indent=1, allow_nan=False) + "\n").encode(),
        )

    def begin(self, step: int, session: Record, evaluation: bool) -> None:
        """Record the `session` that continues after `step` updates, and delete what it will repeat.

        That is: later checkpoints, metrics of later steps, and of the `evaluation` after `step`
        updates if it is due. Damaged lines, as the last one of a killed run, go too.
        """
        saver.clear_ahead(self.checkpoints, step)
        remove_abandoned(self.path)
        if lines := read_lines(self.metrics_path):
            rows = [*map(_row, lines)]
            if damaged := [str(number) for number, row in enumerate(rows, start=1) if row is None]:
                logger.warning(
                    f"{self.metrics_path}: damaged and deleted: line {', '.join(damaged)}"
                )
            kept = [
                line + b"\n"
                for line, row in zip(lines, rows, strict=True)
                if row and row["step"] < step + (row["kind"] == "evaluation" and not evaluation)
            ]
            replace(self.metrics_path, b"".join(kept))
        self.write("environment.json", [*self.earlier, {"step": step, **session}])

    def finish(self, result: Record, tensors: Tensors, facts: Record) -> None:
        """Write model.safetensors from `tensors` and `facts`, and then result.json, which completes
        the run.
        """
        self.require_lock()
        statefile.write(self.model, statefile.copied(tensors), facts)
        self.write("result.json", result)

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and allow other programs to write here."""
        self.saver.wait()
        if self._lock is not None:
            self._lock.close()


def _row(line: bytes) -> Record | None:
    """Return a line of metrics.jsonl as a row, or None if the line is damaged."""
    try:
        row: Record = parse_json(line)
        _ROWS[row["kind"]].check(row)
        return row
    except (ValueError, KeyError, TypeError):
        return None


def folder_error(path: Path, error: OSError) -> LockstepError:
    """Return the error for a run's folder `path` that cannot be written."""
    return LockstepError(
        f"cannot write the run folder {path}: {error.strerror or error}", ENVIRONMENT
    )


def is_begun(path: Path) -> bool:
    """Return whether anything is at `path` but the folder of a program that ended before it wrote
    recipe.json.
    """
    if not path.is_dir() or path.is_symlink():
        return os.path.lexists(path)
    return any(not member.name.startswith(".") for member in path.iterdir())


def refuse_existing(path: Path) -> None:
    """Raise a LockstepError if a run, or anything else, is at `path`, or a program is making
    one.
    """
    if os.path.lexists(path) and (is_begun(path) or Run(path).is_held()):
        raise _exists(path)


def _exists(path: Path) -> LockstepError:
    return LockstepError(
        f"{path} exists, and a run is never overwritten: continue it with "
        f"{option('resume', True)}, or choose another "
        f"{option('name')} than {path.name}"
    )


def fresh_path(runs: Path, stem: str) -> Path:
    """Return the first of runs/<stem>-1, -2, ... that does not exist."""
    return next(
        path for number in itertools.count(1) if not (path := runs / f"{stem}-{number}").exists()
    )
