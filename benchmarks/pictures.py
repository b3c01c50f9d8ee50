"""Draw the pictures of README and docs: `make pictures`, or `python -m benchmarks.pictures [NAME ...]`.

`train`, `own-images` and `data-check` run Lockstep in a pseudo-terminal and draw what the terminal shows. The photos
are pictures of CIFAR-10, which must be in LOCKSTEP_DATA or the cache. `layers` and `step` are diagrams. All are written
to docs/pictures/, on a background of their own, so that they read on light and dark pages.
"""

import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from PIL import Image
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from lockstep.data import cifar
from lockstep.errors import DATA

FOLDER = Path(__file__).parents[1] / "docs/pictures"
COLUMNS = 100
COMMAND = "lockstep train digits --epochs 10"
TRAIN_PHOTOS = "lockstep train photos/ --set image_px=32 --batch 64 --name photos"
PREDICT = "lockstep predict runs/photos new.jpg more/ --top 2"
CHECK = "lockstep data check photos/"
PHOTOS = {"cat": 300, "frog": 200, "ship": 100}  # class of CIFAR-10 -> number of photos

# The folders of src/lockstep, from the top: a folder imports only from rows below its own.
LAYERS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("cli", "commands: text to arguments to one call; prints errors, sets exit codes"),),
    (("api", "the Python functions, and how words become a job"),),
    (("doctor", "lockstep doctor: checks this machine, and names remedies"),),
    (("launch", "from a job to processes: start, watch, restart, signals, outer launchers"),),
    (
        ("jobs", "train, evaluate, verify, bench: what processes compute"),
        ("inference", "a classifier, in the caller's process"),
    ),
    (
        ("runs", "the folder of a run on the disk"),
        ("bench", "what limits a step, in words"),
    ),
    (("report", "listeners: console, log file, metrics.jsonl, TensorBoard"),),
    (("core", "loop, tower, vector, state, network, evaluation; the exact sum. Read this first"),),
    (("recipes", "functions that return a recipe"),),
    (("config", "recipe, placement, schedules, overrides"),),
    (
        ("data", "datasets, plan, augmentation"),
        ("models", "networks"),
        ("optim", "SGD, Adam(W), Muon, EMA"),
    ),
    (("kernels", "fused convolutions, Winograd, pooling: plain functions"),),
    (("top-level modules", "errors, files, hardware, numerics, rng, settings, words"),),
)

STYLE = """<style>
  text { font-family: -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; fill: #1f2328; }
  .name { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-weight: 600; }
  .note { fill: #59636e; font-size: 12px; }
  .card { fill: #ffffff; stroke: #d0d7de; }
  .box { fill: #eef4fb; stroke: #5b8cc7; }
  .frame { fill: none; stroke: #8c959f; stroke-dasharray: 5 4; }
  .arrow { stroke: #59636e; stroke-width: 1.4; fill: none; marker-end: url(#head); }
  .head { fill: #59636e; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .note { fill: #9198a1; }
    .card { fill: #151b23; stroke: #3d444d; }
    .box { fill: #1c2c44; stroke: #4f7fbd; }
    .frame { stroke: #656c76; }
    .arrow { stroke: #9198a1; }
    .head { fill: #9198a1; }
  }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
  <path class="head" d="M0 0L8 4L0 8z"/></marker></defs>"""

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

_PART = re.compile(r"\x1b\[(?P<arguments>[?\d;]*)(?P<kind>[A-Za-z])|\x1b\][^\x07]*\x07|(?P<text>[^\x1b])", re.DOTALL)


