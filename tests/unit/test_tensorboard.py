"""TensorBoard summaries, read with TensorBoard's own reader."""

import io
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tests.helpers import SHAPES, parts, read_rows, recipe_with, summaries
from tests.runs import fit_here
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.config.placement import Placement
from lockstep.core.monitor import ACTIVITIES
from lockstep.core.task import Score
from lockstep.listeners import tensorboard
from lockstep.listeners.tensorboard import (
    EventFile,
    TensorBoard,
    distribution,
    histogram,
    image,
    scalar,
    shown,
)
from lockstep.models import MODELS
from lockstep.schema import load_object

RECIPE = recipe_with("digits", {"steps": 12, "batch": 32, "portable": False})


def train(path, recipe=RECIPE, **options):
    place = {"summary_every": 5, "log_every": 5, "save_every": 4, **options.pop("placement", {})}
    return fit_here(recipe, path, Placement(**place), **options).result


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("tb") / "run"
    return train(path, placement={"eval_every": 4}), path


def test_every_summary_is_written_at_the_chosen_steps(trained):
    result, path = trained
    events = summaries(path / "tb")
    tags = events.Tags()
    weights = [name for name, _ in parts(RECIPE, (1, 8, 8)).model.named_parameters()]
    scalars = {
        "loss/total",
        "loss/total_average",
        "loss/last",
        "loss/cross_entropy",
        "loss/cross_entropy_average",
        *(f"loss/decay/{n}{kind}" for n in RECIPE.weight_decay for kind in ("", "_average")),
        "learning_rate",
        "accuracy/batch",
        "accuracy/test_ema",
        "accuracy/test_raw",
        "loss/test_ema",
        "loss/test_raw",
        "speed/images_per_s",
        "speed/s_per_step",
        *(f"speed/{part}_s" for part in ACTIVITIES),
        "process_0/memory_mib",
        *(f"sparsity/{name}" for name in ("conv1", "conv2", "conv3", "logits")),
    }
    assert set(tags["scalars"]) == scalars
    assert set(tags["histograms"]) == {
        *(f"weights/{n}" for n in weights),
        *(f"gradients/{n}" for n in weights),
        *(f"activations/{name}" for name in ("conv1", "conv2", "conv3", "logits")),
    }
    assert set(tags["images"]) == {"images/0", "images/1", "images/2"}
    assert tags["graph"]
    assert not any(
        "tower" in tag for kind in ("scalars", "histograms", "images") for tag in tags[kind]
    )
    evaluated = {"accuracy/test_ema", "accuracy/test_raw", "loss/test_ema", "loss/test_raw"}
    for tag in scalars - evaluated:
        assert [event.step for event in events.Scalars(tag)] == [0, 5, 10, 11], tag
    *_, accuracy = events.Scalars("accuracy/test_ema")
    assert accuracy.step == 12
    assert accuracy.value == pytest.approx(result["accuracy"]["ema"])


def test_summaries_are_of_their_own_step(trained):
    _, path = trained
    events = summaries(path / "tb")
    rows = read_rows(path / "metrics.jsonl")
    logged = {row["step"]: row for row in rows if row["kind"] == "step"}
    fields = {
        "loss/total": "loss",
        "loss/total_average": "loss_average",
        "learning_rate": "learning_rate",
        "loss/cross_entropy_average": "cross_entropy_average",
        "loss/last": "last_tower_loss",
    }
    for tag, field in fields.items():
        for event in events.Scalars(tag):
            assert event.value == pytest.approx(logged[event.step][field], rel=1e-6)
    for name in RECIPE.weight_decay:
        for event in events.Scalars(f"loss/decay/{name}_average"):
            assert event.value == pytest.approx(logged[event.step]["decay_average"][name], rel=1e-6)


def test_summaries_change_no_bit_and_add_no_pass(tmp_path, monkeypatch):
    short, passes = RECIPE.replace(steps=4), []
    forward = nn.Module.__call__

    def counted(self, *args, **kwargs):
        passes.extend([1] if type(self).__name__ == "Digits" and self.training else [])
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", counted)
    without = train(tmp_path / "without", short, placement={"summary_every": 0})
    of_probe = 3  # passes before the first step
    assert len(passes) == 4 * 4 + of_probe
    passes.clear()
    again = train(tmp_path / "with", short, placement={"summary_every": 1})
    assert len(passes) == 4 * 4 + of_probe
    assert without["weights_sha256"] == again["weights_sha256"]
    assert not (tmp_path / "without/tb").exists()


@pytest.mark.parametrize("last", [pytest.param(0, marks=pytest.mark.slow), 8])
def test_resume_drops_events_after_the_checkpoint(tmp_path, trained, last):
    """As after kill -9: events go on to where the run was, and the checkpoints after `last` are
    lost.
    """
    whole, path = trained[0], shutil.copytree(trained[1], tmp_path / "run")
    for file in ("result.json", "model.safetensors"):
        (path / file).unlink()
    for step in (4, 8, 12):
        if step > last:
            (path / f"checkpoints/step-{step:09d}.safetensors").unlink()
    again = train(path, placement={"eval_every": 4}, resume=True)
    assert again["weights_sha256"] == whole["weights_sha256"]
    events = summaries(path / "tb")
    assert [event.step for event in events.Scalars("loss/total")] == [0, 5, 10, 11]
    assert [event.step for event in events.Scalars("accuracy/test_ema")] == [4, 8, 12]
    assert len(list((path / "tb").iterdir())) == 2
    assert (
        sum(
            b"graph" in file.read_bytes() or b"Conv2d" in file.read_bytes()
            for file in (path / "tb").iterdir()
        )
        == 1
    )


