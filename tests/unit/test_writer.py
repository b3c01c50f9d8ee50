"""`Writer`, the writer of all processes but process 0: it writes nothing, and `fit` continues with its answers."""

import inspect
from types import SimpleNamespace

import pytest

from lockstep.errors import DATA, LockstepError
from lockstep.jobs import startup
from lockstep.jobs.probe import Probe
from lockstep.jobs.writer import RunWriter, Writer, open_writer

METHODS = {name: method for name, method in vars(Writer).items() if inspect.isfunction(method)}
# Answers that `fit` uses in every process. All other methods return None.
ANSWERS = {"save_due": False, "evaluation_missing": False, "save_last_good": ""}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_a_no_op_with_a_neutral_answer(name):
    required = [p for p in inspect.signature(METHODS[name]).parameters.values() if p.default is p.empty][1:]
    answer = getattr(Writer(), name)(*[None] * len(required))
    assert answer == ANSWERS.get(name)
    assert type(answer) is type(ANSWERS.get(name))


def test_it_has_no_checkpoint_and_no_listeners():
    assert Writer().checkpoint is None
    assert list(Writer().listeners) == []


@pytest.mark.parametrize("name", METHODS)
def test_process_0_overrides_every_method_with_the_same_parameters(name):
    assert name in vars(RunWriter)
    own, base = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (RunWriter, Writer))
    assert own == base


def test_other_processes_open_no_folder(tmp_path):
    session = SimpleNamespace(reduction=SimpleNamespace(process=1))
    job = SimpleNamespace(path=tmp_path / "run", resume=False)
    with open_writer(job, session, Probe("", None), [], lambda path: None) as writer:
        assert type(writer) is Writer
        assert writer.finish({}, [], 0) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("trained", [["ant", "bee"], ["bee", "ant"], ["ant"], None])
def test_a_run_is_not_resumed_with_other_classes(trained, tmp_path):
    facts = {} if trained is None else {"classes": trained}
    writer = object.__new__(RunWriter)
    writer.checkpoint = SimpleNamespace(manifest={"data_sha256": {}, **facts})
    writer.run = SimpleNamespace(path=tmp_path)
    writer._session = SimpleNamespace(data_sha256={}, splits={"train": SimpleNamespace(classes=("ant", "bee"))})
    if trained in (None, ["ant", "bee"]):
        writer._require_same_data()
        return
    label, was, now = (0, "'bee'", "'ant'") if len(trained) == 2 else (1, "no class", "'bee'")
    with pytest.raises(LockstepError, match=f"label {label} was {was} and is {now}. Give the same names") as error:
        writer._require_same_data()
    assert error.value.code == DATA


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (60, "60 s"), (100, "1.7 min"), (600, "10 min"), (5400, "1.5 h"), (86_400, "24 h")],
)
def test_an_expected_duration_is_rounded_to_its_greatest_unit(seconds, words):
    assert startup._duration(seconds) == words
