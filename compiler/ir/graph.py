"""Graph of operators: the result of the frontend, with few kinds of operators, logical shapes and float32 constants.

Every tensor is (n, c, h, w); a vector [n, c] is (n, c, 1, 1).  The layout (`compiler.ir.layout`) assigns addresses (planes, lanes,
concatenation).  The data type of the computation is chosen after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators import Dequantise, Floats, Operator, Quantise, Shape
from compiler.ir.quantised.parameters import Quantisation, check_quantisation
from simulator.npu.parts import DataType


@dataclass(frozen=True)
class Port:
    """Input or output of the model: the tensor, and its name and shape in the ONNX file.

    order: permutation of (n, c, h, w) in which ONNX stores the values, row-major.
    """

    tensor: str
    onnx_name: str
    onnx_shape: tuple[int, ...]
    order: tuple[int, int, int, int] = (0, 1, 2, 3)

    def from_onnx(self, array: NDArray[Any], shape: Shape) -> NDArray[Any]:
        """Values in the model's shape as (n, c, h, w)."""
        inverse = np.argsort(self.order)
        return array.reshape([shape[axis] for axis in self.order]).transpose(inverse)

    def to_onnx(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (n, c, h, w) in the model's shape."""
        return values.transpose(self.order).reshape(self.onnx_shape)


@dataclass(frozen=True, eq=False)
class Graph:
    """Operators in a topological order; `shapes` has every tensor.

    constants: values [1 | n, c, h, w] of constant tensors; element-wise operators and residuals read them.
    types: scale and zero point of integer tensors; the other tensors are floats.
    digest: 32 hex digits, identity of the loaded model: its nodes, weights and shapes, its subgraphs unless the NPU runs all of it, and the
    number of frames if it is not 1.  All graphs of a model have the same one.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: tuple[Operator, ...]
    shapes: dict[str, Shape] = field(repr=False)
    digest: str = ""
    constants: dict[str, Floats] = field(default_factory=dict, repr=False)
    types: dict[str, Quantisation] = field(default_factory=dict, repr=False)

    def producers(self) -> dict[str, Operator]:
        return {op.y: op for op in self.operators}

    def consumers(self) -> dict[str, list[Operator]]:
        consumers: dict[str, list[Operator]] = {name: [] for name in self.shapes}
        for op in self.operators:
            for name in op.inputs:
                consumers[name].append(op)
        return consumers

    def verify(self) -> None:
        """Raise ValueError where an input is used before it is produced, or a shape or type does not follow from those of the inputs."""
        defined_tensors = {port.tensor for port in self.inputs} | set(self.constants)
        for op in self.operators:
            for name in op.inputs:
                if name not in defined_tensors:
                    raise ValueError(f"{op.name}: input {name!r} is not produced before it")
            if op.y in defined_tensors:
                raise ValueError(f"{op.name}: output {op.y!r} is produced twice")
            shapes = [self.shapes[name] for name in op.inputs]
            if why := op.unfit(shapes):
                raise ValueError(f"{op.name}: {why}")
            expected = op.output_shape(shapes)
            if self.shapes.get(op.y) != expected:
                raise ValueError(f"{op.name}: output {op.y!r} has shape {self.shapes.get(op.y)}, expected {expected}")
            try:
                output_type = op.output_type([self.types.get(name) for name in op.inputs])
                check_quantisation(self.types.get(op.y), output_type)
            except ValueError as error:
                raise ValueError(f"{op.name}: {error}") from None
            defined_tensors.add(op.y)
        for port in self.outputs:
            if port.tensor not in defined_tensors:
                raise ValueError(f"output {port.onnx_name!r}: tensor {port.tensor!r} is never produced")

    def type_of(self, tensor: str, floats: DataType) -> DataType:
        """Data type of a tensor's values.  floats: the type of float tensors."""
        if tensor in self.types:
            return DataType[self.types[tensor].dtype.name]
        return DataType.float32 if tensor in self.exact else floats

    @cached_property
    def exact(self) -> frozenset[str]:
        """Float tensors that the host converts from or to integers.  They need float32: with 11 bits of mantissa some values would round to
        another integer."""
        consumers = self.consumers()
        float_inputs = [port.tensor for port in self.inputs if port.tensor not in self.types]
        becomes_integers = {
            name
            for name in float_inputs
            if consumers[name] and all(isinstance(op, Quantise) or name in op.of_columns for op in consumers[name])
        }
        of_integers = [op.y for op in self.operators if isinstance(op, Dequantise) or len(op.of_columns) > 1]
        return frozenset(becomes_integers | {name for name in of_integers if not consumers[name]})
