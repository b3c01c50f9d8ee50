"""Every recipe with a download, trained by the real program on files in the official format and
size, made by a test.

The images are no photographs, so what is learnt says nothing of accuracies; that it is learnt says
that the whole way from the files to the weights works. Batches are small, and most runs are judged
on few images, to take seconds.
"""

import shutil

import pytest
from tests.helpers import read_rows, record_of


@pytest.fixture(autouse=True)
def _no_runs_stay(tmp_path):
    """A run of MNIST's network holds 400 MB, and pytest would keep it for three sessions."""
    yield
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)


@pytest.fixture
def trained(program, synthetic_data, tmp_path):
    """trained(recipe, dataset, *flags) -> (result, losses of all steps, in training)."""

    def run(recipe: str, dataset: str, *flags: object) -> tuple[dict, list[float]]:
        data = synthetic_data(dataset)
        quiet = ("--log-every", 1, "--summary-every", 0, "--keep", 1)
        result = record_of(program("train", recipe, "--data", data, "--json", *quiet, *flags))
        folder = tmp_path / "runs" / flags[flags.index("--name") + 1]
        rows = read_rows(folder / "metrics.jsonl")
        losses = [row["loss"] for row in rows if row["kind"] == "step"]
        assert len(losses) == result["steps"]
        return result, losses

    return run


def judged_on(images: int) -> tuple[object, ...]:
    """Flags that evaluate `images` held-out training images in one chunk, instead of all 10 000
    test images.
    """
    return "--set", f"held_out={images}", "--set", f"eval_batch={images}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "dataset", "small", "first", "drop"),
    [
        (
            "cifar10-tutorial",
            "cifar10",
            ("--towers", 2, "--tower-batch", 16, "--steps", 60),
            4.676,
            0.8,
        ),
        ("mnist", "mnist", ("--tower-batch", 24, "--steps", 12), None, 0.3),
    ],
    ids=["cifar10-tutorial", "mnist"],
)
def test_a_recipe_learns_alike_on_1_and_2_processes(
    trained, program, synthetic_data, recipe, dataset, small, first, drop
):
    small = (*small, *judged_on(200))
    one, losses = trained(recipe, dataset, *small, "--processes", 1, "--name", "one")
    two, again = trained(recipe, dataset, *small, "--processes", 2, "--name", "two")
    assert first is None or losses[0] == pytest.approx(first, abs=0.03)
    # The losses of small batches differ by more than the drop.
    assert sum(losses[-5:]) / 5 < losses[0] - drop
    weights = "raw" if one["accuracy"].get("ema") is None else "ema"
    accuracy = one["accuracy"][weights]
    assert accuracy > 0.5
    assert (one["processes"], two["processes"]) == (1, 2)
    assert two["weights_sha256"] == one["weights_sha256"]
    assert (two["accuracy"], again) == (one["accuracy"], losses)
    data = ("--json", "--data", synthetic_data(dataset))
    record = record_of(program("eval", "runs/one", "--split", "test", "--examples", 1000, *data))
    assert (record["examples"], record["split"], record["weights"]) == (1000, "test", weights)
    assert record["accuracy"] == pytest.approx(accuracy, abs=0.15)
    if recipe == "mnist":
        held = record_of(program("eval", "runs/one", *data))
        assert (held["examples"], held["accuracy"]) == (200, accuracy)


@pytest.mark.slow
def test_a_recipe_learns_on_growing_images(trained):
    small = ("--batch", 80, "--steps", 10, *judged_on(100))
    result, losses = trained("cifar10", "cifar10", *small, "--processes", 2, "--name", "fast")
    assert losses[0] == pytest.approx(2.3, abs=0.6)  # ln 10
    assert losses[-1] < losses[0] - 0.8
    assert result["accuracy"]["raw"] > 0.8
    assert result["accuracy_without_augmentation"] > 0.5
