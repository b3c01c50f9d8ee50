"""Draw the pictures of README and docs: `make pictures`, or `python -m benchmarks.pictures [NAME
...]`.

`one-result` trains digits four times, and a peer, and draws the loss curves. `own-images` runs
Lockstep in a pseudo-terminal and draws what the terminal shows. `badges` is what the metadata
state. `report` and `serve` are pages in Chromium. The photos are pictures of CIFAR-10, which must be in LOCKSTEP_DATA
or the cache. All are written to docs/pictures/, on a background of their own, so that they read on
light and dark pages.
"""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

import lockstep
from benchmarks import curves
from benchmarks.browser import chromium
from benchmarks.serve import served
from benchmarks.svg import STYLE, document, label, rect
from lockstep.data.readers import load_cifar10, load_digits

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/pictures"
ONE_RESULT = FOLDER / "one-result.json"  # the numbers of one-result.svg
COLUMNS = 100
TRAIN_PHOTOS = "lockstep train photos/ --name photos"
PREDICT = "lockstep predict runs/photos new.jpg more/ --top 2"
REPORT_SECTIONS = ("Training curves", "Worst mistakes")
PHOTO_PX = 128  # The pictures of CIFAR-10 have 32 pixels a side, fewer than photos.
PHOTOS = {"cat": 300, "frog": 200, "ship": 100}  # class of CIFAR-10 -> number of photos

