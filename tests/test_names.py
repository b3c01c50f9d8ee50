"""Names of files and of tests, and what a test module may import."""

import ast
import re
from collections import Counter

from tests.documents import ROOT, SOURCE, trees

NAME_MAX = 60


def test_outside_commands_no_base_name_stands_twice():
    """The halves of a command, one in commands/ and one in jobs/ or classify/, share a name."""
    names = Counter(
        path.name
        for path in SOURCE.rglob("*.py")
        if path.parent != SOURCE / "commands" and path.name != "__init__.py"
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_the_name_of_a_test_has_at_most_sixty_characters():
    names = {
        node.name
        for tree in trees(ROOT / "tests").values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    assert [name for name in names if name.startswith("test_") and len(name) > NAME_MAX] == []


def named_modules(tree: ast.Module) -> set[str]:
    """Return the modules of tests/ that a module imports, or names in a string."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {*re.findall(r"\btests(?:\.\w+)+", node.value)}
    return {name for name in names if name.startswith("tests.")}


def test_no_module_names_a_test_module_but_itself():
    """`tests/helpers.py` has what test modules share, and each module beside it one subject."""
    for folder in ("tests", "benchmarks"):
        for path, tree in trees(ROOT / folder).items():
            own = f"{folder}/{path}".removesuffix(".py").replace("/", ".")
            others = named_modules(tree) - {own}
            assert not [name for name in others if re.search(r"\.test_\w+$", name)], path
