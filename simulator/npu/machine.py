"""The machine: a frozen spec.

Every number that the compiler's estimates and the simulator's clock use is here, with its unit in its name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from simulator.npu.dram import DRAMS, Dram
from simulator.npu.grant import Grant
from simulator.npu.level import Level, LevelText
from simulator.npu.parts import BLOCK_BYTES, BYTES, FRACTALS, DataType, Engine, Fractal, Memory, ProductName
from simulator.npu.tiles import ROWS

if TYPE_CHECKING:
    pass

BASELINE = "baseline"
RESERVED = (BASELINE, "robust")  # plans beside those of the levels; `baseline.LEVEL` too: of levels that grant something else


def _not_reserved(level: str) -> str:
    if level in RESERVED or level.startswith(f"{BASELINE}."):
        raise ValueError(f"{level} is no name for a level")
    return level


# bounded, so that no product of a value with a unit leaves int64 in the compiled kernels
PositiveInt = Annotated[int, Field(ge=1, le=1 << 40)]
NotNegativeInt = Annotated[int, Field(ge=0, le=1 << 40)]


def _whole_where_it_is(rate: float) -> int | float:
    return int(rate) if rate == int(rate) else rate


# bytes per cycle: 12.8 is what the decimal number says, not the binary one nearest to it (`exact`)
Rate = Annotated[int | float, Field(ge=2**-10, le=1 << 20, allow_inf_nan=False), AfterValidator(_whole_where_it_is)]


def exact(rate: float) -> Fraction:
    """The decimal number that a machine file has."""
    return Fraction(str(rate))


LevelName = Annotated[LevelText, AfterValidator(_not_reserved)]
OnChipBytes = Annotated[int, Field(ge=1, le=1 << 30)]  # a simulator holds these arrays, once per core


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


MatrixSide = Annotated[int, Field(ge=1, le=1 << 16)]
ProductCycles = Annotated[int, Field(ge=1, le=1 << 20)]  # of the smallest product too, 1 x 1 x 1: a tile of them stays in int64
Rounding = Literal["float", "fixed_point"]
MemoryName = Literal["DDR", "L1", "L0A", "L0B", "L0C", "UB", "SHARED"]


class DataPath(_Spec):
    """One wire that exists.  A move that no path lists is illegal.

    bytes_per_cycle: of a path to or from DDR what one transfer can draw of the port, a rational number; on chip a whole one.
    granule_bytes: every contiguous run moves a multiple of it.  startup_cycles: of every move, before its data; a DMA port has had the
    data of the move before by then, so start-ups do not overlap data of the same port.
    """

    engine: Literal["MTE1", "MTE2", "MTE3", "CUBE", "FIXPIPE", "VECTOR"]
    source: MemoryName
    destination: MemoryName
    bytes_per_cycle: Rate
    granule_bytes: Annotated[int, Field(ge=1, le=1 << 16)] = BLOCK_BYTES
    startup_cycles: NotNegativeInt = 0

    @property
    def name(self) -> str:
        return f"{self.source}->{self.destination}"

    @property
    def of_ddr(self) -> bool:
        return "DDR" in (self.source, self.destination)

    @model_validator(mode="after")
    def _read_in_place(self) -> Self:
        if (self.engine == "CUBE") != ((self.source, self.destination) == ("L1", "L0C")):
            raise ValueError(
                f"{self.name}: engine {self.engine}; accepted: CUBE of L1->L0C, which is what products read in L1, and of no other"
            )
        return self

    @model_validator(mode="after")
    def _whole_on_chip(self) -> Self:
        if not self.of_ddr and not isinstance(self.bytes_per_cycle, int):
            raise ValueError(f"{self.name}: bytes_per_cycle {self.bytes_per_cycle}; accepted on chip: whole numbers")
        return self


class Product(_Spec):
    """What a matrix unit multiplies at a time, m0 rows by k0 by n0 columns, and cycles from one such product to the next."""

    m0: MatrixSide
    k0: MatrixSide
    n0: MatrixSide
    cycles: ProductCycles

    @property
    def macs_per_cycle(self) -> Fraction:
        return Fraction(self.m0 * self.k0 * self.n0, self.cycles)


class CubeUnit(_Spec):
    """`cube`: one product at a time, by data type; a part of one takes as long as a whole one.

    int8: of operands of 8 bits, each signed or not, that are added up in int32; a unit that does not list it has none.
    cycles_per_fractal: of products of a fractal by a fractal, 16 x C0 x 16.  products: of other shapes.
    """

    kind: Literal["cube"]
    cycles_per_fractal: dict[ProductName, ProductCycles] = {}
    products: dict[ProductName, Product] = {}
    startup_cycles: NotNegativeInt

    @model_serializer(mode="wrap")
    def _without_defaults(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A unit of no other shapes is written, and has the digest, as if there were no such key."""
        found: dict[str, Any] = whole(self)
        if not self.products:
            found.pop("products", None)
        return found

    @model_validator(mode="after")
    def _types_once(self) -> Self:
        if twice := sorted(self.cycles_per_fractal.keys() & self.products.keys()):
            raise ValueError(f"{twice[0]}: in cycles_per_fractal and in products; accepted: in one of them")
        if not self.data_types:
            raise ValueError("cycles_per_fractal or products: of no data type; accepted: of float16, float32 or int8")
        return self

    @property
    def data_types(self) -> tuple[str, ...]:
        return tuple(sorted((*self.cycles_per_fractal, *self.products)))

    @property
    def by_type(self) -> dict[DataType, Product]:
        """Of every data type that it multiplies."""
        found = {DataType[name]: product for name, product in self.products.items()}
        for name, cycles in self.cycles_per_fractal.items():
            fractal = FRACTALS[DataType[name]]
            found[DataType[name]] = Product(m0=fractal.rows, k0=fractal.lanes, n0=fractal.columns, cycles=cycles)
        return found

    @property
    def macs_per_cycle(self) -> dict[str, Fraction]:
        return {dtype.name: product.macs_per_cycle for dtype, product in self.by_type.items()}

    def fractal_rows(self, dtype: DataType) -> int:
        """As many as a product's rows are multiples of, so that no more rows are filled up than it multiplies."""
        product = self.by_type.get(DataType.int8 if dtype in BYTES else dtype)
        return ROWS if product is None else gcd(product.m0, ROWS)


