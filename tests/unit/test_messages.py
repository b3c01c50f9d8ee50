"""Options in messages: as a shell takes them, or as the arguments of a Python program."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from tests.conftest import in_this_process, popen
from tests.documents import SOURCE, trees
from tests.helpers import lockstep_error
from typer.main import get_command

import lockstep
from lockstep import errors
from lockstep.commands.program import COMMANDS, app
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.errors import USAGE, option
from lockstep.recipes import get_recipe

# A text that ends in -- is followed by a name.
NAMED = re.compile(r"(?<![\w-])--(?:[a-z][a-z-]*|$)")

# Calls whose texts only the command line shows: declarations and help texts of options, and
# commands of a shell.
OF_SHELL = {"Option", "Typer", "Field", "command"}
# Texts that only the command line shows, and options that no Python function has.
EXCEPTIONS = {
    "classify/serve.py": {"--allow-origin", "--host", "--port"},
    "commands/data.py": {"--html", "--labels"},
    "commands/evaluate.py": {"--", "--interval", "--once", "--watch"},
    "commands/predict.py": {"--csv", "--json", "--top"},
    # the flags of options
    "commands/parameters.py": {"--", "--all", "--from", "--no-", "--output", "--quiet", "--set"}
    | {"--json", "--verbose", "--watch"},
    # two of them pip's
    "commands/program.py": {"--force-reinstall", "--help", "--help-all", "--no-deps"},
    "commands/serve.py": {"--allow-origin", "--host"},
    "commands/verify.py": {"--all", "--key", "--link", "--sample", "--signers", "--statement"}
    | {"--statements"},
    "config/recipe.py": {"--json"},  # `toml` is for `show`
    "pictures/check.py": {"--json"},
    "pictures/foreign.py": {"--data"},  # of commands
    "data/fetch.py": {"--data"},  # of `lockstep data fetch`
    "errors.py": {"--", "--no-", "--checkpoint"},  # `option` itself
    "jobs/verify.py": {"--from"},
    "pages/doubtful.py": {"--json"},
    "pages/runs.py": {"--init"},
    "runs/statements.py": {"--", "--key", "--statement"},
}


def texts(tree):
    """Yield the texts of a module that are neither docstrings nor in calls of OF_SHELL."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) in OF_SHELL
        ):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        yield from texts(node)


