"""Plan: the genome, and the schedule file that a user exports, reads, edits and compiles again to the same bytes.

A plan cuts the operators, in a topological order, into segments.  A segment runs in `blocks` blocks of rows.  Tensors inside a segment
stay in L1, block by block, and their halo is recomputed or cached.  Tensors that leave a segment are written to DDR.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from operator import eq
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from simulator.npu.errors import BadInputError
from simulator.npu.fractal_sizes import ROWS
from simulator.npu.validation import validation_line

PLAN_VERSION: Literal[1] = 1
MAX_BLOCKS = 4096  # far more than rows; every block is laid out, so there must be a limit
MAX_TILE = 1 << 20  # the largest parameter of an instruction; products of two of them and a block stay inside int64
MAX_STRIPS = 256  # a row of 4,096 in strips of 16 columns: in narrower strips a convolution computes more halo than result
MAX_PASSES = 1024  # passes of 16 channels over 16,384 channels
MAX_CORES = 64  # cores of a machine
MAX_IMAGES = 1024  # images of a block
MAX_LOOKAHEAD = 1 << 12  # records of an engine; the windows of all engines are kept sorted
LOOKAHEAD = 128  # longer ones gain little
MAX_PREFETCH = 4  # slots: with more, a load waits for the bus and not for a slot
Window = Annotated[int, Field(ge=1, le=MAX_BLOCKS)] | Literal["all"]
TileSize = Annotated[int, Field(ge=1, le=MAX_TILE)]
CoreNumber = Annotated[int, Field(ge=0, lt=MAX_CORES)]


@dataclass(frozen=True)
class Infeasible:
    """Reason why a plan does not fit: a value, not an error."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class _Gene(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _unless(default: Any) -> Any:
    """Key that is not written at its default.  So a plan that does not use the key has the text and digest of a version without it."""
    return Field(default=default, exclude_if=partial(eq, default))


@dataclass(frozen=True)
class Text:
    """Words for the value of a key in a segment's line (`dump.plan`); '' if the line leaves it out."""

    of: Callable[[Any], str]


Constants = Literal["resident", "streamed"]


class ConvTiling(_Gene):
    """Tiling of a convolution or matrix product on one block.

    weights: `resident` loads all weights once per segment, `streamed` loads chunks of chunk_n1 x 16 channels by chunk_k1 blocks
    for every block.  In a product of two tensors the right operand counts as weights.  One tile in L0 has tile_m pixels (a multiple
    of 16), tile_n1 x 16 channels and tile_k1 blocks of C0.
    order: the outer loop, m or n.  constants: the whole bias once per segment, or a chunk of channels at a time.
    """

    kind: Literal["conv"] = "conv"
    weights: Literal["resident", "streamed"]
    chunk_n1: TileSize
    chunk_k1: TileSize
    tile_m: Annotated[int, Field(ge=ROWS, le=MAX_TILE, multiple_of=ROWS)]
    tile_n1: TileSize
    tile_k1: TileSize
    order: Literal["m", "n"]
    constants: Constants = _unless("resident")


class VectorTiling(_Gene):
    """Tiling of a vector operator on one block: a tile in UB has tile_planes planes and tile_rows output rows.

    tile_columns: 0 for whole rows, else the columns of a tile of one row.  constants: all once per segment, or those of a tile's planes.
    fed: a pool reads tiles in UB directly from the convolutions before it; its input is stored nowhere else (`segment.pool_fusion`).
    """

    kind: Literal["vector"] = "vector"
    tile_planes: TileSize
    tile_rows: TileSize
    tile_columns: Annotated[int, Field(ge=0, le=MAX_TILE)] = _unless(0)
    constants: Constants = _unless("resident")
    fed: bool = _unless(False)

    @model_validator(mode="after")
    def _columns_of_one_row(self) -> Self:
        if self.tile_columns and self.tile_rows > 1:
            raise ValueError(f"tile_columns {self.tile_columns} are of one row: expected tile_rows 1, found {self.tile_rows}")
        return self


