"""Recorded: what the folder of a run states of its steps, to compare a replay or another run with. It is only read."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep.errors import DATA, USAGE, LockstepError
from lockstep.messages import logger
from lockstep.runs import statefile
from lockstep.runs.folder import Run
from lockstep.runs.statefile import SHA256, StateFile, checkpoints_in, facts_if_valid, file_name


class Recorded:
    """What the folder of a run states of its steps. Another program may train it meanwhile, and delete checkpoints.

    Attributes:
        run: the run.
        digests: the digest of the state after that many updates.
        losses: the loss of the step of that number; None for one that is not finite.
        correct: how many images the evaluation after that many updates found, by the weights that training judges.
        steps: the numbers of updates of all checkpoints, in ascending order.
        sessions: the entries of environment.json.
        result: the final record, or {} if the run is not complete.
        result_step: the number of updates of the weights that are the result, or None.
        weights_sha256: their SHA-256, or None.
    """

    def __init__(self, path: Path) -> None:
        """Read the folder at `path`. Raises: LockstepError."""
        self.run = Run(path)
        rows = self.run.metrics()
        self.digests = {row["step"]: str(row.get("digest")) for row in rows if row["kind"] == "digest"}
        losses = ((row["step"], row.get("loss")) for row in rows if row["kind"] == "step")
        self.losses = {step: loss for step, loss in losses if loss is None or isinstance(loss, float)}
        judged = self.run.judged().items()
        self.correct = {step: row["correct"] for step, row in judged if isinstance(row.get("correct"), int)}
        self.steps = list(checkpoints_in(self.run.checkpoints))
        self.sessions = self.run.sessions()
        self.result: dict[str, Any] = self.run.result() or {}
        self.weights_sha256: str | None = self.result.get("weights_sha256")
        step = self.result.get("best_step") or self.result.get("steps")
        self.result_step: int | None = None if self.weights_sha256 is None else step
        self._held: dict[int, StateFile] = {}

    @property
    def points(self) -> list[int]:
        """Return the numbers of updates of all states that are recorded, in ascending order."""
        return sorted({*self.digests, *self.steps, self.result_step} - {None})

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return the facts in the newest checkpoint that is not damaged, {} if there is none."""
        return next(filter(None, map(self._facts, reversed(self.steps))), {})

    def state_sha256(self, step: int) -> str | None:
        """Return the SHA-256 of its contents that the checkpoint after `step` updates states."""
        return self._facts(step).get(SHA256)

    def _facts(self, step: int) -> Mapping[str, Any]:
        return facts_if_valid(self.run.checkpoints / file_name(step))

    def read(self, step: int) -> StateFile | None:
        """Return the checkpoint after `step` updates. Return None, with a message, if it is damaged or was deleted."""
        if step in self._held:
            return self._held.pop(step)
        try:
            return statefile.read(self.run.checkpoints / statefile.file_name(step))
        except FileNotFoundError:
            logger.warning(f"the checkpoint after {step} steps was deleted meanwhile: it is not compared")
        except LockstepError as error:
            logger.warning(f"{error}: it is not compared")
        return None

    def range(self, start: int | None, steps: int | None) -> tuple[int, tuple[int, ...]]:
        """Return the step that a replay starts from, and the numbers of updates of the recorded states in it.

        The replay has `steps` steps from step `start` on. By default these are the steps between the newest two valid
        checkpoints, or from step 0 on if there is one only. With `start`, they end at the next checkpoint.
        Raises: LockstepError if nothing is recorded in them.
        """
        valid = self._newest_valid(start)
        begin = next(valid, 0)
        if start is None:
            # Without a checkpoint of a later state, the digests and the result are compared.
            end, begin = begin or max(self.points, default=0), next(valid, 0)
            start = begin
        else:
            if begin != start:
                logger.warning(f"there is no valid checkpoint after {start} steps: the replay starts from step {begin}")
            end = next((step for step in self.steps if step > start), max(self.points, default=0))
        end = end if steps is None else start + steps
        points = tuple(point for point in self.points if begin < point <= end)
        if not points:
            raise self._nothing_to_compare(begin, end)
        if points[-1] < end:
            logger.warning(f"nothing is recorded after step {points[-1]} up to step {end}: the replay ends there")
        return begin, points

    def _newest_valid(self, most: int | None) -> Iterator[int]:
        """Yield the steps of valid checkpoints, the newest first, from `most` on. `read` then returns them again."""
        for step in reversed(self.steps):
            if (most is None or step <= most) and (found := self.read(step)) is not None:
                self._held[step] = found
                yield step

    def _nothing_to_compare(self, begin: int, end: int) -> LockstepError:
        later = next((point for point in self.points if point > begin), None)
        if later is None:
            where, code = f"after step {begin}", DATA
            hint = "choose an earlier step as --from, or train with --digest-every or --save-every"
        else:
            where, code = f"from step {begin + 1} to step {end}", USAGE
            hint = f"the next one is after {later} steps. Give more --steps"
        text = f"{self.run.path} has recorded no state {where}, so there is nothing to compare: {hint}"
        return LockstepError(text, code)

    def sessions_of(self, start: int, end: int) -> list[dict[str, Any]]:
        """Return the sessions that computed the steps [start, end). A later session has computed a step again."""
        begun = [entry["step"] for entry in self.sessions]
        changes = {start, *(step for step in begun if start < step < end)}
        numbers = {max((i for i, step in enumerate(begun) if step <= change), default=-1) for change in changes}
        return [self.sessions[number] for number in sorted(numbers - {-1})]
