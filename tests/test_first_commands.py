"""The first commands of README are those of the Makefile, and continuous integration calls them by
the same names.
"""

import re

from tests.documents import ROOT


def test_readme_begins_with_train_and_test_and_ci_calls_test():
    first_block = (ROOT / "README.md").read_text().split("```")[1]
    commands = re.findall(r"^make ([a-z-]+) +# .*\b\d+ (?:seconds|minutes)", first_block, re.M)
    assert commands == ["train", "test"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert {*commands} <= {*targets}
    called = re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci/run").read_text(), re.M)
    assert called == ["lint", "test", "test-slow"]
    assert {*called} <= {*targets}