Halo = Literal["recompute", "cache"]
Split = Literal["rows", "channels"]
Tiling = ConvTiling | VectorTiling


class VectorShare(_Gene):
    """First `planes` planes of a depthwise convolution, computed on VECTOR, with their own tiling."""

    operator: str
    planes: TileSize
    tiling: VectorTiling


class SegmentPlan(_Gene):
    """Segment.  operators: names, in execution order.

    Blocks.  blocks: blocks of output rows.  images: images per block, each with all of its rows (`segment.batch_tiles`).
    columns: strips of output columns, run one after the other, each in all blocks of all images, with a halo of columns (`segment.strips`).
    halo: per operator, input rows that two blocks share: recomputed or loaded again, or cached in L1; () is `recompute` for all.
    passes: passes over the channels that a product sums over, run one after the other (`segment.channel_splits`).
    input_passes: passes over channels of loaded inputs.
    Buffers.  prefetch: slots per loaded tensor.  window: slots per intermediate tensor, or one slot per block.
    spread: if possible, a buffer takes the address that has been free longest, so that loads need not wait for its last reads
    (`segment.allocator`).  same_end: fill L1 and UB from the same end as the previous segment on the core; else from the other end, so that
    its first loads need not wait for the previous segment's last reads.
    Order.  ahead_kib: always 0; loads of weights never come before the first tensor.
    lookahead: number of records from which each engine picks the one that can begin first (`schedule.list_scheduler`); 1: in order.
    overtake: loads are reordered too.  urgent: among ready records, the longest chain of successors comes first; else the first emitted.
    sliding: ready blocks of the window are list-scheduled (`schedule.sliding_window`); else operator by operator, block by block.
    With passes over results and a window above 1, products of the next pass precede those of this pass that wait for VECTOR.
    Cores.  cores: cores of the segment.  split: `rows` divides the iterations (every block of every image) among the cores; `channels`
    divides the output channels into parts (`segment.core_channels`).  parts: number of parts; 0: one for each core, which has all
    iterations; else a divisor of the number of cores, and the next cores // parts cores divide the iterations of each part: a grid.
    on_vector: depthwise convolutions whose first channels VECTOR computes, beside the matrix unit (`segment.engine_split`).
    Memories.  shared: tensors that are in the shared memory instead of DDR; all segments that read or write one must name it.
    staged: operators whose weights are copied to the shared memory once, and loaded from there by every core and block.
    held: tensors that stay whole in L1 from the first segment that writes them to the last that reads them; all segments that write or read
    one must name it, and run on one core (`segment.persistent`).
    """

    operators: tuple[str, ...]
    blocks: Annotated[int, Field(ge=1, le=MAX_BLOCKS), Text(lambda n: f"{n:,} block{'s' * (n != 1)}")] = 1
    images: Annotated[int, Field(ge=1, le=MAX_IMAGES), Text(lambda n: f", {n} images each" if n > 1 else "")] = _unless(1)
    columns: Annotated[int, Field(ge=1, le=MAX_STRIPS), Text(lambda n: f", {n:,} strip{'s' * (n != 1)}")] = _unless(1)
    passes: Annotated[int, Field(ge=1, le=MAX_PASSES), Text(lambda n: f", {n} passes" if n > 1 else "")] = _unless(1)
    input_passes: Annotated[int, Field(ge=1, le=MAX_PASSES), Text(lambda n: f", {n} input passes" if n > 1 else "")] = _unless(1)
    prefetch: Annotated[int, Field(ge=1, le=MAX_PREFETCH), Text(", prefetch {}".format)] = 2
    window: Annotated[Window, Text(", window {}".format)] = 1
    tilings: tuple[Annotated[Tiling, Field(discriminator="kind")], ...]
    halo: tuple[Halo, ...] = ()
    sliding: Annotated[bool, Text(lambda on: " sliding" if on else "")] = False
    spread: Annotated[bool, Text(lambda on: ", spread" if on else ", not spread")] = True
    ahead_kib: Literal[0] = 0  # digests of plans and tasks have the key
    lookahead: Annotated[int, Field(ge=1, le=MAX_LOOKAHEAD), Text(", lookahead {}".format)] = _unless(LOOKAHEAD)
    overtake: Annotated[bool, Text(lambda on: " of loads too" if on else "")] = _unless(False)
    urgent: Annotated[bool, Text(lambda on: "" if on else " as emitted")] = _unless(True)
    same_end: Annotated[bool, Text(lambda on: ", same end" if on else "")] = _unless(False)
    cores: Annotated[tuple[CoreNumber, ...], Field(min_length=1, max_length=MAX_CORES)] = (0,)
    split: Split = "rows"
    shared: tuple[str, ...] = _unless(())
    staged: tuple[str, ...] = _unless(())
    held: tuple[str, ...] = _unless(())
    on_vector: tuple[VectorShare, ...] = _unless(())
    parts: Annotated[int, Field(ge=0, le=MAX_CORES), Text(lambda n: f", {n} parts of channels" if n else "")] = _unless(0)

    @model_validator(mode="after")
    def _one_tiling_each(self) -> Self:
        if len(self.operators) != len(self.tilings) or not self.operators:
            raise ValueError(f"{len(self.operators)} operators need as many tilings, found {len(self.tilings)}")
        if self.halo and len(self.halo) != len(self.operators):
            raise ValueError(f"{len(self.operators)} operators need as many halo entries or none, found {len(self.halo)}")
        if "cache" not in self.halo:
            object.__setattr__(self, "halo", ())  # equal plans have equal texts
        return self

    @model_validator(mode="after")
    def _cores_once(self) -> Self:
        if len(set(self.cores)) < len(self.cores):
            raise ValueError(f"cores: {list(self.cores)} names a core twice")
        return self

    @model_validator(mode="after")
    def _parts_divide_cores(self) -> Self:
        if self.parts and (self.split != "channels" or len(self.cores) % self.parts or self.parts == 1):
            accepted = "0, or with split: channels a divisor of the number of cores, from 2 on"
            raise ValueError(f"parts: {self.parts} of {len(self.cores)} cores with split: {self.split}; accepted: {accepted}")
        if self.parts and (self.shared or self.staged):
            raise ValueError(f"parts: {self.parts} beside {'shared' if self.shared else 'staged'}; accepted: one of the two")
        if self.parts == len(self.cores):
            object.__setattr__(self, "parts", 0)  # equal plans have equal texts
        return self

    @model_validator(mode="after")
    def _names_are_its_own(self) -> Self:
        shares = tuple(share.operator for share in self.on_vector)
        for where, names in (("shared", self.shared), ("staged", self.staged), ("held", self.held), ("on_vector", shares)):
            if len(set(names)) < len(names):
                raise ValueError(f"{where}: {list(names)} names one twice")
        object.__setattr__(self, "held", tuple(sorted(self.held)))  # equal plans have equal texts
        both = [name for name in self.held if name in self.shared]
        if both:
            raise ValueError(f"held: {both[0]!r} is in shared memory; accepted: one of the two")
        for where, names in (("staged", self.staged), ("on_vector", shares)):
            foreign = [name for name in names if name not in self.operators]
            if foreign:
                raise ValueError(f"{where}: {foreign[0]!r} is none of the segment's operators; accepted: some of {list(self.operators)}")
        object.__setattr__(self, "on_vector", tuple(sorted(self.on_vector, key=lambda share: self.operators.index(share.operator))))
        return self

    @property
    def label(self) -> str:
        """Names of its operators in messages and dumps."""
        names = self.operators
        return names[0] + (f"..{names[-1]}" if len(names) > 1 else "")

    @property
    def caching(self) -> int:
        """Bit k is set where operator k caches (see `segment.blocks.cut_blocks`)."""
        return sum([1 << k for k, halo in enumerate(self.halo) if halo == "cache"])

    @property
    def channels(self) -> int:
        """Number of parts of output channels; 1 if cores share rows."""
        return (self.parts or len(self.cores)) if self.split == "channels" else 1

    @property
    def planes(self) -> tuple[int, ...]:
        """Planes on VECTOR of every operator; () for none."""
        by_name = {share.operator: share.planes for share in self.on_vector}
        return tuple([by_name.get(name, 0) for name in self.operators]) if by_name else ()

    @property
    def blocks_of_strips(self) -> int:
        """Blocks of an image, over all strips."""
        return self.blocks * self.columns

    @property
    def dealt(self) -> int:
        """Number of cores that share the iterations; 1 if each has a part of the channels for itself."""
        return len(self.cores) // self.channels

    @cached_property
    def key(self) -> str:
        """Canonical JSON of all that a share's code depends on, except the end of L1."""
        return self.model_dump_json(exclude={"cores", "same_end"})

    def __copy__(self) -> Self:
        """Without the cached key: `model_copy` changes fields, and so the key."""
        copy = super().__copy__()
        copy.__dict__.pop("key", None)
        return copy


