"""The start-up block's note on idle or shared devices. The number of GPUs is a stand-in."""

import pytest
import torch

from lockstep import hardware
from lockstep.jobs.startup import idle_note
from lockstep.recipes import get_recipe

MORE = "more --towers use them (another recipe, with other bits)"
SAME = "more --processes (the same bits) use them, up to"


@pytest.mark.parametrize(
    ("kind", "available", "towers", "local", "threads", "expected"),
    [
        ("cuda", 4, 1, 1, 1, f"3 of 4 GPUs are idle with 1 tower: {MORE}"),
        ("cuda", 1, 4, 1, 1, "4 towers take turns on 1 GPU"),
        ("cuda", 4, 4, 1, 1, f"3 of 4 GPUs are idle with 4 towers: {SAME} 4"),
        ("cuda", 1, 4, 4, 1, None),  # a launcher that shows each process one GPU only
        ("cpu", 8, 2, 1, 1, f"7 of 8 cores are idle with 2 towers: {SAME} 2"),
        ("cpu", 3, 2, 2, 1, f"1 of 3 cores is idle with 2 towers: {MORE}"),
        ("cpu", 2, 4, 2, 1, None),
        ("cpu", 4, 4, 2, 2, None),
    ],
)
def test_a_note_on_idle_or_shared_devices_gives_options(monkeypatch, kind, available, towers, local, threads, expected):
    monkeypatch.setattr(hardware, "cores", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: available)
    recipe = get_recipe("digits").replace(towers=towers, batch=32 * towers, threads_per_tower=threads)
    assert idle_note(recipe, local, torch.device(kind)) == expected
