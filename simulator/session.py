"""Run a compiled model on the simulated NPU, with the call shape of onnxruntime.

    session = InferenceSession("best.onnx")
    (y,) = session.run(None, {"x": x}, level="severe")

Values come from the instructions in the containers, never from the ONNX body.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.bundle.read import read_bundle
from simulator.compiled import Compiled, CompiledPiece, compiled_of
from simulator.functional import execute
from simulator.host_layout import load_input, read_output
from simulator.npu.container import Container, program
from simulator.npu.container_file import MAGIC, decode
from simulator.npu.errors import BadInputError
from simulator.npu.parts import BLOCK_BYTES, DataType
from simulator.npu.program import DdrBuffer
from simulator.onnx_container import is_only_node, model_facts, read_file, tensor_kinds
from simulator.profile import Profile

if TYPE_CHECKING:
    from simulator.host_nodes import HostNodes, HostPort

Array = NDArray[Any]
PROVIDER, HOST_PROVIDER = "TilefarmExecutionProvider", "CPUExecutionProvider"
_OTHER_FLOATS: dict[int, np.dtype[Any]] = {10: np.dtype(np.float16), 11: np.dtype(np.float64)}  # onnx's number of the type -> numpy's
LEVEL_ENTRY = "tilefarm.level"  # key in onnxruntime's RunOptions
Compute = Callable[[CompiledPiece, Mapping[str, Array]], Mapping[str, Array]]  # outputs of a piece from its inputs, both by name


@dataclass(frozen=True)
class NodeArg:
    """Input or output of the model, with its type on the host; the NPU may compute in another type."""

    name: str
    shape: list[int]
    type: str = "tensor(float)"


@dataclass(frozen=True)
class ModelMetadata:
    """The model's metadata, by onnxruntime's names."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass
class SessionOptions:
    """Options of onnxruntime that a session supports; an object of onnxruntime is accepted too."""

    enable_profiling: bool = False
    profile_file_prefix: str = "tilefarm_profile_"


class RunOptions(Protocol):
    """onnxruntime's own: the entry `tilefarm.level` names the level."""

    def get_run_config_entry(self, key: str, /) -> str: ...


