"""16-bit floats learn as well as float32: short runs on the real digits."""

from functools import cache

import pytest
from tests.runs import fit_here

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.recipes import get_recipe

SEEDS = (0, 1)
TOLERANCE = 0.01  # of accuracy: 7 of the 2 x 355 images; runs that differ only in rounding differ by about 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return trained(precision) -> (mean accuracy, SHA-256 of the weights) of SEEDS, after 12 of 40 epochs."""

    @cache
    def run(precision: str) -> tuple[float, set[str]]:
        results = []
        for seed in SEEDS:
            changes = {"precision": precision, "epochs": 12.0, "seed": seed}
            recipe = make(get_recipe("digits").model_dump(mode="json"), changes)
            path = tmp_path_factory.mktemp(precision) / "run"
            quiet = Placement(summary_every=0, log_every=100)
            results.append(fit_here(recipe, path, quiet).result)
        accuracies = [result["accuracy"]["ema"] for result in results]
        return sum(accuracies) / len(SEEDS), {result["weights_sha256"] for result in results}

    return run


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_every_precision_learns_digits_as_well_as_float32(trained, precision):
    wide, wide_weights = trained("float32")
    accuracy, weights = trained(precision)
    assert accuracy > 0.98
    assert accuracy == pytest.approx(wide, abs=TOLERANCE)
    if precision != "float32":
        assert not weights & wide_weights  # otherwise the towers computed in float32
