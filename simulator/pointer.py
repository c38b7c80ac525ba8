"""Arrays as plain pointers, for the hottest loops only.

An array passed between numba functions is reference-counted, atomically; and every index is compared with 0, because it may be negative.
A pointer has neither cost, and keeps nothing alive.  numba frees a local array after the last line that names it, so a pointer to it
would write to foreign memory (a test shows it).  Pointers are therefore made of parameters only: the caller holds their arrays until
the function returns.  Scratch is passed in, too."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

Pointer = Any  # CPointer(item) in a kernel, which mypy does not know


@intrinsic
def pointer(_context: Any, array: Any) -> Any:
    """Address of an array's first item, as a pointer that can be indexed."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), build


def _at(item: Any) -> Any:
    """An intrinsic from an address to a pointer to items of a type.  The caller keeps the array alive."""

    @intrinsic
    def to_pointer(_context: Any, _address: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(item)(types.int64), build

    return to_pointer


uint8_at, int32_at, int64_at = _at(types.uint8), _at(types.int32), _at(types.int64)