def a_board(folder, module, shape=(1, 1, 2), dtype=torch.float32):
    """Return a listener of a network."""
    return TensorBoard(folder, 1, SimpleNamespace(module=module, shape=shape, dtype=dtype))


@pytest.mark.parametrize(
    ("is_file", "reason"), [(True, "File exists"), (False, "No space left on device")]
)
def test_a_folder_that_cannot_be_written_costs_only_summaries(
    tmp_path, monkeypatch, caplog, is_file, reason
):
    def full(content):
        raise OSError(28, "No space left on device")

    folder = tmp_path / "tb"
    if is_file:
        folder.touch()
    board = a_board(folder, nn.Linear(2, 2))
    monkeypatch.setattr(tensorboard, "checksum", full)
    event = SimpleNamespace(step=1, time=0.0, split="test", results={"raw": Score(2, 1, 0.5)})
    for _ in range(2):
        board.evaluation(event)
    board.close()
    assert caplog.messages == [
        f"no TensorBoard summaries: cannot write in {folder}: {reason}. The run continues"
    ]


@pytest.mark.parametrize("length", [0, 1, 8, 511, 512, 515, 5000])
def test_a_records_checksum_is_tensorboards(length):
    content = np.random.default_rng(length).bytes(length)
    assert tensorboard.checksum(content) == masked_crc32c(content).to_bytes(4, "little")


def test_event_files_of_the_same_second_sort_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)
    for step in range(11):  # readers read files in the order of their names
        events = EventFile(tmp_path)
        events.add(step, [scalar("x", step)])
        events.close()
    assert [event.step for event in summaries(tmp_path).Scalars("x")] == list(range(11))


def test_a_model_that_cannot_be_traced_has_no_graph(tmp_path, caplog):
    class Odd(nn.Linear):
        def forward(self, x):
            raise RuntimeError("not in eval mode") if not self.training else super().forward(x)

    a_board(tmp_path, Odd(2, 2)).close()
    assert caplog.messages == ["no graph of the model for TensorBoard: RuntimeError"]


def histogram_of(values):
    return histogram("x", distribution(values)).value[0].histo


@pytest.mark.parametrize(
    "values", [torch.randn(1000), torch.zeros(7), torch.full((3, 3), 2.5), torch.rand(5).half()]
)
def test_a_histogram_counts_every_finite_value(values):
    broken = torch.tensor([float("nan"), float("inf")])
    histo = histogram_of(torch.cat([values.flatten(), broken]))
    assert histo.num == values.numel() == sum(histo.bucket)
    assert histo.min == pytest.approx(values.min().item())
    assert histo.max <= histo.bucket_limit[-1] + 1e-6
    if values.numel() == 1000:
        expected, _ = np.histogram(values.numpy(), bins=64)
        # The places of values are float32 here and float64 in numpy.
        assert np.abs(np.asarray(histo.bucket) - expected).sum() <= 4
    assert histogram_of(broken).num == 0
    assert histogram_of(torch.empty(0)).num == 0


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        # float32 has no number for the distance of the ends
        ([3.4e38, -3.4e38, 0.0], {0: 1, 32: 1, 63: 1}),
        ([3.4e38, 3.3e38, float("inf")], {0: 1, 63: 1}),
        ([0.0, 1.4e-45], {32: 2}),
        ([float(number) for number in range(65)], {**dict.fromkeys(range(63), 1), 63: 2}),
        ([1.0, 1.0, 1.0 + 2**-23], {32: 2, 63: 1}),  # neighbours in float32
    ],
)
def test_a_histograms_bins_reach_from_least_to_greatest_value(values, counts):
    histo = histogram_of(torch.tensor(values))
    assert {place: count for place, count in enumerate(histo.bucket) if count} == counts


class Called(TorchDispatchMode):
    """Records the operations of torch."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name().partition("::")[2])
        return func(*args, **(kwargs or {}))


def test_a_summary_waits_for_no_gpu_and_has_one_order():
    """A selection, a single value and bincount make the host wait for a GPU; histc and cumsum have
    no order there.
    """
    with Called() as called:
        distribution(torch.randn(100, dtype=torch.float16))
        shown(torch.randn(3, 4, 4))
    assert "scatter_add_" in called.names
    assert not called.names & {
        "_local_scalar_dense",
        "index.Tensor",
        "nonzero",
        "masked_select",
        "histc",
        "bincount",
        "cumsum",
    }


def test_an_image_is_scaled_like_tf_summary_image():
    def pixels(tensor):
        return np.asarray(
            Image.open(io.BytesIO(image("x", shown(tensor)).value[0].image.encoded_image_string))
        )[..., 0]

    assert pixels(torch.tensor([[[0.0, 0.5, 1.0]]])).squeeze().tolist() == [0, 128, 255]
    assert pixels(torch.tensor([[[-2.0, 0.0, 2.0]]])).squeeze().tolist() == [1, 128, 255]
    assert pixels(torch.rand(3, 5, 4)).shape == (5, 4)


LARGE = [name for name in MODELS if name.startswith("efficientnet")]
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in MODELS]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
def test_every_built_in_model_has_a_graph(tmp_path, caplog, name, dtype):
    """Tracing cannot record the kernels with hand-written gradients, so it runs their
    references.
    """
    model = load_object(MODELS[name])(SHAPES[name], 10).to(dtype)
    a_board(tmp_path, model, SHAPES[name], dtype).close()
    assert caplog.messages == []
    nodes = EventAccumulator(str(tmp_path)).Reload().Graph().node
    assert any(
        node.op == "aten::linear" and node.name.startswith(type(model).__name__) for node in nodes
    )
