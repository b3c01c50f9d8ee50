"""Short names of precisions, and what the shell completes."""

import pytest

from lockstep.config.overrides import make, parse
from lockstep.recipes import get_recipe


@pytest.mark.parametrize(("short", "full"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_a_short_name_of_a_precision_is_the_full_one(tmp_path, short, full):
    from lockstep.commands.specs import subject_of

    start = get_recipe("digits").model_dump(mode="json")
    (tmp_path / "mine.toml").write_text(f'recipe = "digits"\nprecision = "{short}"\n')
    recipes = [
        subject_of("digits", parse([f"precision={short}"], {})).recipe,
        subject_of("digits", parse([], {"precision": short})).recipe,
        subject_of(str(tmp_path / "mine.toml"), {}).recipe,
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
