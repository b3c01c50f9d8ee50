"""Unknown options: those of TensorFlow's programs, and Lockstep's with underscores, get the right one in one line."""

import re

import pytest
from tests.cli.test_mistakes import USAGE, refused

from lockstep.cli.hints import hint
from lockstep.config.overrides import make, parse
from lockstep.recipes import get_recipe

TRAIN = ["--towers", "--tower-batch", "--runs", "--data", "--steps", "--lr", "--log-every", "--log-placement"]
TRAIN += ["--precision"]


@pytest.mark.parametrize(
    ("given", "own", "shown", "words"),
    [
        ("--num_gpus 4", TRAIN, "--num_gpus 4", "--towers 4 ("),
        ("--num_gpus 4", [], "--num_gpus 4", "lockstep train --towers 4 ("),
        ("--num-gpus=4", TRAIN, "--num-gpus 4", "--towers 4 ("),
        ("--num_gpus", TRAIN, "--num_gpus", "--towers N ("),
        ("--num_gpus --lr 1", TRAIN, "--num_gpus", "--towers N ("),
        ("--batch_size 64", TRAIN, "--batch_size 64", "--tower-batch 64 (batch_size was per GPU"),
        ("--train_dir=/tmp/c/d", TRAIN, "--train_dir /tmp/c/d", "--runs /tmp/c --name d ("),
        ("--train_dir d", TRAIN, "--train_dir d", "--runs . --name d ("),
        ("--train_dir", TRAIN, "--train_dir", "--runs PARENT --name NAME ("),
        ("--data_dir=a;b", TRAIN, "--data_dir a;b", "--data 'a;b' ("),
        ("--max_steps 9", TRAIN, "--max_steps 9", "--steps 9"),
        ("--num_steps 9", TRAIN, "--num_steps 9", "--steps 9"),
        ("--learning_rate .1", TRAIN, "--learning_rate .1", "--lr .1"),
        ("--log_frequency 5", TRAIN, "--log_frequency 5", "--log-every 5"),
        ("--display_step 5", TRAIN, "--display_step 5", "--log-every 5"),
        ("--log_device_placement", TRAIN, "--log_device_placement", "--log-placement"),
        ("--log_device_placement digits", TRAIN, "--log_device_placement", "--log-placement"),
        ("--log_device_placement=False", [], "--log_device_placement False", "lockstep train without --log-placement"),
        ("--use_fp16 True", TRAIN, "--use_fp16 True", "--precision float16 ("),
        ("--use_fp16=0", TRAIN, "--use_fp16 0", "--precision float32"),
        ("--eval_interval_secs 60", ["--watch"], "--eval_interval_secs 60", "lockstep eval RUN --watch --interval 60"),
        ("--run_once", ["--watch"], "--run_once", "lockstep eval RUN, without --watch"),
        ("--run_once=false", ["--watch"], "--run_once false", "lockstep eval RUN --watch"),
        ("--eval_data test", [], "--eval_data test", "lockstep eval RUN --split test"),
        ("--eval_data=train_eval", [], "--eval_data train_eval", "lockstep eval RUN --split train"),
        ("--num_examples 99", [], "--num_examples 99", "lockstep eval RUN --examples 99 ("),
        ("--checkpoint_dir r/x", [], "--checkpoint_dir r/x", "lockstep eval r/x ("),
        ("--eval_dir e", [], "--eval_dir e", "lockstep eval RUN --watch ("),
    ],
)
def test_an_option_of_tensorflow_is_answered_with_its_equivalent(given, own, shown, words):
    args = given.split()
    said = hint(args[0].partition("=")[0], ["digits", *args], own)
    assert said.startswith(f"{shown} is TensorFlow's: use {words}")
    assert words.endswith("(") or said.endswith(words) or words in said


def test_an_unknown_name_gets_no_hint():
    assert hint("--bacth", ["--bacth", "3"], TRAIN) is None
    assert hint("--log_everything", [], TRAIN) is None


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["train", "mnist", "--batch-size=64"], "--batch-size 64 is TensorFlow's: use --tower-batch 64 ("),
        (["--num_gpus=4", "train"], "use lockstep train --towers 4 ("),
        (["data", "fetch", "cifar10", "--data_dir", "/x"], "use --data /x ("),
        (["train", "--log_every", 5], "no such option: --log_every: write --log-every"),
        (["eval", "r", "--save_model=x"], "no such option: --save_model: write --save-model"),
    ],
)
def test_the_program_answers_in_one_line(refused_here, args, words):
    done = refused_here(*args)
    refused(done, USAGE, words)
    assert len(done.stderr.splitlines()) == 1


def test_the_table_has_no_option_of_lockstep_and_names_only_options_that_exist():
    from typer.main import get_command

    from lockstep.cli import app
    from lockstep.cli.hints import _EQUIVALENTS

    commands = [get_command(app)]
    own = set()
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        own |= {name for parameter in command.params for name in parameter.opts}
    assert {"--towers", "--checkpoint", "--only", "--version"} <= own
    assert own.isdisjoint(f"--{name.replace('_', '-')}" for name in _EQUIVALENTS)
    answers = [
        text for answer in _EQUIVALENTS.values() for text in (answer if isinstance(answer, tuple) else (answer,))
    ]
    named_options = {option for answer in answers for option in re.findall(r"--[a-z-]+", answer)}
    assert len(named_options) > 10
    assert named_options <= own


@pytest.mark.parametrize(("short", "full"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_a_short_name_of_a_precision_is_the_full_one(tmp_path, short, full):
    from lockstep.api.specs import subject_of

    start = get_recipe("digits").model_dump(mode="json")
    (tmp_path / "mine.toml").write_text(f'recipe = "digits"\nprecision = "{short}"\n')
    recipes = [
        subject_of("digits", parse([f"precision={short}"], {}))[0],
        subject_of("digits", parse([], {"precision": short}))[0],
        subject_of(str(tmp_path / "mine.toml"), {})[0],
    ]
    for recipe in recipes:
        assert recipe.precision == recipe.model_dump(mode="json")["precision"] == full
        assert recipe.digest() == make(start, {"precision": full}).digest()
        assert recipe == make(start, {"precision": full})


def test_a_shell_completes_commands_and_options(monkeypatch, refused_here):
    for words, completions in (
        ("lockstep tra", ["train"]), ("lockstep train --summ", ["--summary-every"]), ("lockstep data f", ["fetch"])
    ):  # fmt: skip
        monkeypatch.setenv("_LOCKSTEP_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert refused_here("").stdout.splitlines() == completions


def test_help_offers_completion(monkeypatch, refused_here):
    shown = refused_here("--help").stdout
    assert "--install-completion" in shown
    assert "Usage: lockstep " in shown
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "_LOCKSTEP_COMPLETE=complete_bash" in refused_here("--show-completion", "bash").stdout
