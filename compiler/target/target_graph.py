"""The lowered model that emission and search read: storages, operators, addresses of constants, as numbers.

A `TargetGraph` is made once per (graph, machine, data type), by `ops.lower_graph`, and shared by every plan, candidate and variant: its DDR
addresses never depend on a plan, so variants can be switched by their start address alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from compiler.ir.graph import Graph
from compiler.ir.layout import Layout
from compiler.target.storage import StorageSpec, TensorSlice
from compiler.target.target_op import TargetOp
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType
from simulator.npu.program import MemoryMap


@dataclass(frozen=True, eq=False)
class TargetGraph:
    """A model on a machine in a data type, without the values of its weights: the input of planning, emission and timing.

    It is small, because every worker gets one and caches hold many.  `ops.lower_graph.Packed` has the values of the weights.
    dtype: requested type; `type_of` has that of a tensor.  strips: total number of strips (`segment.strips`) if this is one of them.
    together: images of a batch tile (`segment.batch_tiles`), which counts as one image.
    """

    graph: Graph
    layout: Layout
    machine: Machine
    dtype: DataType
    storages: tuple[StorageSpec, ...]
    operators: tuple[TargetOp, ...]
    memory: MemoryMap
    producers: dict[int, tuple[int, ...]]  # operator -> operators whose output it reads
    consumers: dict[int, tuple[int, ...]]  # operator -> operators that read its output
    escapes: frozenset[int]  # operators whose output the host reads
    strips: int = 1
    together: int = 1

    def type_of(self, tensor: TensorSlice) -> DataType:
        """The data type of a tensor; operands, results and constants may differ."""
        return self.storages[tensor.storage].dtype

    def dtypes_of(self, spec: TargetOp) -> tuple[DataType, ...]:
        """Data types of an operator's operands and of its result."""
        return tuple([self.type_of(piece) for piece in (*spec.reads, spec.y)])

    @property
    def images(self) -> int:
        """Batch size of every tensor, counted in images or batch tiles."""
        return self.storages[0].n

    @property
    def macs(self) -> int:
        return sum(spec.macs for spec in self.operators) * self.images

    @cached_property
    def machine_digest(self) -> str:
        """Digest of the machine for these tensors: integer rates added to the file of a machine do not change the digest of a float
        network."""
        floats = all(storage.dtype.is_float for storage in self.storages)
        return self.machine.floats_digest if floats else self.machine.digest

    @property
    def digest(self) -> str:
        """32 hex: the computation without its weights' values, the machine and the data type."""
        parts = [self.machine_digest, self.dtype.name]
        parts += [spec.signature(self.storages) for spec in self.operators]
        parts += [f"{s.name}:{s.n}:{s.planes}:{s.h}:{s.w}:{s.address}" for s in self.storages]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
