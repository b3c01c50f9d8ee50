"""The start-up block's line on processes, with a stand-in for a GPU."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.unit.test_parity import images

from lockstep.config.placement import Placement
from lockstep.core.group import Alone
from lockstep.core.reduction import Reduction
from lockstep.jobs.startup import startup_lines
from lockstep.recipes import get_recipe


def processes_line(device: str, local_processes: int) -> str:
    recipe, group = get_recipe("digits").replace(towers=4, batch=128), Alone()
    session = SimpleNamespace(
        recipe=recipe, course=recipe.bind(50), placement=Placement(), group=group,
        reduction=Reduction(group, 4), device=torch.device(device), parameter_count=1, initial_weights=None,
        splits={"train": images(50)}, local_processes=local_processes,
        state=SimpleNamespace(step=0),
    )  # fmt: skip
    return dict(startup_lines(session, images(50), Path("runs/x")))["time"]


@pytest.mark.parametrize(("local", "shown"), [(1, True), (4, False)])
def test_a_note_says_that_towers_share_a_gpu(local, shown):
    line = processes_line("cuda", local)
    assert ("4 towers take turns on 1 GPU" in line) == shown
