"""Hooks of mkdocs: README is the start page, and links of the repository's Markdown lead to pages
and files here.

Links stay as a Git host shows them: relative to the file that they stand in. A linked file outside
docs/ is copied to repository/, and a linked folder becomes a page that lists the files of it that
git knows, without runs trained there.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}

_LINK = re.compile(r"(\]\(|<img src=\")(?!\w+:|#)([^)\s#\"]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the top of the repository, and what any page links to outside docs/."""
    for path in TOP:
        files.append(_file(path, config))
    waiting = [*files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for link in _links(page.content_string):
            path = _path(link, page)
            if files.get_file_from_path(_uri(path)) is None and not path.startswith("docs/"):
                files.append(_file(path, config))
                if _uri(path).endswith(".md"):
                    waiting.append(files.get_file_from_path(_uri(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to files of the site."""
    folder = Path(page.file.src_uri).parent

    def rewritten(match: re.Match[str]) -> str:
        return match[1] + Path(os.path.relpath(_uri(_path(match[2], page.file)), folder)).as_posix()

    return _outside_code(markdown, lambda text: _LINK.sub(rewritten, text))


def _outside_code(markdown: str, change: Any) -> str:
    """Change the text of a page, but not its fenced blocks."""
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def _links(markdown: str) -> list[str]:
    found: list[str] = []
    _outside_code(
        markdown, lambda text: found.extend(link for _, link in _LINK.findall(text)) or text
    )
    return found


def _source(file: File) -> str:
    """Return the path in the repository of the Markdown in a file of the site."""
    for path in TOP:
        if file.src_uri == TOP[path]:
            return path
    if file.src_uri.startswith("repository/"):
        return file.src_uri.removeprefix("repository/")
    return f"docs/{file.src_uri}"


def _path(link: str, file: File) -> str:
    """Return what a link in the Markdown of `file` means: a path in the repository."""
    path = os.path.normpath(os.path.join(os.path.dirname(_source(file)), link))
    if path.startswith("..") or not (ROOT / path).exists():
        raise PluginError(f"{_source(file)} links to {link}, which is not in the repository.")
    return path


def _uri(path: str) -> str:
    """Return the file of the site that stands for a path in the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return TOP.get(path) or f"repository/{path}" + ("/index.md" if (ROOT / path).is_dir() else "")


def _file(path: str, config: MkDocsConfig) -> File:
    if not (ROOT / path).is_dir():
        content = (ROOT / path).read_bytes()
        return File.generated(
            config, _uri(path), content=content.decode() if path.endswith(".md") else content
        )
    known = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT / path, capture_output=True, text=True
    )
    if known.returncode:
        raise PluginError(f"make docs needs a clone of the repository: {known.stderr.strip()}")
    names = sorted(name for name in known.stdout.split("\0") if (ROOT / path / name).is_file())
    return File.generated(
        config, _uri(path), content=f"# {path}\n\n" + "".join(f"- [{n}]({n})\n" for n in names)
    )
