"""A spec that the launcher writes as JSON is the same spec, of the same class, in a worker process."""

import os
from pathlib import Path
from typing import get_args

import pytest

from lockstep.config.placement import Placement
from lockstep.jobs.specs import (
    EvaluateSpec,
    LabelsSpec,
    ReportSpec,
    Spec,
    TrainSpec,
    VerifySpec,
    decoded,
    encoded,
)
from lockstep.recipes import RECIPES, get_recipe

PLACEMENT = Placement(device="cuda:0,2", processes=2, data=Path("data"), eval_every=5, reduction="central")
SHARED = {"recipe": get_recipe("cifar10"), "placement": PLACEMENT}
NOT_UTF8 = Path(os.fsdecode(b"runs/\xff"))
SPECS = [
    TrainSpec(**SHARED, path=NOT_UTF8, resume=True, notes=("first", "größe"), started=1.25),
    EvaluateSpec(**SHARED, path=Path("runs/a"), checkpoint="best", weights="raw"),
    EvaluateSpec(**SHARED, path=Path("runs/a"), checkpoint=1000, examples=7),
    ReportSpec(**SHARED, path=Path("runs/a"), shown=5),
    VerifySpec(**SHARED, path=Path("runs/a"), start=7),
    LabelsSpec(**SHARED),
]
NAMES = [spec.job for spec in SPECS]


@pytest.mark.parametrize("spec", SPECS, ids=NAMES)
def test_a_spec_is_equal_after_json(spec):
    read = decoded(encoded(spec))
    assert type(read) is type(spec)
    assert read == spec


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_equal_after_json_in_a_spec(name):
    spec = TrainSpec(recipe=get_recipe(name), placement=Placement(), path=Path("x"), started=0.0)
    assert decoded(encoded(spec)) == spec
    assert decoded(encoded(spec)).recipe.digest() == spec.recipe.digest()


def test_each_class_of_spec_is_tested_and_has_its_own_job():
    assert {type(spec) for spec in SPECS} == set(get_args(Spec))
    assert {spec.model_fields["job"].default for spec in get_args(Spec)} == {*NAMES}
