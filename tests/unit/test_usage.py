"""docs/usage.md lists every command, option, default and setting of the program, and none that it has not."""

import re
from pathlib import Path

import pytest
from tests import commands

from lockstep.config.recipe import Recipe
from lockstep.config.schedule import SCHEDULES
from lockstep.data import AUGMENTATIONS, DATASETS, POLICIES
from lockstep.errors import CRASH, DATA, ENVIRONMENT, USAGE
from lockstep.optim import OPTIMIZERS

PAGE = (Path(__file__).parents[2] / "docs/usage.md").read_text()
COMMANDS = dict(commands.every_command())
ROW = re.compile(r"\| (`.+?`) \| (.*?) ?\| (.+) \|")


def tables(page=PAGE):
    """Command -> [(options, default)] of its section."""
    found = {}
    for section in page.split("\n### ")[1:]:
        title, _, text = section.split("\n## ")[0].partition("\n")
        words = " ".join(word for word in title.split()[1:] if word.islower())
        found[words] = [(set(re.findall(r"--?[a-z-]+", cell[0])), cell[1].strip("`")) for cell in ROW.findall(text)]
    return found


def wrong(page=PAGE):
    """Where the tables differ from the program."""
    found, stated = [], tables(page)
    if stated.keys() != COMMANDS.keys():
        found.append(f"commands {sorted(stated.keys() ^ COMMANDS.keys())}")
    for words, command in COMMANDS.items():
        own = {name: parameter for parameter in command.params for name in parameter.opts if name.startswith("-")}
        own = {name: parameter for name, parameter in own.items() if name not in ("--help", "-h")}
        rows = stated.get(words, [])
        named = [name for options, _ in rows for name in options]
        if sorted(named) != sorted(own):
            found.append(f"{words}: {sorted(set(named) ^ set(own)) or 'twice'}")
            continue
        for options, default in rows:
            value = own[min(options)].default
            simple = isinstance(value, int | float | str) and not isinstance(value, bool)
            if simple and default != str(value):
                found.append(f"{words} {min(options)}: {value}, not {default}")
            if isinstance(value, bool) and default:
                found.append(f"{words} {min(options)} is a switch")
    return found


def test_every_option_has_one_row_with_its_default():
    assert wrong() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| `--keep N` | 5 |", "| `--keep N` | 6 |"),
        ("| `--once` |", "| `--ones` |"),
        ("| `--forward-only` | | no backward pass, no exchange, no update |\n", ""),
        ("### lockstep data list\n", "### lockstep data lists\n"),
        ("| `--strict` | | refuse a model", "| `--strict` | on | refuse a model"),
    ],
)
def test_a_row_that_is_wrong_missing_or_stale_is_found(old, new):
    assert PAGE.count(old) == 1
    assert wrong(PAGE.replace(old, new))


def test_every_setting_of_a_recipe_is_listed():
    section = PAGE.split("| setting | meaning |")[1].split("\n\n")[0]
    names = {name for line in section.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert names == set(Recipe.model_fields)


def test_every_kind_and_dataset_is_named():
    for names in (DATASETS, AUGMENTATIONS, POLICIES, OPTIMIZERS, SCHEDULES):
        assert all(re.search(rf"\b{name}\b", PAGE) for name in names)


def test_every_exit_code_is_listed():
    codes = set(map(int, re.findall(r"\d+", " ".join(re.findall(r"^\| ([\d, ]+) \|", PAGE, re.M)))))
    assert codes == {0, CRASH, USAGE, DATA, ENVIRONMENT, 129, 130, 143}


def test_links_within_the_page_lead_somewhere():
    titles = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.+)$", PAGE, re.M)}
    links = set(re.findall(r"\]\(#([\w-]+)\)", PAGE))
    assert links
    assert links <= titles
