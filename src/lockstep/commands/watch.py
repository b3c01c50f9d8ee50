"""The loop of `lockstep eval --watch`: it submits an evaluation for each new checkpoint of a run."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.errors import LockstepError
from lockstep.jobs.specs import EvaluateSpec
from lockstep.launch.signals import handled_by, leave
from lockstep.launch.submit import Outcome
from lockstep.listeners.metrics import EvaluationLog
from lockstep.messages import logger
from lockstep.runs.folder import Run
from lockstep.runs.statefile import checkpoints_in


def watch(
    spec: EvaluateSpec,
    evaluate: Callable[[EvaluateSpec], Outcome],
    show: Callable[[Mapping[str, Any]], None],
    *,
    interval: float,
    once: bool,
) -> int:
    """Evaluate each new checkpoint once, the oldest first, until the run has ended. Return the exit code.

    Every `interval` seconds this looks for checkpoints. With `once`, it looks once, and only at the newest. `evaluate`
    computes a spec of one checkpoint, and `show` receives each record. Raises: LockstepError.
    """
    run = Run(spec.path)
    own = "raw" if spec.recipe.ema is None else "ema"
    weights = spec.weights or own
    usual = (spec.split, weights, spec.examples) == (spec.recipe.evaluated_split, own, None)
    log = EvaluationLog(run.path / "eval", split=spec.split, weights=weights, asked=spec.examples, usual=usual)
    damaged: set[int] = set()
    noted: set[str] = set()

    def note_once(text: str) -> None:
        if text not in noted:
            logger.warning(text)
        noted.add(text)

    while True:
        # The result is read before the folder: if it exists, the checkpoints found afterwards are the last ones.
        ended = Run.existing(run.path).complete
        steps = [*checkpoints_in(run.checkpoints)]
        sound = [step for step in steps if step not in damaged]
        if (once and not sound) or (ended and not steps):
            raise run.no_checkpoint()
        new = [step for step in (sound[-1:] if once else sound) if step not in log.done]
        if new:
            path = checkpoints_in(run.checkpoints).get(new[0])
            try:
                outcome = evaluate(spec.replace(checkpoint=new[0]))
            except LockstepError as error:
                if path is not None and path.exists():
                    if not str(error).startswith(str(path)):
                        raise
                    damaged.add(new[0])
                    logger.warning(f"{error}: skipped")
                continue  # Training has deleted it, or it is damaged.
            if outcome.record is None:
                return outcome.code
            log.add(outcome.record, time.time())
            show(outcome.record)
            if not once:
                continue
        elif once:
            logger.warning(f"the newest checkpoint of {run.path} is evaluated already, see {log.path}")
        elif ended:
            logger.warning(f"{run.path} has ended, and its last checkpoint is evaluated, see {log.path}")
        if once or ended:
            log.close()
            return 0
        if not steps:
            note_once(f"{run.path} has no checkpoint yet: waiting")
        elif not run.is_held():
            note_once(f"no program is training {run.path} now: waiting. Use --once to stop here")
        with handled_by(leave):
            time.sleep(interval)
