"""Genes: the data that evolution changes.  A gene has the settings of a segment; `space.decode` decodes a gene to a plan, if a plan fits.

A genome is a tuple of genes that cover the operators in order.  Genes are small, hashable, and pickle to a few bytes; plans are explicit,
readable and complete.

Pins of a gene are the tilings of all its operators, six numbers per tiling, so that a gene stays a small tuple.

| index | convolution or product                                                    | other operators                            |
|-------|---------------------------------------------------------------------------|--------------------------------------------|
| 0     | bits: 1 `conv`, 2 weights `streamed`, 4 order `n`, 8 constants `streamed` | bits: 8 constants `streamed`, 16 `fed`     |
| 1..5  | chunk_n1, chunk_k1, tile_m, tile_n1, tile_k1                              | tile_planes, tile_rows, tile_columns, 0, 0 |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple

from compiler.cost.ranking import RANKING_SIZE
from compiler.ops.base import UB_SLOT_BLOCKS, vector_tiling
from compiler.ops.pool import PoolSpec
from compiler.plan.plan import LOOKAHEAD, MAX_LOOKAHEAD, ConvTiling, SegmentPlan, Split, Tiling, VectorTiling
from compiler.segment.blocks import rows_needed
from compiler.segment.core_channels import can_split
from compiler.segment.pool_fusion import feed_refusal
from compiler.segment.segment import Outline
from compiler.space.knobs import (
    LAST,
    Knob,
    Mark,
    coded,
    core_parts,
    from_one,
    image_divisors,
    machine_cores,
    operator_bits,
    part_counts,
    per_operator,
    read_table,
)
from compiler.target.capabilities import room_blocks
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp
from simulator.npu.parts import Memory

PINS = 6  # numbers per operator
_CONV, _STREAMED, _N_OUTER, _CONSTANTS, _FED = (1 << bit for bit in range(5))


def pins_of(tilings: Sequence[Tiling]) -> tuple[int, ...]:
    """Pins of tilings."""
    return tuple(chain.from_iterable(map(_row, tilings)))


def pinned_tilings(pins: Sequence[int]) -> tuple[Tiling, ...]:
    """Tilings of pins; inverse of `pins_of`."""
    return tuple(_tiling(*pins[offset : offset + PINS]) for offset in range(0, len(pins), PINS))


def _row(tiling: Tiling) -> tuple[int, ...]:
    constants = _CONSTANTS * (tiling.constants == "streamed")
    if isinstance(tiling, VectorTiling):
        return constants | _FED * tiling.fed, tiling.tile_planes, tiling.tile_rows, tiling.tile_columns, 0, 0
    bits = _CONV | _STREAMED * (tiling.weights == "streamed") | _N_OUTER * (tiling.order == "n") | constants
    return bits, tiling.chunk_n1, tiling.chunk_k1, tiling.tile_m, tiling.tile_n1, tiling.tile_k1


def _tiling(bits: int, *sizes: int) -> Tiling:
    constants = "streamed" if bits & _CONSTANTS else "resident"
    if not bits & _CONV:
        planes, rows, columns, _, _ = sizes
        return VectorTiling(tile_planes=planes, tile_rows=rows, tile_columns=columns, constants=constants, fed=bool(bits & _FED))
    weights, order = "streamed" if bits & _STREAMED else "resident", "n" if bits & _N_OUTER else "m"
    return ConvTiling.model_validate(
        {"weights": weights, "order": order, "constants": constants}
        | dict(zip(("chunk_n1", "chunk_k1", "tile_m", "tile_n1", "tile_k1"), sizes, strict=True))
    )


BLOCK_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 160, 224)
EVERY_LENGTH = 24  # operators of the longest runs that are enumerated; a search joins good segments to longer ones
_FAR_MORE = 8  # ratio of rows
ALL, FORMULA = 0, -1  # special values of `window`: a slot per block, and the number of slots from `formula_window`
WINDOWS = (1, 2, 3, 4, FORMULA, ALL)
Weights = Literal["reused", "resident", "streamed"]
WEIGHTS: tuple[Weights, ...] = ("reused", "resident", "streamed")
UB_SLOTS = (UB_SLOT_BLOCKS, UB_SLOT_BLOCKS // 2, UB_SLOT_BLOCKS * 2, UB_SLOT_BLOCKS // 4)
FED_ROWS = (4, 2, 1)  # most rows of a tile of a fed pool
_FED_PART = 5  # a slot of a fed pool takes at most 2 / _FED_PART of UB


class Gene(NamedTuple):
    """Operators [start, stop) as one segment; each field is a row of the table of knobs (`space.knobs`).

    `SegmentPlan` explains the other fields; lookahead has only two values, the default and the value of `planner.tweaks`.
    prefetch, window: number of slots of loaded tensors and of intermediates (`window`: also `ALL` or `FORMULA`).
    chunk: largest chunk of streamed weights, as an index in `CHUNK_BUDGETS`; smaller chunks follow if L1 is too small.
    weights: weights that stay while L1 has room: weights that are read repeatedly, all weights, or none.
    choices: per operator, index of its tiling in the ranking by estimate, or in `UB_SLOTS` and, for a pool that can be fed, `FED_ROWS`; ():
    all 0.  cores: cores that share the iterations (every block of every image); cores beyond the number of iterations have no work.
    cached: bit k: operator start + k caches its halo; -1: all operators do.
    grant: limit of the memories, as an index in `target.level_limits.memory_grants`; 0: no limit.
    passes, input_passes: number of passes over summed channels and over loaded channels (`segment.channel_splits`).
    held: bit k: the tensor whose first part operator start + k computes is persistent, if it fits (`space.persistent`).
    on_vector: per operator, number of planes that VECTOR computes in parallel to the matrix unit (`segment.engine_split`); (): all 0.
    pinned: pins of all operators, then pins of parts on VECTOR; pins replace choices, chunk and weights, and `decode` does not change them;
    (): no pins.  Pins fit only one division into blocks: `recut` drops them if the division changes.
    """

    start: int
    stop: int
    blocks: Annotated[int, Knob(legal=from_one())] = 1
    prefetch: Annotated[int, Knob(switch="prefetch", off=1)] = 2
    window: Annotated[int, Knob(translated=True)] = 1
    chunk: int = 0
    weights: Weights = "reused"
    choices: Annotated[tuple[int, ...], Knob(legal=per_operator)] = ()
    cores: Annotated[tuple[int, ...], Knob(legal=machine_cores, switch="cores")] = (0,)
    cached: Annotated[int, Knob(bits=True)] = 0
    sliding: bool = False
    spread: Annotated[bool, Knob(switch="prefetch", off=False)] = True
    split: Annotated[Split, Knob(switch="cores")] = "rows"
    columns: Annotated[int, Knob(legal=from_one())] = 1
    grant: Annotated[int, Knob(mark=Mark(0, lambda n: (-n,)))] = 0
    pinned: Annotated[tuple[int, ...], Knob(legal=_expected_pins, mark=Mark(LAST, tuple))] = ()
    passes: Annotated[int, Knob(legal=from_one(), switch="passes", mark=Mark(1, lambda n: ((n,),)))] = 1
    lookahead: Annotated[int, Knob(legal=from_one(MAX_LOOKAHEAD), switch="lookahead", off=1, mark=Mark(4, lambda n: ((-n,),)))] = LOOKAHEAD
    overtake: Annotated[bool, Knob(switch="lookahead", mark=coded(1))] = False
    held: Annotated[
        int, Knob(legal=operator_bits, switch="held", bits=True, translated=True, outside=True, mark=Mark(3, lambda n: ((n, n),)))
    ] = 0
    input_passes: Annotated[int, Knob(legal=from_one(), switch="passes", mark=Mark(2, lambda n: ((n, -1),)))] = 1
    urgent: Annotated[bool, Knob(switch="lookahead", mark=coded(2))] = True
    on_vector: Annotated[tuple[int, ...], Knob(legal=per_operator, translated=True, mark=coded(3))] = ()
    images: Annotated[int, Knob(legal=image_divisors, mark=coded(4))] = 1
    same_end: Annotated[bool, Knob(outside=True, mark=coded(5))] = False
    parts: Annotated[int, Knob(legal=core_parts, switch="cores", mark=coded(6))] = 0

    @property
    def channels(self) -> int:
        """Number of parts of output channels (`SegmentPlan.channels`)."""
        return (self.parts or len(self.cores)) if self.split == "channels" else 1

    @property
    def planes(self) -> tuple[int, ...]:
        """Number of planes on VECTOR of every operator (`SegmentPlan.planes`)."""
        return self.on_vector


Genome = tuple[Gene, ...]
Tail = tuple[Any, ...]  # all fields of a gene except start and stop
Key = tuple[str, Tail]


def copied(settings: Gene | SegmentPlan) -> dict[str, Any]:
    """Settings that a gene and its plan have in common, by key, from a gene or a plan."""
    return dict(zip(_COPIED, _copied(settings), strict=True))


def bare(gene: Gene) -> Gene:
    """Gene without fields that matter only next to other segments of a program."""
    return gene._replace(**_OUTSIDE)


def find_fault(target_graph: TargetGraph, genome: Genome, program: bool) -> str | None:
    """Reason why genes are malformed, with the accepted values; None if they are well-formed.  program: whether genes must cover all
    operators."""
    count, stop = len(target_graph.operators), 0
    for gene in genome:
        if not 0 <= gene.start < gene.stop <= count:
            return f"operators {gene.start}..{gene.stop - 1}; the model has 0..{count - 1}"
        for knob, setting in zip(KNOBS.values(), gene, strict=True):
            if knob.legal and setting != knob.default and (expected := knob.legal(target_graph, gene, setting)):
                return f"{knob.name} {setting}; expected {expected}"
        if gene.start < stop or (program and gene.start > stop):
            return f"a gene begins at operator {gene.start} behind operator {stop - 1}; expected their order, and of a program each once"
        stop = gene.stop
    return f"it ends at operator {stop - 1}; the model has {count}" if program and stop != count else None


def _expected_pins(target_graph: TargetGraph, gene: Gene, pins: tuple[int, ...]) -> str | None:
    count = tiling_count(gene)
    return None if len(pins) == count * PINS else f"{PINS} for each of {count} tilings"


def choice_count(target_graph: TargetGraph, kernel: int) -> int:
    """Number of tilings of an operator that a gene can name."""
    if target_graph.operators[kernel].runs_on == "CUBE":
        return RANKING_SIZE
    return len(UB_SLOTS) + (0 if feed_refusal(target_graph, 0, kernel) else len(FED_ROWS))


def vector_choice(target_graph: TargetGraph, spec: TargetOp, rows: int, choice: int, fed: bool) -> VectorTiling | None:
    """Tiling of a gene's choice, for blocks of `rows` rows.  fed: whether choices behind `UB_SLOTS` are tilings of a fed pool.

    Otherwise these choices repeat the tilings of `UB_SLOTS`.
    """
    if fed and choice >= len(UB_SLOTS):
        assert isinstance(spec, PoolSpec)
        slot = room_blocks(target_graph.machine, Memory.UB) * 2 // _FED_PART
        return spec.fed_tiling(min(rows, FED_ROWS[(choice - len(UB_SLOTS)) % len(FED_ROWS)]), slot)
    return vector_tiling(target_graph, spec, rows, UB_SLOTS[choice % len(UB_SLOTS)])


def working_cores(target_graph: TargetGraph, gene: Gene) -> tuple[int, ...]:
    """Cores of a gene that get an iteration of a part of the channels; all cores of a gene with pins."""
    share = len(gene.cores) // gene.channels
    return gene.cores if gene.pinned else gene.cores[: gene.channels * min(share, _dealt(target_graph, gene))]


def _dealt(target_graph: TargetGraph, gene: Gene) -> int:
    """Number of iterations that cores can share: blocks of all images."""
    return gene.blocks * (target_graph.images // gene.images)


def recut(gene: Gene, **changes: Any) -> Gene:
    """Gene with changed fields.  Pins are dropped if the segment is divided differently; images become 1 if it has several blocks.  Parts
    that do not divide the cores become one for each core."""
    changed = gene._replace(**changes)
    if changed.parts and (changed.split == "rows" or changed.parts not in part_counts(len(changed.cores))):
        changed = changed._replace(parts=0)
    if changed.images > 1 and changed.blocks > 1:
        changed = changed._replace(images=1)
    return changed if _division(changed) == _division(gene) else changed._replace(pinned=())


def _division(gene: Gene) -> tuple[object, ...]:
    blocks = gene.start, gene.stop, gene.blocks, gene.columns, gene.split, gene.parts, len(gene.cores), bits(gene)
    return *blocks, gene.passes, gene.input_passes, gene.on_vector, gene.images


def tiling_count(gene: Gene) -> int:
    """Number of tilings in the gene's plan."""
    return gene.stop - gene.start + sum(planes > 0 for planes in gene.on_vector)


