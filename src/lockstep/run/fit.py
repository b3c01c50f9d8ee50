"""Fit: a run from its folder to its result. Every process calls it alike."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

import torch

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.data.dataset import Dataset
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.reduce import Reduction
from lockstep.run.profile import Profile, check_profile
from lockstep.run.session import Session
from lockstep.run.writer import Keeper
from lockstep.training.evaluate import Evaluation
from lockstep.training.log import Log
from lockstep.training.loop import train
from lockstep.training.state import State
from lockstep.training.tower import NonFiniteError, OverflowedError, Tower


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
    strict: bool = False,
    notes: Sequence[str] = (),
    asked: Callable[[], Sequence[bool]] = lambda: (False, False, False),
    started: float | None = None,
) -> tuple[dict[str, Any] | None, Signals | None]:
    """Train in the run folder `path`: a new one (at the next number if `numbered`), or with `resume` the one there.

    `asked` says whether this process was sent each of `train.SIGNALS`. `started` is the time.time() the program was
    started at. `notes` are told at the start. With `quiet` the run is reported in its folder only. With `strict` a run
    is not resumed with other arithmetic or another source of its model. Returns the result record (in process 0) and
    None, or None and the signal that stopped the run.
    Raises: LockstepError; after a loss that is not finite, the last good state has been saved.
    """
    started = time.time() if started is None else started
    session = Session(recipe, placement, reduction, device)
    train_set = session.split("train")
    check_profile(placement, 0, recipe.total_steps(len(train_set)))
    probed = session.probe(train_set)  # before there is a folder: what is wrong with the model leaves nothing behind
    slower = session.emulation(train_set)
    if reduction.process != 0:
        return _fit(session, train_set, None, asked, started)
    keeper = Keeper(session, path, probed, resume=resume, numbered=numbered, to_stderr=to_stderr, quiet=quiet)
    with closing(keeper):
        try:
            keeper.notes += [*notes, *([slower] if slower else [])]
            if resume:
                keeper.compare(strict)
            return _fit(session, train_set, keeper, asked, started)
        except OSError as error:
            where = f"cannot write in {keeper.run.path}: {error.strerror or error}"
            raise LockstepError(f"{where}. Its checkpoints are untouched", ENVIRONMENT) from None


def _fit(
    session: Session, train_set: Dataset, keeper: Keeper | None, asked: Callable[[], Sequence[bool]], started: float
) -> tuple[dict[str, Any] | None, Signals | None]:
    """`fit` in one process; process 0 has a `keeper`."""
    recipe, placement, reduction = session.recipe, session.placement, session.reduction
    session.restore(keeper.found if keeper else None)
    test_set = session.split(session.recipe.tested_on)
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
    if after_step.evaluates(session.state) and reduction.broadcast(keeper.not_evaluated() if keeper else None):
        after_step.evaluate(session.state)  # as the program ended between saving and evaluating
    try:
        stop = train(
            recipe,
            train_set,
            reduction,
            tower,
            session.state,
            log,
            asked=lambda: (*asked(), keeper is not None and keeper.saver.due()),
            digest_every=placement.digest_every,
            after_step=after_step,
        )
        if stop is not None:
            after_step.check(session.state)
    except NonFiniteError as error:
        session.together()  # else what process 0 saves is its own alone
        # All processes wait here until process 0 has saved, so that none reports what may not come true.
        saved = reduction.broadcast(keeper.not_finite().encode() if keeper else None).decode()
        raise LockstepError(f"{error}. {saved}", error.code) from None
    finally:
        if profile:
            profile.stop()
    if stop is not None:
        if keeper:
            keeper.stopped(log)
        return None, stop
    if not evaluated:  # resumed after the last step, before the result was written
        evaluated.update(session.evaluate_all(test_set, partial(log.evaluating, steps, recipe.tested_on)))
    session.agree()
    memory = session.peak_memory_bytes()
    return (keeper.finish(log, evaluated, memory, started) if keeper else None), None


class _AfterStep:
    """What comes after an update: saving and evaluation when they are due, and no part of them in a profile.

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

    def __call__(self, state: State, save: bool) -> None:
        self.evaluated.clear()
        if self._profile:
            with self._log.untimed():
                self._profile.after(state.step)
        if self._keeper:
            self._keeper.stepped()
        self._save_and_evaluate(state, save)
        if self._profile:
            self._profile.before(state.step)

    def check(self, state: State) -> None:
        """Raise, in every process, unless `state` is finite and has equal bits in all: only such is ever saved."""
        if not state.is_finite():
            raise OverflowedError(state.step)
        self._session.together()

    def _save_and_evaluate(self, state: State, save: bool) -> None:
        last = state.step == self._steps
        evaluate = last or self.evaluates(state)
        if not (save or evaluate or state.step % self._session.placement.save_every == 0):
            return
        with self._log.untimed():
            self.check(state)
            if self._keeper:
                self._keeper.save()
            if evaluate:
                self.evaluate(state)
            if last and self._keeper:
                self._keeper.require_saved()

    def evaluates(self, state: State) -> bool:
        """Whether an evaluation is due in the midst of the run, after as many steps as `state` has had."""
        every = self._session.placement.eval_every
        return every is not None and 0 < state.step < self._steps and state.step % every == 0

    def evaluate(self, state: State) -> None:
        """Evaluate `state` and record it, in the run's files and with the checkpoint."""
        with self._log.untimed():
            split = self._session.recipe.tested_on
            progress = partial(self._log.evaluating, state.step, split)
            self.evaluated.update(self._session.evaluate_all(self._test_set, progress))
            self._log.evaluation(state.step, split, self.evaluated)
            if self._keeper:
                self._keeper.record_accuracy(self.evaluated)
