"""A graph on a machine becomes a unit: layout, constants and DDR addresses, everything that does not depend on a plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Concat, Conv, Graph, Operator, Shuffle
from compiler.ir.layout import Layout, assign
from compiler.kinds.curves import with_curves
from compiler.kinds.lowering import add_family, kernel_spec
from compiler.kinds.padding_lanes import Values, output_gaps
from compiler.rewrites.siblings import families
from compiler.unit import weights
from compiler.unit.constants import Constants, aligned
from compiler.unit.machine import check_machine
from compiler.unit.storages import Piece, StorageSpec
from compiler.unit.unit import Shaped, Unit
from simulator.npu.machine import DataType, Machine
from simulator.npu.program import DdrBuffer, MemoryMap


class Packed(NamedTuple):
    """A unit and the values of its weights.  constants: uint8, as they lie in DDR from its first byte on."""

    unit: Unit
    constants: NDArray[np.uint8]


def make_unit(graph: Graph, machine: Machine, dtype: DataType) -> Unit:
    """As `pack_unit`, of which it is the first half."""
    return pack_unit(graph, machine, dtype).unit


def pack_unit(graph: Graph, machine: Machine, dtype: DataType) -> Packed:
    """Layout, constants and DDR addresses of a graph: everything that does not depend on a plan.

    Raises `UnsupportedError` for a machine that lacks a path that every program uses.
    """
    check_machine(machine, dtype)
    layout = assign(with_curves(graph, dtype), dtype)
    layout.verify()
    names = sorted(layout.storages, key=lambda name: name in graph.constants)  # the first one is the model's input
    constants = Constants()
    operators = [op for op in layout.graph.operators if not isinstance(op, Concat | Shuffle)]
    number = {op.y: k for k, op in enumerate(operators)}
    siblings = [family for family in families(layout.graph) if _can_be_one(layout, family)]
    for family in siblings:
        add_family(family, layout, constants, dtype)
    behind = {layout.placements[b.y].storage: layout.placements[a.y].storage for family in siblings for a, b in pairwise(family)}
    names = _neighbours(names, behind)
    at = {name: i for i, name in enumerate(names)}

    def piece(tensor: str) -> Piece:
        p = layout.placements[tensor]
        return Piece(at[p.storage], p.plane, p.planes)

    gaps = _gaps(layout, dtype)
    pending = [kernel_spec(i, op, layout, piece, constants, dtype, gaps) for i, op in enumerate(operators)]
    known = {
        name: constants.add(name, weights.pack_tensor(values, layout.placements[name], dtype)) for name, values in graph.constants.items()
    }
    storages, buffers, end = _place_storages(layout, names, behind, known, constants.end, dtype)
    producers = {
        spec.index: tuple(p.index for p in pending[: spec.index] if any(p.y.overlaps(read) for read in spec.reads)) for spec in pending
    }
    consumers: dict[int, list[int]] = {spec.index: [] for spec in pending}
    for index, sources in producers.items():
        for source in sources:
            consumers[source].append(index)
    outputs = [piece(port.tensor) for port in layout.graph.outputs]
    escapes = frozenset(spec.index for spec in pending if any(spec.y.overlaps(out) for out in outputs))
    memory = MemoryMap(dtype, (*constants.buffers(), *buffers), end)
    memory.verify()
    light: dict[str, Any] = {op.y: _without_values(op) for op in layout.graph.operators}
    bare = replace(layout.graph, operators=tuple(light.values()), constants={})
    unit = Unit(
        bare,
        replace(layout, graph=bare),
        machine,
        dtype,
        storages,
        tuple(replace(spec, kernel=light[spec.kernel.y]) for spec in pending),
        memory,
        producers,
        {index: tuple(rest) for index, rest in consumers.items()},
        escapes,
        tuple(tuple(number[op.y] for op in family) for family in siblings),
    )
    return Packed(unit, constants.bytes())


def _without_values(op: Operator) -> Operator:
    return replace(op, weights=Shaped(op.weights.shape)) if isinstance(op, Conv) else op  # type: ignore[arg-type]


def _can_be_one(layout: Layout, family: tuple[Conv, ...]) -> bool:
    """Whether results that lie one after the other are those of one convolution: each a storage of its own, of one image.

    They are whole runs of 16 channels, as all results of convolutions.
    """
    places = [layout.placements[op.y] for op in family]
    whole = all(p.plane == 0 and p.planes == layout.storages[p.storage].planes for p in places)
    own = len({p.storage for p in places}) == len(places)
    return whole and own and all(layout.storages[p.storage].n == 1 for p in places)


def _neighbours(names: list[str], behind: dict[str, str]) -> list[str]:
    """Storages in the order of their names, but each that is a key of `behind` follows its value."""
    after = {first: second for second, first in behind.items()}
    out: list[str] = []
    for name in names:
        if name in behind:
            continue
        out.append(name)
        while out[-1] in after:
            out.append(after[out[-1]])
    return out


def _place_storages(
    layout: Layout, names: list[str], behind: dict[str, str], known: dict[str, int], address: int, dtype: DataType
) -> tuple[tuple[StorageSpec, ...], list[DdrBuffer], int]:
    """behind: storages that begin where another ends.  known: addresses of those that are constants."""
    joined = set(behind.values())
    ports = [(port, "input") for port in layout.graph.inputs] + [(port, "output") for port in layout.graph.outputs]
    storages, buffers = [], []
    for name in names:
        s = layout.storages[name]
        row = s.w // 4 if s.pixel_lanes == 4 else s.w
        if name in known:
            storages.append(StorageSpec(name, len(layout.graph.constants[name]), s.planes, s.h, s.w, row, known[name]))
            continue
        storages.append(StorageSpec(name, s.n, s.planes, s.h, s.w, row, address))
        size = s.n * s.planes * s.h * row
        exposed = [(port, kind) for port, kind in ports if layout.placements[port.tensor].storage == name]
        if not exposed:
            buffers.append(DdrBuffer(name, "scratch", address, size))
        for port, kind in exposed[:1]:
            p = layout.placements[port.tensor]
            lanes = tuple(p.plane * dtype.lanes + lane for lane in p.lanes)
            shape = layout.graph.shapes[port.tensor]
            buffers.append(
                DdrBuffer(port.onnx_name, kind, address, size, shape, port.onnx_shape, lanes, s.pixel_lanes, s.planes, port.order)  # type: ignore[arg-type]
            )
        address += size
        if name not in joined:
            address = aligned(address)
    return tuple(storages), buffers, address


def _gaps(layout: Layout, dtype: DataType) -> dict[str, Values]:
    """Tensor -> what lanes without a channel may hold; nothing where every lane has one."""
    gaps: dict[str, Values] = {port.tensor: frozenset({0.0}) for port in layout.graph.inputs}
    gaps |= {name: frozenset({0.0}) for name in layout.graph.constants}
    for op in layout.graph.operators:
        full = len(layout.placements[op.y].lanes) == layout.placements[op.y].planes * dtype.lanes
        gaps[op.y] = frozenset() if full else output_gaps(op, [gaps[name] for name in op.inputs], weights.numpy_type(dtype))
    return gaps
