"""Arguments that kernels pass by address: tuples of arrays, records, and other kernels.

A kernel that takes a tuple by value unpacks each array into seven or more arguments, which every call counts and passes on.
`by_reference` puts the tuple into the caller's stack once; kernels take its address and load the arrays that they use.  Arrays loaded
this way own nothing: they live as long as the caller that holds them by value, and must not be returned.

A kernel that is called by address (`call_kernel`) is compiled when a caller first needs it, and its address is cached (`kernel_address`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, get_type_hints

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import NativeValue, intrinsic, register_model, unbox
from numba.np.numpy_support import from_dtype
from numpy.typing import NDArray

_BYTES = ir.IntType(8).as_pointer()
RECORD_FIELDS: dict[types.Record, Any] = {}
"""A named tuple of each record type of this process."""


class Reference(types.Type):  # type: ignore[misc]
    """The address of a tuple.  members: numba's type of the tuple."""

    def __init__(self, members: types.BaseTuple) -> None:
        self.members = members
        super().__init__(f"Reference({members})")


@register_model(Reference)
class _ReferenceModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Reference) -> None:
        super().__init__(manager, kind, _BYTES)


@intrinsic
def by_reference(typing_context: Any, members: Any) -> Any:
    """Reference to a tuple, valid until the calling function returns."""
    if not isinstance(members, types.BaseTuple):
        return None

    def place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        storage = cgutils.alloca_once(builder, context.get_value_type(members))
        _store(builder, storage, arguments[0])
        # An empty instruction that takes and returns the address: LLVM cannot look through it, so it reads no member before this point
        address = builder.bitcast(storage, _BYTES)
        opaque = ir.InlineAsm(ir.FunctionType(address.type, [address.type]), "", "=r,0,~{memory}", side_effect=True)
        return builder.call(opaque, [address])

    return Reference(members)(members), place


def _store(builder: Any, target: Any, value: Any) -> None:
    """Store a tuple member by member: LLVM takes long for values of hundreds of members."""
    if isinstance(value.type, ir.Aggregate):
        for i in range(len(value.type)):
            _store(builder, cgutils.gep_inbounds(builder, target, 0, i), builder.extract_value(value, i))
    else:
        builder.store(value, target)


def _member(context: Any, builder: Any, members: Any, address: Any, index: int) -> Any:
    """Member of a tuple at an address: a reference or a value."""
    pointer = builder.bitcast(address, context.get_value_type(members).as_pointer())
    place = cgutils.gep_inbounds(builder, pointer, 0, index)
    kind = members.types[index]
    if isinstance(kind, types.BaseTuple):
        return builder.bitcast(place, address.type)
    return _load(context, builder, place, isinstance(kind, types.Array))


def _load(context: Any, builder: Any, place: Any, array: bool) -> Any:
    kind = place.type.pointee
    if not isinstance(kind, ir.Aggregate):
        value = builder.load(place)
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value
    value = ir.Constant(kind, ir.Undefined)
    for i in range(len(kind)):
        owner = array and i < 2
        part = ir.Constant(kind.elements[i], None) if owner else _load(context, builder, cgutils.gep_inbounds(builder, place, 0, i), False)
        value = builder.insert_value(value, part, i)
    return value


@infer_getattr
class _ReferenceAttributes(AttributeTemplate):  # type: ignore[misc]
    key = Reference

    def generic_resolve(self, reference: Reference, name: str) -> Any:
        fields = getattr(reference.members, "fields", ())
        if name not in fields:
            return None
        kind = reference.members.types[fields.index(name)]
        return Reference(kind) if isinstance(kind, types.BaseTuple) else kind


@lower_getattr_generic(Reference)
def _get_attribute(context: Any, builder: Any, reference: Reference, address: Any, name: str) -> Any:
    return _member(context, builder, reference.members, address, reference.members.fields.index(name))


@unbox(Reference)
def _refuse(kind: Reference, value: Any, context: Any) -> Any:
    """Python has no references: a kernel that takes one is called by address."""
    context.pyapi.err_set_string("PyExc_TypeError", "a kernel that takes references is called by address")
    return NativeValue(ir.Constant(_BYTES, None), is_error=ir.Constant(ir.IntType(1), 1))


@cache
def record_dtype(fields: Any) -> np.dtype[Any]:
    """Data type of a named tuple of integers and of other such tuples: int64 fields, one behind the other."""
    kinds = get_type_hints(fields).items()
    return np.dtype([(name, record_dtype(kind) if hasattr(kind, "_fields") else np.int64) for name, kind in kinds])


def record_row(job: Any) -> NDArray[np.int64]:
    """Integers of a named tuple in the order of its record."""
    return np.array([job], record_dtype(job.__class__)).view(np.int64)


def record_type(fields: Any) -> types.Record:
    """Record type of a named tuple of integers and of other such tuples, to which kernels can write."""
    kind = from_dtype(record_dtype(fields))
    RECORD_FIELDS.setdefault(kind, fields)
    return kind


@intrinsic
def pointer_to(typing_context: Any, array: Any, index: Any) -> Any:
    """Pointer to an element of an array: a record argument of a kernel that is called by address."""

    def point(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        return builder.bitcast(builder.gep(data, [arguments[1]]), context.get_value_type(types.voidptr))

    return types.voidptr(array, types.intp), point


@intrinsic
def call_kernel(typing_context: Any, address: Any, arguments: Any) -> Any:
    """Call the kernel at an address; its arguments are a tuple's members, its result an int64."""

    def call(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kinds = signature.args[1].types
        pointer = builder.inttoptr(values[0], context.call_conv.get_function_type(types.int64, kinds).as_pointer())
        status, value = context.call_conv.call_function(builder, pointer, types.int64, kinds, cgutils.unpack_tuple(builder, values[1]))
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return value

    return types.int64(types.intp, arguments), call


def kernel_address(kernel: Any, arguments: tuple[Any, ...]) -> int:
    """Address of a kernel for arguments of the given types; compiles or loads the kernel."""
    kernel.compile(arguments)
    compiled = kernel.overloads[arguments]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))
