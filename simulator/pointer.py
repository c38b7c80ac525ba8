"""Arrays as plain pointers, for the hottest loops only.

An array handed from one numba function to another is reference-counted, atomically, and an index that may be negative is wrapped, with a
comparison for every access.  A pointer is neither.  Nothing keeps its array alive, so that must be held by the caller.
"""

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
