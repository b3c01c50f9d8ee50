"""Many pictures: the case `million` of `python -m benchmarks.measure`.

It makes JPEG files of 64 pixels in 1,000 classes, and a table that names the same files. All
figures are of the real program, on two processes. Memory is what a process holds of its own: its
share of all pages (PSS) but for those of files, as of the mapped pixels.
"""

import io
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import psutil
from PIL import Image

from benchmarks.common import LOCKSTEP
from benchmarks.kinds import slug
from lockstep.pictures.survey import manifest_of

CLASSES = 1_000
FEW = 10_000  # pictures of the small set, with which a step is compared
CHECKED = 100_000  # of more pictures, `data check`, `report` and `predict` are not measured
INTERRUPTS = 5
STEPS = 30
EVAL_BATCH = 64  # less than `folder` has, to measure the memory that the pictures take
_SIDE = 64
_IN_FILE = 10_000  # rows of a Parquet file
_OWN = re.compile(r"^Pss_(?:Anon|Shmem): +(\d+) kB", re.M)


def picture(number: int) -> bytes:
    """Return a JPEG file that no other number has: large spots of colour."""
    spots = np.random.default_rng(number).integers(0, 256, (6, 6, 3), np.uint8)
    image = Image.fromarray(spots).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


def make(folder: Path, count: int) -> None:
    """Write `count` pictures into class folders of `folder`, unless they are there."""
    if (folder / ".made").exists():
        return
    with ProcessPoolExecutor() as pool:
        for _ in pool.map(_make_class, [(folder, name, count) for name in range(CLASSES)]):
            pass
    (folder / ".made").touch()


def _make_class(work: tuple[Path, int, int]) -> None:
    folder, name, count = work
    place = folder / f"class{name:04d}"
    place.mkdir(parents=True, exist_ok=True)
    for number in range(name, count, CLASSES):
        (place / f"{number:07d}.jpg").write_bytes(picture(number))


