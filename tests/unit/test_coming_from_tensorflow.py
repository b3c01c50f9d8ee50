"""docs/coming-from-tensorflow.md names options, files and functions that exist, and its numbers are the records'."""

import ast
import re
from pathlib import Path

from benchmarks import originals
from benchmarks.manual import every_command
from tests import commands

import lockstep

ROOT = Path(lockstep.__file__).parent
PAGE = originals.PAGE.read_text()

# The flags of the four programs: tf.app.flags of cifar10.py (shared) and of the scripts, the notebook's variables.
FLAGS = {
    "shared": {"batch_size", "data_dir", "use_fp16"},
    "`cifar10_train.py`": {"train_dir", "max_steps", "log_device_placement", "log_frequency"},
    "`cifar10_multi_gpu_train.py`": {"train_dir", "max_steps", "num_gpus", "log_device_placement"},
    "`cifar10_eval.py`": {
        "eval_dir", "eval_data", "checkpoint_dir", "eval_interval_secs", "num_examples", "run_once",
    },
    "MNIST notebook": {
        "num_gpus", "num_steps", "learning_rate", "batch_size", "display_step", "dropout", "num_input", "num_classes",
    },
}  # fmt: skip


def section(title, page=PAGE):
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


def rows(text):
    """The cells of each row of the tables in `text`, without the heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = {i - 1 for i, line in enumerate(lines) if line.startswith("|---")}
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for i, line in enumerate(lines)
        if i not in heads and not line.startswith("|---")
    ]


def missing(text):
    """What `text` says is in a file of src/lockstep and is not: "`Name` in `folder/file.py`", or a file alone."""
    found = [path for path in re.findall(r"`([\w/]+\.py)`", text) if "/" in path and not (ROOT / path).is_file()]
    for name, path, method in re.findall(r"`(\w+)` in `([\w/]+\.py)`(?: \((?:method|attribute) `(\w+)`\))?", text):
        if not (ROOT / path).is_file():
            continue  # named above
        code = (ROOT / path).read_text()
        defined = {node.name: node for node in ast.parse(code).body if hasattr(node, "name")}
        if name not in defined:
            found.append(f"{name} in {path}")
        elif method and not re.search(rf"def {method}\(|\.{method} = ", ast.unparse(defined[name])):
            found.append(f"{name}.{method} in {path}")
    return found


def test_every_flag_of_the_four_programs_has_a_row():
    named = {}
    for program, option, *_ in rows(section("Options")):
        named.setdefault(program, set()).add(re.match(r"`(\w+)`", option)[1])
    assert named == FLAGS


def test_every_command_is_one():
    for line in set(re.findall(r"`(lockstep [^`]+)`", PAGE)):
        if "--num_gpus" not in line:  # the page says that it is answered with --towers
            commands.check(line)


def test_every_option_outside_a_command_is_one():
    known = {name for _, command in every_command() for parameter in command.params for name in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= known


def test_every_file_and_function_exists():
    assert len(re.findall(r"`\w+` in `[\w/]+\.py`", PAGE)) > 30
    assert missing(PAGE) == []


def test_what_does_not_exist_is_found():
    for text in (
        "`train` in `core/circle.py`", "`trian` in `core/loop.py`", "`State` in `core/state.py` (method `aply`)",
        "see `core/circle.py`",
    ):  # fmt: skip
        assert missing(text)


def test_every_concept_has_a_reason():
    table = rows(section("Functions and concepts"))
    assert len(table) > 30
    assert all(len(cells) == 3 and all(cells) for cells in table)


def test_the_text_around_the_table_states_no_measurement():
    before, rest = section("Speed and accuracy").split(originals.BEGIN)
    text = before + rest.split(originals.END)[1]
    assert not re.search(r"\d\s?%|\d\s?images/s|\d\.\d+ s\b|\d (?:times|minutes|hours)", text)


def test_every_row_says_where_its_numbers_are_from():
    for cells in rows(originals.text()):
        source = cells[-1]
        assert source in ("its comment", "its log") or re.fullmatch(
            r"\[(\S+)\]\(\.\./benchmarks/results/\1\.json\)", source
        )
        assert cells[1] in ("float32", "bfloat16")
