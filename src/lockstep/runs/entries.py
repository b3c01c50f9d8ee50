"""Entries: the types of what Lockstep reads from the JSON files of a run, and from its state files.

A folder may be another program's or another user's, so every value is checked before it is used.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lockstep.files import Record, parse_json

_Count = Annotated[int, Field(ge=0, lt=1 << 53)]
_Number = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]


class Entries(BaseModel):
    """The types of those entries of a JSON object that Lockstep reads. The object may have
    others.
    """

    model_config = ConfigDict(strict=True)

    @classmethod
    def check(cls, value: object) -> None:
        """Raise a ValueError that names the first entry of `value` with another type."""
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        try:
            cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise ValueError(f"{name}: {first['msg']}") from None


class _Sealed(Entries):
    """Entries that a SHA-256 covers. There are no others, so that nobody can choose it by one."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Evaluations(_Sealed):
    """What a checkpoint states of the evaluations so far: see `Policy`."""

    recorded: int
    best_step: int | None
    best_correct: int


class PreviousLink(_Sealed):
    """What a checkpoint states of the newest link before it: see `runs/chain.py`."""

    step: _Count
    sha256: str


class Metadata(_Sealed):
    """The metadata of a state file."""

    contents_sha256: str
    step: int | None = Field(None, ge=0)
    # of a model file: as in result.json, and recipe.json
    weights_sha256: str | None = None
    recipe: Record | None = None
    recipe_digest: str | None = None
    data_sha256: dict[str, str] | None = None
    model_source: dict[str, str] = {}
    classes: list[str] | None = None
    image_shape: list[int] | None = None
    frozen: bool = False
    evaluations: Evaluations | None = None
    previous: PreviousLink | None = None


class _Hub(Entries):
    """Where a dataset of the Hub is from."""

    source: str


class SessionEntry(Entries):
    """An entry of environment.json."""

    step: _Count
    data: str | None = None
    hub: _Hub | None = None
    data_sha256: dict[str, str] = {}
    model_source: dict[str, str] = {}
    placement: dict[str, str | bool | int | float | None] = {}
    log_id: str = ""
    device: str = ""
    versions: dict[str, str | None] = {}


class RecipeEntries(Entries):
    """What recipe.json states of a run's length."""

    steps: _Count | None = None


class ResultEntries(Entries):
    """result.json."""

    steps: _Count
    accuracy: dict[str, _Number | None]
    accuracy_interval: list[_Number] = Field(min_length=2, max_length=2)
    train_s: _Number
    weights_sha256: str
    link: str | None = None
    loss: dict[str, _Number | None] = {}
    warnings: list[str] = []
    peak_memory_bytes: list[_Count] = []
    gpu_utilization: dict[str, _Number] = {}


class StepRow(Entries):
    """A row of metrics.jsonl with the kind "step"."""

    step: _Count
    loss: _Number | None = None
    accuracy: _Number | None = None


class EvaluationRow(Entries):
    """A row of metrics.jsonl with the kind "evaluation"."""

    step: _Count
    split: str
    weights: str
    accuracy: _Number


_ROWS: dict[str, type[Entries]] = {"step": StepRow, "evaluation": EvaluationRow}


def metrics_row(line: bytes) -> Record | None:
    """Return a line of metrics.jsonl as a row, or None if the line is damaged."""
    try:
        row: Record = parse_json(line)
        _ROWS[row["kind"]].check(row)
        return row
    except (ValueError, KeyError, TypeError):
        return None
