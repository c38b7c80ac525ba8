"""The machine: a frozen spec of its parts (`simulator.npu.machine_parts`), its contention levels and their grants."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from simulator.npu.grant import Grant
from simulator.npu.l2 import L2, LEAST_LINES
from simulator.npu.level import Level, LevelText
from simulator.npu.machine_parts import (
    DataPath,
    Ddr,
    Dma,
    Flags,
    Host,
    MatrixUnit,
    NotNegativeInt,
    PositiveInt,
    Rounding,
    SharedMemory,
    Sizes,
    Spec,
    VectorUnit,
    exact_decimal,
)
from simulator.npu.parts import BLOCK_BYTES, FRACTALS, DataType, Engine, Fractal, Memory
from simulator.npu.provenance import Provenance, ValueOrigin, list_values

BASELINE = "baseline"
RESERVED = (BASELINE, "robust")  # names of plans besides those of levels


def _not_reserved(level: str) -> str:
    if level in RESERVED or level.startswith(f"{BASELINE}."):
        raise ValueError(f"{level} is no name for a level")
    return level


LevelName = Annotated[LevelText, AfterValidator(_not_reserved)]


class Machine(Spec):
    """An NPU.  Sizes in bytes, rates in bytes per cycle, times in cycles of `clock_hz`.

    rounding: rounding of int32 sums to 8 bits in FIXPIPE: a product in float32, or a fixed-point product with two roundings, as in TFLite.
    provenance: where values are from; no value itself, so in no dump and no digest.
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
    launch_cycles: NotNegativeInt = 0  # time from the start of a program to its first instruction
    contention: Annotated[dict[LevelName, Level], Field(min_length=1)] = Field(
        default_factory=lambda: {"none": Level(share=1), "slight": Level(share=0.5), "severe": Level(share=0.25)}
    )
    host: Host = Host()
    shared: SharedMemory | None = None
    l2: L2 | None = None
    rounding: Rounding = "float"
    provenance: Annotated[Provenance, Field(exclude=True, repr=False)] = Provenance()

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Dump without optional keys at their defaults, so that files and digests from before these keys stay valid."""
        fields: dict[str, Any] = handler(self)
        if self.dma == Dma():
            fields.pop("dma", None)
        if self.host == Host():
            fields.pop("host", None)
        if self.shared is None:
            fields.pop("shared", None)
        if self.l2 is None:
            fields.pop("l2", None)
        if self.rounding == "float":
            fields.pop("rounding", None)
        return fields

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
        l2_bytes, line_bytes = (0, 1) if self.l2 is None else (self.l2.bytes, self.l2.line_bytes)
        sizes = self.full_grant._asdict() | {"l2_bytes": l2_bytes}
        units = dict.fromkeys(sizes, BLOCK_BYTES) | {"cores": 1, "l2_bytes": line_bytes}
        for name, level in self.contention.items():
            for key, have in sizes.items():
                grant, unit = getattr(level, key), units[key]
                least = LEAST_LINES * unit if key == "l2_bytes" else unit
                if grant is not None and (not least <= grant <= have or grant % unit):
                    steps = "" if unit == 1 else f"multiples of {unit} " + (f"from {least} " if least > unit else "")
                    accepted = f"{steps}up to {have}, what the machine has" if have else "none: there is no such memory"
                    raise ValueError(f"contention.{name}.{key}: {grant}; accepted: {accepted}")
        return self

    @model_validator(mode="after")
    def _provenance_of_values(self) -> Self:
        if not self.provenance.patterns:
            return self
        try:
            used = self.provenance.deciding(self.values).values()
        except ValueError as error:
            raise ValueError(f"provenance: {error}") from None
        if idle := [".".join(entry) for entry in self.provenance.patterns if entry not in used]:
            raise ValueError(
                f"provenance.{idle[0]}: decides no value; accepted: a key of the file, with * for any, of which no longer one is"
            )
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values and without cached properties, which pydantic would copy as well."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    @cached_property
    def values(self) -> dict[str, Any]:
        """All values by dotted key of the file, defaults too; without names, and without what the machine lacks."""
        return dict(list_values(self))

    @cached_property
    def origins(self) -> dict[str, ValueOrigin]:
        """Provenance of values by dotted key; without those of which nothing is said."""
        return self.provenance.origins(self.values)

    @cached_property
    def full_grant(self) -> Grant:
        """The grant of the whole machine."""
        return Grant(self.buffers_bytes.L1, self.shared.bytes if self.shared else 0, self.cores)

    def granted(self, level: str) -> Grant:
        """The memory and cores that a level grants."""
        spec = self.contention[level]
        return Grant(*(have if (value := getattr(spec, key)) is None else value for key, have in self.full_grant._asdict().items()))

    def l2_bytes_at(self, share_units: int) -> int | None:
        """L2 beside a background load that leaves a share: the least that levels of this share and above grant; None: all of it."""
        sizes = [level.l2_bytes for level in self.contention.values() if level.share_units >= share_units and level.l2_bytes is not None]
        return min(sizes, default=None)

    def path(self, source: Memory, destination: Memory) -> DataPath | None:
        """Path between two memories; None if there is none."""
        for path in self.paths:
            if path.source == source.name and path.destination == destination.name:
                return path
        return None

    def has(self, memory: Memory) -> bool:
        """Whether the machine has an on-chip memory."""
        return self.buffers_blocks[memory] > 0

    @property
    def vector_memory(self) -> Memory:
        """The memory of VECTOR, and of bias, scale and residual of FIXPIPE."""
        return Memory.UB if self.has(Memory.UB) else Memory.L1

    def buffer_blocks(self, memory: Memory) -> int:
        """Size of an on-chip memory in blocks of 32 bytes."""
        return self.buffers_blocks[memory]

    @cached_property
    def buffers_blocks(self) -> dict[Memory, int]:
        """Sizes of the on-chip memories in blocks of 32 bytes; 0 for one that the machine does not have."""
        sizes = {Memory[name]: size // BLOCK_BYTES if size else 0 for name, size in self.buffers_bytes}
        return sizes | {Memory.SHARED: self.shared.bytes // BLOCK_BYTES if self.shared is not None else 0}

    def path_bytes_per_cycle(self, engine: Engine) -> Fraction:
        """The highest rate of one transfer of bytes of DDR: that of the fastest path, of loads at most that of L2 fills."""
        fastest = self.fastest_ddr_path(engine)
        return min(fastest, exact_decimal(self.l2.fill_bytes_per_cycle)) if self.l2 is not None and engine == Engine.MTE2 else fastest

    def fastest_ddr_path(self, engine: Engine) -> Fraction:
        """Rate of an engine's fastest path from or to DDR, which an L2 holds to for bytes that it has; DDR's without such a path."""
        rates = [exact_decimal(path.bytes_per_cycle) for path in self.paths if path.of_ddr and path.engine == engine.name]
        return max(rates, default=self.ddr.deliverable)

    def dma_ports(self, engine: Engine) -> int:
        """DMA ports of a core's MTE2 or MTE3: number of transfers that can move DDR data at once."""
        return self.dma.load_ports if engine == Engine.MTE2 else self.dma.store_ports

    def dma_bytes_per_cycle(self, engine: Engine) -> Fraction:
        """The highest rate of all ports of a core's MTE2 or MTE3 together."""
        return self.dma_ports(engine) * self.path_bytes_per_cycle(engine)

    def load_latency(self, share_units: int) -> int:
        """Latency added by a background load that leaves a share (in 1/65536), interpolated between the levels linearly in 1 / share.

        This is the form of a queue of constant service S: S (1 - s) / (2 s) cycles of waiting if the load takes 1 - s of the time (M/D/1:
        Kleinrock, Queueing Systems I, 5.2).  Beyond the levels it is the latency of the last level; of levels with one share the least
        latency counts.
        """
        least: dict[int, int] = {}
        for level in self.contention.values():
            least[level.share_units] = min(level.latency_cycles, least.get(level.share_units, level.latency_cycles))
        shares = sorted(least, reverse=True)
        lighter = [share for share in shares if share >= share_units]
        heavier = [share for share in shares if share <= share_units]
        a, b = (lighter or shares[:1])[-1], (heavier or shares[-1:])[0]
        if a <= b:
            return least[a if lighter else b]
        return least[a] + (least[b] - least[a]) * (a - share_units) * b // ((a - b) * share_units)

    @cached_property
    def data_types(self) -> tuple[DataType, ...]:
        """Data types of records: those of the matrix unit; with 8-bit integers all types, because sums and conversions need them."""
        types = tuple(DataType[name] for name in self.matrix.data_types)
        return tuple(DataType) if DataType.int8 in types or self.vector.lookup_cycles is not None else types

    def fractal(self, dtype: int) -> Fractal:
        """Layout of product operands of a data type."""
        return self.fractals[dtype]

    @cached_property
    def fractals(self) -> tuple[Fractal, ...]:
        """Layouts of product operands by data type."""
        return tuple(FRACTALS[dtype]._replace(rows=self.matrix.fractal_rows(dtype)) for dtype in DataType)

    @cached_property
    def macs_per_cycle(self) -> dict[str, Fraction]:
        """Peak multiply-accumulates per cycle of one core, by data type."""
        return self.matrix.macs_per_cycle

    def peak(self, dtype: DataType) -> Fraction:
        """Peak MACs per cycle of a data type; the highest of any type if the unit does not multiply this one."""
        return self.macs_per_cycle.get(dtype.name) or max(self.macs_per_cycle.values())

    @cached_property
    def digest(self) -> str:
        """32 hex digits over every value (not over the YAML's formatting or comments)."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @cached_property
    def floats_digest(self) -> str:
        """Digest of the machine without keys that only integers need: adding these keys changes nothing for a float network."""
        fields = self.model_dump(mode="json")
        for key in ("lookup_cycles", "ordered_cycles"):
            fields["vector"].pop(key, None)
        for rates in fields["matrix"].values():
            if isinstance(rates, dict):
                rates.pop("int8", None)
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Machine) and self.digest == other.digest)  # tables are looked up by machine
