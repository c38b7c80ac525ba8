"""Random plans: any cut into segments, any block counts, any legal tilings, so that what the search never tries is tested too."""

from __future__ import annotations

import numpy as np

from compiler.cost.tiling_space import legal_points, shape_of
from compiler.ops.base import vector_tiling
from compiler.ops.conv import ConvSpec
from compiler.ops.matmul import MatMulSpec
from compiler.plan.plan import (
    LOOKAHEAD,
    MAX_BLOCKS,
    MAX_PREFETCH,
    Constants,
    ConvTiling,
    Infeasible,
    Plan,
    SegmentPlan,
    Split,
    Tiling,
    VectorTiling,
)
from compiler.segment.blocks import Blocks, cut_blocks
from compiler.segment.core_channels import channel_parts, largest_part
from compiler.segment.operator_run import can_stream
from compiler.segment.strips import widest
from compiler.space.decode import plan_of
from compiler.space.gene import block_counts
from compiler.space.knobs import part_counts
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine import Machine


def random_cuts(rng: np.random.Generator, kernels: int, longest: int) -> list[tuple[int, int]]:
    """Consecutive (start, stop) of at most `longest` kernels."""
    cuts, start = [], 0
    while start < kernels:
        stop = min(kernels, start + int(rng.integers(1, longest + 1)))
        cuts.append((start, stop))
        start = stop
    return cuts


def random_tiling(target_graph: TargetGraph, blocks: Blocks, k: int, rng: np.random.Generator) -> Tiling | None:
    """A tiling of kernel k of the segment: legal in L0 where one exists, of any size in UB; None where L0 is too small for all."""
    spec = target_graph.operators[blocks.start + k]
    rows = blocks.rows(k)
    constants: Constants = "streamed" if rng.integers(4) == 0 else "resident"
    if not isinstance(spec, ConvSpec):
        if rng.integers(2):
            return vector_tiling(target_graph, spec, rows, int(rng.integers(8, 1500)))
        columns = int(rng.integers(1, spec.out_w + 2)) if rng.integers(3) == 0 else 0
        high = 1 if columns else int(rng.integers(1, rows + 2))
        planes = int(rng.integers(1, spec.y.planes + 2))
        return VectorTiling(tile_planes=planes, tile_rows=high, tile_columns=columns, constants=constants)
    resident = not blocks.streamed >> k & 1 if isinstance(spec, MatMulSpec) else bool(rng.integers(2))
    n1, k1 = spec.n1, spec.k1
    if not resident:
        n1 = spec.n1_step * int(rng.integers(1, n1 // spec.n1_step + 1))
        k1 = int(rng.choice([k1, -(-k1 // 2), int(rng.integers(1, k1 + 1))]))
    shape = shape_of(target_graph.machine, target_graph.type_of(spec.reads[0]), spec, rows, blocks.inside[k], (n1, k1))
    points = legal_points(target_graph.machine, shape)
    if not len(points):
        return None
    m, n, kk, n_outer = (int(v) for v in points[int(rng.integers(len(points)))])
    return ConvTiling(
        weights="resident" if resident else "streamed",
        chunk_n1=n1,
        chunk_k1=k1,
        tile_m=m,
        tile_n1=n,
        tile_k1=kk,
        order="n" if n_outer else "m",
        constants=constants,
    )


def random_segment(target_graph: TargetGraph, start: int, stop: int, rng: np.random.Generator, strips: bool) -> SegmentPlan | None:
    """Any block count (more blocks than rows included), any cores (more than iterations included), rows or channels dealt to them, any
    slots, any tilings.  strips: some, where there can be some, every third time."""
    counts = block_counts(target_graph, start, stop)
    blocks = (
        int(rng.choice(counts))
        if rng.integers(4)
        else int(rng.integers(1, 1 + min(MAX_BLOCKS, max(s.out_h for s in target_graph.operators[start:stop]))))
    )
    halo = tuple(str(rng.choice(["recompute", "cache"])) for _ in range(stop - start)) if rng.integers(2) else ()
    many = target_graph.machine.cores
    cores = (0,) if many == 1 else tuple(int(c) for c in rng.permutation(many)[: rng.integers(1, many + 1)])
    grids = part_counts(len(cores)) if target_graph.machine.shared is None else []
    grid = int(rng.choice([0, *grids])) if grids else 0
    parts = channel_parts(target_graph, start, stop, grid or len(cores)) if rng.integers(3) else None
    split: Split = "rows" if parts is None or isinstance(parts, Infeasible) else "channels"
    if isinstance(parts, tuple):
        target_graph = largest_part(parts, start, stop)
    dealt = len(cores) // len(parts) if isinstance(parts, tuple) else len(cores)
    columns = int(rng.integers(2, 6)) if strips and rng.integers(3) == 0 else 1
    strip = widest(target_graph, start, stop, columns)
    target_graph, columns = (target_graph, 1) if isinstance(strip, Infeasible) else (strip, columns)
    streamed = sum(1 << k for k in range(stop - start) if can_stream(target_graph, start, k) and rng.integers(2))
    layout = cut_blocks(target_graph, start, stop, blocks, sum(1 << k for k, h in enumerate(halo) if h == "cache"), dealt, streamed)
    tilings = [random_tiling(target_graph, layout, k, rng) for k in range(stop - start)]
    if any(tiling is None for tiling in tilings):
        return None
    return SegmentPlan(
        operators=tuple(spec.name for spec in target_graph.operators[start:stop]),
        blocks=blocks,
        columns=columns,
        prefetch=int(rng.integers(1, MAX_PREFETCH + 1)),
        window=int(rng.integers(1, 5)) if rng.integers(8) else "all",
        tilings=tuple(t for t in tilings if t is not None),
        halo=halo,  # type: ignore[arg-type]
        cores=cores,
        split=split,
        parts=grid if split == "channels" else 0,
        sliding=bool(rng.integers(2)),
        spread=bool(rng.integers(2)),
        lookahead=int(rng.choice([1, 2, 16, LOOKAHEAD])),
        overtake=bool(rng.integers(2)),
        urgent=bool(rng.integers(4)),
        same_end=not rng.integers(4),
    )


def random_plan(target_graph: TargetGraph, rng: np.random.Generator, longest: int = 6, strips: bool = False) -> Plan | None:
    """A whole plan; it may well not fit the machine.  None where some tiling has no legal point."""
    segments = [
        random_segment(target_graph, start, stop, rng, strips) for start, stop in random_cuts(rng, len(target_graph.operators), longest)
    ]
    if any(segment is None for segment in segments):
        return None
    return plan_of(target_graph, [segment for segment in segments if segment is not None])


def resized(machine: Machine, **buffers_bytes: int) -> Machine:
    """The machine with other sizes of its on-chip memories."""
    raw = machine.model_dump()
    raw["buffers_bytes"].update(buffers_bytes)
    return Machine.model_validate(raw)


def multiplying(machine: Machine, **products: tuple[int, int, int, int]) -> Machine:
    """The machine with a cube that multiplies m0 x k0 x n0 in so many cycles, by data type; of others nothing."""
    given = {name: dict(zip(("m0", "k0", "n0", "cycles"), product, strict=True)) for name, product in products.items()}
    matrix = {"kind": "cube", "products": given, "startup_cycles": machine.matrix.startup_cycles}
    return Machine.model_validate(machine.model_dump() | {"matrix": matrix})


def with_cores(machine: Machine, count: int) -> Machine:
    """The machine with another number of cores on the same DDR."""
    return Machine.model_validate(machine.model_dump() | {"cores": count})
