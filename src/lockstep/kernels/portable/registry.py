"""The registry of portable arithmetic: which operations of torch it covers, on which dtypes.

Names are those of torch's native functions (aten), without the underscore of those that work in
place. `EXACT` lists the operations that torch itself computes exactly. `PORTABLE` has a function
for each of the others: `@portable(...)` above it states names and dtypes. `implementation` is the
only door, so a registered function relies on the dtypes of its arguments. A function changes no
operand, and its result has the shape and the dtype that torch's own has.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from lockstep.errors import LockstepError, option

F = TypeVar("F", bound=Callable[..., Any])

# The dtypes that may enter an operation. Without "integers", all its operands have one float dtype.
FLOATS = "float32 float64"
NUMBERS = "integers float32 float64"

# Copies, conversions and views.
_COPIES = """
    _foreach_copy _foreach_zero _local_scalar_dense _pin_memory _reshape_alias _to_copy
    _unsafe_view alias as_strided broadcast_to cat chunk clone constant_pad_nd contiguous copy
    detach diagonal empty empty_like empty_strided expand expand_as eye fill flip full full_like
    gather im2col index index_copy index_put index_select is_pinned is_same_size lift_fresh
    masked_fill movedim narrow new_empty new_empty_strided new_full new_ones new_zeros ones
    ones_like permute promote_types reflection_pad2d reflection_pad2d_backward repeat
    replication_pad2d replication_pad2d_backward reshape resolve_conj resolve_neg roll
    scalar_tensor scatter select select_backward slice slice_backward split split_with_sizes
    squeeze stack t take to transpose unbind unfold unsqueeze view zero zeros zeros_like
"""
# Comparisons, selections and integers; and functions of which IEEE 754 fixes each bit, because an
# element is one addition, product, division or conversion, or a sum that torch's source adds in one
# order.
_COMPUTED = """
    __and__ __lshift__ __or__ __rshift__ __xor__ adaptive_max_pool2d adaptive_max_pool2d_backward
    all amax amin aminmax any argmax argmin argsort bincount bitwise_and bitwise_left_shift
    bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min
    count_nonzero eq equal floor floor_divide ge gt hardtanh hardtanh_backward isfinite isinf
    isnan le logical_and logical_not logical_or lt max max_pool2d_with_indices
    max_pool2d_with_indices_backward maximum min minimum ne relu round sgn sign threshold
    threshold_backward tril triu trunc where

    _foreach_mul abs avg_pool2d avg_pool2d_backward leaky_relu leaky_relu_backward mul neg
    nll_loss_backward reciprocal