class SystolicUnit(_Spec):
    """`systolic`: rows x columns cells, a multiplication each per cycle; what a tile costs is in `simulator.npu.cycles`.

    output-stationary: a cell keeps one sum; rows run along m, columns along n.  weight-stationary: a cell keeps one weight; rows run along
    k, columns along n.  pipelined: cells have a second register for the sums that leave, or for the weights that come, so one tile
    follows the other without a gap; otherwise every tile fills and drains the array for itself.
    passes: how often a tile of that data type goes through the array; int8 as in `CubeUnit`.
    """

    kind: Literal["systolic"]
    rows: MatrixSide
    columns: MatrixSide
    dataflow: Literal["output-stationary", "weight-stationary"]
    pipelined: bool
    passes: dict[ProductName, PositiveInt]
    startup_cycles: NotNegativeInt

    @property
    def data_types(self) -> tuple[str, ...]:
        return tuple(sorted(self.passes))

    @property
    def macs_per_cycle(self) -> dict[str, Fraction]:
        return {name: Fraction(self.rows * self.columns, passes) for name, passes in self.passes.items()}

    def fractal_rows(self, dtype: DataType) -> int:
        return ROWS


MatrixUnit = Annotated[CubeUnit | SystolicUnit, Field(discriminator="kind")]


