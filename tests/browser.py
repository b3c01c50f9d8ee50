"""A real browser for tests: Chromium, driven by Playwright."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest

_ALONE = [  # A closed network refuses what Chromium asks for by itself.
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextlib.contextmanager
def chromium(*arguments: str) -> Iterator:
    """Yield a headless browser. Skips the test where Chromium or Playwright is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=[*_ALONE, *arguments])
        yield browser
        browser.close()
