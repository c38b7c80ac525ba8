"""Graph of several frames of a model: the graph of one frame with one image per frame in every tensor.

Operators and constants are those of one frame; all images read the same constants.  No image depends on another, so images may be computed
in any order, and a program may load a weight once for all images.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from compiler.ir.graph import Graph, Port
from simulator.npu.errors import BadInputError


def with_frames(graph: Graph, frames: int) -> Graph:
    """Graph of `frames` frames.  graph: graph of one frame.  The host stacks the frames along the first axis.

    Raises `BadInputError` for a graph of several images: frames and images could not be told apart.
    """
    if frames == 1:
        return graph
    batch_port = next((port for port in graph.inputs if graph.shapes[port.tensor][0] != 1), None)
    if batch_port is not None:
        batch = graph.shapes[batch_port.tensor][0]
        shape = list(batch_port.onnx_shape)
        raise BadInputError(f"input {batch_port.onnx_name!r} of shape {shape} is {batch} images already; frames are of models of one image")
    shapes = {name: (frames * n, c, h, w) for name, (n, c, h, w) in graph.shapes.items()}
    inputs, outputs = (tuple(_port(port, frames) for port in ports) for ports in (graph.inputs, graph.outputs))
    digest = hashlib.blake2b(f"{graph.digest} {frames} frames".encode(), digest_size=16).hexdigest()
    framed_graph = replace(graph, inputs=inputs, outputs=outputs, shapes=shapes, digest=digest)
    framed_graph.verify()
    return framed_graph


def _port(port: Port, frames: int) -> Port:
    """Port of all frames.  With several images n has to be the slowest axis; with one image its position does not matter."""
    if not port.onnx_shape:
        raise BadInputError(f"{port.onnx_name!r} of shape []: has no first axis for frames; 1 or more axes are supported")
    inner = tuple(axis for axis in port.order if axis != 0)
    return replace(port, onnx_shape=(frames * port.onnx_shape[0], *port.onnx_shape[1:]), order=(0, inner[0], inner[1], inner[2]))