class Screen:
    """What a terminal of `columns` columns shows: enough of one to replay what Lockstep and Rich write."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows: list[list[tuple[str, str]]] = [[]]  # of (character, its style as escape codes)
        self._row = self._column = 0
        self._style = ""

    def feed(self, text: str) -> None:
        """Write `text`, whose escape codes are complete."""
        for part in _PART.finditer(text):
            if part["kind"]:
                self._control(part["kind"], part["arguments"])
            elif part["text"]:
                self._character(part["text"])

    def _control(self, kind: str, arguments: str) -> None:
        if kind == "A":
            self._row = max(0, self._row - int(arguments or 1))
        elif kind == "K":  # Rich erases whole lines only
            self._rows[self._row] = []
        elif kind == "m":
            self._style = "" if arguments in ("", "0") else self._style + f"\x1b[{arguments}m"

    def _character(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row, self._column = self._row + 1, 0
        elif character >= " ":
            if self._column == self._columns:
                self._row, self._column = self._row + 1, 0
            self._open()
            row = self._rows[self._row]
            row.extend([(" ", "")] * (self._column + 1 - len(row)))
            row[self._column] = (character, self._style)
            self._column += 1
        self._open()

    def _open(self) -> None:
        while len(self._rows) <= self._row:
            self._rows.append([])

    def lines(self) -> list[str]:
        """The rows, with escape codes for their styles, without empty ones at the end."""
        found = []
        for row in self._rows:
            styled = (f"{style}{character}\x1b[0m" if style else character for character, style in row)
            found.append("".join(styled).rstrip())
        while found and not found[-1]:
            found.pop()
        return found


def run_in_terminal(command: list[str], columns: int, folder: Path, status: int = 0) -> Iterable[str]:
    """The output of `command` in `folder`, piece by piece, in a pseudo-terminal of `columns` columns.

    Raises: SystemExit if the command ends with another exit code than `status`.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "60"}
    process = subprocess.Popen(command, cwd=folder, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    rest = b""
    while True:
        try:
            data = rest + os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        cut = _whole(data)
        rest = data[cut:]
        yield data[:cut].decode()
    os.close(ours)
    if process.wait() != status:
        raise SystemExit(f"{shlex.join(command)} ended with exit code {process.returncode}")


def _whole(data: bytes) -> int:
    """The length of the longest start of `data` that ends within neither an escape code nor a character."""
    escape_code = data.rfind(b"\x1b")
    end = escape_code if escape_code >= 0 and not _PART.match(data[escape_code:].decode(errors="ignore")) else len(data)
    while end:
        try:
            data[:end].decode()
        except UnicodeDecodeError:
            end -= 1
        else:
            return end
    return 0


def train() -> str:
    """A training run as a terminal shows it."""
    with tempfile.TemporaryDirectory() as folder:
        return terminal("train", [(COMMAND, training(COMMAND, Path(folder)))])


def own_images() -> str:
    """Training on a folder of photos, and predictions."""
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder))
        trained = [line.replace(folder, "~") for line in training(TRAIN_PHOTOS, Path(folder))]
        return terminal("own-images", [(TRAIN_PHOTOS, trained), (PREDICT, output(PREDICT, Path(folder)))])


def data_check() -> str:
    """The check of a folder of photos that has a few of the usual faults."""
    with tempfile.TemporaryDirectory() as folder:
        photos = write_photos(Path(folder))
        cat, frog = photos / "cat", photos / "frog"
        shutil.copy(cat / "0007.jpg", cat / "copy of 0007.jpg")
        shutil.copy(frog / "0003.jpg", cat / "extra.jpg")
        (frog / "0011.jpg").write_bytes((frog / "0011.jpg").read_bytes()[:700])
        return terminal("data-check", [(CHECK, output(CHECK, Path(folder), status=DATA))])


