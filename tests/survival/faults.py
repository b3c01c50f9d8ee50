"""Train again and again, and kill each run at one of its operations on files; then resume it. A program of its own.

    python -m tests.survival.faults FOLDER

An undisturbed run lists its operations. Operations of one kind on the same file, of whatever step, are one class: a run
is killed at the first and at the last operation of each class. Each line of the output is a JSON object: the
undisturbed run, then the killed ones. Every run is a fork of this program, which has imported everything already.
"""

import itertools
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

COMMAND = (
    "lockstep", "train", "digits", "--name", "x", "--inline", "--steps", "3", "--save-every", "1", "--keep", "1",
    "--eval-every", "2", "--log-every", "2", "--summary-every", "0", "--json",
)  # fmt: skip
_CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod")  # audit events, raised before the operation


def main() -> None:
    folder = Path(sys.argv[1])
    import torch  # noqa: F401  The forks share what is imported here.

    undisturbed = forked(folder / "undisturbed", kill_at=0)
    print(json.dumps(undisturbed), flush=True)
    for k in sorted(chosen(undisturbed["operations"])):
        killed = forked(folder / str(k), k)
        record = {**killed, "valid": valid(folder / str(k)), "resumed": forked(folder / str(k), None, "--resume")}
        print(json.dumps(record), flush=True)


def chosen(operations: list[str]) -> set[int]:
    """Return the number, from 1, of the first and of the last operation of each class."""
    classes = [re.sub(r"\d+", "N", operation) for operation in operations]
    first = {name: number for number, name in reversed([*enumerate(classes, 1)])}
    last = {name: number for number, name in enumerate(classes, 1)}
    return {*first.values(), *last.values()}


def forked(folder: Path, kill_at: int | None, *options: str) -> dict:
    """Run the command in `folder`, and return its exit code, its SHA-256, its operations and its messages.

    It is killed when it begins operation `kill_at`; 0 only lists the operations, and None does not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / name for name in ("out", "err", "operations")}
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(paths[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if kill_at is not None:
            install(kill_at, paths["operations"])
        os._exit(run([*COMMAND, *options]))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    lines = paths["out"].read_text().splitlines()
    return {
        "code": code,
        "sha256": json.loads(lines[-1])["weights_sha256"] if code == 0 else None,
        "operations": paths["operations"].read_text().splitlines() if paths["operations"].exists() else [],
        "err": paths["err"].read_text(),
    }


def run(argv: list[str]) -> int:
    from lockstep.commands.program import main as program

    sys.argv = argv
    try:
        program()
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
    return 0


def install(kill_at: int, report: Path) -> None:
    """List this process's operations in the folder of runs, and kill it when it begins number `kill_at`."""
    import safetensors.torch

    descriptor = os.open(report, os.O_WRONLY | os.O_CREAT)
    numbers = itertools.count(1)

    def begins(operation: str, path: object, before_the_end: Callable[[], object] = lambda: None) -> None:
        if "runs" not in str(path):
            return
        os.write(descriptor, f"{operation} {path}\n".encode())
        if next(numbers) == kill_at:
            before_the_end()
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in _CHANGES:
            begins(event, arguments[0])

    flush = os.fsync

    def fsync(number: int) -> None:
        begins("fsync", os.readlink(f"/proc/self/fd/{number}"))
        flush(number)

    def torn(save: Callable) -> Callable:
        def save_file(tensors: dict, path: Path, *arguments: object) -> None:
            save(tensors, path, *arguments)
            begins("write", path, lambda: os.truncate(path, path.stat().st_size // 2))

        return save_file

    os.fsync = fsync
    safetensors.torch.save_file = torn(safetensors.torch.save_file)  # as statefile.write finds it
    sys.addaudithook(audit)


def valid(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in the run in `folder`. Raises: LockstepError if one of them is damaged."""
    from lockstep.runs import statefile

    return [statefile.read(path).step for path in statefile.checkpoints_in(folder / "runs/x/checkpoints").values()]


if __name__ == "__main__":
    main()
