import numpy as np
import pytest
import torch

from lockstep.data.dataset import Dataset
from lockstep.evaluate import evaluate
from lockstep.overrides import make
from lockstep.recipes import named
from lockstep.reduce import owned
from lockstep.reduce.local import Local
from lockstep.tower import Network, build_model, persistent_buffers


class OneOf:
    """Process `process` of several, whose peers' tables were computed before: the gather without the processes."""

    def __init__(self, process, processes, tables):
        self.process, self.processes, self.tables = process, processes, tables

    def gather(self, table):
        self.tables[self.process, table.shape] = table
        return torch.stack([self.tables.get((p, table.shape), torch.zeros_like(table)) for p in range(self.processes)])


def data(count):
    images = torch.randint(256, (count, 8, 8, 1), dtype=torch.uint8)
    return Dataset.of(images.numpy(), np.arange(count) % 10, tuple("0123456789"))


def setting(eval_batch):
    recipe = make(named("digits").model_dump(mode="json"), {"eval_batch": eval_batch})
    model = build_model(recipe, (1, 8, 8), 10)
    return recipe, Network(recipe, (1, 8, 8), 10, torch.device("cpu")), dict(model.named_parameters()), model


@pytest.mark.parametrize("eval_batch", [1, 7, 50, 53, 60])
def test_every_example_exactly_once(eval_batch):
    recipe, network, parameters, model = setting(eval_batch)
    dataset = data(53)
    buffers = persistent_buffers(model)
    result = evaluate(recipe, network, parameters, buffers, dataset, Local(4))
    logits = model.eval()(recipe.augmentation.test(dataset.images))
    assert result.examples == 53
    assert result.correct == int((logits.argmax(1) == dataset.labels).sum())
    assert result.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, dataset.labels).item(), rel=1e-5)


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_any_number_of_processes_counts_the_same(processes):
    recipe, network, parameters, model = setting(10)
    dataset, buffers = data(53), persistent_buffers(model)
    expected = evaluate(recipe, network, parameters, buffers, dataset, Local(4))
    tables = {}
    for process in range(processes - 1):
        with pytest.raises(AssertionError):  # its peers' tables are still missing
            evaluate(recipe, network, parameters, buffers, dataset, OneOf(process, processes, tables))
    result = evaluate(recipe, network, parameters, buffers, dataset, OneOf(processes - 1, processes, tables))
    assert result == expected
    assert sum(len(owned(6, processes, p)) for p in range(processes)) == 6


def test_ties_and_infinities_earn_nothing():
    recipe, network, parameters, model = setting(10)
    dataset, buffers = data(50), persistent_buffers(model)
    zero = {name: torch.zeros_like(p) for name, p in parameters.items()}
    assert evaluate(recipe, network, zero, buffers, dataset, Local(4)).accuracy == 0.1
    zero["logits.bias"] = torch.full((10,), torch.inf)
    assert evaluate(recipe, network, zero, buffers, dataset, Local(4)).correct == 0