"""
_OF_INTEGERS = "cumsum scatter_add"
EXACT = {
    **dict.fromkeys(_COPIES.split(), f"{NUMBERS} bfloat16 float16"),
    **dict.fromkeys(_COMPUTED.split(), NUMBERS),
    **dict.fromkeys(_OF_INTEGERS.split(), "integers"),
}


class Entry(NamedTuple):
    """What `portable` states of a function."""

    function: Callable[..., Any]
    dtypes: str
    in_place: bool
    exact_if: Callable[..., bool] | None


PORTABLE: dict[str, Entry] = {}
_WITHOUT_BITS = ("profiler", "prim")  # namespaces of operations that compute nothing
_PLAIN = {int, float, bool, type(None)}  # `isinstance` takes a microsecond for each of these.


def portable(
    names: str,
    dtypes: str = FLOATS,
    *,
    in_place: bool = False,
    exact_if: Callable[..., bool] | None = None,
) -> Callable[[F], F]:
    """Register the function below as torch's operations of these `names`, on these `dtypes`.

    in_place: it writes to its operands, as torch's operation does. exact_if: of the arguments,
    whether torch's own operation is exact for them, and computes instead.
    """

    def register(function: F) -> F:
        for name in names.split():
            PORTABLE[name] = Entry(function, dtypes, in_place, exact_if)
        return function

    return register


class NotPortableError(LockstepError):
    """An operation that portable arithmetic does not cover, or not for these dtypes."""

    def __init__(self, operation: str, instead: str = "use another one in the model") -> None:
        super().__init__(
            f"portable arithmetic does not cover the operation {operation}: {instead} "
            f"(docs/portable.md lists those that are covered), or give "
            f"{option('portable', False)} (arithmetic=native)"
        )


def dtypes_in(values: Iterable[Any]) -> set[Any]:
    """Return the dtypes of tensors, alone or in lists, the dtypes, and the complex numbers among
    `values`.
    """
    dtypes = set()
    for value in values:
        if isinstance(value, (list, tuple)):
            dtypes |= dtypes_in(value)
        elif type(value) not in _PLAIN and isinstance(value, (Tensor, torch.dtype, complex)):
            dtypes.add(getattr(value, "dtype", value))
    return dtypes


def implementation(operation: Any, dtypes: Iterable[Any]) -> Callable[..., Any]:
    """Return the function that computes an operation of torch portably, on these dtypes. Raises:
    NotPortableError.
    """
    namespace, _, name = operation._schema.name.partition("::")
    if namespace in _WITHOUT_BITS:
        return operation  # type: ignore[no-any-return]
    base = name if name.endswith("__") else name.removesuffix("_")
    entry = PORTABLE.get(base)
    if namespace != "aten" or not (_has_form(operation, entry) if entry else base in EXACT):
        raise NotPortableError(operation)
    _require_dtypes(operation, dtypes, (entry.dtypes if entry else EXACT[base]).split())
    if entry is None:
        return operation  # type: ignore[no-any-return]
    function = entry.function
    if not entry.in_place:
        function = partial(_into, operation, function)
    if entry.exact_if:
        function = partial(_native_if_exact, operation, function, entry.exact_if)
    return function


def _has_form(operation: Any, entry: Entry) -> bool:
    """Return whether a function computes this form of its operation: one that returns a result, or
    writes it in place, or to a tensor `out`.
    """
    schema = operation._schema
    if entry.in_place and not schema.name.endswith("_"):
        return False
    outputs = [
        f"{argument.type} {argument.name}" for argument in schema.arguments if argument.is_out
    ]
    return outputs in ([], ["Tensor out"])


def _require_dtypes(
    operation: Any,
    dtypes: Iterable[Any],
    allowed: list[str],
) -> None:
    given = {str(dtype).removeprefix("torch.") for dtype in dtypes}
    floats = {name for name in given if not name.startswith(("int", "uint", "bool"))}
    if "integers" in allowed:
        suffix = ""
        is_allowed = floats <= {*allowed}
    else:
        suffix = " of one float dtype"
        is_allowed = given <= {*allowed} and len(floats) == 1
    if not is_allowed:
        raise NotPortableError(
            f"{operation} of {' and '.join(sorted(given))}",
            f"give it tensors{suffix} ({' or '.join(allowed)}), or use another one in the model",
        )


def _native_if_exact(
    operation: Any,
    function: Callable[..., Any],
    exact_if: Callable[..., bool],
    *args: Any,
    **kwargs: Any,
) -> Any:
    return (operation if exact_if(*args, **kwargs) else function)(*args, **kwargs)


def _into(
    operation: Any,
    function: Callable[..., Any],
    *args: Any,
    out: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """Return the result of `function`, in the tensor that an operation in place, or one with `out`,
    writes.
    """
    result = function(*args, **kwargs)
    if out is not None:
        return write(out.resize_(result.shape), result)
    return write(args[0], result) if operation._schema.is_mutable else result


def write(x: Tensor, result: Tensor) -> Tensor:
    """Copy `result` to `x`, if torch casts it there without being asked."""
    if not torch.can_cast(result.dtype, x.dtype):
        raise NotImplementedError
    return x.copy_(result)
