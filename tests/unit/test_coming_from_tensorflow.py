"""docs/coming-from-tensorflow.md names options, files and functions that exist."""

import ast
import re
from pathlib import Path

from benchmarks.manual import every_command

import lockstep

ROOT = Path(lockstep.__file__).parent
PAGE = (ROOT.parents[1] / "docs/coming-from-tensorflow.md").read_text()

# The flags of the four programs: tf.app.flags of cifar10.py (shared) and of the scripts, the notebook's variables.
FLAGS = {
    "shared": {"batch_size", "data_dir", "use_fp16"},
    "train": {"train_dir", "max_steps", "log_device_placement"},
    "`cifar10_train.py`": {"log_frequency"},
    "`cifar10_multi_gpu_train.py`": {"num_gpus"},
    "`cifar10_eval.py`": {
        "eval_dir", "eval_data", "checkpoint_dir", "eval_interval_secs", "num_examples", "run_once",
    },
    "MNIST notebook": {
        "num_gpus", "num_steps", "learning_rate", "batch_size", "display_step", "dropout", "num_input", "num_classes",
    },
}  # fmt: skip


def missing(text):
    """What `text` says is in a file of src/lockstep and is not: "`Name` in `folder/file.py`", or a file alone."""
    found = [path for path in re.findall(r"`([\w/]+\.py)`", text) if "/" in path and not (ROOT / path).is_file()]
    for name, path, method in re.findall(r"`(\w+)` in `([\w/]+\.py)`(?: \((?:method|attribute) `(\w+)`\))?", text):
        code = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
        defined = {node.name: node for node in ast.parse(code).body if hasattr(node, "name")}
        if name not in defined:
            found.append(f"{name} in {path}")
        elif method and not re.search(rf"def {method}\(|\.{method} = ", ast.unparse(defined[name])):
            found.append(f"{name}.{method} in {path}")
    return found


def test_every_flag_of_the_four_programs_has_a_row():
    named = {}
    for program, option in re.findall(r"^\| ([^|]+) \| `(\w+)`", PAGE.split("## Options")[1].split("\n## ")[0], re.M):
        named.setdefault(program, set()).add(option)
    assert named == FLAGS


def test_every_option_outside_a_command_is_one():
    known = {name for _, command in every_command() for parameter in command.params for name in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= known


def test_every_file_and_function_exists():
    assert len(re.findall(r"`\w+` in `[\w/]+\.py`", PAGE)) > 30
    assert missing(PAGE) == []
