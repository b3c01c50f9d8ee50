"""Fit: a run from its folder to its result. Every process calls it alike."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from signal import Signals
from typing import Any

import torch

from lockstep.data.dataset import Dataset
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.evaluate import Evaluation
from lockstep.keeper import Keeper
from lockstep.placement import Placement
from lockstep.profile import Profile, check_profile
from lockstep.recipe import Recipe
from lockstep.reduce import Reduction
from lockstep.report.log import Log
from lockstep.session import Session
from lockstep.state import State
from lockstep.tower import NonFiniteError, OverflowedError, Tower
from lockstep.train import train


def fit(
    recipe: Recipe,
    placement: Placement,
    reduction: Reduction,
    device: torch.device,
    *,
    path: Path,
    resume: bool = False,
    numbered: bool = False,
    to_stderr: bool = False,
    quiet: bool = False,
    asked: Callable[[], Sequence[bool]] = lambda: (False, False),
    started: float | None = None,
) -> tuple[dict[str, Any] | None, Signals | None]:
    """Train in the run folder `path`: a new one (at the next number if `numbered`), or with `resume` the one there.

    With `quiet` the run is reported in its folder only.
    `asked` is as in `train`; `started` is the time.time() the program was started at. Returns the result record (in
    process 0) and None, or None and the signal that stopped the run.
    Raises: LockstepError; after a loss that is not finite, the last good state has been saved.
    """
    started = time.time() if started is None else started
    session = Session(recipe, placement, reduction, device)
    check_profile(placement, 0, recipe.total_steps(len(session.splits["train"])))
    if reduction.process != 0:
        return _fit(session, None, asked, started)
    keeper = Keeper(session, path, resume=resume, numbered=numbered, to_stderr=to_stderr, quiet=quiet)
    with closing(keeper):
        try:
            return _fit(session, keeper, asked, started)
        except OSError as error:
            where = f"cannot write in {keeper.run.path}: {error.strerror or error}"
            raise LockstepError(f"{where}. Its checkpoints are untouched", ENVIRONMENT) from None


def _fit(
    session: Session, keeper: Keeper | None, asked: Callable[[], Sequence[bool]], started: float
) -> tuple[dict[str, Any] | None, Signals | None]:
    """`fit` in one process; process 0 has a `keeper`."""
    recipe, placement, reduction = session.recipe, session.placement, session.reduction
    session.restore(keeper.found if keeper else None)
    train_set, test_set = session.split("train"), session.split(session.recipe.tested_on)
    steps = recipe.total_steps(len(train_set))
    check_profile(placement, session.state.step, steps)
    listeners = keeper.listeners if keeper else []
    log = Log(recipe, placement, len(train_set), listeners, processes=reduction.processes, device=session.device)
    tower = Tower(recipe, session.network)
    places = session.places(tower.layout.length) if placement.log_placement else []
    profile = None
    if keeper:
        keeper.begin(log, train_set, test_set, places)
        if placement.profile:
            profile = Profile(keeper.run.profile, placement.profile, session.device, keeper.tell)
            profile.before(session.state.step)
    after_step = _AfterStep(session, keeper, log, test_set, steps, profile)
    evaluated = after_step.evaluated
    try:
        stop = train(recipe, train_set, reduction, tower, session.state, log, asked=asked, after_step=after_step)
        if stop is not None and not session.state.is_finite():
            raise OverflowedError(session.state.step)
    except NonFiniteError as error:
        # All processes wait here until process 0 has saved, so that none reports what may not come true.
        saved = reduction.broadcast(keeper.not_finite(log).encode() if keeper else None).decode()
        raise LockstepError(f"{error}. {saved}", error.code) from None
    finally:
        if profile:
            profile.stop()
    if stop is not None:
        if keeper:
            keeper.stopped(log, evaluated)
        return None, stop
    if not evaluated:  # resumed after the last step, before the result was written
        evaluated.update(session.evaluate_all(test_set))
    session.agree()
    memory = session.peak_memory_bytes()
    return (keeper.finish(log, evaluated, memory, started) if keeper else None), None


class _AfterStep:
    """What comes after an update: evaluation and saving when they are due, and no part of them in a profile.

    Attributes:
        evaluated: the results on the test split of the weights as they are now, if there are any.
    """

    def __init__(
        self,
        session: Session,
        keeper: Keeper | None,
        log: Log,
        test_set: Dataset,
        steps: int,
        profile: Profile | None,
    ) -> None:
        self._session, self._keeper, self._log = session, keeper, log
        self._test_set, self._steps, self._profile = test_set, steps, profile
        self.evaluated: dict[str, Evaluation] = {}

    def __call__(self, state: State) -> None:
        self.evaluated.clear()
        if self._profile:
            with self._log.untimed():
                self._profile.after(state.step)
        self._evaluate_and_save(state)
        if self._profile:
            self._profile.before(state.step)

    def _evaluate_and_save(self, state: State) -> None:
        placement, last = self._session.placement, state.step == self._steps
        evaluate = last or (placement.eval_every is not None and state.step % placement.eval_every == 0)
        if not evaluate and state.step % placement.save_every != 0:
            return
        if not state.is_finite():  # so that every checkpoint is a good one
            raise OverflowedError(state.step)
        with self._log.untimed():
            if evaluate:
                self.evaluated.update(self._session.evaluate_all(self._test_set))
                self._log.evaluation(state.step, self._session.recipe.tested_on, self.evaluated)
            if self._keeper:
                self._keeper.save(self._log, self.evaluated, required=last)
