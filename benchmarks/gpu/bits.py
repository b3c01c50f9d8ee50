"""Operations of portable arithmetic with other bits on a GPU: `python -m benchmarks.gpu.bits
[CASE...]`.

Each case is trained for some steps on the CPU, on the GPU, and on the GPU again while the CPU
computes each operation a second time, from the same operands. So an operation that differs has a
name; and if the weights differ only where nothing is compared, the cause is not an operation but an
order, as of a copy that is used too early. Each case is a line of JSON. CASE is a recipe and
settings that differ, as "mnist,batch=256". Without a GPU, the CPU is compared with itself.
"""

import argparse
import json
from collections import Counter, defaultdict
from typing import Any, ClassVar
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.gpu.trial import NAMES, Facts, device, replica
from lockstep import hardware
from lockstep.core.log import Log
from lockstep.core.state import weights_sha256
from lockstep.kernels import portable

# of each case at a time. Their number changes no bit in portable arithmetic.
CORES = min(4, hardware.cores())
# or a view by places in the whole memory of its operand
_WITHOUT_VALUES = ("empty", "pin", "as_strided")


class Compared(portable.Portable):  # type: ignore[no-untyped-call]
    """Computes each operation a second time, on the CPU, from the same operands, and compares every
    bit.

    Attributes:
        compared: the number of operations.
        found: for each operation with other bits, by its name and the shapes of its operands: how
            often it had them, and how many values differed, of how many.
    """

    compared: ClassVar[int] = 0
    found: ClassVar[dict[str, Counter[str]]] = defaultdict(Counter)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute one operation, and note it if a bit differs. The result of the device is used
        further.
        """
        here = [_on_cpu(one) for one in (args, kwargs or {})]
        state = torch.get_rng_state()
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        after = torch.get_rng_state()
        if not any(name in str(operation) for name in _WITHOUT_VALUES):
            torch.set_rng_state(state)  # Portable random numbers depend on nothing else.
            again = super().__torch_dispatch__(operation, types, *here)
            torch.set_rng_state(after)
            # An operand may be `out` too.
            written = () if "out" in (kwargs or {}) else (args, here[0])
            pairs = zip(
                tree_leaves((result, *written[:1])), tree_leaves((again, *written[1:])), strict=True
            )
            Compared.compared += 1
            counts = [_apart(one, other) for one, other in pairs]
            if values := sum(count for count, _ in counts):
                shapes = [tuple(x.shape) for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
                of = sum(size for _, size in counts)
                self.found[f"{operation} of {shapes}"].update(times=1, values=values, of=of)
        return result


def _on_cpu(values: Any) -> Any:
    """Return copies on the CPU of all tensors in `values`, and the CPU for its devices."""

    def moved(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return one.detach().to("cpu", copy=True)
        return torch.device("cpu") if isinstance(one, torch.device) else one

    with portable.native():
        return tree_map(moved, values)


def _apart(found: Any, expected: Any) -> tuple[int, int]:
    """Return how many values of two results differ, and how many there are. Zeros of either sign
    are equal.
    """
    if not isinstance(found, torch.Tensor):
        return int(type(found) is float and found != expected and found == found), 1
    with portable.native():
        one, other = found.detach().cpu(), expected.detach()
        undefined = (one != one) & (other != other)
        return int(((one != other) & ~undefined).sum()), one.numel()


def hashes(case: str, where: torch.device, steps: int, **placement: Any) -> list[str]:
    """Return the SHA-256 of the weights after each of the first `steps` steps, in portable
    arithmetic.
    """
    changes = {
        "steps": steps,
        "arithmetic": "portable",
        "precision": "float32",
        "threads_per_tower": CORES,
    }
    trained = replica(case, where, 0, changes, **placement)
    copies = []
    for _ in trained.updates(Log(trained.bound)):
        # To hash them here would wait for the GPU, and so could put right what is computed in a
        # wrong order.
        tensors = trained.state.state_dict()
        copies.append(
            {
                name: tensor.detach().clone()
                for name, tensor in tensors.items()
                if not name.startswith("optimizer/")
            }
        )
    return [weights_sha256(tensors) for tensors in copies]


def compared(case: str, where: torch.device, steps: int) -> Facts:
    """Train on `where`, and compare each operation. Return the hashes, and the operations that
    differ.
    """
    Compared.compared = 0
    Compared.found.clear()
    with mock.patch.object(portable, "Portable", Compared):
        # No copy to the CPU is allowed while a graph is captured.
        after = hashes(case, where, steps, graphs=False)
    return {"weights_sha256": after, "compared": Compared.compared, "differ": dict(Compared.found)}


def differences(case: str, where: torch.device) -> dict[str, Any]:
    """Return the operations of one step of `case` that leave other bits on `where` than here, and
    how often.
    """
    differ: dict[str, Any] = compared(case, where, 1)["differ"]
    return differ


def in_full(case: str, steps: int) -> Facts:
    """Return the hashes on the CPU, on the GPU and on the GPU while it is compared, and what
    differs.
    """
    on_cpu = hashes(case, torch.device("cpu"), steps)
    alone = hashes(case, device(), steps)
    return {"case": case, "on_cpu": on_cpu, "alone": alone, **compared(case, device(), steps)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=NAMES)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    for case in args.cases:
        print(json.dumps(in_full(case, args.steps)), flush=True)


if __name__ == "__main__":
    main()
