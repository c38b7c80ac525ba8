"""Specification of a model to compile, and the model lowered for a machine (the part that does not depend on a plan)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from onnx import ModelProto, TensorProto

from compiler.diagnostics.float_range import find_weights_out_of_range
from compiler.diagnostics.grouped_convs import GroupStructure, find_group_structure
from compiler.frontend.frames import add_frames, check_frames
from compiler.frontend.lower import lower_partition
from compiler.frontend.onnx_io.load import load
from compiler.frontend.partition.offload_cost import Offload
from compiler.frontend.partition.partition import Partition
from compiler.ir.frames import with_frames
from compiler.ir.graph import Graph
from compiler.ops.lower_graph import Packed, pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.initial import layer_by_layer
from compiler.target.capabilities import check_machine, no_floats
from compiler.target.level_limits import at_level
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import BadInputError, InfeasibleError, UnsupportedError
from simulator.npu.float_range import OutOfRange
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.onnx_kinds import CONVERTED


@dataclass(frozen=True)
class ModelSpec:
    """Model and how to lower it.  model: path of a file, or a name for a model in memory.  shapes: dimensions of dynamic inputs.

    random_weights: seed of weights that replace the model's.  frames: frames that one run computes, stacked along the first axis.
    """

    model: Path
    machine: Machine
    dtype: DataType = DataType.float16
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    random_weights: int | None = None
    frames: int = 1

    @staticmethod
    def named(
        model: Path, machine: str | Machine, dtype: str, shapes: Mapping[str, tuple[int, ...]], random_weights: int | None, frames: int = 1
    ) -> ModelSpec:
        """Specification by the names of a user.  machine: a preset or a YAML file.  Raises `BadInputError`."""
        if dtype not in DataType.__members__:
            raise BadInputError(f"dtype {dtype!r}: expected one of {', '.join(DataType.__members__)}")
        loaded = machine if isinstance(machine, Machine) else load_machine(machine)
        return ModelSpec(model, loaded, DataType[dtype], shapes, random_weights, frames)


@dataclass(frozen=True, eq=False)
class LoweredModel:
    """Lowered model: the model of one frame with its partition, and the target graph of each subgraph.

    name: name of the model in logs and summaries.
    part: partition of one frame.  If it is one subgraph without host nodes, its model is hollow: its large weights are in `part.data`.
    packed: per subgraph, target graph and constants for all frames of a run.
    written: partition with all frames of a run, as it is written into the compiled file.
    weights_beyond: weights out of the range of the data type.
    """

    name: str
    source: ModelSpec
    part: Partition
    packed: tuple[Packed, ...]
    written: Partition
    weights_beyond: tuple[OutOfRange, ...]

    @property
    def model(self) -> ModelProto:
        return self.part.model

    @property
    def frames(self) -> int:
        """Images that a run computes together: the requested frames, or the batch of the model."""
        return self.target_graphs[0].images

    @cached_property
    def compilers(self) -> tuple[Compiler, ...]:
        """Compiler of each subgraph."""
        return tuple(map(Compiler, self.target_graphs))

    @property
    def target_graphs(self) -> tuple[TargetGraph, ...]:
        return tuple(target_graph for target_graph, _ in self.packed)

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes of the model that its user should know, a line each."""
        properties = {item.key: item.value for item in self.model.metadata_props}
        ports = (item for subgraph in self.part.pieces for item in (*subgraph.npu.graph.input, *subgraph.npu.graph.output))
        double = any(item.type.tensor_type.elem_type == TensorProto.DOUBLE for item in ports)
        return (
            *([f"converted {properties[CONVERTED]}, inputs and outputs as well"] if CONVERTED in properties else []),
            *([f"computes double in {self.source.dtype.name}; inputs and outputs stay double"] if double else []),
        )

    @cached_property
    def grouped(self) -> GroupStructure | None:
        """Structure of grouped convolutions whose weights have zero blocks; None if there are none."""
        return find_group_structure(self.target_graphs)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each subgraph."""
        return tuple(subgraph.name for subgraph in self.part.pieces)

    @property
    def compiler(self) -> Compiler:
        """The compiler of a model with one subgraph.  Raises `UnsupportedError` if it has several."""
        if len(self.compilers) > 1:
            raise UnsupportedError(f"{self.name}: runs in {len(self.compilers)} pieces, and a model in one is expected here")
        return self.compilers[0]

    @property
    def target_graph(self) -> TargetGraph:
        """Target graph of a model with one subgraph.  Raises `UnsupportedError` if it has several."""
        return self.compiler.target_graph

    @property
    def computes(self) -> str:
        """Data types in which the NPU computes, as text; int8 stands for signed and unsigned integers of 8 bits."""
        graphs = [target_graph.graph for target_graph in self.target_graphs]
        integers = any(graph.types for graph in graphs)
        floats = any(graph.shapes.keys() - graph.types.keys() for graph in graphs)
        return " and ".join([*(["int8"] if integers else []), *([self.source.dtype.name] if floats else [])])

    @property
    def digest(self) -> str:
        """Identity of the whole model, whatever the machine: digest of its graphs (`Graph.digest`)."""
        return self.target_graphs[0].graph.digest

    @property
    def machine(self) -> Machine:
        return self.source.machine


def lower_model(source: ModelSpec, given: bytes | ModelProto | None = None, name: str | None = None) -> LoweredModel:
    """Load a model, check it, and lower the part that the NPU supports.  If one of several subgraphs does not fit the machine, it moves to
    the host.

    given: the model, if it is not read from the file `source.model`.  name: name of the model; None: name of the file.  Raises
    `BadInputError`, `UnsupportedError` (an `AllOnHostError` if no node can run on the NPU), and `InfeasibleError` if no subgraph fits.
    """
    check_machine(source.machine)
    # load the model of one frame
    model_or_file = source.model if given is None else given
    model, data = load(model_or_file, source.shapes, random_weights=source.random_weights, where=str(source.model))
    check_frames(model, source.frames)
    # divide it into host nodes and subgraphs, and make a graph of each subgraph
    pack, floats_refused = _CachedPack(source), no_floats(source.machine, source.dtype)
    graphs, part = lower_partition(model, Offload(source.machine, source.dtype), data, pack, floats_refused)
    if floats_refused and not any(graph.types for graph in graphs):
        raise UnsupportedError(f"{floats_refused}; `tilefarm quantize` makes an int8 model of a float one")
    packed = [pack(graph) for graph in graphs]
    # of several subgraphs, move those that do not fit to the host; a single one stays, and compiling it raises the reason
    if len(packed) > 1:
        candidates = ((k, _misfit(target_graph)) for k, (target_graph, _) in enumerate(packed))
        misfits = {k: misfit for k, misfit in candidates if misfit is not None}
        if len(misfits) == len(packed):
            raise InfeasibleError(f"{source.machine.name}: none of {len(packed)} pieces fits; {part.pieces[0].name}: {misfits[0]}")
        if misfits:
            part = part.without({k: f"does not fit {source.machine.name}: {misfit}" for k, misfit in misfits.items()})
            packed = [packed_subgraph for k, packed_subgraph in enumerate(packed) if k not in misfits]
            graphs = tuple(graph for k, graph in enumerate(graphs) if k not in misfits)
    # add the other frames for the compiled file
    written = add_frames(part, source.frames)
    weights_beyond = find_weights_out_of_range(part, graphs, source.dtype)
    return LoweredModel(name or source.model.stem, source, part, tuple(packed), written, weights_beyond)


class _CachedPack:
    """`pack_unit` of all frames of a graph, with a cache of the last result: `lower_partition` packs a graph of integers to see whether the
    machine can run it."""

    def __init__(self, source: ModelSpec) -> None:
        self.source = source
        self._last: tuple[Graph, Packed] | None = None

    def __call__(self, graph: Graph) -> Packed:
        """Target graph and constants.  graph: of one frame.  Raises as `pack_unit`."""
        if self._last is None or self._last[0] is not graph:
            self._last = None  # frees its memory
            self._last = graph, pack_unit(with_frames(graph, self.source.frames), self.source.machine, self.source.dtype)
        return self._last[1]


def _misfit(target_graph: TargetGraph) -> Infeasible | None:
    """Reason why not even single operators fit the resources of some level."""
    target_graphs = dict.fromkeys(at_level(target_graph, level) for level in target_graph.machine.contention)
    plans = map(layer_by_layer, target_graphs)
    return next((plan for plan in plans if isinstance(plan, Infeasible)), None)
