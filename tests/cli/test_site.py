"""The documentation as a site: every link leads to a file, nothing comes from elsewhere, search
works in files, and a phone shows every page without sideways scrolling.
"""

import os
import re
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from benchmarks.browser import chromium, executable
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
    (title,) = re.findall("^# (.+)$", (ROOT / "README.md").read_text(), re.M)[:1]
    assert f"{title}</h1>" in re.sub("<a .*?</a>", "", (site / "index.html").read_text())
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


# Elements that reach beyond a screen of 390 pixels, and are not in a part of the page that scrolls by itself.
WIDE = """() => [...document.querySelectorAll(".md-content *")].filter(element => {
  if (element.getBoundingClientRect().right <= 391) return false;
  for (let above = element.parentElement; above; above = above.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(above).overflowX)) return false;
  return true;
}).map(element => element.outerHTML.slice(0, 80))"""
IN_SCROLLING_PARTS = """() => [...document.querySelectorAll(".md-typeset table:not([class])")]
  .every(table => table.closest(".md-typeset__scrollwrap"))"""


@pytest.mark.skipif(executable() is None, reason="no Chromium is installed")
def test_a_phone_shows_every_page_without_sideways_scrolling(site, pages):
    wide = {}
    with chromium() as browser:
        phone = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True)
        page = phone.new_page()
        for path in pages:
            page.goto(path.as_uri())
            page.wait_for_function(IN_SCROLLING_PARTS)
            width = page.evaluate("document.scrollingElement.scrollWidth")
            if width > 390 or page.evaluate(WIDE):
                wide[str(path.relative_to(site))] = width, page.evaluate(WIDE)
    assert wide == {}
