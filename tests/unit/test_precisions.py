"""16-bit floats learn what float32 learns: short real runs, on the real digits."""

from functools import cache

import pytest
from tests.runs import fit_here

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.recipes import named

SEEDS = (0, 1)
TOLERANCE = 0.01  # of accuracy: 7 of the 2 x 355 images; runs that differ only in rounding differ by 2 or so


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """trained(precision): (accuracy over SEEDS, the weights' sha256) after 12 of the recipe's 40 epochs."""

    @cache
    def run(precision: str) -> tuple[float, set[str]]:
        results = []
        for seed in SEEDS:
            changes = {"precision": precision, "epochs": 12.0, "seed": seed}
            recipe = make(named("digits").model_dump(mode="json"), changes)
            path = tmp_path_factory.mktemp(precision) / "run"
            quiet = Placement(summary_every=0, log_every=100)
            results.append(fit_here(recipe, path, quiet).result)
        accuracies = [result["accuracy"]["ema"] for result in results]
        return sum(accuracies) / len(SEEDS), {result["weights_sha256"] for result in results}

    return run


@pytest.mark.parametrize(
    "precision",
    [pytest.param("float32", marks=pytest.mark.slow), pytest.param("bfloat16", marks=pytest.mark.slow), "float16"],
)
def test_digits_are_learnt_as_well_as_in_float32(trained, precision):
    wide, wide_weights = trained("float32")
    accuracy, weights = trained(precision)
    assert accuracy > 0.98
    assert accuracy == pytest.approx(wide, abs=TOLERANCE)
    if precision != "float32":
        assert not weights & wide_weights  # so the towers did compute in another precision
