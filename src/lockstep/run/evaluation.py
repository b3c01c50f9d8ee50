"""The eval job: evaluate checkpoints of a run and print the results."""

import json
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from lockstep.config.jobs import EvalJob
from lockstep.errors import ENVIRONMENT, LockstepError, printable
from lockstep.reduce import Reduction
from lockstep.report import evaluation
from lockstep.report.console import discard, progress_on
from lockstep.run.model_file import save_model
from lockstep.run.session import Session
from lockstep.run.watch import Evaluator, evaluate_chosen, evaluate_newest, watch


def evaluate_run(
    job: EvalJob,
    reduction: Reduction,
    device: torch.device,
    *,
    reading: AbstractContextManager[None] = nullcontext(),  # noqa: B008  does nothing, so it can be shared
) -> None:
    """Evaluate the checkpoints that `job` names. Every process calls it; process 0 prints. Raises: LockstepError.

    Results go to stdout, notes and progress to stderr. Each result is flushed, so that a pipe's reader sees it at once.
    `reading` is entered while the dataset is read, which may take long.
    """
    with reading:
        session = Session(job.recipe, job.placement, reduction, device)
    shows_progress = reduction.process == 0 and not job.quiet and sys.stderr.isatty()
    line = progress_on(sys.stderr) if shows_progress else None

    def note(text: str) -> None:
        if not job.quiet:
            print(printable(text), file=sys.stderr, flush=True)

    if reduction.process == 0:
        for text in session.notes:
            note(text)

    def show(result: evaluation.CheckpointEvaluation) -> None:
        if line:
            line.remove()  # stdout may be the same terminal
        if job.json_output:
            lines = [json.dumps(result.record())]
        elif job.quiet:
            return
        elif job.watch:
            lines = [evaluation.precision_line(result)]
        else:
            lines = [evaluation.summary_line(result), "", *evaluation.table_lines(result)]
        try:
            print(*map(printable, lines), sep="\n", flush=True)
        except BrokenPipeError:  # the reader has closed the pipe, as in `lockstep eval | head`
            discard(sys.stdout)

    evaluator = Evaluator(
        session, job.path, split=job.split, weights=job.weights, examples=job.examples, strict=job.strict, note=note,
        progress=line.evaluating if line else lambda event: None,
    )  # fmt: skip
    if job.watch:
        watch(evaluator, interval=job.interval, once=job.once, tell=show, note=note)
        return
    chosen = job.checkpoint
    result = evaluate_newest(evaluator, note) if chosen is None else evaluate_chosen(evaluator, chosen)
    if reduction.process != 0:
        return
    show(result)
    if job.save_model is not None:
        try:
            save_model(job.save_model, session, result.weights)
        except OSError as error:
            raise LockstepError(f"--save-model {job.save_model}: cannot be written: {error}", ENVIRONMENT) from None
        note(f"the model after {result.step} steps, {result.weights} weights, is saved in {job.save_model}")
