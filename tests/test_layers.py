"""The layers of the package: a folder imports only from folders below it. Lazy imports and named
modules count too.
"""

import ast
import re
from functools import cache
from pathlib import Path

import lockstep
from tests.documents import ROOT as DOCUMENTS, trees

ROOT = Path(lockstep.__file__).parent

# From the top to the bottom. Folders in one row do not import each other. The last row is the
# modules at the top level of the package.
LAYERS = [
    {"commands"},
    {"classify"},
    {"launch"},
    {"jobs"},
    {"pages"},
    {"runs"},
    {"listeners"},
    {"head"},
    {"core"},
    {"recipes"},
    {"config"},
    {"data", "models", "optim"},
    {"pictures"},
    {"kernels"},
    {"errors", "files", "hardware", "huggingface", "messages", "numerics", "rng", "schema", "text"},
]
ENTRANCES = {"__init__", "__main__"}  # They import what users ask for, lazily.
DISTRIBUTED = {"core/group.py", "launch/world.py"}
# These must be importable before torch is: the recipe decides torch's thread count.
TORCH_FREE = {"commands", "launch", "recipes", "config"} | LAYERS[-1]
TORCH_FREE_FILES = {
    "jobs/specs.py",
    "jobs/weights.py",
    "core/monitor.py",
    "core/observer.py",
    "core/tree.py",
    "listeners/metrics.py",
}
NAMED = re.compile(r"lockstep(\.\w+)+")
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def tree(path: Path) -> ast.Module:
    return trees(ROOT)[str(path)]


@cache
def nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(tree(path))]


def room(path: Path) -> str:
    """Return the folder of a module, or its own name at the top level."""
    return path.parts[0].removesuffix(".py")


def layer(name: str) -> int:
    return next(i for i, members in enumerate(LAYERS) if name in members)


def imports(path: Path, top_level_only: bool = False) -> set[str]:
    """Return the modules that `path` imports, or the names that it imports from them."""
    lazy = {
        id(inner)
        for node in (nodes(path) if top_level_only else ())
        if isinstance(node, ast.FunctionDef)
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for inner in ast.walk(node)
    }
    found = set()
    for node in nodes(path):
        if top_level_only and id(node) in lazy:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def named_in_strings(path: Path) -> set[str]:
    """Return the modules that strings of `path` name, as `--model` names them or `python -m` runs
    them.
    """
    values = (node.value for node in nodes(path) if isinstance(node, ast.Constant))
    names = (value.partition(":")[0] for value in values if isinstance(value, str))
    return {name for name in names if NAMED.fullmatch(name)}


def test_every_folder_and_every_top_level_module_has_a_layer():
    assert {room(path) for path in MODULES} == set().union(*LAYERS) | ENTRANCES


def test_imports_point_down():
    for path in MODULES:
        own = room(path)
        names = {
            name.split(".")[1]
            for name in imports(path) | named_in_strings(path)
            if name.startswith("lockstep.")
        }
        for name in names - ENTRANCES - {"__version__", own} if own not in ENTRANCES else ():
            if layer(name) == layer(own) and len(path.parts) == 1:
                continue  # modules of the top level may use each other
            assert layer(name) > layer(own), f"{path} imports {name}, which is not below {own}"


def test_torch_and_its_processes_are_imported_where_they_may_be():
    for path in MODULES:
        if str(path) not in DISTRIBUTED:
            assert not any(name.startswith("torch.distributed") for name in imports(path)), path
        if str(path) in TORCH_FREE_FILES or room(path) in TORCH_FREE:
            assert not any(
                name.split(".")[0] == "torch" for name in imports(path, top_level_only=True)
            ), path


def test_models_optimizers_and_kernels_know_nothing_of_processes():
    for path in MODULES:
        if room(path) in ("models", "optim", "kernels"):
            named = [node for node in nodes(path) if not isinstance(node, ast.Constant)]
            names = " ".join(str(value) for node in named for _, value in ast.iter_fields(node))
            assert not re.search("process|rank|world_size|distributed", names), path


def test_the_map_has_each_layer():
    design = (DOCUMENTS / "docs/design.md").read_text()
    rows = re.findall(r"^\| (`\w+/`.*) \| .+ \|$", design, re.M)
    assert [{*re.findall(r"(\w+)/", folders)} for folders in rows] == LAYERS[:-1]
    modules = re.search(r"^\| top-level modules \| (.+?) \|", design, re.M)
    assert {*modules[1].split(", ")} == LAYERS[-1]


def test_the_drawings_name_what_exists():
    design = (DOCUMENTS / "docs/design.md").read_text()
    rows = re.findall(r"^[│├└ ]*(\w[\w., ]*?)  +(\w+/\w+\.py|__main__\.py)", design, re.M)
    assert len(rows) > 30
    for names, file in rows:
        for name in names.split(", "):
            definition = rf"(class|def) {name.rpartition('.')[2]}\b"
            assert re.search(definition, (ROOT / file).read_text()), f"{name} is not in {file}"


def test_no_modules_import_each_other_in_a_circle():
    """Neither when they are loaded, nor lazily, nor for types."""
    own = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
    below = {}
    for module, path in own.items():
        names = {name.partition(".")[2] for name in imports(path) if name.startswith("lockstep.")}
        # A module, or a name in one.
        below[module] = {name if name in own else name.rpartition(".")[0] for name in names}
    while leaves := [module for module, names in below.items() if not names & {*below}]:
        for module in leaves:
            del below[module]
    assert not below, "these modules import each other"


def test_train_can_be_read_from_top_to_bottom():
    """It asks neither whether there is a run nor which process it is."""
    text = (ROOT / "jobs/train.py").read_text()
    train = next(
        node
        for node in tree(Path("jobs/train.py")).body
        if isinstance(node, ast.FunctionDef) and node.name == "train"
    )
    body = ast.get_source_segment(text, train)
    assert not re.search(r"\bif run\b|\bctx\.first\b", body)
