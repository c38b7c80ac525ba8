"""Do the containers of a compiled file have the ports that the model around them has?  In its order, and of its shapes; nothing runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.compiled import read_compiled
from simulator.host_nodes import HostNodes
from simulator.onnx_container import read_file


def port_faults(path: Path) -> tuple[str, ...]:
    """What is wrong, a line each; () where a container alone, or a bundle of it, gives what the file does.  Raises as `read_compiled`."""
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
            mine = [buffer.name for buffer in buffers]
            if mine != (theirs := [name for name in shapes if name in mine]):
                yield f"{name}: {kind}s are {', '.join(mine)}; in the model {', '.join(theirs)}"
            for buffer in buffers:
                if (shape := shapes[buffer.name]) not in (None, buffer.onnx_shape):
                    yield f"{name}: {kind} {buffer.name!r} has shape {list(buffer.onnx_shape)}, in the model {list(shape or ())}"
