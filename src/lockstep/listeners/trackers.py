"""Trackers: MLflow, Weights & Biases and Trackio, each by its own library (extras of these names).

A library may wait for a server, so a thread of each one talks to it. What fails there ends the
tracker, and never the run. The libraries read their own environment variables, such as
MLFLOW_TRACKING_URI and WANDB_MODE.
"""

import io
import os
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from queue import Full, Queue
from threading import Thread
from typing import Any

from lockstep.core.observer import EvaluationEvent, Observer, StepEvent
from lockstep.files import Record
from lockstep.messages import logger
from lockstep.text import wilson_interval

_PROJECT = "lockstep"  # by default, also the name of the tag that has the name of a run
_ROOM = 1000  # events that may wait for a library

# Whether the library knows an earlier part of the run, what logs values at a step, and what ends
# the run, which is complete or not.
Opened = tuple[bool, Callable[[int, Record], object], Callable[[bool], object]]


def _mlflow(run: str, recipe: Record) -> Opened:
    # Else it prints the server's address, which may have a password, where a record may be read.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    from mlflow import MlflowClient

    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri and find_spec("sqlalchemy") is None:  # mlflow-skinny has no database of its own
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        uri = "mlruns"
    client = MlflowClient(uri)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known else client.create_experiment(name)
    found = client.search_runs([experiment], f"tags.{_PROJECT} = '{run}'")
    if found:
        number = found[0].info.run_id
        client.update_run(number, "RUNNING")
    else:
        number = client.create_run(experiment, tags={_PROJECT: run}, run_name=run).info.run_id
        for setting in recipe.items():
            client.log_param(number, *setting)

    def log(step: int, values: Record) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                client.set_tag(number, name, value)
            else:
                client.log_metric(number, name, value, step=step)

    def finish(complete: bool) -> None:
        client.set_terminated(number, "FINISHED" if complete else "KILLED")

    return bool(found), log, finish


def _wandb(run: str, recipe: Record) -> Opened:
    import wandb

    # It is to read nothing but what it is given: no output, code or use of the machine.
    quiet = wandb.Settings(
        silent=True, console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True
    )
    project = os.environ.get("WANDB_PROJECT", _PROJECT)
    one = wandb.init(project=project, id=run, config=recipe, resume="allow", settings=quiet)

    def finish(complete: bool) -> None:
        one.finish(exit_code=0 if complete else 1)

    return one.resumed, lambda step, values: one.log(values, step=step), finish


def _trackio(run: str, recipe: Record) -> Opened:
    import trackio

    off = dict.fromkeys(("embed", "auto_log_gpu", "auto_log_cpu"), False)
    with redirect_stdout(io.StringIO()):  # stdout may be for the record alone
        one = trackio.init(_PROJECT, name=run, config=recipe, resume="allow", **off)

    def finish(complete: bool) -> None:
        with redirect_stdout(io.StringIO()):
            one.finish()

    return True, lambda step, values: one.log(values, step=step), finish


_OPENERS = {"mlflow": _mlflow, "wandb": _wandb, "trackio": _trackio}


class Tracker(Observer):
    """A listener that sends the recipe, every `every` steps loss, accuracy and learning rate, each
    evaluation with its interval, and the SHA-256 of the result to the `library`.

    `run` names the run there; one that was `begun` goes on. `close` waits for at most `wait_s`.
    """

    def __init__(
        self, library: str, run: str, recipe: Record, every: int, *, begun: bool, wait_s: float
    ) -> None:
        self.every = every
        self._library, self._wait_s = library, wait_s
        self._events = Queue[tuple[int, Record] | None](_ROOM)
        self._failed = self._complete = False
        with suppress(Exception):  # The thread finds it, too. To import in parallel takes longer.
            import_module(library)
        opened = partial(_OPENERS[library], run, recipe)
        self._thread = Thread(target=self._work, args=(opened, begun), name=library, daemon=True)
        self._thread.start()

    def step(self, event: StepEvent) -> None:
        """Send the numbers of a step."""
        names = ("loss", "accuracy", "learning_rate")
        self._put(event.step, {f"train/{name}": getattr(event, name) for name in names})

    def evaluation(self, event: EvaluationEvent) -> None:
        """Send the results of the classifier's weights."""
        score = next(iter(event.results.values()))
        low, high = wilson_interval(score.correct, score.examples)
        values = {"accuracy": score.accuracy, "accuracy_low": low, "accuracy_high": high}
        values["loss"] = score.loss
        self._put(event.step, {f"{event.split}/{name}": value for name, value in values.items()})

    def result(self, record: Mapping[str, Any]) -> None:
        """Send the SHA-256 of the weights and of the last link."""
        self._complete = True
        self._put(record["steps"], {name: record[name] for name in ("weights_sha256", "link")})

    def close(self) -> None:
        """End the run there, and wait until all is sent, but not for long."""
        with suppress(Full):
            self._events.put_nowait(None)
        self._thread.join(self._wait_s)
        if self._thread.is_alive():
            self._fail("has not taken everything in time")

    def _put(self, step: int, values: Record) -> None:
        try:
            self._events.put_nowait((step, values))
        except Full:
            self._fail("is too slow")

    def _work(self, opened: Callable[[], Opened], begun: bool) -> None:
        try:
            found, log, finish = opened()
            if begun and not found:
                logger.warning(f"{self._library} does not find the run's beginning, so it has two")
            while event := self._events.get():
                log(*event)
            finish(self._complete)
        except Exception as error:  # Of any kind. Its text may have the password of an address.
            self._fail(f"has failed ({type(error).__name__})")

    def _fail(self, how: str) -> None:
        """Say once that something is lost."""
        if not self._failed:
            self._failed = True
            logger.warning(
                f"{self._library} {how}: the run goes on, and metrics.jsonl has what is lost there"
            )
