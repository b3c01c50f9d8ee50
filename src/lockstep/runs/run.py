"""Run: the folder of a run, as everybody reads it. It needs no torch.

recipe.json environment.json metrics.jsonl log.txt tb/ checkpoints/ model.safetensors result.json,
and the pages of `lockstep report`: report.html
"""

import contextlib
import fcntl
from pathlib import Path
from typing import Any, Literal

from lockstep.config.recipe import Recipe
from lockstep.errors import DATA, USAGE, LockstepError, option
from lockstep.files import (
    Record,
    first_with,
    given,
    lock_file,
    near,
    open_to_read,
    read_json,
    read_lines,
    unreadable,
)
from lockstep.runs import statefile
from lockstep.runs.entries import (
    Entries,
    RecipeEntries,
    ResultEntries,
    SessionEntry,
    metrics_row,
)
from lockstep.runs.statefile import StateFile, checkpoints_in, metadata_if_valid
from lockstep.schema import validated


class Run:
    """The folder of a run. `lockstep.train` returns one, and `Run.open` takes an existing folder.

    Attributes:
        path: The folder.
        checkpoints: The folder with its checkpoints.
        metrics_path: Its metrics.jsonl.
        summaries: The folder with its TensorBoard summaries.
        log: Its log.txt.
        model: Its model.safetensors.

    Examples:
        >>> run = lockstep.Run.open("runs/first")
        >>> print(run.state, run.accuracy, run.classes)
        >>> print(run.metrics()[-1]["accuracy"])
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
                f"there is no folder {path}: {near(path)}give the folder of a run, as in "
                "runs/digits-1",
                USAGE if path.exists() else DATA,
            )
        if not (path / "recipe.json").is_file():
            first = first_with(path, "recipe.json")
            remedy = f": give one of the runs in it, as {first}" if first else ""
            raise LockstepError(f"{path} is not a run: it has no recipe.json{remedy}")
        return cls(path)

    def __repr__(self) -> str:
        try:
            text = self.state
            if self.accuracy is not None:
                text += f", accuracy {self.accuracy:.2%}"
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
        return "training" if is_held(self.path) else "stopped"

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy of the classifier's weights, in [0, 1], after the last step; None
        before it.

        Raises: LockstepError if the result or the recipe is damaged.
        """
        result = self.result()
        return result["accuracy"].get(self.recipe().own_weights) if result else None

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Return the names of the classes in order of label; None if the run has no sound
        checkpoint yet that has them.

        Raises: LockstepError if the model file is damaged.
        """
        with contextlib.suppress(FileNotFoundError):
            return tuple(statefile.metadata_of(self.model).get("classes") or ()) or None
        return tuple(self.metadata().get("classes") or ()) or None

    @property
    def last_step(self) -> int | None:
        """Return the number of updates of the whole run, by its result or its recipe; None if the
        size of the dataset decides. Raises: LockstepError if one of them is damaged.
        """
        stated = self.result() or self.read("recipe.json", RecipeEntries) or {}
        steps: int | None = stated.get("steps")
        return steps

    @property
    def files(self) -> dict[int, Path]:
        """Return the checkpoints by step, valid or damaged, the oldest first. Every command takes
        one of these. Raises: LockstepError.
        """
        return checkpoints_in(self.checkpoints, self.last_step)

    @property
    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, valid or damaged, the newest first."""
        return [*reversed(self.files)]

    def recipe(self) -> Recipe:
        """Return the recipe that the run was started with. Raises: LockstepError."""
        return validated(Recipe, self.read("recipe.json") or {})

    def metrics(self) -> list[Record]:
        """Return the rows of metrics.jsonl, in order of time. Damaged lines are left out.

        The key "kind" says what a row holds: "step" or "evaluation". Rows are of steps 0, 10, 20
        and so on (`log_every`), and of each evaluation. docs/files.md lists the keys.
        Raises: LockstepError if the file cannot be read.
        """
        return [*filter(None, map(metrics_row, read_lines(self.metrics_path)))]

    def metadata(self) -> Record:
        """Return the metadata in the newest checkpoint that can be read, {} if there is none. Only
        `load` verifies a checkpoint.
        """
        paths = reversed(self.files.values())
        return next(filter(None, map(metadata_if_valid, paths)), {})

    def sessions(self) -> list[Record]:
        """Return the entries of environment.json, one for each session, [] if there are none.
        Raises: LockstepError.
        """
        return list(self.read("environment.json", SessionEntry, each=True) or ())

    def data(self) -> Path | None:
        """Return the data folder that the last session was given, or None.

        The run may be somebody else's, and name any folder of this host. So a job that reads this
        folder without having got it from the user says in a message which one it reads.
        """
        known = (self.sessions() or [{}])[-1].get("data")
        return Path(known) if known else None

    def result(self) -> Record | None:
        """Return the final record, or None if the run is not complete. Raises: LockstepError if it
        is damaged.
        """
        result: Record | None = self.read("result.json", ResultEntries)
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

    def weights_file(self) -> Path:
        """Return the file of the run's weights: the model, not verified, which is written at the
        end, else the newest valid checkpoint, whose search takes torch.

        Raises: LockstepError if there is none.
        """
        return self.model if self.model.is_file() else self.read_checkpoint().path

    def read_checkpoint(self, which: int | Literal["best"] | None = None) -> StateFile:
        """Return the checkpoint after `which` updates, or the best one; by default the newest valid
        one.

        Raises: LockstepError if there is none, or it is damaged.
        """
        if which is None:
            newest = statefile.newest_verified(self.checkpoints, self.last_step)
            if newest is None:
                raise no_checkpoint(self)
            return newest
        files = self.files
        if not files:
            raise no_checkpoint(self)
        available = f"its checkpoints are those after {', '.join(map(str, files))} steps"
        if which == "best":
            judged = judged_rows(self)
            tested = [step for step in files if step in judged]
            if not tested:
                raise LockstepError(
                    f"{option('checkpoint', 'best')}: no checkpoint of {self.path} was evaluated "
                    f"in training: {available}. Train with {option('eval_every')} N to know the "
                    f"best"
                )
            # the first of equals
            best = max(tested, key=lambda step: float(judged[step]["accuracy"]))
        step = best if which == "best" else which
        with contextlib.suppress(FileNotFoundError):
            if step in files:
                return statefile.read(files[step])
        raise LockstepError(
            f"{option('checkpoint', step)}: {self.path} has no such checkpoint: {available}"
        )


def judged_rows(run: Run) -> dict[int, Record]:
    """Return the rows of metrics.jsonl by which training chooses: of the classifier's weights, by
    step.

    Raises: LockstepError if recipe.json is damaged.
    """
    recipe = run.recipe()
    kind = {"kind": "evaluation", "split": recipe.evaluated_split, "weights": recipe.own_weights}
    return {row["step"]: row for row in run.metrics() if row.items() >= kind.items()}


def no_checkpoint(run: Run) -> LockstepError:
    """Return the error for a run without a checkpoint."""
    missing = "yet: train it, or wait"
    if run.complete:
        missing = "any more, although it is complete: copy its checkpoints/ back"
    return LockstepError(f"{run.path} has no checkpoint {missing}", DATA)


def is_held(path: Path) -> bool:
    """Return whether a program is training at `path` now. In a copy of a run without a lock file,
    none is.

    Raises: LockstepError if the lock is not a file that can be read.
    """
    try:
        with open_to_read(path / ".lock") as lock:
            lock_file(lock.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise unreadable(path / ".lock", error) from None
    return False
