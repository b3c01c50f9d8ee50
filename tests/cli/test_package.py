"""The package that users install: the wheel has every file, and works without the repository."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from benchmarks import release
from tests.conftest import _outside
from tests.documents import ROOT
from tests.helpers import succeeded

from lockstep.errors import ENVIRONMENT
from lockstep.files import read_json
from lockstep.runs.provenance import code_sha256

pytestmark = pytest.mark.slow
PUBLISHED = read_json(ROOT / "tests/golden/portable_sha256.json")
SOURCES = {
    str(path.relative_to(ROOT / "src"))
    for path in (ROOT / "src").rglob("*")
    if path.is_file() and path.suffix != ".pyc"
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return (wheel, sdist), built from the repository."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    wheel = release.build(tmp_path_factory.mktemp("dist"))
    return wheel, next(wheel.parent.glob("*.tar.gz"))


def test_the_wheel_and_the_sdist_have_every_file(built):
    wheel, sdist = built
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert names >= SOURCES
    assert wheel.name == "lockstep_images-0.1.0-py3-none-any.whl"
    assert all(name.startswith(("lockstep/", "lockstep_images-")) for name in names)
    assert {Path(name).name for name in names if "licenses/" in name} >= {
        "LICENSE",
        "digits.LICENSE.txt",
    }
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert inside >= {f"src/{name}" for name in SOURCES} | {
        "pyproject.toml",
        "README.md",
        "LICENSE",
    }


@pytest.mark.timeout(900)
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_make_train_on_a_bare_tree_installs_no_tools(tmp_path, installer):
    if installer == "uv" and shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    index = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", tmp_path, "tomli-w"]
    if subprocess.run(index, capture_output=True, check=False).returncode:
        pytest.skip("no package index can be reached")
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    tree = tmp_path / "tree"
    for name in filter(None, files.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    words = ["make", "train", *(["UV="] if installer == "pip" else [])]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"sha256    {PUBLISHED['digits']} " in done.stdout
    probe = "from importlib.util import find_spec; print([*filter(find_spec, {})])"
    tools = ["pytest", "mypy", "mkdocs", "ruff", "playwright"]
    found = [tree / ".venv/bin/python", "-c", probe.format(tools)]
    assert subprocess.check_output(found, text=True) == "[]\n"


def test_wheel_and_editable_install_have_one_sha256_of_code(built, tmp_path):
    """Hosts with either of them train together."""
    with zipfile.ZipFile(built[0]) as archive:
        archive.extractall(tmp_path)
    assert code_sha256(tmp_path / "lockstep") == code_sha256(ROOT / "src/lockstep")


def test_an_installed_wheel_trains_predicts_and_reports(built, tmp_path):
    fresh = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", fresh], check=True)
    python = fresh / "bin/python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        built[0],
    ]
    subprocess.run(pip, check=True)
    # Its dependencies are those of this environment. A .pth file in that folder, of the editable
    # install, is not read.
    path = fresh / f"lib/python3.{sys.version_info.minor}/site-packages/dependencies.pth"
    path.write_text(sysconfig.get_paths()["purelib"])

    def run(*words):
        done = succeeded(
            subprocess.run(
                [fresh / "bin/lockstep", *words],
                cwd=tmp_path,
                env=_outside(),
                capture_output=True,
                text=True,
            )
        )
        return done.stdout

    where = [python, "-c", "import lockstep; print(lockstep.__file__)"]
    assert subprocess.run(where, check=True, capture_output=True, text=True).stdout.startswith(
        str(fresh)
    )
    run("train", "digits", "--steps", "3", "--inline", "--name", "installed")
    from PIL import Image

    Image.new("L", (8, 8)).save(tmp_path / "x.png")
    assert "x.png" in run("predict", "runs/installed", "x.png")
    run("report", "runs/installed", "-o", "r.html", "-q")
    assert (tmp_path / "r.html").stat().st_size > 50_000

    # Another distribution with a module `lockstep` is installed too.
    module, other = path.parent / "lockstep", path.parent / "lockstep_ml-0.0.2.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: lockstep-ml\nVersion: 0.0.2\n")
    (other / "RECORD").write_text("lockstep/__init__.py,,\n")
    (module / "__init__.py").write_text('__version__ = "0.0.2"\n')
    done = subprocess.run(
        [fresh / "bin/lockstep", "recipes"], env=_outside(), capture_output=True, text=True
    )
    assert done.returncode == ENVIRONMENT, done.stderr
    assert "pip uninstall lockstep-ml, then pip install --force-reinstall" in done.stderr
    assert "lockstep-images" in done.stderr
    assert "Traceback" not in done.stderr
