"""Train again and again, and kill each run at its next operation on a file; then resume it. A program of its own.

    python -m tests.survival.faults FOLDER

Run number k is killed at operation k, for k = 1, 2 and so on, until a run ends before its operation k.
Each line of the output is a JSON object. Every run is a fork of this program, which has imported everything already.
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

COMMAND = (
    "lockstep", "train", "digits", "--name", "x", "--processes", "1", "--steps", "4", "--save-every", "1",
    "--keep", "1", "--eval-every", "2", "--log-every", "2", "--summary-every", "0", "--json",
)  # fmt: skip
_CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod")  # audit events, raised before the operation


def main() -> None:
    folder = Path(sys.argv[1])
    import torch  # noqa: F401  The forks share what is imported here.

    undisturbed = forked(folder / "undisturbed", None)
    print(json.dumps(undisturbed), flush=True)
    for k in itertools.count(1):
        killed = forked(folder / str(k), k)
        record = {"k": k, **killed, "valid": valid(folder / str(k)), "resumed": None}
        if killed["code"] == -signal.SIGKILL:
            record["resumed"] = forked(folder / str(k), None, "--resume")
        print(json.dumps(record), flush=True)
        if killed["code"] != -signal.SIGKILL:
            return


def forked(folder: Path, kill_at: int | None, *options: str) -> dict:
    """Run the command in `folder`, and return its exit code, its SHA-256, what it was killed at and its messages."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / name for name in ("out", "err", "operation")}
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(paths[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if kill_at is not None:
            install(kill_at, paths["operation"])
        os._exit(run([*COMMAND, *options]))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    lines = paths["out"].read_text().splitlines()
    return {
        "code": code,
        "sha256": json.loads(lines[-1])["weights_sha256"] if code == 0 else None,
        "operation": paths["operation"].read_text() if paths["operation"].exists() else None,
        "err": paths["err"].read_text(),
    }


def run(argv: list[str]) -> int:
    import traceback

    from lockstep.cli import main as program

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
    """Kill this process when it begins operation number `kill_at` in the folder of runs."""
    from lockstep.runs import tensors

    numbers = itertools.count(1)

    def reached(operation: str, path: object) -> bool:
        if "runs" not in str(path) or next(numbers) != kill_at:
            return False
        with open(os.open(report, os.O_WRONLY | os.O_CREAT), "w") as file:
            file.write(f"{operation} {path}")
        return True

    def end() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in _CHANGES) and reached(event, arguments[0]):
            end()

    flush = os.fsync

    def fsync(descriptor: int) -> None:
        if reached("fsync", os.readlink(f"/proc/self/fd/{descriptor}")):
            end()
        flush(descriptor)

    def torn(save: Callable) -> Callable:
        def save_file(tensors: dict, path: Path, *arguments: object) -> None:
            save(tensors, path, *arguments)
            if reached("write", path):
                os.truncate(path, path.stat().st_size // 2)
                end()

        return save_file

    os.fsync = fsync
    tensors.save_file = torn(tensors.save_file)
    sys.addaudithook(audit)


def valid(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in the run in `folder`. Raises: LockstepError if one of them is damaged."""
    from lockstep.runs import checkpoint

    checkpoints = folder / "runs/x/checkpoints"
    return [checkpoint.read_step(checkpoints, step).manifest["step"] for step in checkpoint.steps(checkpoints)]


if __name__ == "__main__":
    main()