def make_rows(folder: Path, pictures: Path) -> None:
    """Write the `pictures` in class folders as Parquet files, as Hugging Face's datasets are."""
    from pyarrow import array, int64, parquet, string, struct, table

    names = sorted(path.name for path in pictures.iterdir() if path.is_dir())
    paths = sorted(pictures.glob("*/*.jpg"), key=lambda path: path.name)
    features = {"label": {"names": names, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    kind = struct({"bytes": "binary", "path": string()})
    folder.mkdir(exist_ok=True)
    for number, first in enumerate(range(0, len(paths), _IN_FILE)):
        part = paths[first : first + _IN_FILE]
        images = [{"bytes": path.read_bytes(), "path": path.name} for path in part]
        labels = array([names.index(path.parent.name) for path in part], int64())
        rows = table({"image": array(images, kind), "label": labels})
        file = folder / f"photos-{number:05}.parquet"
        parquet.write_table(rows.replace_schema_metadata(metadata), file, row_group_size=100)


def compared(place: Path, count: int) -> dict[str, float]:
    """Return the seconds to the first step of `count` pictures in a folder and in Parquet files:
    of a first start, each with a cache of its own, and of one after it. All files are in `place`.
    Where it has the cache of an earlier round, first starts are not measured.
    """
    make(place / "folder", count)
    if not (place / "parquet").exists():
        make_rows(place / "parquet", place / "folder")
    fixed: list[object] = ["train", "folder", "--processes", 2, "--batch", 32, "--log-every", 1]
    fixed += ["--set", "image_px=64", "--set", f"eval_batch={EVAL_BATCH}", "--steps", STEPS]
    figures: dict[str, float] = {}
    try:
        for start in ("first start", "second start"):
            seconds = dict[str, float]()
            for name in ("folder", "parquet"):
                own = place / f"own-{name}"
                if start == "first start" and (own / "cache").exists():
                    continue
                program = Program(own, *fixed, "--data", place / name, "--runs", own / "runs")
                seconds[name] = figures[f"{name}: {start}"] = program.until(" step 0,")
                program.interrupt()
            if len(seconds) > 1:
                figures[f"parquet / folder, {start}"] = seconds["parquet"] / seconds["folder"]
    finally:
        for program in Program.begun:
            program.kill()
    return figures


class Program:
    """The program, while it runs.

    Attributes:
        process: its launcher.
        launcher_mb, worker_mb: the most memory that the launcher and each worker held.
        begun: all of them.
    """

    begun: ClassVar[list["Program"]] = []

    def __init__(self, place: Path, *words: object) -> None:
        self.launcher_mb = self.worker_mb = 0.0
        command = [*LOCKSTEP, *map(str, words)]
        environment = {**os.environ, "XDG_CACHE_HOME": str(place / "cache")}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.begun.append(self)
        self.began = time.perf_counter()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        launcher = psutil.Process(self.process.pid)
        while self.process.poll() is None:
            with suppress(psutil.Error, OSError):
                self.launcher_mb = max(self.launcher_mb, _own_mb(launcher.pid))
                for worker in launcher.children(recursive=True):
                    self.worker_mb = max(self.worker_mb, _own_mb(worker.pid))
            time.sleep(0.3)

    def until(self, text: str) -> float:
        """Return the seconds from the start to the line that has `text`."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return time.perf_counter() - self.began
        raise SystemExit(f"no {text!r} in {''.join(lines[-20:])}")

    def end(self) -> float:
        """Wait for the end. Return the seconds since the start. Raises: SystemExit if it fails."""
        text, _ = self.process.communicate()
        if self.process.returncode:
            raise SystemExit(text[-2000:])
        return time.perf_counter() - self.began

    def interrupt(self) -> float:
        """Send Ctrl-C to all processes, as a terminal does. Return the seconds to the end."""
        began = time.perf_counter()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        self.process.communicate()
        return time.perf_counter() - began

    def kill(self) -> None:
        """Kill its processes, if it still runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)


def _own_mb(number: int) -> float:
    text = Path(f"/proc/{number}/smaps_rollup").read_text()
    return sum(map(int, _OWN.findall(text))) / 1e3


def measured(place: Path, count: int) -> dict[str, float]:
    """Return the figures of `count` pictures. They and all other files are in the folder
    `place`. Where it has the cache of an earlier measurement, first starts are not measured.
    """
    try:
        return _figures(place, count)
    finally:  # Ctrl-C does not reach them, as each is in a session of its own.
        for program in Program.begun:
            program.kill()


def _figures(place: Path, count: int) -> dict[str, float]:
    folder, few = place / "pictures", place / "few"
    make(folder, count)
    make(few, FEW)
    figures: dict[str, float] = {}
    runs = place / "runs"
    known = (place / "cache").exists()
    shutil.rmtree(place / "runs", ignore_errors=True)

    def started(name: str, data: Path, *words: object) -> Program:
        fixed = ["--batch", 32, "--processes", 2, "--log-every", 1]
        fixed += ["--set", "image_px=64", "--set", f"eval_batch={EVAL_BATCH}"]
        where = ["--runs", runs, "--name", slug(name), "--data", data]
        return Program(place, "train", "folder", *fixed, *where, "--steps", STEPS, *words)

    def start_s(name: str, data: Path, *words: object) -> Program:
        program = started(name, data, *words)
        figures[f"{name}: start to first step"] = program.until(" step 0,")
        return program

    def memory(name: str, program: Program) -> None:
        figures[f"{name}: memory of the launcher"] = program.launcher_mb
        figures[f"{name}: memory of a worker"] = program.worker_mb

    def step_s(name: str) -> float:
        rows = map(json.loads, (runs / slug(name) / "metrics.jsonl").read_text().splitlines())
        seconds = [float(row["s_per_step"]) for row in rows if row["kind"] == "step"]
        return statistics.median(seconds)

    def finish(name: str, program: Program) -> None:
        figures[f"{name}: total time"] = program.end()
        memory(name, program)

    def trained(name: str, data: Path) -> None:
        program = start_s(name, data)
        program.until(f" step {STEPS - 1},")
        program.interrupt()
        memory(name, program)

    # Ctrl-C stops a first start at random moments; the next start must continue there
    draw, worst, first_s = random.Random(0), "Ctrl-C to the end, at worst", 0.0
    for number in range(0 if known else INTERRUPTS):
        seconds = draw.uniform(1, 1 + count / 3_000)
        program = started(f"stopped-{number}", folder)
        time.sleep(seconds)
        figures[worst] = max(figures.get(worst, 0.0), program.interrupt())
        first_s += seconds
    if not known:
        trained("the rest of a first start", folder)
        first_s += figures["the rest of a first start: start to first step"]
        figures["a first start in pieces, to the first step"] = first_s

    trained("second start", folder)
    began = time.perf_counter()
    manifest_of(folder)
    figures["listing alone, once"] = time.perf_counter() - began
    (folder / "class0000/more.jpg").write_bytes(picture(count))
    start_s("one picture more", folder).interrupt()
    (folder / "class0000/more.jpg").unlink()
    for name in ["10,000 pictures, first start"] * (not known) + ["10,000 pictures"]:
        trained(name, few)
    figures["a step / that with 10,000 pictures"] = step_s("second start") / step_s(
        "10,000 pictures"
    )

    # the same files by a table, whose folder is a link
    table = place / "table"
    table.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        (table / "images").symlink_to(folder)
    paths = [path.relative_to(folder) for path in sorted(folder.glob("*/*.jpg"))]
    lines = [f"images/{path},{path.parent}" for path in paths]
    (table / "labels.csv").write_text("\n".join(["file,label", *lines]))
    for name in ["first start with a table"] * (not known) + ["second start with a table"]:
        trained(name, table)

    if count > CHECKED:
        return figures
    start_s("whole", folder).end()
    run = runs / "whole"
    finish("data check", Program(place, "data", "check", folder))
    finish("report", Program(place, "report", run, "-o", run / "page.html"))
    finish("predict", Program(place, "predict", run, folder))
    return figures
