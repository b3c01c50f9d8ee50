"""docs/usage.md lists every command, option, default, setting and exit code of the program, and no other."""

import re

from benchmarks import manual

from lockstep.errors import CRASH, DATA, ENVIRONMENT, USAGE

PAGE = manual.PAGE.read_text()


def test_the_tables_are_as_the_program_has_them():
    assert manual.text() == PAGE
    assert PAGE.count(": begin -->") == len(manual.tables())  # no table of a command that is gone


def test_every_exit_code_is_listed():
    codes = set(map(int, re.findall(r"\d+", " ".join(re.findall(r"^\| ([\d, ]+) \|", PAGE, re.M)))))
    assert codes == {0, CRASH, USAGE, DATA, ENVIRONMENT, 129, 130, 143}


def test_links_within_the_page_lead_somewhere():
    titles = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.+)$", PAGE, re.M)}
    links = set(re.findall(r"\]\(#([\w-]+)\)", PAGE))
    assert links
    assert links <= titles