def calls(tree):
    """Yield the calls of `option` in a part of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "option":
            yield node


def test_no_text_of_the_source_spells_an_option():
    """A Python program would read what only a shell takes. `option` gives every reader the form
    that it can use.
    """
    found = {
        path: {word for text in texts(tree) for word in NAMED.findall(text)}
        for path, tree in trees(SOURCE).items()
    }
    assert {path: words for path, words in found.items() if words} == EXCEPTIONS


def test_every_switch_that_a_message_turns_off_exists():
    parameters = get_command(app).commands["train"].params
    flags = {flag for parameter in parameters for flag in parameter.secondary_opts}
    assert flags == {
        "--no-graphs",
        "--no-side-by-side",
        "--no-check-products",
        "--no-portable",
        "--no-multi-label",
    }


def test_no_option_is_named_before_the_reader_is_known():
    """A module's constants are made when it is imported, before the command line says that a shell
    reads.
    """
    for path, tree in trees(SOURCE).items():
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        late = {
            id(call) for function in functions for part in function.body for call in calls(part)
        }
        assert [call.lineno for call in calls(tree) if id(call) not in late] == [], path


# Files that read the sentences of libraries, which have no type or value for what they say.
OF_LIBRARIES = {
    "core/group.py": "Gloo: a lost connection is a RuntimeError",
    "core/build.py": "Python: a wrong argument is a TypeError",
    "hardware.py": "torch: too little memory on a CPU is a RuntimeError",
    "jobs/probe.py": "torch: too few values for batch norm are a ValueError",
    "pictures/decode.py": "Pillow: a truncated file is an OSError or SyntaxError",
    "runs/statefile.py": "safetensors: the number of a system error",
}
READERS = {
    "startswith",
    "endswith",
    "removeprefix",
    "find",
    "count",
    "search",
    "match",
    "fullmatch",
}


def sentences(tree):
    """Return a function that says whether an expression is, or contains, the text of an error."""
    errors = {"error"} | {
        node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name
    }
    aliases = set()

    def reads(part):
        for node in ast.walk(part):
            match node:
                case ast.Call(func=ast.Name("str"), args=[ast.Name(name)]) if name in errors:
                    return True
                case ast.Name(name) if name in aliases:
                    return True
                case ast.Attribute(value=ast.Name(name), attr="args" | "msg") if name in errors:
                    return True
                case ast.Subscript(slice=ast.Constant("msg")):
                    return True
        return False

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            calls = [call for call in ast.walk(node.value) if isinstance(call, ast.Call)]
            if any(ast.unparse(call.func) == "str" and reads(call) for call in calls):
                aliases.add(node.targets[0].id)
    return reads


def decisions(tree):
    """Yield the expressions of a module that search or compare the text of an error."""
    reads = sentences(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Compare() if reads(node):
                yield node
            case ast.Call(func=ast.Attribute(value, attr)) if attr in READERS and any(
                map(reads, [value, *node.args])
            ):
                yield node


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("if str(error).startswith(path): pass", 1),
        ("text = str(error)\nif 'x' in text: pass", 1),
        ("try: f()\nexcept ValueError as problem:\n  re.search('x', str(problem))", 1),
        ("problem = item['msg'].removeprefix('Value error, ')", 1),
        ("raise LockstepError(f'{path}: {error}')", 0),
        ("if error.code == 3: pass", 0),
    ],
)
def test_a_decision_by_the_text_of_an_error_is_found(source, count):
    assert len([*decisions(ast.parse(source))]) == count


def test_no_decision_reads_the_text_of_an_error():
    """A sentence is for people. Types and values decide: `DamagedFileError.path`."""
    found = {path for path, tree in trees(SOURCE).items() if any(decisions(tree))}
    assert found == OF_LIBRARIES.keys()


def test_every_option_in_a_message_is_an_argument_in_python():
    functions = [lockstep.train, lockstep.evaluate, lockstep.load, lockstep.report, lockstep.export]
    arguments = {name for function in functions for name in inspect.signature(function).parameters}
    arguments |= {*Recipe.options, *Placement.model_fields}
    for path, tree in trees(SOURCE).items():
        names = {
            call.args[0].value for call in calls(tree) if isinstance(call.args[0], ast.Constant)
        }
        assert names <= arguments, path


@pytest.mark.parametrize(
    ("name", "value", "shell", "python"),
    [
        ("resume", True, "--resume", "resume=True"),
        ("portable", False, "--no-portable", "portable=False"),
        ("trust_code", True, "--trust-code", "trust_code=True"),
        ("data", "DIR", "--data DIR", 'data="DIR"'),
        ("init", Path("a/b"), "--init a/b", 'init="a/b"'),
        ("processes", 1, "--processes 1", "processes=1"),
        ("eval_every", None, "--eval-every", "eval_every="),
        ("settings", "exact=false", "--set exact=false", 'settings=["exact=false"]'),
        ("settings", None, "--set", "settings="),
    ],
)
def test_an_option_is_named_as_its_reader_gives_it(monkeypatch, name, value, shell, python):
    assert option(name, value) == shell
    monkeypatch.setattr(errors, "in_python", True)
    assert option(name, value) == python


def test_a_run_is_continued_by_a_command_or_by_a_call(monkeypatch):
    own = get_recipe("digits").replace(model="net:build", weight_decay={})
    texts = [own.resuming(Path("a b"))]
    monkeypatch.setattr(errors, "in_python", True)
    texts += [own.resuming(Path("a b")), get_recipe("digits").resuming(Path("x"))]
    assert texts == [
        "lockstep train 'a b' --resume --trust-code",
        "lockstep.train('a b', resume=True, trust_code=True)",
        "lockstep.train('x', resume=True)",
    ]


OWN = """
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lockstep.data.readers import load_digits


