"""Translation of indexing statements of kernels into few LLVM instructions.

numba unpacks a whole array to read one element, and also to count its owners; for a tuple of arrays, all of them.  Most statements of
kernels are of these kinds, and generating and optimising this code takes most of the compile time.  The behaviour of kernels is unchanged.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir


def index_directly(types: Any, lower_builtin: Any) -> None:
    """Register it with numba; types, lower_builtin: numba's."""
    for index in (types.Integer, types.UniTuple, types.Tuple):
        lower_builtin(operator.getitem, types.Array, index)(_load)
        lower_builtin(operator.setitem, types.Array, index, types.Any)(_store)


def refuse_sizes_shortly() -> None:
    """Shorten numba's error for a slice assigned a value of another size: numba would build strings of both sizes in every kernel
    with a slice.

    Called when the first kernel is compiled, because numba imports its module then.
    """
    from numba.core import extending
    from numba.np import arrayobj

    def refuse(source: Any, target: Any) -> None:
        raise ValueError("cannot assign slice from input of different size")

    arrayobj.raise_with_shape_context = extending.register_jitable(refuse)


def count_owners_only(numba_context: Any, lowering: Any) -> None:
    """Make numba's reference counting unpack only the memory owner.  numba_context: numba's module of it.  lowering: the module of
    statements."""
    from numba import types

    general, delete = numba_context.NRTContext.get_meminfos, lowering.Lower.delvar

    def owners_of(self: Any, builder: Any, kind: Any, value: Any) -> Any:
        if isinstance(kind, types.Array):
            return [(kind, builder.extract_value(value, 0))]
        if not isinstance(kind, types.BaseTuple):
            return general(self, builder, kind, value)
        owners = [(i, member) for i, member in enumerate(kind) if self._context.data_model_manager[member].contains_nrt_meminfo()]
        return [owner for i, member in owners for owner in owners_of(self, builder, member, builder.extract_value(value, i))]

    def delete_owner(self: Any, name: str) -> None:
        if self.context.data_model_manager[self.typeof(name)].contains_nrt_meminfo():
            delete(self, name)
        elif name not in self._blk_local_varmap:
            self._singly_assigned_vars.discard(name)

    numba_context.NRTContext.get_meminfos = owners_of
    lowering.Lower.delvar = delete_owner


def _load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array, index = signature.args
    if (pointer := _element(context, builder, array, arguments[0], index, arguments[1])) is None:
        from numba.np.arrayobj import getitem_array_tuple, getitem_arraynd_intp

        getitem = getitem_arraynd_intp if hasattr(index, "bitwidth") else getitem_array_tuple
        return getitem(context, builder, signature, arguments)
    return context.unpack_value(builder, array.dtype, pointer, align=None if array.aligned else 1)


def _store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array, index, value = signature.args
    if (pointer := _element(context, builder, array, arguments[0], index, arguments[1])) is None:
        from numba.np.arrayobj import setitem_array

        return setitem_array(context, builder, signature, arguments)
    item = context.cast(builder, arguments[2], value, array.dtype)
    return context.pack_value(builder, array.dtype, item, pointer, align=None if array.aligned else 1)


def _element(context: Any, builder: Any, array: Any, value: Any, kind: Any, index: Any) -> Any:
    """Pointer to the element at integer indices, one per axis; None for other indices, or where indices are checked."""
    from numba import types
    from numba.core import cgutils

    kinds = (kind,) if isinstance(kind, types.Integer) else tuple(kind)
    plain = isinstance(array.dtype, types.Number | types.Boolean) and all(isinstance(kind, types.Integer) for kind in kinds)
    if not plain or len(kinds) != array.ndim or not array.ndim or context.enable_boundscheck or array.layout == "F":
        return None
    fields = context.data_model_manager[array]._fields
    indices = [index] if isinstance(kind, types.Integer) else cgutils.unpack_tuple(builder, index)

    def member(name: str, axis: int | None = None) -> Any:
        place = fields.index(name)
        return builder.extract_value(value, place if axis is None else (place, axis))

    axes = []
    for axis, (of, position) in enumerate(zip(kinds, indices, strict=True)):
        position = context.cast(builder, position, of, types.intp if of.signed else types.uintp)
        constant = isinstance(position, ir.Constant) and isinstance(position.constant, int) and position.constant >= 0
        if of.signed and not constant:
            from_end = builder.add(member("shape", axis), position)
            position = builder.select(builder.icmp_signed("<", position, position.type(0)), from_end, position)
        axes.append(position)
    if array.layout == "C":
        offset = axes[0]
        for axis in range(1, array.ndim):
            offset = builder.add(builder.mul(offset, member("shape", axis)), axes[axis])
        return builder.gep(member("data"), [offset])
    offset = builder.mul(axes[0], member("strides", 0))
    for axis in range(1, array.ndim):
        offset = builder.add(offset, builder.mul(axes[axis], member("strides", axis)))
    return cgutils.pointer_add(builder, member("data"), offset)
