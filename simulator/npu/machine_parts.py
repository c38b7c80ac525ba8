"""Parts of a machine as frozen specs: paths, units, DDR, DMAs, memories and host.

All numbers behind the compiler's estimates and the simulator's clock are here, with their units in their names.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd
from typing import Annotated, Any, Literal, Self

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
from simulator.npu.fractal_sizes import ROWS
from simulator.npu.parts import BLOCK_BYTES, BYTES, FRACTALS, DataType, ProductName

# bounded, so that no product of a value with a unit leaves int64 in the compiled kernels
PositiveInt = Annotated[int, Field(ge=1, le=1 << 40)]
NotNegativeInt = Annotated[int, Field(ge=0, le=1 << 40)]


def _whole_where_it_is(rate: float) -> int | float:
    return int(rate) if rate == int(rate) else rate


# bytes per cycle: exactly the decimal number 12.8, not the nearest binary one (`exact_decimal`)
Rate = Annotated[int | float, Field(ge=2**-10, le=1 << 20, allow_inf_nan=False), AfterValidator(_whole_where_it_is)]


def exact_decimal(rate: float) -> Fraction:
    """The decimal number as the machine file has it."""
    return Fraction(str(rate))


OnChipBytes = Annotated[int, Field(ge=1, le=1 << 30)]  # the simulator allocates these arrays, once per core


class Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


MatrixSide = Annotated[int, Field(ge=1, le=1 << 16)]
ProductCycles = Annotated[int, Field(ge=1, le=1 << 20)]  # also for the smallest product, 1 x 1 x 1: a tile of such products stays in int64
Rounding = Literal["float", "fixed_point"]
MemoryName = Literal["DDR", "L1", "L0A", "L0B", "L0C", "UB", "SHARED"]


class DataPath(Spec):
    """A wire between two memories.  A move without a path is illegal.

    bytes_per_cycle: on a path to or from DDR, the cap of one transfer on the port, a rational number; on chip an integer.
    granule_bytes: every contiguous run is rounded up to a multiple of it.  startup_cycles: before the data of every move, and after the
    data of the previous move on that DMA port, so start-ups do not overlap data of the same port.
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
    def _stores_by_mte3(self) -> Self:
        if (self.source, self.destination) == ("L0C", "DDR") and self.engine != "MTE3":
            raise ValueError(f"{self.name}: engine {self.engine}; accepted: MTE3, which has the ports for stores")
        return self

    @model_validator(mode="after")
    def _whole_on_chip(self) -> Self:
        if not self.of_ddr and not isinstance(self.bytes_per_cycle, int):
            raise ValueError(f"{self.name}: bytes_per_cycle {self.bytes_per_cycle}; accepted on chip: whole numbers")
        return self


class Product(Spec):
    """A matrix unit's smallest product, m0 rows by k0 by n0 columns, and the cycles from one to the next."""

    m0: MatrixSide
    k0: MatrixSide
    n0: MatrixSide
    cycles: ProductCycles

    @property
    def macs_per_cycle(self) -> Fraction:
        return Fraction(self.m0 * self.k0 * self.n0, self.cycles)


class CubeUnit(Spec):
    """`cube`: one product at a time, by data type; a partial one takes as long as a full one.

    int8: operands of 8 bits, each signed or unsigned, with int32 sums; a unit without that key does not support them.
    cycles_per_fractal: cycles for a product of two fractals, 16 x C0 x 16.  products: other shapes.
    """

    kind: Literal["cube"]
    cycles_per_fractal: dict[ProductName, ProductCycles] = {}
    products: dict[ProductName, Product] = {}
    startup_cycles: NotNegativeInt

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Dump without `products` where it is empty, so that digests from before that key stay valid."""
        fields: dict[str, Any] = handler(self)
        if not self.products:
            fields.pop("products", None)
        return fields

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
        """Products by data type."""
        products = {DataType[name]: product for name, product in self.products.items()}
        for name, cycles in self.cycles_per_fractal.items():
            fractal = FRACTALS[DataType[name]]
            products[DataType[name]] = Product(m0=fractal.rows, k0=fractal.lanes, n0=fractal.columns, cycles=cycles)
        return products

    @property
    def macs_per_cycle(self) -> dict[str, Fraction]:
        return {dtype.name: product.macs_per_cycle for dtype, product in self.by_type.items()}

    def fractal_rows(self, dtype: DataType) -> int:
        """Row multiple of a tile: a divisor of m0, so that padding to it never adds a product."""
        product = self.by_type.get(DataType.int8 if dtype in BYTES else dtype)
        return ROWS if product is None else gcd(product.m0, ROWS)


class SystolicUnit(Spec):
    """`systolic`: rows x columns cells, one multiplication each per cycle; `simulator.npu.cycles` has the cost of a tile.

    output-stationary: a cell keeps one sum; rows run along m, columns along n.  weight-stationary: a cell keeps one weight; rows run along
    k, columns along n.  pipelined: cells have a second register for outgoing sums or incoming weights, so tiles follow each other without
    a gap; otherwise every tile fills and drains the array for itself.
    passes: passes of a tile through the array by data type; int8 as in `CubeUnit`.
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