# Rich's own template fetches fonts from elsewhere, which a picture in a README cannot.
TERMINAL = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
  .{unique_id}-matrix {{ font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
    font-size: {char_height}px; line-height: {line_height}px; }}
  .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
  {styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
  <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""

# Rich erases its line by a carriage return; at the end it breaks the line first and goes up again.
_ERASED = re.compile(r"[^\n]*\r?\n\r?\x1b\[1A\r?\x1b\[2K|[^\n]*\r(?=[^\n])")
# the cursor's visibility and the window's title
_UNSEEN = re.compile(r"\x1b\[\?\d+[hl]|\x1b\][^\x07]*\x07")
_LIVE = re.compile(r"(\d+)%.* step ")
_WAITING = re.compile(r"about \d+ s left$")  # lines that only a slow machine prints


def shown(text: str) -> list[str]:
    """Return the rows that a terminal shows after a program has written `text`, with escape codes
    for their styles.
    """
    rows = _ERASED.sub("", _UNSEEN.sub("", text)).replace("\x1b[2K", "").rstrip().splitlines()
    return [part for row in rows for part in _wrapped(row)]


def _wrapped(row: str) -> list[str]:
    """Return `row` in pieces of at most COLUMNS characters. A row with styles fits, as Rich has
    wrapped it.
    """
    return (
        [row]
        if "\x1b" in row or not row
        else textwrap.wrap(row, COLUMNS, replace_whitespace=False, subsequent_indent=" " * 13)
    )


def in_terminal(
    words: Sequence[str], folder: Path, columns: int = COLUMNS, out: int | None = None
) -> tuple[int, str]:
    """Run a program's module with its arguments in a pseudo-terminal and in `folder`. Return exit
    code and output.

    `out` is a file for stdout, in place of the terminal.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    hints = ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE")
    environment = {name: value for name, value in os.environ.items() if name not in hints}
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        env={**environment, "TERM": "xterm-256color"},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=its if out is None else out,
        stderr=its,
    )
    os.close(its)
    output = b""
    with contextlib.suppress(OSError):  # Linux raises it when the program has closed its end
        while data := os.read(ours, 65536):
            output += data
    os.close(ours)
    return process.wait(), output.decode()


def run_in_terminal(command: str, folder: Path) -> str:
    """Return the output of `command` in a pseudo-terminal. Raises: SystemExit if it fails."""
    code, output = in_terminal(shlex.split(command), folder)
    if code:
        raise SystemExit(f"{command} ended with exit code {code}")
    return output


def own_images() -> str:
    """Return training on a folder of photos, and predictions."""
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder))
        trained = [
            line.replace(folder, "~")
            for line in composed(run_in_terminal(TRAIN_PHOTOS, Path(folder)))
            if not _WAITING.search(line)
        ]
        predicted = shown(run_in_terminal(PREDICT, Path(folder)))
        return terminal("own-images", [(TRAIN_PHOTOS, trained), (PREDICT, predicted)])


def report() -> bytes:
    """Return the report of a run on photos as a browser shows it: headline, curves and mistakes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_photos(folder)
        run_in_terminal(TRAIN_PHOTOS, folder)
        page_file = folder / "report.html"
        lockstep.report(folder / "runs/photos", data=folder / "photos", quiet=True).save(page_file)
        return photographed(page_file)


def photographed(report: Path) -> bytes:
    """Return a picture of a report's page, without the sections that README does not show."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 900, "height": 400}, color_scheme="light")
        page.goto(report.as_uri())
        page.evaluate(
            """shown => {
                for (const section of document.querySelectorAll("section"))
                    if (!shown.includes(section.querySelector("h2").textContent)) section.remove();
                for (const mistake of [...document.querySelectorAll(".pictures > *")].slice(3))
                    mistake.remove();
            }""",
            REPORT_SECTIONS,
        )
        return small(page.screenshot(full_page=True))


def small(png: bytes) -> bytes:
    """Return a screenshot in 256 colours, which is a third of its size."""
    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    return file.getvalue()


def serve() -> bytes:
    """Return the page of `lockstep serve`: a photo, and a digit, which is unfamiliar."""
    digit = Image.fromarray(255 - load_digits(None)["test"].images[:1].numpy()[0, ..., 0]).resize(
        (256, 256)
    )
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder))
        run_in_terminal(TRAIN_PHOTOS, Path(folder))
        digit.save(Path(folder) / "new/five.jpg")
        (Path(folder) / "new/frog/0000.jpg").rename(Path(folder) / "new/frog.jpg")
        with served(Path(folder) / "runs/photos") as port, chromium() as browser:
            page = browser.new_page(viewport={"width": 860, "height": 400}, color_scheme="light")
            page.goto(f"http://127.0.0.1:{port}/")
            page.set_input_files(
                "#files", [Path(folder) / f"new/{name}.jpg" for name in ("frog", "five")]
            )
            page.locator(".card:not([aria-busy]) >> nth=1").wait_for()
            page.locator("details").evaluate("node => node.remove()")
            return small(page.screenshot(full_page=True))


def composed(text: str) -> list[str]:
    """Return the rows of a training run: those at its end, and where it was, the live line
    half-way.
    """
    for end in (match.end() for match in re.finditer(r"(?=\r\x1b\[2K)", text)):
        *above, line = shown(text[:end]) or [""]
        percent = _LIVE.search(Text.from_ansi(line).plain)
        if percent and int(percent[1]) >= 60:
            return [*above, line, *shown(text)[len(above) :]]
    raise SystemExit("no live line was drawn: is the terminal wide enough?")


def write_photos(folder: Path) -> Path:
    """Write photos/<class>/, and new.jpg and more/ with pictures that are not in photos/. Return
    photos/.
    """
    splits = load_cifar10(None)
    for name, count in PHOTOS.items():
        for split, parent, number in (("train", "photos", count), ("test", "new", 2)):
            dataset = splits[split]
            (folder / parent / name).mkdir(parents=True)
            rows = (dataset.labels == dataset.classes.index(name)).nonzero()[:number, 0]
            for i, image in enumerate(dataset.images[rows].numpy()):
                photo = Image.fromarray(image).resize(
                    (PHOTO_PX, PHOTO_PX), Image.Resampling.BICUBIC
                )
                photo.save(folder / parent / name / f"{i:04d}.jpg", quality=95)
    (folder / "more").mkdir()
    for number, path in enumerate(sorted((folder / "new").glob("*/0001.jpg"))):
        path.rename(folder / "more" / f"{number + 1}.jpg")
    (folder / "new/ship/0000.jpg").rename(folder / "new.jpg")
    return folder / "photos"


def terminal(name: str, commands: Sequence[tuple[str, list[str]]]) -> str:
    """Return the picture `name`: commands, each with the rows below it, as an SVG of a terminal."""
    with open(os.devnull, "w") as nowhere:
        console = Console(
            file=nowhere, record=True, width=COLUMNS, force_terminal=True, color_system="truecolor"
        )
        for command, lines in commands:
            console.print(Text(f"$ {command}", "bold"))
            for line in [*lines, ""]:
                console.print(Text.from_ansi(line))
        return (
            console.export_svg(title="", theme=DIMMED_MONOKAI, code_format=TERMINAL, unique_id=name)
            + "\n"
        )


def badges() -> str:
    """Return what pyproject.toml states of Python and the licence, and the known hash of digits."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    digits = json.loads((ROOT / "tests/golden/portable_sha256.json").read_text())["digits"]
    parts, x = [STYLE], 0
    for name, value in (
        ("Python", project["requires-python"].removeprefix(">=") + "+"),
        ("licence", project["license"]),
        ("digits sha256", digits[:8]),
    ):
        first, second = round(6.5 * len(name)) + 14, 8 * len(value) + 14
        parts += [rect(x + 0.5, 0.5, first + second - 1, 21, "box")]
        parts += [label(x + first / 2, 15, name, anchor="middle")]
        parts += [label(x + first + second / 2, 15, value, "name", "middle")]
        x += first + second + 8
    return document(x, 22, parts, f'role="img" width="{x}"')


def one_result() -> str:
    """Return the loss of four real runs, and of DistributedDataParallel. The numbers are kept."""
    measured = curves.measure()
    ONE_RESULT.write_text(json.dumps(measured._asdict()) + "\n")
    return curves.draw(measured)


PICTURES: dict[str, Callable[[], str]] = {
    "badges": badges,
    "one-result": one_result,
    "own-images": own_images,
}
SCREENSHOTS: dict[str, Callable[[], bytes]] = {"report": report, "serve": serve}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or [*PICTURES, *SCREENSHOTS]:
        path = FOLDER / f"{name}.{'svg' if name in PICTURES else 'png'}"
        path.write_bytes(PICTURES[name]().encode() if name in PICTURES else SCREENSHOTS[name]())
        print(path)


if __name__ == "__main__":
    main()
