"""The flat vector carries requests, gradients and buffer_deltas, and returns them as they were."""

from signal import SIGHUP, SIGINT, SIGTERM

import pytest
import torch

from lockstep.core.vector import ControlFlags, Layout
from lockstep.errors import STOP_SIGNALS


@pytest.mark.parametrize("save", [False, True])
@pytest.mark.parametrize("stop", [None, *STOP_SIGNALS])
def test_requests_survive_the_conversion_to_flags_and_back(stop, save):
    requests = ControlFlags(stop, save)
    assert ControlFlags.of(requests.flags()) == requests
    assert sum(requests.flags()) == (stop is not None) + save


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([ControlFlags(SIGHUP), ControlFlags(SIGTERM), ControlFlags(SIGINT)], ControlFlags(SIGINT)),
        ([ControlFlags(SIGHUP), ControlFlags(SIGTERM)], ControlFlags(SIGTERM)),
        ([ControlFlags(), ControlFlags(SIGHUP), ControlFlags(save=True)], ControlFlags(SIGHUP, save=True)),
        ([ControlFlags(save=True)] * 3, ControlFlags(save=True)),
        ([ControlFlags(SIGTERM)] * 3, ControlFlags(SIGTERM)),
        ([ControlFlags()] * 3, ControlFlags()),
    ],
)
def test_of_several_requests_sigint_precedes_sigterm_and_sighup(requests, expected):
    sums = torch.tensor([each.flags() for each in requests]).sum(0).tolist()
    assert ControlFlags.of(sums) == expected


def test_a_vector_returns_what_was_packed_and_its_metrics_are_read_in_one_piece():
    layout = Layout({"w": torch.zeros(2, 3), "b": torch.zeros(3)}, {"mean": torch.zeros(4)}, towers=3)
    gradients = [torch.randn(2, 3), torch.randn(3).bfloat16()]
    buffer_deltas, sums = [torch.randn(4)], torch.zeros(layout.metric_length)
    metrics = layout.metrics(sums)
    metrics.requests[:] = torch.tensor(ControlFlags(SIGTERM, save=True).flags())
    metrics.non_finite[2] = 1.0
    metrics.digest[1] = torch.tensor([1.0, 2.0, 3.0])
    vector = torch.empty(layout.length)
    layout.pack(vector, layout.whole, gradients)
    layout.pack_rest(vector, buffer_deltas, sums)
    of_gradients, of_buffer_deltas, of_metrics = layout.unpack(vector)
    assert torch.equal(of_gradients, torch.cat([gradients[0].flatten(), gradients[1].float()]))
    assert torch.equal(of_buffer_deltas, buffer_deltas[0])
    assert of_metrics.read() == (ControlFlags(SIGTERM, save=True), [2], [])
    assert of_metrics.read(torch.tensor(True), torch.tensor(False))[2] == [True, False]
    assert of_metrics.digest.tolist() == [[0.0] * 3, [1.0, 2.0, 3.0], [0.0] * 3]
    assert layout.length == 9 + 4 + layout.metric_length
