"""The machine of a first contact: its GPU and versions, and what it lacks: `python
benchmarks/gpu/facts.py`. It imports no Lockstep, which may lack something.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import torch
from pip._vendor.packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def lacking() -> list[str]:
    """Return what Lockstep needs and this Python has not, in words."""
    needs = map(Requirement, tomllib.loads(PROJECT.read_text())["project"]["dependencies"])
    texts = []
    for need in needs:
        try:
            found = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            found = None
        if found is None or not need.specifier.contains(found.partition("+")[0]):
            texts.append(f"lacks {need} and has {found}")
    return texts


def copies_of_lists(where: torch.device) -> str:
    """Return what a copy into tensors of several dtypes does, which is wrong on a GPU in torch 2.11
    (https://github.com/pytorch/pytorch/issues/173383).
    """
    sources = [torch.arange(8.0, device=where), torch.arange(8.0, device=where) + 100]
    copies = [torch.zeros(8, dtype=torch.bfloat16, device=where), torch.zeros(8, device=where)]
    torch._foreach_copy_(copies, sources)
    pairs = zip(copies, sources, strict=True)
    right = all(torch.equal(copy.float(), source) for copy, source in pairs)
    return "right" if right else f"wrong: {copies}"


def main() -> None:
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    python = sys.version.partition(" ")[0]
    print("Python", python, "on", os.cpu_count(), "cores; torch", torch.__version__)
    if where.type == "cuda":
        subprocess.run(["nvidia-smi"], timeout=30, check=False)
    print("torch.compile needs a C compiler, which is", shutil.which("cc") or shutil.which("gcc"))
    print("a copy into tensors of several dtypes is", copies_of_lists(where))
    for text in lacking():
        print(text)


if __name__ == "__main__":
    main()
