"""Execute the notebooks of examples/ and keep what they print: `make notebooks`, or `python -m
benchmarks.notebooks`.

Both languages have the same code, so one execution gives the outputs of both. It trains 200 steps
of MNIST, which takes minutes; the files of MNIST are in LOCKSTEP_DATA, the cache or the network.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = ("mnist_multi_gpu.ipynb", "mnist_multi_gpu.es.ipynb")
SKIPPED = "skip-execution"  # nbclient does not execute a cell with this tag: it needs a browser


def read(name: str) -> Any:
    """Return a notebook of examples/."""
    return nbformat.read(EXAMPLES / name, as_version=4)  # type: ignore[no-untyped-call]


def execute(notebook: Any, folder: Path, **environment: str) -> dict[str, Any]:
    """Execute a notebook in `folder`, from top to bottom. Return its cells by their ids."""
    client = nbclient.NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(**({"env": environment} if environment else {}))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _tidied(cell.outputs, folder)
    return {cell.id: cell for cell in notebook.cells}


def printed(cell: Any) -> str:
    """Return the text that a cell printed."""
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def _tidied(outputs: list[Any], folder: Path) -> list[Any]:
    """Return outputs without redrawn lines and without the folder's path. Streams become one."""
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    lines = (line.rpartition("\r")[2] for line in re.sub(r"\r+\n", "\n", text).split("\n"))
    text = "\n".join(lines).replace(f"{folder}/", "")
    rest = [output for output in outputs if output.output_type != "stream"]
    stream = nbformat.v4.new_output("stream", name="stdout", text=text)  # type: ignore[no-untyped-call]
    return [stream, *rest] if text.strip() else rest


def main() -> None:
    executed = read(NAMES[0])
    with tempfile.TemporaryDirectory() as folder:
        cells = execute(executed, Path(folder))
    for name in NAMES:
        notebook = read(name)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = cells[cell.id].outputs
                cell.execution_count = cells[cell.id].execution_count
        nbformat.write(notebook, EXAMPLES / name)  # type: ignore[no-untyped-call]
        print(EXAMPLES / name)


if __name__ == "__main__":
    main()