class VectorUnit(Spec):
    """Vector unit.  Cycles are per `width_bytes`, by class of primitive; a repeat of 8 blocks takes them for each such part of it.

    lookup_cycles: look-up in a table of 256 entries (VLUT).  ordered_cycles: sum of a block's lanes in order (VLANE_ADD).  None: the
    unit has no such primitive.
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
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Dump without optional keys at their defaults, so that digests from before these keys stay valid."""
        fields: dict[str, Any] = handler(self)
        for key in ("lookup_cycles", "ordered_cycles"):
            if fields.get(key) is None:
                fields.pop(key, None)
        if self.width_bytes == 256:
            fields.pop("width_bytes", None)
        return fields


def _known_dram(name: str) -> str:
    if name not in DRAMS:
        raise ValueError(f"accepted: {', '.join(sorted(DRAMS))}")
    return name


class Ddr(Spec):
    """One port shared by every DMA of every core and by a background load.

    rate: `pins`, of which `dram` (a row of `simulator.npu.dram`) takes refresh, row misses and turn-around; or `effective`, with these
    losses already subtracted.  latency_cycles: from issue to the first data on an idle port.  outstanding: most transfers of a DMA in
    flight (issued, with data still to come), over all of its ports (`Dma`).
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
        """The DRAM timings; None with an effective rate."""
        return None if self.dram is None else DRAMS[self.dram]

    @property
    def deliverable(self) -> Fraction:
        """Bytes per cycle of one long run; shares of levels refer to it."""
        return exact_decimal(self.bytes_per_cycle) * (self.timings.delivered if self.timings else 1)

    @property
    def turned(self) -> Fraction:
        """Bytes per cycle where reads and writes take turns."""
        return self.deliverable * (self.timings.turned if self.timings else 1)


SHARED_LEAST_BYTES = 1 << 15


class SharedMemory(Spec):
    """Software-managed on-chip memory between DDR and all cores: only instructions fill it.

    Its port is separate from that of DDR.  bytes_per_cycle: rate of the port, divided equally among the cores; a path is limited by that
    part and by its own rate.  latency_cycles: latency of every transfer, besides the start-up of its path.
    """

    bytes: Annotated[int, Field(ge=SHARED_LEAST_BYTES, le=1 << 30, multiple_of=BLOCK_BYTES)]  # a piece of weights or planes is a transfer
    bytes_per_cycle: PositiveInt
    latency_cycles: NotNegativeInt = 0


MAX_PORTS = 8


class Dma(Spec):
    """DMA ports of each core, for loads from DDR and for stores to DDR.  All ports move data at once, each at the rate of its path.

    Transfers of a queue are issued in order and take its ports in turn: data on one port is in order, and a flag waits for all ports.
    An on-chip move of the same engine occupies all of them.  `ddr.outstanding` hides latency; a port adds bandwidth to a core whose paths
    are slower than its share of DDR, and hides start-ups behind the data of other ports.
    """

    load_ports: Annotated[int, Field(ge=1, le=MAX_PORTS)] = 1
    store_ports: Annotated[int, Field(ge=1, le=MAX_PORTS)] = 1


class Flags(Spec):
    ids_per_pair: PositiveInt
    count_limit: PositiveInt
    between_cores_cycles: NotNegativeInt


class Sizes(Spec):
    """Sizes of buffers.  None: the memory does not exist.  Without L0A and L0B products read L1; without UB vectors do."""

    L1: OnChipBytes
    L0A: OnChipBytes | None = None
    L0B: OnChipBytes | None = None
    L0C: OnChipBytes
    UB: OnChipBytes | None = None

    @model_serializer(mode="wrap")
    def _without_missing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: size for name, size in handler(self).items() if size is not None}

    @property
    def present_sizes(self) -> dict[str, int]:
        """Sizes of the buffers that exist."""
        return {name: size for name, size in self if size is not None}

    @model_validator(mode="after")
    def _whole_blocks(self) -> Self:
        for name, size in self.present_sizes.items():
            if size % BLOCK_BYTES:
                raise ValueError(f"{name}: {size} is not a multiple of {BLOCK_BYTES}")
        if (self.L0A is None) != (self.L0B is None):
            raise ValueError(f"{'L0A' if self.L0A is None else 'L0B'} is left out; accepted: L0A and L0B, or neither")
        return self


class Host(Spec):
    """Processor that drives the NPU and runs the host nodes on one thread.  No cycles of a program depend on it.

    macs_per_s: float32 MACs.  bytes_per_s: bytes of values read or written.  launch_us: time from the call to the first instruction.
    The defaults are a server core: 2.5 GHz with 16 float32 multiply-adds per cycle (two 256-bit units: Haswell and later), some 10 GB/s of
    a memory that other threads use as well (STREAM on one thread gives 10 to 15), and 20 us for a driver's call (assumption; kernel
    launches on GPUs take 5 to 10 us, and a call of a whole model more).
    """

    launch_us: Annotated[float, Field(ge=0, le=1e6)] = 20.0
    macs_per_s: Annotated[int, Field(ge=1, le=10**15)] = 40 * 10**9
    bytes_per_s: Annotated[int, Field(ge=1, le=10**15)] = 10 * 10**9
