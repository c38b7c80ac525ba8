"""Check of container ports against the model around them: order and shapes; nothing is executed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.compiled import read_compiled
from simulator.host_nodes import HostNodes
from simulator.onnx_container import read_file


def port_faults(path: Path) -> tuple[str, ...]:
    """Port faults, a line each; () if a container alone, or a bundle, behaves as the file.  Raises as `read_compiled` does."""
    return tuple(_faults(path))


def _faults(path: Path) -> Iterator[str]:
    compiled = read_compiled(path)
    model = HostNodes(bytes(read_file(path)), str(path), len(compiled.pieces))
    for name, container in compiled.pieces:
        memory = container.memory
        for kind, ports, all_buffers in (
            ("input", model.inputs, memory.of_kind("input")),
            ("output", model.outputs, memory.of_kind("output")),
        ):
            shapes = {port.name: port.shape for port in ports}
            buffers = [buffer for buffer in all_buffers if buffer.name in shapes]
            buffer_names = [buffer.name for buffer in buffers]
            if buffer_names != (model_names := [name for name in shapes if name in buffer_names]):
                yield f"{name}: {kind}s are {', '.join(buffer_names)}; in the model {', '.join(model_names)}"
            for buffer in buffers:
                if (shape := shapes[buffer.name]) not in (None, buffer.onnx_shape):
                    yield f"{name}: {kind} {buffer.name!r} has shape {list(buffer.onnx_shape)}, in the model {list(shape or ())}"