class SubgraphPlan(_Gene):
    """Subgraph of a model with host nodes: its name in the compiled file, and its number of segments in the plan."""

    name: str
    segments: Annotated[int, Field(ge=1)]


class Plan(_Gene):
    """Plan: version, model and machine, and the segments in order.

    pieces: number of segments of each subgraph, if there are several; segments are in the order of the subgraphs.
    """

    version: Literal[1] = PLAN_VERSION
    model: str
    machine: str
    dtype: Literal["float16", "float32"]
    segments: tuple[SegmentPlan, ...]
    pieces: tuple[SubgraphPlan, ...] = _unless(())

    @model_validator(mode="after")
    def _segments_of_pieces(self) -> Self:
        if self.pieces and sum(piece.segments for piece in self.pieces) != len(self.segments):
            count = sum(piece.segments for piece in self.pieces)
            raise ValueError(f"pieces: they have {count} segments, the plan has {len(self.segments)}")
        return self

    def piece(self, number: int) -> Plan:
        """Plan of a single subgraph."""
        if not self.pieces:
            return self
        first = sum(piece.segments for piece in self.pieces[:number])
        return self.model_copy(update={"segments": self.segments[first : first + self.pieces[number].segments], "pieces": ()})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """A plan file.  Raises `BadInputError` with the dotted key."""
        try:
            return parse_plan(Path(path).read_bytes(), os.fspath(path))
        except OSError as error:
            raise BadInputError(f"{os.fspath(path)}: cannot be read: {error.strerror or error}") from None

    def to_json(self) -> str:
        """Readable, stable text: the file format."""
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"

    @property
    def digest(self) -> str:
        """32 hex digits over the canonical JSON."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def joined(plans: Mapping[str, Plan]) -> Plan:
    """One plan of all pieces, by their names; of a single piece its own."""
    first, *further = plans.values()
    if not further:
        return first
    pieces = tuple(SubgraphPlan(name=name, segments=len(plan.segments)) for name, plan in plans.items())
    return first.model_copy(update={"segments": tuple(s for plan in plans.values() for s in plan.segments), "pieces": pieces})


def parse_plan(text: str | bytes, where: str = "plan") -> Plan:
    """Read a plan file; `BadInputError` with the dotted key."""
    try:
        raw: Any = json.loads(text)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number or a nesting beyond Python's own limits
        raise BadInputError(f"{where}: not JSON: {error}") from None
    return validate_plan(raw, where)


def validate_plan(raw: Any, where: str) -> Plan:
    """Plan of a value of JSON; `BadInputError` with the dotted key."""
    try:
        return Plan.model_validate(raw)
    except ValidationError as error:
        raise BadInputError(f"{where}: {validation_line(error)}") from None
