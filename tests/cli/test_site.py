"""The documentation as a site: every link leads to a file, nothing comes from elsewhere, and search works in files."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from benchmarks.browser import chromium, executable

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")

import lockstep

ROOT = Path(__file__).parents[2]
LOADED = {"script", "img", "iframe", "source", "video", "audio", "embed"}  # whose src a browser loads
LOADED_LINKS = {"stylesheet", "icon", "preconnect", "preload", "prefetch", "dns-prefetch", "manifest", "modulepreload"}


class Page(HTMLParser):
    """What a page links to, what a browser loads with it, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in LOADED and values.get("src"):
            self.loaded.append(values["src"])
        if tag == "link" and LOADED_LINKS & {*(values.get("rel") or "").split()}:
            self.loaded.append(values["href"])


def build(folder, root=ROOT):
    """Build the site of the repository at `root` as `make docs` does, into `folder`."""
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    done = build(folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def is_elsewhere(link):
    return bool(urlsplit(link).scheme or urlsplit(link).netloc)


def test_a_browser_loads_nothing_from_elsewhere(site, pages):
    assert [link for page in pages.values() for link in page.loaded if is_elsewhere(link)] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\(\s*[\"']?(?:https?:)?//[^)]*|@import[^;]*", styles) == []
    assert sum(len(page.loaded) for page in pages.values()) > 5 * len(pages)


def test_every_link_leads_to_a_file_and_an_anchor(pages):
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            if is_elsewhere(link):
                continue
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else set()
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append((path.name, link))
    assert broken == []


def test_pages_and_files_that_readers_need_are_there(site, pages):
    assert "One result" in (site / "index.html").read_text()
    assert (site / "repository/benchmarks/results/overhead.json").read_bytes() == (
        ROOT / "benchmarks/results/overhead.json"
    ).read_bytes()
    documented = pages[site / "api.html"].anchors
    assert [name for name in lockstep.__all__ if f"lockstep.{name}" not in documented] == []
    assert not (site / "hooks.py").exists()


def test_every_page_of_docs_is_in_the_navigation(site):
    start = Page((site / "index.html").read_text())
    listed = {urlsplit(link).path.removesuffix(".html") for link in start.links}
    written = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert written - listed == set()


@pytest.mark.skipif(executable() is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.slow), 390])
def test_search_finds_a_word_in_pages_opened_as_files(site, width):
    requests, errors = [], []
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: errors.append(message.text))
        page.goto((site / "results.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width < 960:
            page.locator("label.md-header__button[for=__search]").click()
        page.locator(".md-search__input").press_sequentially("bfloat16")
        found = page.locator(".md-search-result__link").first
        found.wait_for()
        assert "bfloat16" in page.locator(".md-search-result__list").inner_text()
    assert {urlsplit(url).scheme for url in requests} <= {"file", "data", "blob", "about"}
    assert errors == []


def copied(folder):
    """Return a copy of the files that git knows, as a repository of its own."""
    known = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, known.split("\0")):
        if (ROOT / name).is_file():
            (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "clone" / name)
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=folder / "clone", check=True)
    return folder / "clone"


@pytest.mark.slow
def test_links_that_lead_nowhere_fail_the_build_and_a_run_in_examples_is_not_in_the_site(tmp_path):
    root = copied(tmp_path)
    (root / "examples/runs/digits-1").mkdir(parents=True)
    (root / "examples/runs/digits-1/log.txt").touch()
    links = ("nothing.md", "usage.md#nowhere", "../nothing.json")
    with (root / "docs/serve.md").open("a") as page:
        page.writelines(f"\n[x]({link})\n" for link in links)
    done = build(tmp_path / "site", root)
    assert done.returncode != 0
    assert any(link.rpartition("#")[2] in done.stderr for link in links)
    assert "digits-1" not in done.stderr
