"""A power loss at each moment of a run that is stopped and resumed: nothing that was saved is lost,
and a resume gives an undisturbed run's bits.
"""

import json
import re
import shutil
from functools import cache
from pathlib import Path
from signal import SIGTERM
from typing import NamedTuple
from unittest import mock

import pytest
from tests.helpers import DATA, USAGE, recipe_with, refused
from tests.runs import fit_here
from tests.survival import power
from tests.survival.power import BEGUN, COMPLETE, NO_RUN

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.errors import LockstepError
from lockstep.files import sha256
from lockstep.jobs.agreement import require_agreement, restore
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.writer import open_run
from lockstep.models import MODELS
from lockstep.runs.run import Run
from lockstep.runs.statefile import copied, newest_verified, read

SMALL = {
    "steps": 4,
    "arithmetic": "native",
    "towers": 1,
    "batch": 16,
    "weight_decay": {},
    "ema": None,
}
RECIPE = recipe_with("digits", SMALL)
# Three checkpoints: two, and the best one.
SAVING = {"save_every": 1, "keep": 2, "eval_every": 2, "log_every": 1, "summary_every": 0}


class Case(NamedTuple):
    recipe: Recipe
    saving: dict[str, object]
    init: Path | None = None

    @property
    def place(self):
        return Placement(processes=1, init=self.init, **self.saving)

    def fit(self, path, **how):
        return fit_here(self.recipe, path, self.place, **how)


@pytest.fixture(scope="module", autouse=True)
def _small_and_fast():
    with mock.patch.dict(MODELS, digits="tests.helpers:smooth"), mock.patch("os.fsync"):
        yield


@pytest.fixture(
    scope="module",
    params=["latest", *(pytest.param(name, marks=pytest.mark.slow) for name in ("all", "head"))],
)
def case(request, tmp_path_factory, _small_and_fast):
    """A run that keeps its latest checkpoints, its chain, or a file of the layers before a head."""
    if request.param != "head":
        return Case(RECIPE, SAVING | {"keep": "all" if request.param == "all" else 2})
    init = Run(tmp_path_factory.mktemp("init") / "x")
    fit_here(RECIPE, init.path)
    changes = {"head": "3", "augmentation": "plain", "init_sha256": sha256(init.model)}
    return Case(recipe_with("digits", SMALL | changes), SAVING, init.model)


@pytest.fixture(scope="module")
def moments(case, tmp_path_factory):
    """The moments of a run that is stopped after two of its four steps, and resumed."""
    root = tmp_path_factory.mktemp("disk")
    calls = iter(range(100))
    with power.recorded(root) as moments:
        for resume in (False, True):
            case.fit(
                root / power.RUN,
                resume=resume,
                stop_requested=lambda: SIGTERM if next(calls) == 1 else None,
            )
    assert Run(root / power.RUN).complete
    return moments


@pytest.fixture(scope="module")
def begun(case, tmp_path_factory):
    """Return begun(state) -> how much of the run there is, its rows, and the files that are read,
    when a resume is about to make its first step.
    """
    root, ctx = tmp_path_factory.mktemp("begun"), Context()
    replica = Replica(case.recipe, case.place, ctx)
    identity = require_agreement(replica)
    initial = copied(replica.state.state_dict())

    @cache
    def begin(state):
        write(state, root)
        run, step = Run(root / power.RUN), NO_RUN
        if run.result():
            assert read(run.model).tensors
            step = COMPLETE
        elif (run.path / "recipe.json").exists():
            replica.state.load_state_dict(initial)
            # It needs no file of weights that the run started from.
            found = newest_verified(run.checkpoints)
            spec = TrainSpec(recipe=run.recipe(), placement=case.place, path=run.path, resume=True)
            with open_run(spec, ctx, replica, identity) as writer:
                writer.begin(restore(replica, writer.checkpoint))
                step = found.step if found else BEGUN
        after = power.seen_in(root).items()
        files = {(path, seen.content) for path, seen in after if not power.is_unread(path)}
        return step, run.metrics(), frozenset(files)

    return begin


def write(state, root):
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, content in sorted(state, key=str):
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)


def kinds(moments, begun):
    """Return the last of the states for each folder in which a resume trains.

    Raises: AssertionError or LockstepError if a power loss takes what must be there.
    """
    found = {}
    rows = [json.loads(line) for line in moments[-1].seen[power.ROWS].content.splitlines()]
    for state, promised in power.states(moments).items():
        step, kept, files = begun(state)
        assert step >= promised, sorted(state)
        # Rows of the steps that are repeated are written again.
        assert kept == [row for row in rows if row["step"] < step]
        found[files] = state
    return found


def test_nothing_that_was_saved_is_lost(moments, begun):
    steps = {begun(state)[0] for state in kinds(moments, begun).values()}
    assert steps == {NO_RUN, BEGUN, *range(5), COMPLETE}


@pytest.mark.parametrize(
    "flushed",
    [
        *(r"\.", "runs", "runs/x", "runs/x/checkpoints"),
        *(r"runs/x/\.recipe.*", r"runs/x/\.environment.*", r"runs/x/\.model.*"),
        *(r"runs/x/\.metrics.*", "runs/x/metrics.*", r".*\.step-0*2.*", r"runs/x/\.result.*"),
    ],
)
def test_a_missing_flush_is_noticed(moments, begun, flushed):
    without = [*moments]
    for number, moment in enumerate(moments):
        if moment.operation == "fsync" and re.fullmatch(flushed, moment.path):
            without[number] = moment._replace(operation="none")
            break
    with pytest.raises((AssertionError, LockstepError)):
        kinds(without, begun)


@pytest.mark.slow
def test_nothing_is_lost_in_the_resume_after_a_power_loss_either(moments, begun, case, tmp_path):
    for number, state in enumerate(kinds(moments, begun).values()):
        root = tmp_path / str(number)
        write(state, root)
        step = begun(state)[0]
        if step != NO_RUN:
            with power.recorded(root, step) as again:
                case.fit(root / power.RUN, resume=True)
            assert step == COMPLETE or COMPLETE in {
                begun(each)[0] for each in kinds(again, begun).values()
            }


@pytest.mark.slow
def test_each_state_resumes_to_the_undisturbed_bits(moments, begun, case, here, tmp_path):
    whole = case.fit(tmp_path / "whole").result["weights_sha256"]
    path = tmp_path / "disk" / power.RUN
    options = [f"--{name.replace('_', '-')}={value}" for name, value in case.saving.items()]
    options += ["--init", case.init] if case.init else []
    for state in kinds(moments, begun).values():
        write(state, tmp_path / "disk")
        done = here("train", path, "--resume", *options, "--json")
        assert "safetensors is damaged" not in done.stderr
        if (path / "recipe.json").exists():
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout.splitlines()[-1])["weights_sha256"]
        else:
            refused(done, USAGE if path.exists() else DATA)
            found = case.fit(path).result["weights_sha256"]
        assert found == whole
