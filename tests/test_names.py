"""Names of files, and what a test module may import."""

import re
from collections import Counter

from tests.documents import ROOT, SOURCE


def test_outside_commands_no_base_name_stands_twice():
    """The halves of a command, one in commands/ and one in jobs/ or classify/, share a name."""
    names = Counter(
        path.name
        for path in SOURCE.rglob("*.py")
        if path.parent != SOURCE / "commands" and path.name != "__init__.py"
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_names_a_test_module_but_itself():
    """`tests/helpers.py` has what test modules share, and each module beside it one subject."""
    for folder in ("tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            text = path.read_text()
            names = {*re.findall(r"\btests(?:\.\w+)*\.test_\w+", text)} - {own}
            assert not names, path
            assert not re.search(r"^ *from tests[.\w]* import .*\btest_", text, re.M), path
