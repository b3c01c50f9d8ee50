"""A real browser: Chromium without a window, driven by Playwright. Pictures and tests of pages use
it.
"""

import contextlib
import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any

_ALONE = [  # A closed network refuses what Chromium asks for by itself.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def executable() -> str | None:
    """Return the path of an installed Chromium; None if it, or Playwright, is missing."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    return found if importlib.util.find_spec("playwright") else None


@contextlib.contextmanager
def chromium(*arguments: str) -> Iterator[Any]:
    """Yield a Playwright browser, started with further `arguments`. Raises: SystemExit if none is
    installed.
    """
    path = executable()
    if path is None:
        raise SystemExit("Chromium and Playwright are needed: install them first")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=[*_ALONE, *arguments])
        yield browser
        browser.close()
