"""Text of a target graph: the model on a machine, without anything that depends on a plan."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.diagnostics.grouped_convs import weights_multiplied
from compiler.dump.align import aligned
from compiler.ops.conv import ConvSpec
from compiler.target.storage import TensorSlice
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp
from simulator.npu.parts import BLOCK_BYTES


def unit_lines(target_graph: TargetGraph) -> list[str]:
    """Lines of the stage `unit`.  A storage is [n][planes][h] rows of blocks in DDR; a tensor is a range of planes of a storage."""
    machine, lanes = target_graph.machine, target_graph.dtype.lanes
    return [
        f"unit {target_graph.digest}: {target_graph.dtype.name}, {lanes} lanes, blocks of {BLOCK_BYTES} B",
        *aligned(
            [
                ["model", target_graph.graph.digest],
                ["machine", f"{target_graph.machine_digest} {machine.name}"],
                ["MACs", f"{target_graph.macs:,}"],
            ]
        ),
        "storages: n x planes x h x blocks of a row, lanes of a pixel, their type where it is another",
        *aligned([_storage(target_graph, k) for k in range(len(target_graph.storages))]),
        "tensors: planes of a storage, lanes of the channels",
        *aligned([_tensor(target_graph, name) for name in target_graph.layout.placements]),
        f"DDR: {target_graph.memory.size_blocks:,} blocks, {target_graph.memory.size_blocks * BLOCK_BYTES:,} B",
        *aligned([[f"DDR[{b.offset_blocks}]", f"{b.size_blocks * BLOCK_BYTES:,} B", b.kind, b.name] for b in target_graph.memory.buffers]),
        "operators: reads (rows x columns) -> writes (rows x columns), after which others",
        *aligned([_operator(target_graph, spec) for spec in target_graph.operators]),
        "signatures: what an operator's cost depends on beside its block and its tiling",
        *aligned([[str(spec.index), spec.name, spec.signature(target_graph.storages)] for spec in target_graph.operators]),
    ]


def kind(spec: TargetOp) -> str:
    """`conv`, `pool`, ..."""
    return type(spec).__name__.removesuffix("Spec").lower()


def piece(target_graph: TargetGraph, where: TensorSlice) -> str:
    """Name of a slice: `storage` for the whole storage, `storage[0:2]` for planes of it."""
    storage = target_graph.storages[where.storage]
    return storage.name if where.planes == storage.planes else f"{storage.name}[{where.plane}:{where.plane + where.planes}]"


def _storage(target_graph: TargetGraph, number: int) -> list[str]:
    s = target_graph.storages[number]
    lanes = target_graph.layout.storages[s.name].pixel_lanes
    dtype = [s.dtype.name] if s.dtype != target_graph.dtype else []
    return [str(number), s.name, f"{s.n}x{s.planes}x{s.h}x{s.row_blocks}", f"DDR[{s.address}]", f"{lanes} lanes", *dtype]


def _tensor(target_graph: TargetGraph, name: str) -> list[str]:
    place = target_graph.layout.placements[name]
    where = f"{place.storage}[{place.plane}:{place.plane + place.planes}]"
    return [name, where, f"lanes {' '.join(_runs(place.lanes))}"]


def _runs(numbers: tuple[int, ...]) -> Iterator[str]:
    """Ranges of consecutive numbers."""
    start = 0
    for k in range(1, len(numbers) + 1):
        if k == len(numbers) or numbers[k] != numbers[k - 1] + 1:
            yield f"{numbers[start]}:{numbers[k - 1] + 1}"
            start = k


def _operator(target_graph: TargetGraph, spec: TargetOp) -> list[str]:
    reads = ", ".join(piece(target_graph, read) for read in spec.reads)
    before = ",".join(str(k) for k in target_graph.producers[spec.index])
    words = [f"{spec.macs:,} MACs"] if spec.macs else []
    if isinstance(spec, ConvSpec):
        sizes = ("weights", spec.stored_weight_blocks), ("bias", spec.bias_blocks)
        words += [f"{label} {blocks * BLOCK_BYTES:,} B" for label, blocks in sizes if blocks]
        words += [f"expanded {spec.weight_blocks * BLOCK_BYTES:,} B"] if spec.expansion is not None else []
        if multiplied := weights_multiplied(spec):
            words.append(f"multiplies {multiplied * spec.out_h * spec.out_w / spec.macs:.1f} times its weights")
    return [
        str(spec.index),
        spec.name,
        kind(spec),
        f"{reads} ({spec.in_h}x{spec.in_w}) -> {piece(target_graph, spec.y)} ({spec.out_h}x{spec.out_w})",
        f"after {before}" if before else "",
        "to the host" if spec.index in target_graph.escapes else "",
        ", ".join(words),
    ]