def write_photos(folder: Path) -> Path:
    """Write photos/<class>/, and new.jpg and more/ with pictures that are not in photos/. Return photos/."""
    splits = cifar.load_cifar10(None)
    for name, count in PHOTOS.items():
        for split, parent, number in (("train", "photos", count), ("test", "new", 2)):
            dataset = splits[split]
            (folder / parent / name).mkdir(parents=True)
            rows = (dataset.labels == dataset.classes.index(name)).nonzero()[:number, 0]
            for i, image in enumerate(dataset.images[rows].numpy()):
                Image.fromarray(image).save(folder / parent / name / f"{i:04d}.jpg", quality=95)
    (folder / "more").mkdir()
    for number, path in enumerate(sorted((folder / "new").glob("*/0001.jpg"))):
        path.rename(folder / "more" / f"{number + 1}.jpg")
    (folder / "new/ship/0000.jpg").rename(folder / "new.jpg")
    return folder / "photos"


def training(command: str, folder: Path) -> list[str]:
    """The lines of a training run: the block at the start, the live line half-way, the block at the end."""
    screen = Screen(COLUMNS)
    started: list[str] = []  # the screen half-way
    for text in run_in_terminal([sys.executable, "-m", *shlex.split(command)], COLUMNS, folder):
        screen.feed(text)
        shown = screen.lines()
        half_way = shown and re.search(r"(\d+)%.* step ", Text.from_ansi(shown[-1]).plain)
        if half_way and not started and int(half_way[1]) >= 60:
            started = shown
    return composed(started, screen.lines())


def output(command: str, folder: Path, status: int = 0) -> list[str]:
    """The lines that a terminal shows at the end of a command, whose exit code is `status`."""
    screen = Screen(COLUMNS)
    for text in run_in_terminal([sys.executable, "-m", *shlex.split(command)], COLUMNS, folder, status):
        screen.feed(text)
    return screen.lines()


def composed(half_way: list[str], end: list[str]) -> list[str]:
    """The lines of the picture: those of the end, with the live line, the last one half-way, where it was."""
    if not half_way:
        raise SystemExit("no live line was drawn: is the terminal wide enough?")
    return [*end[: len(half_way) - 1], half_way[-1], *end[len(half_way) - 1 :]]


def terminal(name: str, commands: Sequence[tuple[str, list[str]]]) -> str:
    """The picture `name`: commands, each with the lines below it, as an SVG of a terminal."""
    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, record=True, width=COLUMNS, force_terminal=True, color_system="truecolor")
        for command, lines in commands:
            console.print(Text(f"$ {command}", "bold"))
            for line in [*lines, ""]:
                console.print(Text.from_ansi(line), soft_wrap=True)
        return console.export_svg(title="", theme=DIMMED_MONOKAI, code_format=TERMINAL, unique_id=name) + "\n"