def load():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(load_digits, Path("x")).result()
"""


@pytest.mark.parametrize(
    ("given", "shell", "python"),
    [
        pytest.param(
            {"processes": 99}, "choose --processes 1 to", "choose processes=1 to", id="launcher"
        ),
        pytest.param(
            {"processes": 2, "dataset": "own:load"},
            "leave out --data x",
            'leave out data="x"',
            id="thread of a worker",
            marks=pytest.mark.slow,  # three programs, twice
        ),
    ],
)
def test_every_part_of_a_job_knows_the_reader(tmp_path, monkeypatch, given, shell, python):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own.py").write_text(OWN)
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    assert shell in in_this_process("train", "digits", *words, cwd=tmp_path).stderr
    monkeypatch.setattr(errors, "in_python", True)
    with lockstep_error(python):
        lockstep.train("digits", **given)


def test_a_program_that_imports_lockstep_reads_arguments(tmp_path):
    _, err = popen("-c", "import lockstep; lockstep.train(resume=True)", cwd=tmp_path).communicate()
    assert "resume=True continues a run" in err


def test_words_of_other_programs_name_what_there_is():
    names = {
        "runs",
        *Recipe.options,
        *Recipe.model_fields,
        *Placement.model_fields,
        *COMMANDS,
        "train",
    }
    assert {*errors._SYNONYMS} - names == {"eval --checkpoint best"}
    words = [word for text in errors._SYNONYMS.values() for word in text.split()]
    assert len({*words}) == len(words)
    assert {*words} & names == {"runs", "fit"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "digits", "--learning-rate", "1"), "(Possible options: --lr)"),
        (("train", "digits", "--imgsz", "1"), "(Possible options: --set image_px=...)"),
        (("train", "digits", "--patience", "1"), "(Possible options: eval --checkpoint best)"),
        (("train", "digits", "--run-name", "x"), "(Possible options: --name)"),
        (("eval", "x", "--num-workers", "2"), "(Possible options: --processes)"),
        (("predict", "x", "--gpu", "0"), "(Possible options: --device)"),
        (("train", "digits", "--set", "batch_size=1"), "did you mean batch?"),
        (("train", "digits", "--set", "optimizer.learning_rate=1"), "did you mean --lr?"),
        (("train", "digits", "--set", "optimizer.lr=1"), "did you mean --lr?"),
        (("train", "digits", "--set", "workers=1"), "did you mean --processes?"),
        (("train", "recipe.yaml"), "a recipe file is TOML"),
        (("train", "wide.toml"), "it is not in UTF-8: save it as UTF-8"),
        (("fit", "digits"), "no command 'fit': did you mean lockstep train?"),
    ],
)
def test_a_word_of_another_program_gets_ours_in_the_shell(here, tmp_path, words, said):
    (tmp_path / "recipe.yaml").touch()
    (tmp_path / "wide.toml").write_bytes("steps = 1".encode("utf-16"))
    done = here(*words)
    assert done.returncode == USAGE
    assert said in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("learning_rate", "did you mean lr?"),
        ("gpus", "did you mean processes?"),
        ("run_name", "did you mean name=?"),
        ("imgsz", "image_px is a setting of the recipe: give settings={'image_px': ...}"),
    ],
)
def test_a_word_of_another_program_gets_ours_in_python(name, said, monkeypatch):
    monkeypatch.setattr(errors, "in_python", True)
    with lockstep_error(re.escape(said)):
        lockstep.train("digits", **{name: 1})


@pytest.mark.parametrize(
    ("name", "said"),
    [("fit", "train"), ("test", "evaluate"), ("eval", "evaluate"), ("predict", "load")],
)
def test_a_function_of_another_library_gets_ours(name, said):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': did you mean {said}\?"):
        getattr(lockstep, name)
