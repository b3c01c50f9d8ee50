"""Source: which code a model of the user's own is made of, so that a run does not go on with other code unnoticed."""

import ast
import hashlib
import site
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path


def sources(model: str) -> dict[str, str]:
    """The sha256 of each source file of the model `package.module:function`, which was imported; {} for our own models.

    Of its module and of all that this imports from the same folder, or the same package: the statements are read, none
    is executed. Of an installed package, whose other files its version tells, the module alone.
    """
    name = model.partition(":")[0] if ":" in model else ""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return {}
    path = Path(file).resolve()
    root = path.parents[name.count(".") + (path.name == "__init__.py")]
    files = {path}
    if not any(root.is_relative_to(Path(folder).resolve()) for folder in site.getsitepackages()):
        files |= _imported(name, root)
    return {str(one.relative_to(root)): _sha256(one) for one in sorted(files)}


def source_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """`file: 1a2b3c4d -> 5e6f7a8b` for each source file that differs."""
    names = sorted({*before, *after})
    return [
        f"{name}: {before.get(name, 'none')[:8]} -> {after.get(name, 'none')[:8]}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _imported(name: str, root: Path) -> set[Path]:
    """The files under `root` that importing the module `name` imports, itself included."""
    found: dict[str, Path] = {}
    todo = [name]
    while todo:
        name = todo.pop()
        path = root.joinpath(*name.split("."))
        file = next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)
        if file is not None and name not in found:
            found[name] = file
            todo += _names(file, name if file.name == "__init__.py" else name.rpartition(".")[0])
    return set(found.values())


def _names(file: Path, package: str) -> Iterator[str]:
    """Every module that the statements of `file`, which is in `package`, may import."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            stated = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            stated = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in stated:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
