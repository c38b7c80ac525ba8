"""What emission and search need of a model on a machine, as numbers: storages, operators, addresses of constants.

A `Unit` is made once per (graph, machine, data type), by `ops.lower_graph`, and shared by every plan, candidate and variant: its DDR
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
    """A model on a machine in a data type, without its weights' values: all that planning, emission and timing need.

    So it is small: every worker is sent one, and what is remembered of units does not keep their models.  The values are packed beside
    it (`ops.lower_graph.Packed`).  dtype: in which it was asked for; of a tensor,
    ask `type_of`.  strips: of how many strips (`segment.strips`) this is one.  together: images that are worked on together
    (`segment.batch_tiles`); then what is called an image is so many of them.
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
        """Of a tensor's values: every operand, result and constant has its own."""
        return self.storages[tensor.storage].dtype

    def dtypes_of(self, spec: TargetOp) -> tuple[DataType, ...]:
        """Of an operator's operands, and of its result."""
        return tuple([self.type_of(piece) for piece in (*spec.reads, spec.y)])

    @property
    def images(self) -> int:
        """n of every tensor: of images, or of those that are worked on together."""
        return self.storages[0].n

    @property
    def macs(self) -> int:
        return sum(spec.macs for spec in self.operators) * self.images

    @cached_property
    def machine_digest(self) -> str:
        """Of what the machine is to these tensors: rates of integers may be added to its file without any effect on networks of floats."""
        floats = all(storage.dtype.is_float for storage in self.storages)
        return self.machine.floats_digest if floats else self.machine.digest

    @property
    def digest(self) -> str:
        """32 hex: the computation without its weights' values, the machine and the data type."""
        parts = [self.machine_digest, self.dtype.name]
        parts += [spec.signature(self.storages) for spec in self.operators]
        parts += [f"{s.name}:{s.n}:{s.planes}:{s.h}:{s.w}:{s.address}" for s in self.storages]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
