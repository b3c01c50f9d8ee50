"""Train again and again, and kill each run at one of its operations on files; then resume it. A
program of its own.

    python -m tests.survival.faults FOLDER
    python -m tests.survival.faults FOLDER frozen    # of a head, only at files with this name

An undisturbed run lists its operations. Operations of one kind on the same file, of whatever step,
are one class: a run is killed at the first and at the last operation of each class. Each line of
the output is a JSON object: the undisturbed run, then the killed ones. Every run is a fork of this
program, which has imported everything already.
"""

import itertools
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import safetensors.torch

COMMAND = (
    "lockstep",
    "train",
    "digits",
    "--name",
    "x",
    "--inline",
    "--steps",
    "3",
    "--save-every",
    "1",
    "--keep",
    "1",
    "--eval-every",
    "2",
    "--log-every",
    "2",
    "--summary-every",
    "0",
    "--json",
)
HEAD = ("--set", "head=logits", "--set", "augmentation=plain", "--set", "weight_decay={}")
# audit events, raised before the operation
_CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod")


def main() -> None:
    folder = Path(sys.argv[1])
    import torch  # noqa: F401  The forks share what is imported here.

    from lockstep.runs import statefile

    only, options = ("".join(sys.argv[2:]), list[str]())
    if only:
        forked(folder / "whole", None)
        options = ["--init", str(folder / "whole/runs/x"), *HEAD]
    undisturbed = forked(folder / "undisturbed", 0, *options)
    print(json.dumps(undisturbed), flush=True)
    classes = [re.sub(r"\d+", "N", operation) for operation in undisturbed["operations"]]
    for k, name in enumerate(classes, 1):
        if (name in classes[: k - 1] and name in classes[k:]) or only not in name:
            continue  # neither the first nor the last operation of its class
        killed = forked(folder / str(k), k, *options)
        saved = statefile.checkpoints_in(folder / str(k) / "runs/x/checkpoints")
        # raises if one is damaged
        killed["valid"] = [statefile.read(path).step for path in saved.values()]
        print(
            json.dumps({**killed, "resumed": forked(folder / str(k), None, *options, "--resume")}),
            flush=True,
        )


def forked(folder: Path, kill_at: int | None, *options: str) -> dict:
    """Run the command in `folder`, and return its exit code, the SHA-256 of its weights and of its
    last link, its operations and its messages.

    It is killed when it begins operation `kill_at`; 0 only lists the operations, and None does not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / name for name in ("out", "err", "operations")}
    child = os.fork()
    if child == 0:
        from lockstep.commands.program import main as program

        os.chdir(folder)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(paths[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = [*COMMAND, *options]
        try:
            with nullcontext() if kill_at is None else killing(kill_at, paths["operations"]):
                program()
        except SystemExit as ended:
            sys.stdout.flush()
            os._exit(int(ended.code or 0))
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    lines = paths["out"].read_text().splitlines()
    result = json.loads(lines[-1]) if code == 0 else {}
    return {
        "code": code,
        "sha256": [result.get("weights_sha256"), result.get("link")],
        "operations": paths["operations"].read_text().splitlines()
        if paths["operations"].exists()
        else [],
        "err": paths["err"].read_text(),
    }


def killing(kill_at: int, report: Path) -> AbstractContextManager[None]:
    """List this process's operations in the folder of runs, and kill it when it begins number
    `kill_at`.
    """
    descriptor = os.open(report, os.O_WRONLY | os.O_CREAT)
    numbers = itertools.count(1)

    def begins(operation: str, path: object, before_the_end: Callable) -> None:
        if "runs" not in str(path):
            return
        os.write(descriptor, f"{operation} {path}\n".encode())
        if next(numbers) == kill_at:
            before_the_end()
            os.kill(os.getpid(), signal.SIGKILL)

    return watched(begins)


@contextmanager
def watched(begins: Callable[..., None]) -> Iterator[None]:
    """Call begins(operation, path, tear) before each operation of this process on files.

    `tear` leaves half of a file that was just written whole; else it is a no-op.
    """
    ended, flush = list[bool](), os.fsync

    def audit(event: str, arguments: tuple) -> None:
        writes = (
            event == "open"
            and isinstance(arguments[2], int)
            and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if not ended and (writes or event in _CHANGES):
            begins(event, arguments[0], lambda: None)

    def fsync(number: int) -> None:
        begins("fsync", os.readlink(f"/proc/self/fd/{number}"), lambda: None)
        flush(number)

    def torn(write: Callable, number: int) -> Callable:
        """Return `write`, which writes the whole file that argument `number` names."""

        def begun(*arguments: object) -> object:
            result, path = write(*arguments), Path(arguments[number])
            begins("write", path, lambda: os.truncate(path, path.stat().st_size // 2))
            return result

        return begun

    sys.addaudithook(audit)  # It cannot be removed.
    library = safetensors.torch
    with (
        mock.patch.object(os, "fsync", fsync),
        mock.patch.object(Path, "write_bytes", torn(Path.write_bytes, 0)),  # as files.replace does
        mock.patch.object(library, "save_file", torn(library.save_file, 1)),  # as statefile.write
    ):
        try:
            yield
        finally:
            ended.append(True)


if __name__ == "__main__":
    main()
