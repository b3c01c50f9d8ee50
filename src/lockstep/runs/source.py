"""The source code of a user's own model or dataset, so that a run does not silently continue with changed code."""

import ast
import hashlib
import site
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from lockstep.config.recipe import Recipe
from lockstep.settings import imported_sha256


def sources(function: str) -> dict[str, str]:
    """Return the SHA-256 of each source file of the imported `package.module:function`; {} for a built-in name.

    It is that of the code that was imported, even if the file was edited later (`imported_sha256`). The files are the function's module and all that it imports from the same folder or package. Their import statements
    are read, not executed. For an installed package it is the module alone: the package's version covers the rest.
    """
    name = function.partition(":")[0] if ":" in function else ""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return {}
    path = Path(file).resolve()
    root = path.parents[name.count(".") + (path.name == "__init__.py")]
    files = {name: path}
    if not any(root.is_relative_to(Path(folder).resolve()) for folder in site.getsitepackages()):
        files |= _imported_files(name, root)
    by_file = {file: module for module, file in files.items()}
    return {str(file.relative_to(root)): _sha256(by_file[file], file) for file in sorted(by_file)}


def describe_custom_code(recipe: Recipe) -> str:
    """Return in words which code of the user's own the recipe names, as in "model mynet:build"."""
    return " and ".join(f"{name} {value}" for name, value in recipe.custom_code.items()) or f"model {recipe.model}"


def source_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return `file: 1a2b3c4d -> 5e6f7a8b` for each source file that differs."""
    names = sorted({*before, *after})
    return [
        f"{name}: {before.get(name, 'none')[:8]} -> {after.get(name, 'none')[:8]}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _imported_files(name: str, root: Path) -> dict[str, Path]:
    """Return the files under `root` that importing the module `name` imports, including its own, by module."""
    files: dict[str, Path] = {}
    todo = [name]
    while todo:
        name = todo.pop()
        path = root.joinpath(*name.split("."))
        file = next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)
        if file is not None and name not in files:
            files[name] = file
            todo += _imported_names(file, name if file.name == "__init__.py" else name.rpartition(".")[0])
    return files


def _imported_names(file: Path, package: str) -> Iterator[str]:
    """Yield every module that the statements of `file`, a member of `package`, may import."""
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


def _sha256(name: str, path: Path) -> str:
    imported = imported_sha256(sys.modules[name]) if name in sys.modules else None
    return imported or hashlib.sha256(path.read_bytes()).hexdigest()
