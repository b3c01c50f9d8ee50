"""The documentation as a site: every link leads to a file, nothing comes from elsewhere, and search
works in files.
"""

import os
import re
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from tests.documents import ROOT
from tests.helpers import succeeded

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'lockstep-images[docs]'")

import lockstep

pytestmark = pytest.mark.slow  # `make docs` checks the links too
# The elements whose src a browser loads, and the kinds of links that it follows by itself.
LOADED = "script|img|iframe|source|video|audio|embed"
LOADED_LINKS = "stylesheet|icon|preconnect|preload|prefetch|dns-prefetch|manifest|modulepreload"


def loaded(text):
    """What a browser loads with a page."""
    links = re.findall(rf'<link\b[^>]*\brel="[^"]*\b(?:{LOADED_LINKS})\b[^>]*>', text)
    sources = re.findall(rf'<(?:{LOADED})\b[^>]*\ssrc="([^"]+)"', text)
    return sources + [re.search(r'\shref="([^"]+)"', link)[1] for link in links]


def build(folder, root=ROOT):
    """Build the site of the repository at `root` as `make docs` does, into `folder`."""
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=root, env=variables, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    done = succeeded(build(folder))
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: path.read_text() for path in site.rglob("*.html") if path.name != "404.html"}


def is_elsewhere(link):
    return bool(urlsplit(link).scheme or urlsplit(link).netloc)


def test_a_browser_loads_nothing_from_elsewhere(site, pages):
    assert [link for page in pages.values() for link in loaded(page) if is_elsewhere(link)] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\(\s*[\"']?(?:https?:)?//[^)]*|@import[^;]*", styles) == []
    assert sum(len(loaded(page)) for page in pages.values()) > 5 * len(pages)


def test_pages_and_files_that_readers_need_are_there(site, pages):
    assert "One result" in (site / "index.html").read_text()
    assert (site / "repository/benchmarks/results/overhead.json").read_bytes() == (
        ROOT / "benchmarks/results/overhead.json"
    ).read_bytes()
    documented = pages[site / "api.html"]
    assert [name for name in lockstep.__all__ if f'id="lockstep.{name}"' not in documented] == []
    assert not (site / "hooks.py").exists()


def test_every_page_of_docs_is_in_the_navigation(site):
    links = re.findall(r'<a\b[^>]*\shref="([^"]+)"', (site / "index.html").read_text())
    listed = {urlsplit(link).path.removesuffix(".html") for link in links}
    written = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert written - listed == set()