def outline(target_graph: TargetGraph, gene: Gene, held: int = 0) -> Outline:
    """Outline of a gene's segment: its shares, strips and blocks.  held: persistent storages, as bits."""
    cores = len(working_cores(target_graph, gene))
    return Outline(gene.start, gene.stop, gene.channels, gene.columns, gene.blocks, cores // gene.channels, bits(gene), held)


def iterations(target_graph: TargetGraph, gene: Gene) -> int:
    """Number of iterations: every block of every image in every strip."""
    return _dealt(target_graph, gene) * gene.columns


def keeps_weights(target_graph: TargetGraph, gene: Gene) -> bool:
    """Whether weights stay as long as L1 has room for them."""
    return gene.weights == "resident" or (gene.weights == "reused" and iterations(target_graph, gene) > 1)


def with_weights(target_graph: TargetGraph, gene: Gene, resident: bool) -> Gene:
    """Gene with resident or streamed weights, as `reused` if this is equivalent: `reused` suits other numbers of blocks, too."""
    return gene._replace(weights="reused" if resident == (iterations(target_graph, gene) > 1) else "resident" if resident else "streamed")


def splits(target_graph: TargetGraph, gene: Gene, width: int) -> list[Split]:
    """Possible splits of a gene's work over `width` cores.  Its parts count if they divide the cores."""
    ways: list[Split] = []
    parts = gene.parts if gene.parts in part_counts(width) else width
    if _dealt(target_graph, gene) >= width:
        ways.append("rows")
    if width > 1 and _dealt(target_graph, gene) >= width // parts and can_split(target_graph, gene.start, gene.stop, parts):
        ways.append("channels")
    return ways


def widths(target_graph: TargetGraph) -> list[int]:
    """Numbers of cores worth trying: powers of two, all cores of the machine, and the numbers that levels grant."""
    machine = target_graph.machine
    granted = (machine.granted(level).cores for level in machine.contention)
    return sorted({*(1 << i for i in range(machine.cores.bit_length())), machine.cores, *granted})


def gene_json(gene: Sequence[Any]) -> list[Any]:
    """JSON form of a gene, or of its last fields."""
    return [list(value) if isinstance(value, tuple) else value for value in gene]


def gene_values(row: Sequence[Any]) -> tuple[Any, ...]:
    """Values of a gene from a row of `gene_json`."""
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)


