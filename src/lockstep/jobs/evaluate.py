"""The eval job: evaluate checkpoints of a run and print the results."""

import json
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from lockstep.core.reduction import Reduction
from lockstep.data import IMAGE_FOLDER
from lockstep.data.folder.scan import is_divided
from lockstep.errors import ENVIRONMENT, LockstepError, printable
from lockstep.jobs.session import Session
from lockstep.jobs.specs import EvalJob
from lockstep.jobs.watch import Evaluator, evaluate_chosen, evaluate_newest, watch
from lockstep.report import evaluation
from lockstep.report.console import discard, progress_on
from lockstep.runs.folder import Run
from lockstep.runs.tensors import save_model


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
        for text in [*session.notes, *_division_notes(job, session)]:
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
    result = evaluate_newest(evaluator) if chosen is None else evaluate_chosen(evaluator, chosen)
    if reduction.process != 0:
        return
    show(result)
    if job.save_model is not None:
        try:
            save_model(job.save_model, *session.model_contents(result.weights))
        except OSError as error:
            raise LockstepError(f"--save-model {job.save_model}: cannot be written: {error}", ENVIRONMENT) from None
        note(f"the model after {result.step} steps, {result.weights} weights, is saved in {job.save_model}")


def _division_notes(job: EvalJob, session: Session) -> list[str]:
    """Return the note that only a part of the images is evaluated, if `test_share` divides another data folder.

    A user who gives new photos expects that all of them are evaluated.
    """
    folder, trained = job.placement.data, Run(job.path).data()
    if job.recipe.dataset != IMAGE_FOLDER or folder is None or job.split not in session.splits:
        return []
    if (trained is not None and folder.resolve() == trained.resolve()) or not is_divided(folder):
        return []
    evaluated, every = len(session.splits[job.split]), sum(map(len, session.splits.values()))
    return [
        f"{job.split} is {evaluated} of the {every} images in {folder}: the folder has no test folder, so "
        f"test_share={job.recipe.test_share:g} divides its images. --split selects {' or '.join(session.splits)}"
    ]
