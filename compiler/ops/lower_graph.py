"""Lowering of a graph on a machine to a target graph: layout, constants and DDR addresses, which are equal for all plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph
from compiler.ir.layout import Layout
from compiler.ir.padding import assign_with_masks
from compiler.ops.affine_to_matmul import with_products
from compiler.ops.base import Lowering
from compiler.ops.finite_moves import with_finite_moves
from compiler.ops.gate_into_weights import with_gated_weights
from compiler.ops.gelu_erf import with_curves
from compiler.ops.registry import BY_OPERATOR
from compiler.target import weights
from compiler.target.capabilities import check_machine
from compiler.target.constants import Constants, align_block
from compiler.target.storage import StorageSpec, TensorSlice
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType
from simulator.npu.program import DdrBuffer, MemoryMap


class Packed(NamedTuple):
    """A target graph and the values of its weights.  constants: uint8 [bytes], the content of DDR from byte 0 on."""

    target_graph: TargetGraph
    constants: NDArray[np.uint8]


def make_unit(graph: Graph, machine: Machine, dtype: DataType) -> TargetGraph:
    """The target graph of `pack_unit`, without the values of weights."""
    return pack_unit(graph, machine, dtype).target_graph


def pack_unit(graph: Graph, machine: Machine, dtype: DataType) -> Packed:
    """Lower a graph and pack its weights.

    Raises `UnsupportedError` for a machine that lacks a needed path or data type, and for operators that no records can express.
    """
    # rewrites for the machine, layout, operators
    check_machine(machine, *_computed(graph, machine, dtype))
    graph = with_finite_moves(graph, dtype)
    graph = with_gated_weights(with_products(with_curves(graph, dtype), machine), machine)
    layout = assign_with_masks(graph, dtype)
    names = sorted(layout.storages, key=lambda name: name in graph.constants)  # the model's input is the first name
    constants = Constants()
    operators = [op for op in layout.graph.operators if op.computes]
    indices = {name: i for i, name in enumerate(names)}

    def piece(tensor: str) -> TensorSlice:
        p = layout.placements[tensor]
        return TensorSlice(indices[p.storage], p.plane, p.planes)

    lowering = Lowering(layout, piece, constants, machine)
    for op in operators:
        if type(op) not in BY_OPERATOR:
            raise UnsupportedError(f"operator {op.name!r}: {type(op).__name__} has no code for the NPU")
    pending = [BY_OPERATOR[type(op)].spec.lower(i, op, lowering) for i, op in enumerate(operators)]
    constant_addresses = {
        name: constants.add(name, weights.pack_tensor(values, layout.placements[name], layout.type_of(name)))
        for name, values in graph.constants.items()
    }
    # DDR holds constants, then storages; operators that read host tensors get addresses
    storages, buffers, end = _place_storages(layout, names, constant_addresses, constants.end, dtype)
    address = {storage.name: storage.address for storage in storages}
    pending = [spec.placed(lambda tensor: address[layout.placements[tensor].storage]) for spec in pending]
    producers = {
        spec.index: tuple(p.index for p in pending[: spec.index] if any(p.y.overlaps(read) for read in spec.reads)) for spec in pending
    }
    consumers: dict[int, list[int]] = {spec.index: [] for spec in pending}
    for index, sources in producers.items():
        for source in sources:
            consumers[source].append(index)
    outputs = [piece(port.tensor) for port in layout.graph.outputs]
    escapes = frozenset(spec.index for spec in pending if any(spec.y.overlaps(out) for out in outputs))
    memory = MemoryMap(dtype, (*constants.buffers(), *_in_order(buffers, graph)), end)
    memory.verify()
    light: dict[str, Any] = {op.y: op.without_values() for op in layout.graph.operators}
    bare = replace(layout.graph, operators=tuple(light.values()), constants={})
    target_graph = TargetGraph(
        bare,
        replace(layout, graph=bare),
        machine,
        dtype,
        storages,
        tuple(replace(spec, operator=light[spec.operator.y]) for spec in pending),
        memory,
        producers,
        {index: tuple(readers) for index, readers in consumers.items()},
        escapes,
    )
    return Packed(target_graph, constants.bytes())


def _computed(graph: Graph, machine: Machine, dtype: DataType) -> list[DataType]:
    """Data types that the machine must compute in.  Floats beside integers are only converted; every machine with floats can do that."""
    floats, computed = any(DataType[name].is_float for name in machine.matrix.data_types), set[DataType]()
    for op in graph.operators:
        types = {graph.type_of(tensor, dtype) for tensor in (*op.inputs, op.y)}
        all_float = all(tensor_type.is_float for tensor_type in types)
        computed |= {
            tensor_type if tensor_type.is_float else DataType.int8
            for tensor_type in types
            if all_float or not (floats and tensor_type.is_float)
        }
    return sorted(computed)


def _place_storages(
    layout: Layout, names: list[str], constant_addresses: dict[str, int], address: int, dtype: DataType
) -> tuple[tuple[StorageSpec, ...], list[DdrBuffer], int]:
    """(storages, DDR buffers, first free block).  constant_addresses: DDR blocks of the constant storages, by name."""
    ports = [(port, "input") for port in layout.graph.inputs] + [(port, "output") for port in layout.graph.outputs]
    storages, buffers = [], []
    for name in names:
        storage = layout.storages[name]
        storage_type = layout.type_of(name)
        row = storage.w * storage.pixel_lanes // storage_type.lanes
        type_name: Any = None if storage_type == dtype else storage_type.name  # None: the memory map's type
        if name in constant_addresses:
            storages.append(
                StorageSpec(
                    name, len(layout.graph.constants[name]), storage.planes, storage.h, storage.w, row, constant_addresses[name],
                    storage_type,
                )
            )  # fmt: skip
            continue
        storages.append(StorageSpec(name, storage.n, storage.planes, storage.h, storage.w, row, address, storage_type))
        size = storage.n * storage.planes * storage.h * row
        exposed = [(port, kind) for port, kind in ports if layout.placements[port.tensor].storage == name]
        if not exposed:
            buffers.append(DdrBuffer(name, "scratch", address, size, dtype=type_name))
        for port, kind in exposed[:1]:
            placement = layout.placements[port.tensor]
            lanes = tuple(placement.plane * layout.type_of(port.tensor).lanes + lane for lane in placement.lanes)
            shape = layout.graph.shapes[port.tensor]
            buffers.append(
                DdrBuffer(
                    port.onnx_name, kind, address, size, shape, port.onnx_shape, lanes, storage.pixel_lanes,  # type: ignore[arg-type]
                    storage.planes, port.order, type_name,
                )
            )  # fmt: skip
        address = align_block(address + size)
    return tuple(storages), buffers, address


def _in_order(buffers: Sequence[DdrBuffer], graph: Graph) -> list[DdrBuffer]:
    """Buffers in the order of addresses; inputs, and outputs, are sorted among themselves by the model's order."""
    place = {port.onnx_name: k for k, port in enumerate((*graph.inputs, *graph.outputs))}
    ports = {
        kind: iter(sorted((b for b in buffers if b.kind == kind), key=lambda buffer: place[buffer.name])) for kind in ("input", "output")
    }
    return [next(ports[b.kind]) if b.kind in ports else b for b in buffers]