class VectorUnit(_Spec):
    """Cycles for `width_bytes` by class of primitive; of a repeat, 8 blocks, for each such part of it.

    lookup_cycles: of looking up in a table of 256 (VLUT); ordered_cycles: of adding the lanes of blocks one after the other (VLANE_ADD);
    None where the unit cannot.
    """

    startup_cycles: NotNegativeInt
    simple_cycles: PositiveInt
    divide_cycles: PositiveInt
    transcendental_cycles: PositiveInt
    reduce_cycles: PositiveInt
    lookup_cycles: PositiveInt | None = None
    ordered_cycles: PositiveInt | None = None
    width_bytes: Literal[32, 64, 128, 256] = 256

    @model_serializer(mode="wrap")
    def _without_defaults(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A unit without look-up or ordered sums, or as wide as a repeat, is written, and has the digest, as if without that key."""
        found: dict[str, Any] = whole(self)
        for key in ("lookup_cycles", "ordered_cycles"):
            if found.get(key) is None:
                found.pop(key, None)
        if self.width_bytes == 256:
            found.pop("width_bytes", None)
        return found


def _known_dram(name: str) -> str:
    if name not in DRAMS:
        raise ValueError(f"accepted: {', '.join(sorted(DRAMS))}")
    return name


class Ddr(_Spec):
    """One port shared by every DMA of every core and by a background load.

    rate: whether bytes_per_cycle is that of the `pins`, of which `dram` (a row of `simulator.npu.dram`) says what refresh, row misses and
    turn-around leave, or an `effective` one, from which nothing is taken again.  latency_cycles: from issue to the first data where nobody
    else is there.  outstanding: transfers that a DMA has in flight, on all of its ports (`Dma`): issued, with data still to come.
    """

    rate: Literal["pins", "effective"]
    bytes_per_cycle: Rate
    dram: Annotated[str, AfterValidator(_known_dram)] | None = None
    latency_cycles: NotNegativeInt
    outstanding: PositiveInt

    @model_validator(mode="after")
    def _dram_of_pins(self) -> Self:
        if self.rate == "pins" and self.dram is None:
            raise ValueError(f"rate: pins needs dram; accepted: {', '.join(sorted(DRAMS))}")
        if self.rate == "effective" and self.dram is not None:
            raise ValueError(f"dram: {self.dram}; an effective rate has none: its losses are in the rate; accepted: null, or rate: pins")
        return self

    @property
    def timings(self) -> Dram | None:
        """None of an effective rate."""
        return None if self.dram is None else DRAMS[self.dram]

    @property
    def deliverable(self) -> Fraction:
        """Bytes per cycle of one long run, which a level's share is of."""
        return exact(self.bytes_per_cycle) * (self.timings.delivered if self.timings else 1)

    @property
    def turned(self) -> Fraction:
        """Bytes per cycle where reads and writes take turns."""
        return self.deliverable * (self.timings.turned if self.timings else 1)


SHARED_LEAST_BYTES = 1 << 15


class SharedMemory(_Spec):
    """A memory on the chip between DDR and all cores, which software manages: nothing is there that no instruction brought.

    Its port is not that of DDR.  bytes_per_cycle: of the port, of which every core has an equal part for itself; a path takes no more than
    that, nor than its own rate.  latency_cycles: of every transfer, beside the path's start-up.
    """

    bytes: Annotated[int, Field(ge=SHARED_LEAST_BYTES, le=1 << 30, multiple_of=BLOCK_BYTES)]  # a piece of weights or planes is a transfer
    bytes_per_cycle: PositiveInt
    latency_cycles: NotNegativeInt = 0


MOST_PORTS = 8


class Dma(_Spec):
    """DMA ports of each core: how many of its transfers from DDR (load), and to DDR (store), move data at once, each at its path's rate.

    Transfers of a queue are issued in order and take its ports in turn, so what is on one port is in order, and a flag waits for all ports.
    A move on chip of the same engine has all of them.  `ddr.outstanding` hides latency; a port adds bandwidth to a core whose paths are
    slower than what it gets of DDR, and hides start-ups behind the data of other ports.
    """

    load_ports: Annotated[int, Field(ge=1, le=MOST_PORTS)] = 1
    store_ports: Annotated[int, Field(ge=1, le=MOST_PORTS)] = 1


class Flags(_Spec):
    ids_per_pair: PositiveInt
    count_limit: PositiveInt
    between_cores_cycles: NotNegativeInt


class Sizes(_Spec):
    """A buffer that is left out is not there: without L0A and L0B operands of products are read in L1, without UB vectors are."""

    L1: OnChipBytes
    L0A: OnChipBytes | None = None
    L0B: OnChipBytes | None = None
    L0C: OnChipBytes
    UB: OnChipBytes | None = None

    @model_serializer(mode="wrap")
    def _without_missing(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: size for name, size in whole(self).items() if size is not None}

    @property
    def there(self) -> dict[str, int]:
        """Sizes of those that there are."""
        return {name: size for name, size in self if size is not None}

    @model_validator(mode="after")
    def _whole_blocks(self) -> Self:
        for name, size in self.there.items():
            if size % BLOCK_BYTES:
                raise ValueError(f"{name}: {size} is not a multiple of {BLOCK_BYTES}")
        if (self.L0A is None) != (self.L0B is None):
            raise ValueError(f"{'L0A' if self.L0A is None else 'L0B'} is left out; accepted: L0A and L0B, or neither")
        return self


class Host(_Spec):
    """The processor that drives the NPU and runs what that does not: one thread of it.  No program's time depends on it.

    macs_per_s: float32; bytes_per_s: of values that it reads or writes; launch_us: from its call to the first instruction.
    The defaults are a server core: 2.5 GHz with 16 float32 multiply-adds per cycle (two 256-bit units: Haswell and later), some 10 GB/s of
    a memory that other threads use as well (STREAM on one thread gives 10 to 15), and 20 us for a driver's call (assumption; kernel
    launches on GPUs take 5 to 10 us, and a call of a whole model more).
    """

    launch_us: Annotated[float, Field(ge=0, le=1e6)] = 20.0
    macs_per_s: Annotated[int, Field(ge=1, le=10**15)] = 40 * 10**9
    bytes_per_s: Annotated[int, Field(ge=1, le=10**15)] = 10 * 10**9


class Machine(_Spec):
    """An NPU.  Sizes in bytes, rates in bytes per cycle, times in cycles of `clock_hz`.

    rounding: how FIXPIPE makes 8 bits of int32 sums: by a product in float32, or by one in fixed point with two roundings, as TFLite does.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=64)]
    description: str = ""
    cores: Annotated[int, Field(ge=1, le=64)]
    clock_hz: PositiveInt
    buffers_bytes: Sizes
    matrix: MatrixUnit
    vector: VectorUnit
    paths: tuple[DataPath, ...]
    ddr: Ddr
    dma: Dma = Dma()
    flags: Flags
    issue_cycles: NotNegativeInt
    queue_depth: PositiveInt
    launch_cycles: NotNegativeInt = 0  # from the start of a program to its first instruction
    contention: Annotated[dict[LevelName, Level], Field(min_length=1)] = Field(
        default_factory=lambda: {"none": Level(share=1), "slight": Level(share=0.5), "severe": Level(share=0.25)}
    )
    host: Host = Host()
    shared: SharedMemory | None = None
    rounding: Rounding = "float"

    @model_serializer(mode="wrap")
    def _without_defaults(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A machine that says nothing of its host or its DMA ports, has no shared memory, or rounds in floats is written, and has the
        digest, as if without that key."""
        found: dict[str, Any] = whole(self)
        if self.dma == Dma():
            found.pop("dma", None)
        if self.host == Host():
            found.pop("host", None)
        if self.shared is None:
            found.pop("shared", None)
        if self.rounding == "float":
            found.pop("rounding", None)
        return found

    @model_validator(mode="after")
    def _fixed_point_of_integers(self) -> Self:
        if self.rounding == "fixed_point" and self.matrix.data_types != ("int8",):
            raise ValueError(f"rounding: fixed_point of products of {', '.join(self.matrix.data_types)}; accepted: of int8 alone, or float")
        return self

    @model_validator(mode="after")
    def _paths_once(self) -> Self:
        seen = set()
        for path in self.paths:
            key = (path.source, path.destination)
            if key in seen:
                raise ValueError(f"paths: {path.source} -> {path.destination} is listed twice")
            seen.add(key)
        return self

    @model_validator(mode="after")
    def _paths_of_buffers(self) -> Self:
        for path in self.paths:
            for name in (path.source, path.destination):
                if name not in ("DDR", "SHARED") and not self.has(Memory[name]):
                    raise ValueError(
                        f"paths: {path.source} -> {path.destination}: the machine has no {name}; accepted: with buffers_bytes.{name}"
                    )
        return self

    @model_validator(mode="after")
    def _shared_has_paths(self) -> Self:
        named = [path for path in self.paths if "SHARED" in (path.source, path.destination)]
        if self.shared is None and named:
            raise ValueError(f"paths: {named[0].source} -> {named[0].destination}: the machine has no shared memory; accepted: with shared")
        if self.shared is not None and self.shared.bytes_per_cycle < self.cores:
            rate = self.shared.bytes_per_cycle
            raise ValueError(f"shared.bytes_per_cycle: {rate} for {self.cores} cores; accepted: a byte per cycle for each, or more")
        return self

    @model_validator(mode="after")
    def _ports_in_flight(self) -> Self:
        for key, ports in self.dma:
            if ports > self.ddr.outstanding:
                raise ValueError(f"dma.{key}: {ports}; accepted: up to ddr.outstanding, {self.ddr.outstanding}: no more are in flight")
        return self

    @model_validator(mode="after")
    def _grants_within(self) -> Self:
        for name, level in self.contention.items():
            for key, have in self.whole._asdict().items():
                given, unit = getattr(level, key), 1 if key == "cores" else BLOCK_BYTES
                if given is not None and (given > have or given % unit):
                    what = (
                        f"{'' if unit == 1 else f'multiples of {unit} '}up to {have}, what the machine has"
                        if have
                        else "none: there is no such memory"
                    )
                    raise ValueError(f"contention.{name}.{key}: {given}; accepted: {what}")
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """With other values, without what is kept of the old ones: pydantic copies every `cached_property` as well."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    @cached_property
    def whole(self) -> Grant:
        """All that it has of what a level can grant."""
        return Grant(self.buffers_bytes.L1, self.shared.bytes if self.shared else 0, self.cores)

    def granted(self, level: str) -> Grant:
        """What a level leaves of the machine's memory and cores."""
        given = self.contention[level]
        return Grant(*(have if (value := getattr(given, key)) is None else value for key, have in self.whole._asdict().items()))

    def path(self, source: Memory, destination: Memory) -> DataPath | None:
        """The path between two memories, or None where there is no wire."""
        for path in self.paths:
            if path.source == source.name and path.destination == destination.name:
                return path
        return None

    def has(self, memory: Memory) -> bool:
        """Whether an on-chip memory is there."""
        return self.buffers_blocks[memory] > 0

    @property
    def vector_memory(self) -> Memory:
        """Where VECTOR works, and where FIXPIPE has its bias, scale and residual."""
        return Memory.UB if self.has(Memory.UB) else Memory.L1

    def buffer_blocks(self, memory: Memory) -> int:
        """Size of an on-chip memory in blocks of 32 bytes."""
        return self.buffers_blocks[memory]

    @cached_property
    def buffers_blocks(self) -> dict[Memory, int]:
        """Sizes of the on-chip memories in blocks of 32 bytes; of one that is not there, 0."""
        own = {Memory[name]: size // BLOCK_BYTES if size else 0 for name, size in self.buffers_bytes}
        return own | {Memory.SHARED: self.shared.bytes // BLOCK_BYTES if self.shared is not None else 0}

    def path_bytes_per_cycle(self, engine: Engine) -> Fraction:
        """The most that one transfer draws: the rate of its engine's fastest path from or to DDR; all of DDR's where it has none."""
        rates = [exact(path.bytes_per_cycle) for path in self.paths if path.of_ddr and path.engine == engine.name]
        return max(rates, default=self.ddr.deliverable)

    def dma_ports(self, engine: Engine) -> int:
        """How many transfers of a core's MTE2 or MTE3 move DDR data at once."""
        return self.dma.load_ports if engine == Engine.MTE2 else self.dma.store_ports

    def dma_bytes_per_cycle(self, engine: Engine) -> Fraction:
        """The most that all ports of a core's MTE2 or MTE3 draw together."""
        return self.dma_ports(engine) * self.path_bytes_per_cycle(engine)

    def load_latency(self, share_units: int) -> int:
        """What a load adds to the latency that leaves a share (in 1/65536): that of the levels, between two of them linear in 1 / share.

        So it is in a queue of constant service S: S (1 - s) / (2 s) cycles of waiting where others take 1 - s of the time (M/D/1:
        Kleinrock, Queueing Systems I, 5.2).  Beyond the levels as at the last one; of levels of one share the least counts.
        """
        least: dict[int, int] = {}
        for level in self.contention.values():
            least[level.share_units] = min(level.latency_cycles, least.get(level.share_units, level.latency_cycles))
        known = sorted(least, reverse=True)
        lighter = [share for share in known if share >= share_units]
        heavier = [share for share in known if share <= share_units]
        a, b = (lighter or known[:1])[-1], (heavier or known[-1:])[0]
        if a <= b:
            return least[a if lighter else b]
        return least[a] + (least[b] - least[a]) * (a - share_units) * b // ((a - b) * share_units)

    @cached_property
    def data_types(self) -> tuple[DataType, ...]:
        """What records may be of: what the matrix unit multiplies; of a machine with integers of 8 bits all, for sums and borders."""
        found = tuple(DataType[name] for name in self.matrix.data_types)
        return tuple(DataType) if DataType.int8 in found or self.vector.lookup_cycles is not None else found

    def fractal(self, dtype: int) -> Fractal:
        """In what operands of products of a data type lie."""
        return self.fractals[dtype]

    @cached_property
    def fractals(self) -> tuple[Fractal, ...]:
        """By data type."""
        return tuple(FRACTALS[dtype]._replace(rows=self.matrix.fractal_rows(dtype)) for dtype in DataType)

    @cached_property
    def macs_per_cycle(self) -> dict[str, Fraction]:
        """Peak multiply-accumulates per cycle of one core, by data type."""
        return self.matrix.macs_per_cycle

    def peak(self, dtype: DataType) -> Fraction:
        """Of a data type; of one that it does not multiply, the most that it has of any."""
        return self.macs_per_cycle.get(dtype.name) or max(self.macs_per_cycle.values())

    @cached_property
    def digest(self) -> str:
        """32 hex digits over every value (not over the YAML's formatting or comments)."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @cached_property
    def floats_digest(self) -> str:
        """`digest` of the machine without what only integers need: adding it changes nothing of a network of floats."""
        whole = self.model_dump(mode="json")
        for key in ("lookup_cycles", "ordered_cycles"):
            whole["vector"].pop(key, None)
        for rates in whole["matrix"].values():
            if isinstance(rates, dict):
                rates.pop("int8", None)
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Machine) and self.digest == other.digest)  # tables are looked up by machine
