"""The start-up block's note on idle or shared devices. The number of GPUs is a stand-in."""

import pytest
import torch
from tests.runs import fit_here

from lockstep import hardware
from lockstep.config.placement import Placement
from lockstep.jobs.startup import idle_devices
from lockstep.recipes import get_recipe

OTHER = "(another recipe, with other bits)"


def note(monkeypatch, kind, available, towers, total, local=None, threads=1, **placement):
    """Return the note for a run of `total` processes, `local` of them on this host with `available` cores or GPUs."""
    monkeypatch.setattr(hardware, "cores", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: available)
    recipe = get_recipe("digits").replace(towers=towers, batch=32 * towers, threads_per_tower=threads)
    return idle_devices(recipe, Placement(**placement), total, total if local is None else local, torch.device(kind))


@pytest.mark.parametrize(
    ("available", "towers", "processes", "options", "expected"),
    [
        (4, 1, 1, {}, f"3 of 4 GPUs are idle: 1 tower. To use more: --towers 4 {OTHER}"),
        (2, 1, 1, {}, f"1 of 2 GPUs is idle: 1 tower. To use more: --towers 2 {OTHER}"),
        (1, 4, 1, {}, "4 towers take turns on 1 GPU"),
        (2, 4, 2, {}, "4 towers take turns on 2 GPUs"),
        (4, 4, 1, {"processes": 1},
         "3 of 4 GPUs are idle: 4 towers take turns on 1 GPU. To use more: --processes 4 (the same bits)"),
        (4, 2, 1, {"processes": 1},
         "3 of 4 GPUs are idle: 2 towers take turns on 1 GPU. To use more: --processes 2 (the same bits), "
         f"or --towers 4 --processes 4 {OTHER}"),
        (4, 2, 2, {"processes": 2},
         f"2 of 4 GPUs are idle: 2 towers. To use more: --towers 4 --processes 4 {OTHER}"),
        (4, 4, 4, {}, None),
        (4, 2, 2, {"device": "cuda:0,2"}, None),  # no note: the user chose these GPUs
    ],
)  # fmt: skip
def test_a_note_on_idle_or_shared_gpus_gives_options(monkeypatch, available, towers, processes, options, expected):
    assert note(monkeypatch, "cuda", available, towers, processes, **options) == expected


@pytest.mark.parametrize(
    ("available", "towers", "processes", "local_processes", "expected"),
    [
        (4, 8, 8, 4, None),  # two hosts of 4 GPUs: the other 4 processes have the other host's GPUs
        (4, 8, 2, 1,
         "3 of 4 GPUs are idle: 8 towers take turns on 2 GPUs. "
         "To use more: 4 processes on this host (the same bits)"),
        (4, 2, 2, 1, f"3 of 4 GPUs are idle: 2 towers. To use more: --towers 5 and as many processes {OTHER}"),
        (1, 4, 4, 4, None),  # a launcher that shows each process one GPU only
    ],
)  # fmt: skip
def test_under_an_outer_launcher_only_this_hosts_gpus_count(
    monkeypatch, available, towers, processes, local_processes, expected
):
    assert note(monkeypatch, "cuda", available, towers, processes, local_processes) == expected


@pytest.mark.parametrize(
    ("available", "towers", "processes", "threads", "options", "expected"),
    [
        (2, 1, 1, 1, {},
         f"1 of 2 cores is idle: 1 tower of 1 thread. To use more: --towers 2 or --set threads_per_tower=2 {OTHER}"),
        (8, 2, 1, 1, {"processes": 1},
         "7 of 8 cores are idle: 2 towers of 1 thread take turns on 1 process. "
         f"To use more: --processes 2 (the same bits), or --towers 8 --processes 8 {OTHER}"),
        (3, 2, 1, 2, {},
         "1 of 3 cores is idle: 2 towers of 2 threads take turns on 1 process. "
         f"To use more: --set threads_per_tower=3 {OTHER}"),
        (2, 4, 2, 1, {}, None),
        (2, 4, 4, 1, {"processes": 4}, None),
    ],
)  # fmt: skip
def test_a_note_on_idle_cores_gives_options(monkeypatch, available, towers, processes, threads, options, expected):
    assert note(monkeypatch, "cpu", available, towers, processes, threads=threads, **options) == expected


@pytest.mark.parametrize(("reduction", "shown"), [("tree", False), ("central", True)])
def test_the_note_and_a_reduction_that_makes_a_difference_are_in_the_log(monkeypatch, tmp_path, reduction, shown):
    monkeypatch.setattr(hardware, "cores", lambda: 4)
    recipe = get_recipe("digits").replace(epochs=None, steps=1, towers=1, batch=32)
    fit_here(recipe, tmp_path / "run", Placement(reduction=reduction, summary_every=0))
    log = (tmp_path / "run/log.txt").read_text()
    assert f"To use more: --towers 4 or --set threads_per_tower=4 {OTHER}" in log
    assert (f"reduction {reduction}" in log) == shown
