"""The architecture's layers, read off the imports of every module."""

import ast
from pathlib import Path

import pytest

import lockstep

ROOT = Path(lockstep.__file__).parent
LAYERS = [
    {"errors", "files", "settings", "source", "rng", "numerics", "schedule", "streams", "world"},
    {"data", "models", "optim", "reduce"},
    {"recipe", "placement", "overrides", "precision", "recipes"},
    {"digest", "tower", "state", "checkpoint"},
    {
        "train",
        "evaluate",
        "report",
        "run",
        "arithmetic",
        "classifier_file",
        "environment",
        "session",
        "keeper",
        "saver",
        "profile",
        "fit",
        "bench",
        "watch",
    },
    {"signals", "request", "work", "launch", "cli", "__main__", "__init__"},
]
DISTRIBUTED = {"reduce/process.py"}
TORCH_FREE = {
    "errors",
    "files",
    "settings",
    "source",
    "world",
    "precision",
    "rng",
    "schedule",
    "streams",
    "recipe",
    "placement",
    "overrides",
    "recipes",
    "run",
    "signals",
    "request",
    "work",
    "launch",
    "cli",
}


def modules():
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def part(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def layer(name: str) -> int:
    return next(i for i, members in enumerate(LAYERS) if name in members)


def imports(path: Path, top_level_only: bool = False) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if top_level_only and id(node) in lazy:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def ours(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("lockstep.")}


def test_every_module_has_a_layer():
    assert {part(path) for path in modules()} == set().union(*LAYERS)


@pytest.mark.parametrize("path", modules(), ids=str)
def test_imports_point_down(path):
    if str(path) == "__init__.py":
        return
    own = part(path)
    for name in ours(path) - {own}:
        if layer(name) == 1 == layer(own):
            pytest.fail(f"{path} imports {name}: data, models, optim and reduce do not know each other")
        assert layer(name) <= layer(own), f"{path} (layer {layer(own)}) imports {name} (layer {layer(name)})"


@pytest.mark.parametrize("path", modules(), ids=str)
def test_torch_distributed_only_where_processes_are_made(path):
    if str(path) not in DISTRIBUTED:
        assert not any(name.startswith("torch.distributed") for name in imports(path))


@pytest.mark.parametrize("path", modules(), ids=str)
def test_a_recipe_can_be_read_without_torch(path):
    if part(path) in TORCH_FREE:
        assert not any(name.split(".")[0] == "torch" for name in imports(path, top_level_only=True))


@pytest.mark.parametrize("path", modules(), ids=str)
def test_models_and_optimizers_have_no_distributed_word(path):
    if part(path) in ("models", "optim"):
        code = "\n".join(ast.unparse(node) for node in ast.parse((ROOT / path).read_text()).body[1:])
        assert not any(word in code for word in ("process", "rank", "world_size", "distributed"))