def box(x: float, y: float, width: float, height: float, name: str, note: str = "", kind: str = "box") -> str:
    """A rounded box with a name and, below it, a note; both centred."""
    middle, at = x + width / 2, y + height / 2 + (4 if not note else -3)
    parts = [f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>']
    parts.append(f'<text class="name" x="{middle}" y="{at}" text-anchor="middle">{escape(name)}</text>')
    if note:
        parts.append(f'<text class="note" x="{middle}" y="{at + 17}" text-anchor="middle">{escape(note)}</text>')
    return "\n".join(parts)


def label(x: float, y: float, text: str, kind: str = "note", anchor: str = "start") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """A straight arrow."""
    return f'<path class="arrow" d="M{x} {y}L{to_x} {to_y}"/>'


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """The file: `parts` on a card."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" width="{width}">'
    card = f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, card, *parts, "</svg>"]) + "\n"


def layers() -> str:
    """The folders of src/lockstep in their order, with one line each."""
    width, height, gap, left, top = 820, 38, 6, 52, 20
    parts = []
    for number, row in enumerate(LAYERS):
        y = top + number * (height + gap)
        if len(row) == 1 and number and len(LAYERS[number - 1]) > 1:
            top += 8  # a row of several is higher
            y += 8
        each = (width - left - 20 - gap * (len(row) - 1)) / len(row)
        for column, (name, note) in enumerate(row):
            x = left + column * (each + gap)
            if len(row) > 1:
                parts.append(box(x, y, each, height + 8, name, note))
                continue
            parts.append(f'<rect class="box" x="{x}" y="{y}" width="{each}" height="{height}" rx="6"/>')
            parts.append(label(x + 14, y + 24, name, "name"))
            parts.append(label(x + 170, y + 24, note))
    bottom = top + len(LAYERS) * (height + gap)
    parts.append(arrow(26, 26, 26, bottom - 12))
    middle = (20 + bottom) / 2
    turned = f'transform="rotate(-90 18 {middle})"'
    parts.append(f'<text class="note" x="18" y="{middle}" text-anchor="middle" {turned}>imports</text>')
    return picture(width, bottom + 14, "The folders of src/lockstep: each imports only from those below it", parts)


def step() -> str:
    """The flow of data through one step of four towers on two processes."""
    width, left, across, between = 840, 156, 138, 16
    centres = [left + tower * (across + between) + across / 2 + (24 if tower > 1 else 0) for tower in range(4)]
    middle = (centres[0] + centres[3]) / 2
    rows = {"plan": 24, "shard": 112, "tower": 186, "vector": 260, "tree": 358, "total": 432, "update": 520}
    names = {
        "plan": "of seed and step", "shard": "gather, augment", "tower": "forward, backward",
        "vector": "gradient sums,", "tree": "add in one", "total": "the same bits", "update": "one update, made",
    }  # fmt: skip
    more = {"vector": "loss, flags", "tree": "fixed tree", "total": "in every process", "update": "by every process"}
    parts = []
    for name, y in rows.items():
        parts.append(label(18, y + 20, names[name]))
        parts.extend([label(18, y + 36, more[name])] if name in more else [])
    parts.append(box(middle - 180, rows["plan"], 360, 42, "plan", "which examples each tower sees in this step"))
    for process in range(2):
        x = centres[2 * process] - across / 2 - 8
        wide = 2 * across + between + 16
        parts.append(f'<rect class="frame" x="{x}" y="{rows["shard"] - 24}" width="{wide}" height="222" rx="8"/>')
        parts.append(label(x + wide / 2, rows["shard"] - 9, f"process {process}", anchor="middle"))
    for tower, x in enumerate(centres):
        parts.append(arrow(middle + (x - middle) * 0.6, rows["plan"] + 42, x, rows["shard"] - 2))
        for name in ("shard", "tower", "vector"):
            parts.append(box(x - across / 2, rows[name], across, 40, f"{name} {tower}"))
        parts.append(arrow(x, rows["shard"] + 40, x, rows["tower"] - 2))
        parts.append(arrow(x, rows["tower"] + 40, x, rows["vector"] - 2))
    for process, name in enumerate(("0 + 1", "2 + 3")):
        x = (centres[2 * process] + centres[2 * process + 1]) / 2
        parts.append(box(x - 60, rows["tree"], 120, 36, name))
        parts.extend(arrow(centre, rows["vector"] + 40, x + (centre - x) * 0.4, rows["tree"] - 2)
                     for centre in centres[2 * process : 2 * process + 2])  # fmt: skip
        parts.append(arrow(x, rows["tree"] + 36, middle + (x - middle) * 0.3, rows["total"] - 2))
        parts.append(box(x - 130, rows["update"], 260, 42, "update", f"weights and average of process {process}"))
        parts.append(arrow(middle + (x - middle) * 0.3, rows["total"] + 36, x, rows["update"] - 2))
    parts.append(box(middle - 110, rows["total"], 220, 36, "total = (0 + 1) + (2 + 3)"))
    return picture(width, rows["update"] + 62, "One step of four towers on two processes", parts)


PICTURES: dict[str, Callable[[], str]] = {
    "train": train, "own-images": own_images, "data-check": data_check, "layers": layers, "step": step
}  # fmt: skip


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PICTURES:
        (FOLDER / f"{name}.svg").write_text(PICTURES[name]())
        print(FOLDER / f"{name}.svg")


if __name__ == "__main__":
    main()
