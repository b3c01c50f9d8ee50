"""A job that the launcher writes as JSON is the same job, of the same class, in a worker process."""

import json
from pathlib import Path
from typing import get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from lockstep.config.placement import Placement
from lockstep.jobs.specs import BenchJob, EvalJob, Job, TrainJob, VerifyJob
from lockstep.recipes import RECIPES, named

PLACEMENT = Placement(
    device="cuda:0,2", processes=2, data=Path("data"), profile=(1, 3), eval_every=5, reduction="central"
)
SHARED = {"recipe": named("cifar10"), "placement": PLACEMENT}
JOBS = [
    TrainJob(**SHARED, path=Path("runs/a"), resume=True, strict=True, notes=("first", "größe"), started=1.25),
    EvalJob(**SHARED, path=Path("runs/a"), checkpoint="best", save_model=Path("m.safetensors"), weights="raw"),
    EvalJob(**SHARED, path=Path("runs/a"), checkpoint=1000, watch=True, interval=0.5, examples=7),
    VerifyJob(**SHARED, path=Path("runs/a"), record=Path("r.json"), start=0, steps=7),
    BenchJob(**SHARED, record=Path("r.json"), steps=3, modes=("synthetic", "independent")),
]


@pytest.mark.parametrize("job", JOBS, ids=[job.command for job in JOBS])
def test_a_job_is_equal_after_json(job):
    read = TypeAdapter(Job).validate_json(job.model_dump_json())
    assert type(read) is type(job)
    assert read == job


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_equal_after_json_in_a_job(name):
    job = TrainJob(recipe=named(name), placement=Placement(), path=Path("x"), started=0.0)
    read = TypeAdapter(Job).validate_json(job.model_dump_json())
    assert read == job
    assert read.recipe.digest() == job.recipe.digest()


def test_each_class_of_job_is_tested_and_has_its_own_command():
    assert {type(job) for job in JOBS} == set(get_args(Job))
    assert {job.model_fields["command"].default for job in get_args(Job)} == {"train", "eval", "verify", "bench"}


def test_a_job_with_the_settings_of_another_command_is_rejected():
    fields = json.loads(JOBS[0].model_dump_json()) | {"command": "eval"}
    with pytest.raises(ValidationError):
        TypeAdapter(Job).validate_json(json.dumps(fields))
