"""What a machine is made of, as frozen specs: paths, units, DDR, DMAs, memories and host.

Every number that the compiler's estimates and the simulator's clock use is here, with its unit in its name.
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
from simulator.npu.parts import BLOCK_BYTES, BYTES, FRACTALS, DataType, ProductName
from simulator.npu.tiles import ROWS

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


OnChipBytes = Annotated[int, Field(ge=1, le=1 << 30)]  # a simulator holds these arrays, once per core


class Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


MatrixSide = Annotated[int, Field(ge=1, le=1 << 16)]
ProductCycles = Annotated[int, Field(ge=1, le=1 << 20)]  # of the smallest product too, 1 x 1 x 1: a tile of them stays in int64
Rounding = Literal["float", "fixed_point"]
MemoryName = Literal["DDR", "L1", "L0A", "L0B", "L0C", "UB", "SHARED"]


class DataPath(Spec):
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


class Product(Spec):
    """What a matrix unit multiplies at a time, m0 rows by k0 by n0 columns, and cycles from one such product to the next."""

    m0: MatrixSide
    k0: MatrixSide
    n0: MatrixSide
    cycles: ProductCycles

    @property
    def macs_per_cycle(self) -> Fraction:
        return Fraction(self.m0 * self.k0 * self.n0, self.cycles)


class CubeUnit(Spec):
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


class SystolicUnit(Spec):
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


class VectorUnit(Spec):
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


class Ddr(Spec):
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


class SharedMemory(Spec):
    """A memory on the chip between DDR and all cores, which software manages: nothing is there that no instruction brought.

    Its port is not that of DDR.  bytes_per_cycle: of the port, of which every core has an equal part for itself; a path takes no more than
    that, nor than its own rate.  latency_cycles: of every transfer, beside the path's start-up.
    """

    bytes: Annotated[int, Field(ge=SHARED_LEAST_BYTES, le=1 << 30, multiple_of=BLOCK_BYTES)]  # a piece of weights or planes is a transfer
    bytes_per_cycle: PositiveInt
    latency_cycles: NotNegativeInt = 0


MOST_PORTS = 8


class Dma(Spec):
    """DMA ports of each core: how many of its transfers from DDR (load), and to DDR (store), move data at once, each at its path's rate.

    Transfers of a queue are issued in order and take its ports in turn, so what is on one port is in order, and a flag waits for all ports.
    A move on chip of the same engine has all of them.  `ddr.outstanding` hides latency; a port adds bandwidth to a core whose paths are
    slower than what it gets of DDR, and hides start-ups behind the data of other ports.
    """

    load_ports: Annotated[int, Field(ge=1, le=MOST_PORTS)] = 1
    store_ports: Annotated[int, Field(ge=1, le=MOST_PORTS)] = 1


class Flags(Spec):
    ids_per_pair: PositiveInt
    count_limit: PositiveInt
    between_cores_cycles: NotNegativeInt


class Sizes(Spec):
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


class Host(Spec):
    """The processor that drives the NPU and runs what that does not: one thread of it.  No program's time depends on it.

    macs_per_s: float32; bytes_per_s: of values that it reads or writes; launch_us: from its call to the first instruction.
    The defaults are a server core: 2.5 GHz with 16 float32 multiply-adds per cycle (two 256-bit units: Haswell and later), some 10 GB/s of
    a memory that other threads use as well (STREAM on one thread gives 10 to 15), and 20 us for a driver's call (assumption; kernel
    launches on GPUs take 5 to 10 us, and a call of a whole model more).
    """

    launch_us: Annotated[float, Field(ge=0, le=1e6)] = 20.0
    macs_per_s: Annotated[int, Field(ge=1, le=10**15)] = 40 * 10**9
    bytes_per_s: Annotated[int, Field(ge=1, le=10**15)] = 10 * 10**9