@lru_cache(maxsize=1024)
def most_blocks(target_graph: TargetGraph) -> tuple[int, ...]:
    """Per operator, most blocks of a run that ends with it: number of rows of its result, or of its input if that has far more rows.

    A pool of all pixels, for example, computes no row in most of these blocks, but its partial sum stays on chip.
    """
    rows = [reach.size for reach in rows_needed(target_graph)]
    high = [max((rows[p] for p in target_graph.producers[k]), default=0) for k in range(len(rows))]
    return tuple([max(1, read if read >= _FAR_MORE * own_rows else own_rows) for read, own_rows in zip(high, rows, strict=True)])


@lru_cache(maxsize=1 << 14)
def block_counts(target_graph: TargetGraph, start: int, stop: int) -> tuple[int, ...]:
    """Block counts worth trying for operators [start, stop): up to `_height`."""
    height = _height(target_graph, start, stop)
    return tuple([count for count in BLOCK_COUNTS if count <= height])


def lower_counts(target_graph: TargetGraph, start: int, stop: int) -> tuple[int, ...]:
    """Block counts of `block_counts` whose highest block is lower than with any smaller count: 28 for 56 rows, but not 32."""
    height = _height(target_graph, start, stop)
    return tuple([count for count in block_counts(target_graph, start, stop) if -(-height // -(-height // count)) == count])


@lru_cache(maxsize=1 << 14)
def _height(target_graph: TargetGraph, start: int, stop: int) -> int:
    """Smallest number of rows of a result that operators [start, stop) read, or of `most_blocks` of the other operators, at least 1."""
    rows, limits = rows_needed(target_graph), most_blocks(target_graph)
    read = {k for k in range(start, stop) if stop - start == 1 or any(start <= c < stop for c in target_graph.consumers[k])}
    return max(1, min([rows[k].size if k in read else limits[k] for k in range(start, stop)]))


def has_halos(target_graph: TargetGraph, start: int, stop: int) -> bool:
    """Whether blocks of operators [start, stop) share rows."""
    return any(spec.operator.has_halo for spec in target_graph.operators[start:stop])


def bits(gene: Gene) -> int:
    """`cached` without the bits of operators outside the segment."""
    return gene.cached & ((1 << (gene.stop - gene.start)) - 1)


def whole_or(gene: Gene, cached: int) -> int:
    """Bits of operators of the gene in `cached`; -1 if every operator caches its halo."""
    every = (1 << (gene.stop - gene.start)) - 1
    return -1 if cached & every == every else cached & every


KNOBS = read_table(Gene)
_COPIED = [name for name in SegmentPlan.model_fields if name in KNOBS and not KNOBS[name].translated]
_OUTSIDE = {knob.name: knob.default for knob in KNOBS.values() if knob.outside}
_copied = attrgetter(*_COPIED)
