"""Requests to `lockstep serve` that arrive at once: `python -m benchmarks.serve [--data DIR]`.

A run of digits, and with --data one of photos, is served by the real program. In each round, as
many connections are opened at once as there are requests; each sends one picture and waits for the
answer. A latency counts from the start of the round. Client and server share the machine's cores.
"""

import asyncio
import io
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from benchmarks.common import LOCKSTEP, data_option, lockstep, options, ranged, save, spread
from lockstep.data.readers import load_digits

REQUESTS = 500


class Reply(NamedTuple):
    """The answer to a request: status, JSON, and seconds since the start of all; status 0 if the
    connection broke.
    """

    status: int
    body: Any
    seconds: float


async def send(port: int, picture: bytes, started: float) -> Reply:
    """Send a picture over a connection of its own. Return the answer."""
    head = (
        f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: "
        f"image/png\r\nConnection: close\r\n"
    )
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{head}Content-Length: {len(picture)}\r\n\r\n".encode() + picture)
        answer, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return Reply(int(answer.split()[1]), json.loads(body), time.perf_counter() - started)
    except (OSError, ValueError, IndexError) as error:
        return Reply(0, str(error), time.perf_counter() - started)


async def burst(port: int, pictures: Sequence[bytes]) -> list[Reply]:
    """Send all pictures at once. Return the answers, in their order."""
    started = time.perf_counter()
    return await asyncio.gather(*(send(port, picture, started) for picture in pictures))


@contextmanager
def served(run: Path) -> Iterator[int]:
    """Serve a run with the real program. Return the port."""
    command = [*LOCKSTEP, "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            next(process.stdout)
            yield int(next(process.stdout).split()[0].rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGINT)


def digits() -> list[bytes]:
    """Return test images of digits as PNG files."""
    images = load_digits(None)["test"].images[:].numpy()
    return [_png(images[number % len(images), ..., 0]) for number in range(REQUESTS)]


def _png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def measured(run: Path, pictures: Sequence[bytes], rounds: int) -> dict[str, Any]:
    """Return the spreads of p50, p99 and throughput over the rounds, after one that is not counted,
    and what failed.
    """
    rows: dict[str, list[float]] = {"p50_s": [], "p99_s": [], "requests_per_s": []}
    failed = 0
    with served(run) as port:
        for number in range(rounds + 1):
            replies = asyncio.run(burst(port, pictures))
            if number:
                seconds = sorted(reply.seconds for reply in replies)
                failed += sum(reply.status != 200 for reply in replies)
                cuts = statistics.quantiles(seconds, n=100, method="inclusive")
                for name, value in zip(
                    rows, (cuts[49], cuts[98], len(seconds) / seconds[-1]), strict=True
                ):
                    rows[name].append(value)
    return {
        "requests": len(pictures),
        "failed": failed,
        **{name: spread(values) for name, values in rows.items()},
    }


def main() -> None:
    args = options(__doc__, data="photos, one subfolder a class").parse_args()
    cases: list[tuple[str, list[bytes]]] = [("digits", digits())]
    if args.data:
        files = sorted(path for path in args.data.rglob("*.jpg"))
        cases.append(
            (
                "photos",
                [files[number * len(files) // REQUESTS].read_bytes() for number in range(REQUESTS)],
            )
        )
    record = {}
    for recipe, pictures in cases:
        with tempfile.TemporaryDirectory() as folder:
            words = data_option(args.data) if recipe == "photos" else []
            lockstep("train", recipe, *words, "--runs", folder, "--name", recipe, data=None)
            record[recipe] = row = measured(Path(folder) / recipe, pictures, args.rounds)
        print(recipe, json.dumps(row, indent=1))
    if args.data:
        sys.argv[1:] = ["--data", "DIR"]
    rows = [
        [
            f"`{name}`",
            *(f"{ranged(found[key], '.2f')} s" for key in ("p50_s", "p99_s")),
            ranged(found["requests_per_s"]),
        ]
        for name, found in record.items()
    ]
    table = {"head": [f"{REQUESTS} requests at once", "p50", "p99", "requests/s"], "rows": rows}
    save("serve", {**record, "table": table})


if __name__ == "__main__":
    main()