class InferenceSession:
    """A compiled ONNX file (its path or bytes), the folder of a bundle, or a bare container's bytes.

    Nodes around the containers, which the NPU does not support, run on onnxruntime (`simulator.host_nodes`).  sess_options: see
    `SessionOptions`.  providers, provider_options: accepted as in onnxruntime, and ignored: there is one NPU, and one host.
    compute: a substitute for the programs of pieces, at every level.
    Raises `BadInputError` for a file that cannot be read, holds no container, or a damaged one (`ContainerError`).
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        compute: Compute | None = None,
    ) -> None:
        self._compute = compute
        where = "model bytes" if isinstance(path_or_bytes, bytes) else str(path_or_bytes)
        self.host: HostNodes | None = None
        self._facts: dict[str, object] = {}
        kinds: dict[str, int] = {}
        if isinstance(path_or_bytes, bytes) and path_or_bytes.startswith(MAGIC):
            self.compiled = Compiled.of(decode(path_or_bytes))
        elif not isinstance(path_or_bytes, bytes) and os.path.isdir(path_or_bytes):
            self.compiled = read_bundle(Path(path_or_bytes))
        else:
            view = memoryview(path_or_bytes) if isinstance(path_or_bytes, bytes) else read_file(path_or_bytes)
            self.compiled = compiled_of(view, where, None if isinstance(path_or_bytes, bytes) else Path(path_or_bytes).parent)
            first = self.compiled.pieces[:1]
            ports = [[buffer.name for p in first for buffer in p.container.memory.of_kind(kind)] for kind in ("input", "output")]
            self.host = None if first and is_only_node(view, where, *ports) else _host_nodes(view, where, self.compiled)
            self._facts, kinds = model_facts(view, where), tensor_kinds(view, where)
        # host values are float32 unless the model has another type
        self._dtypes = {name: _OTHER_FLOATS[kind] for name, kind in kinds.items() if kind in _OTHER_FLOATS}
        pieces = self.compiled.pieces
        self._inputs = pieces[0].container.memory.of_kind("input") if pieces else ()
        self._outputs = pieces[-1].container.memory.of_kind("output") if pieces else ()
        options = sess_options if sess_options is not None else SessionOptions()
        self._profile: Profile | None = None
        if options.enable_profiling:
            machine = self.compiled.machine if pieces else None
            facts = {"file": where, **({} if machine is None else {"machine": machine.name, "clock_hz": machine.clock_hz})}
            self._profile = Profile(str(options.profile_file_prefix), facts)

    @property
    def levels(self) -> tuple[str, ...]:
        """Contention levels with a variant; () if the host runs the whole model."""
        return self.compiled.levels if self.compiled.pieces else ()

    @property
    def container(self) -> Container:
        """Container of a model in one piece.  Raises `BadInputError` for several pieces."""
        if len(self.compiled.pieces) > 1:
            raise BadInputError(f"the model has {len(self.compiled.pieces)} containers: {', '.join(p.name for p in self.compiled.pieces)}")
        return self.compiled.pieces[0].container

    def get_inputs(self) -> list[NodeArg]:
        return self._ports(self._inputs) if self.host is None else _host_ports(self.host.inputs)

    def get_outputs(self) -> list[NodeArg]:
        return self._ports(self._outputs) if self.host is None else _host_ports(self.host.outputs)

    def get_modelmeta(self) -> ModelMetadata:
        nothing = {"producer_name": "", "graph_name": "", "domain": "", "description": "", "graph_description": ""}
        return ModelMetadata(**{**nothing, "version": 0, "custom_metadata_map": {}, **self._facts})  # type: ignore[arg-type]

    def get_providers(self) -> list[str]:
        """Providers of the nodes: the NPU, and the host where it has any."""
        return [*([PROVIDER] if self.compiled.pieces else []), *([] if self.host is None else [HOST_PROVIDER])]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, ArrayLike],
        run_options: RunOptions | None = None,
        *,
        level: str | None = None,
    ) -> list[Array]:
        """Run one inference; returns the requested outputs in order (None: all), each in its ONNX shape.

        level: level whose variant runs; else entry `tilefarm.level` of `run_options`; else the file's first level.
        Raises `BadInputError` for an unknown name or level, or a wrong shape or type.
        """
        level = self._level(run_options, level)
        names = [port.name for port in self.get_outputs()]
        wanted = list(output_names) if output_names else names
        for name in wanted:
            if name not in names:
                raise BadInputError(f"output {name!r}: the model has {', '.join(names)}")
        begin_ns = self._profile.now_ns if self._profile is not None else 0
        values = self.values(input_feed, {}, level)
        if self._profile is not None:
            self._profile.run(begin_ns, level)
        return [values[name] for name in wanted]

    def run_on(self, input_feed: Mapping[str, ArrayLike], overrides: Mapping[str, ArrayLike], level: str) -> dict[str, Array]:
        """Outputs of the model and of every subgraph, by name.  overrides: tensor -> values that subgraphs read instead of the computed
        ones.

        Raises as `run` does.
        """
        values = self.values(input_feed, overrides, level)
        buffers = (buffer for piece in self.compiled.pieces for buffer in piece.container.memory.of_kind("output"))
        return {name: values[name] for name in dict.fromkeys([*(port.name for port in self.get_outputs()), *(b.name for b in buffers)])}

    def values(self, input_feed: Mapping[str, ArrayLike], overrides: Mapping[str, ArrayLike], level: str) -> dict[str, Array]:
        """Values between host and subgraphs; arguments as in `run_on`.  Raises as `run` does."""
        values = dict(zip((port.name for port in self.get_inputs()), self.checked(input_feed), strict=True))
        for k, piece in enumerate(self.compiled.pieces):
            values = self._host(k, values)
            values |= self._piece(piece, level, {**values, **overrides})
        return self._host(len(self.compiled.pieces), values)

    def end_profiling(self) -> str:
        """Write a Chrome trace of the runs so far (`simulator.profile`) and stop; its path, '' without profiling."""
        profile, self._profile = self._profile, None
        return "" if profile is None else profile.write()

    def _level(self, run_options: RunOptions | None, level: str | None) -> str:
        if level is None and run_options is not None:
            if not hasattr(run_options, "get_run_config_entry"):
                raise BadInputError(f"run_options {run_options!r}: expected onnxruntime's RunOptions; a level is named by level=")
            try:
                level = run_options.get_run_config_entry(LEVEL_ENTRY)
            except (KeyError, RuntimeError):  # no such entry
                level = None
        if not self.compiled.pieces:
            return ""
        level = self.levels[0] if level is None else level
        self.compiled.variants(level)
        return level

    def _host(self, stage: int, values: dict[str, Array]) -> dict[str, Array]:
        if self.host is None:
            return values
        begin = time.perf_counter_ns()
        host_values = self.host.run(stage, values)
        nodes = self.host.nodes(stage)
        if self._profile is not None and nodes:
            self._profile.host([node.name or node.output[0] for node in nodes], time.perf_counter_ns() - begin)
        return host_values

    def _piece(self, piece: CompiledPiece, level: str, values: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Outputs of a piece, in the types of the host."""
        memory = piece.container.memory
        inputs = {buffer.name: self._checked_array(buffer, values) for buffer in memory.of_kind("input")}
        outputs = self._execute(piece, level, inputs) if self._compute is None else self._compute(piece, inputs)
        with np.errstate(over="ignore"):  # beyond float16 is infinity
            return {buffer.name: outputs[buffer.name].astype(self._dtype(buffer), copy=False) for buffer in memory.of_kind("output")}

    def _execute(self, piece: CompiledPiece, level: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs of a piece's program."""
        container = piece.container
        memory = container.memory
        try:
            # NaN, in either data type: unwritten values become visible
            ddr = np.full(memory.size_blocks * BLOCK_BYTES, 0xFF, np.uint8)
        except MemoryError:
            raise BadInputError(f"memory map: {memory.size_blocks} blocks of DDR cannot be allocated here") from None
        constants = np.frombuffer(container.constants, np.uint8)
        ddr[: constants.size] = constants
        for buffer in memory.of_kind("input"):
            load_input(ddr, buffer, inputs[buffer.name], memory.type_of(buffer))
        execute(program(container, level), container.machine, ddr, verify=False)  # `decode` did
        if self._profile is not None:
            variant = container.variant(level)
            cycles = variant.cycles[level]
            assert cycles is not None, "`decode` refuses a variant that does not fit its level"
            args = {"level": level, "variant": self.compiled.same_as(level) or level, "plan": variant.plan_digest, "cycles": cycles}
            self._profile.program(piece.name, round(cycles * 1e9 / container.machine.clock_hz), args)
        outputs = memory.of_kind("output")
        return {buffer.name: read_output(ddr, buffer, memory.type_of(buffer)).reshape(buffer.onnx_shape) for buffer in outputs}

    def checked(self, feeds: Mapping[str, ArrayLike]) -> list[Array]:
        """The feeds in the order of the inputs.  Raises `BadInputError` for a name, a shape or a type that the model does not have."""
        names = [port.name for port in self.get_inputs()]
        for name in feeds:
            if name not in names:
                raise BadInputError(f"input {name!r}: the model has {', '.join(names)}")
        if self.host is None:
            return [self._checked_array(buffer, feeds) for buffer in self._inputs]
        return [_checked_port(port, feeds) for port in self.host.inputs]

    def _dtype(self, buffer: DdrBuffer) -> np.dtype[Any]:
        """The type of a buffer on the host."""
        if buffer.dtype is not None and not DataType[buffer.dtype].is_float:
            return DataType[buffer.dtype].storage
        return self._dtypes.get(buffer.name, np.dtype(np.float32))

    def _ports(self, buffers: Sequence[DdrBuffer]) -> list[NodeArg]:
        return [NodeArg(b.name, list(b.onnx_shape), _type_name(self._dtype(b))) for b in buffers]

    def _checked_array(self, buffer: DdrBuffer, feeds: Mapping[str, ArrayLike]) -> Array:
        wanted = self._dtype(buffer)
        expected = f"{wanted} {list(buffer.onnx_shape)}"
        if buffer.name not in feeds:
            raise BadInputError(f"input {buffer.name!r}: missing; expected {expected}")
        array = np.asarray(feeds[buffer.name])
        # floats of any width are taken for float; other integers are a mix-up of inputs
        fits = array.dtype == wanted or array.dtype.kind == wanted.kind == "f"
        if not fits or array.shape != buffer.onnx_shape:
            raise BadInputError(f"input {buffer.name!r}: found {array.dtype} {list(array.shape)}, expected {expected}")
        with np.errstate(over="ignore"):
            return array.astype(wanted, copy=False)


def _host_ports(ports: Sequence[HostPort]) -> list[NodeArg]:
    return [NodeArg(p.name, list(p.shape or ()), _type_name(p.dtype)) for p in ports]


def _type_name(dtype: np.dtype[Any]) -> str:
    """onnxruntime's name of a type."""
    return f"tensor({ {'float32': 'float', 'float64': 'double'}.get(dtype.name, dtype.name) })"


def _host_nodes(view: memoryview, where: str, compiled: Compiled) -> HostNodes:
    from simulator.host_nodes import HostNodes  # onnx and onnxruntime: only a file with nodes for the host pays for them

    host = HostNodes(bytes(view), where, len(compiled.pieces))
    for piece, (inputs, outputs) in zip(compiled.pieces, host.pieces, strict=True):
        memory = piece.container.memory
        for side, buffers, names in (("inputs", memory.of_kind("input"), inputs), ("outputs", memory.of_kind("output"), outputs)):
            if sorted(buffer.name for buffer in buffers) != sorted(names):
                raise BadInputError(f"{where}: its container has {side} {[b.name for b in buffers]}, its node {names}")
    return host


def _checked_port(port: HostPort, feeds: Mapping[str, ArrayLike]) -> Array:
    """`_checked_array` for an input of any type; floats of any width are taken for float."""
    shape = list(port.shape or ())
    if port.name not in feeds:
        raise BadInputError(f"input {port.name!r}: missing; expected {port.dtype} {shape}")
    array = np.asarray(feeds[port.name])
    if (array.dtype != port.dtype and not (array.dtype.kind == port.dtype.kind == "f")) or list(array.shape) != shape:
        raise BadInputError(f"input {port.name!r}: found {array.dtype} {list(array.shape)}, expected {port.dtype} {shape}")
    return array.astype(port.dtype, copy=False)
