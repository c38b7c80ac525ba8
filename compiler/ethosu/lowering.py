"""From operators of a network to steps: stores of tensors, and what rules for operators need.

A concatenation puts its inputs into parts of one store, and a reshaped tensor is the same store, so both cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ethosu.scaling import activation_bounds
from compiler.ethosu.step import BlockStep, Store, StoreView
from compiler.ethosu.store_places import BRICK
from compiler.ethosu.table_fusion import fuse_tables
from compiler.ethosu.weight_blobs import digest_weights
from compiler.frontend.tflite.network import TfliteNetwork, TfliteOperator, TfliteTensor
from simulator.npu.errors import UnsupportedError

INT8 = np.dtype(np.int8)
SMALL = (INT8, np.dtype(np.uint8))
LARGEST_SIZE = 1 << 16
"""Rows, columns and channels of an operation."""


class Home(NamedTuple):
    """Place of a tensor: a store, the first row, column and channel in it, and the shape that it has there."""

    store: int
    first: tuple[int, int, int]
    image: tuple[int, int, int]


@dataclass(eq=False)
class NetworkLowering:
    """Steps of a network as they are made.  homes: by tensor.  operator: the one that is lowered."""

    network: TfliteNetwork
    stores: list[Store] = field(default_factory=list)
    homes: dict[int, Home] = field(default_factory=dict)
    steps: list[BlockStep] = field(default_factory=list)
    operator: int = 0

    def tensor(self, number: int, types: tuple[np.dtype[Any], ...] = (INT8,)) -> TfliteTensor:
        """A tensor of one of some types; an error for another type."""
        tensor = self.network.tensors[number]
        if tensor.dtype not in types:
            raise self.refuse(f"tensor {tensor.name!r} of {tensor.dtype}: expected {' or '.join(map(str, types))}")
        return tensor

    def constant(self, number: int, what: str) -> NDArray[Any]:
        """Values of a constant tensor."""
        tensor = self.network.tensors[number] if number >= 0 else None
        if tensor is None or tensor.data is None:
            raise self.refuse(f"{what} that are computed: expected constants")
        return tensor.data

    def view(self, number: int, zero: int | None = None, types: tuple[np.dtype[Any], ...] = (INT8,)) -> StoreView:
        """All of a tensor.  zero: its zero point, its own where none is given."""
        tensor = self.tensor(number, types)
        rows, columns, channels = tensor.image
        if max(rows, columns, channels) > LARGEST_SIZE:
            raise self.refuse(f"tensor {tensor.name!r} of {rows}x{columns}x{channels}: expected at most {LARGEST_SIZE} of each")
        home = self.home(number)
        flat = home.image != tensor.image
        view = StoreView(home.store, rows, columns, channels, tensor.zero if zero is None else zero, *home.first, flat=flat)
        return view._replace(signed=tensor.dtype == INT8)

    def home(self, number: int) -> Home:
        """The place of a tensor; its own store where it has none yet."""
        if number not in self.homes:
            tensor = self.network.tensors[number]
            self.stores.append(Store(tensor.name, *tensor.image, None if tensor.data is None else tensor.data.reshape(tensor.image)))
            self.homes[number] = Home(len(self.stores) - 1, (0, 0, 0), tensor.image)
        return self.homes[number]

    def whole(self, number: int) -> bool:
        """Whether a tensor has a store for itself."""
        home = self.home(number)
        return home.image == self.stores[home.store][1:4]

    def temporary(self, rows: int, columns: int, channels: int) -> StoreView:
        """A store between two steps of an operator."""
        self.stores.append(Store(f"operator {self.operator}, part {len(self.stores)}", rows, columns, channels))
        return StoreView(len(self.stores) - 1, rows, columns, channels)

    def bounds(self, activation: int, number: int) -> dict[str, int]:
        """Bounds of a result with a fused activation, as fields of a step."""
        tensor = self.tensor(number, SMALL)
        ends = activation_bounds(activation, tensor.scale, tensor.zero, tensor.dtype)
        if ends is None:
            raise self.refuse(f"activation {activation}: expected none, RELU, RELU_N1_TO_1 or RELU6")
        return {"low": ends[0], "high": ends[1]}

    def add(self, unit: str, reads: tuple[StoreView, ...], result: StoreView, **fields: Any) -> None:
        """A step of the operator."""
        self.steps.append(BlockStep(self.operator, unit, reads, result, **fields))

    def refuse(self, why: str) -> UnsupportedError:
        """The error for the operator."""
        return UnsupportedError(f"{self.network.label(self.operator)}: {why}")


Rule = Callable[[NetworkLowering, TfliteOperator], None]
"""What adds the steps of an operator; `UnsupportedError` where the part cannot run it."""


@dataclass(frozen=True, eq=False)
class LoweredNetwork:
    """Steps in order, stores by number, and homes of tensors."""

    network: TfliteNetwork
    steps: tuple[BlockStep, ...]
    stores: tuple[Store, ...]
    homes: Mapping[int, Home]

    @cached_property
    def digests(self) -> tuple[bytes, ...]:
        """Digests of the weights of steps."""
        return tuple(map(digest_weights, self.steps))

    @cached_property
    def layouts(self) -> dict[Any, Any]:
        """Layouts of segments that are made already, by all that they depend on."""
        return {}

    @cached_property
    def outside(self) -> frozenset[int]:
        """Stores of the network's inputs and outputs."""
        return frozenset(self.homes[number].store for number in (*self.network.inputs, *self.network.outputs))

    @cached_property
    def constant(self) -> frozenset[int]:
        """Stores with values."""
        return frozenset(number for number, store in enumerate(self.stores) if store.constant is not None)

    @cached_property
    def crossing_bytes(self) -> tuple[int, ...]:
        """Bytes of tensors that operators before a number make for it or later ones, by the number."""
        spans = dict[int, tuple[int, int]]()
        for step in self.steps:
            spans[step.result.store] = spans.get(step.result.store, (step.operator, 0))[0], step.operator
            for view in step.reads:
                if view.store in spans:
                    spans[view.store] = spans[view.store][0], step.operator
        crossing = [0] * (len(self.network.operators) + 1)
        for store, (first, last) in spans.items():
            for number in range(first + 1, last + 1):
                crossing[number] += self.stores[store].nbytes
        return tuple(crossing)

    @cached_property
    def bricks(self) -> frozenset[int]:
        """Stores in bricks of 16 channels: all whose parts are of whole bricks, and that nobody sees or reads in another shape."""
        views = [view for step in self.steps for view in (*step.reads, step.result)]
        plain = {view.store for view in views if view.flat or view.step > 1 or view.first_channel % BRICK or view.channels % BRICK}
        even = {number for number, store in enumerate(self.stores) if store.channels % BRICK == 0}
        return frozenset(even - plain - self.outside - self.constant)


def lower_network(network: TfliteNetwork, rules: Mapping[str, Rule]) -> LoweredNetwork:
    """Steps of a network all of whose operators the part runs."""
    lowering = NetworkLowering(network)
    for number in reversed(range(len(network.operators))):
        lowering.operator = number
        _share_store(lowering, network.operators[number])
    for number, operator in enumerate(network.operators):
        lowering.operator = number
        rule = rules.get(operator.kind)
        if rule is None:
            raise lowering.refuse(f"expected one of {', '.join(sorted(rules))}")
        rule(lowering, operator)
    visible = [lowering.home(number).store for number in (*network.inputs, *network.outputs)]
    return LoweredNetwork(network, tuple(fuse_tables(lowering.steps, visible)), tuple(lowering.stores), lowering.homes)


def find_refusals(network: TfliteNetwork, rules: Mapping[str, Rule]) -> Iterator[tuple[int, str]]:
    """Operators that the part cannot run by themselves, with the reason."""
    for number, operator in enumerate(network.operators):
        lowering = NetworkLowering(network, operator=number)
        try:
            _share_store(lowering, operator)
            if operator.kind not in rules:
                raise lowering.refuse(f"expected one of {', '.join(sorted(rules))}")
            rules[operator.kind](lowering, operator)
        except UnsupportedError as error:
            yield number, str(error)


def _share_store(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    """Homes of inputs of a concatenation, and of what is reshaped; consumers come before producers."""
    network, homes = lowering.network, lowering.homes
    free = {number for part in network.operators for number in part.outputs} - set(homes) - set(network.outputs)
    if operator.kind == "CONCATENATION":
        home, place = lowering.home(operator.outputs[0]), 0
        axis = concatenated_axis(lowering, operator)
        for number in operator.inputs:
            first, image = list(home.first), network.tensors[number].image
            first[axis] += place
            if number in free:
                homes[number] = Home(home.store, (first[0], first[1], first[2]), image)
                free.discard(number)
            place += image[axis]
    elif operator.kind in ("RESHAPE", "SQUEEZE"):
        source, result = operator.inputs[0], operator.outputs[0]
        if source in free and network.tensors[source].image == network.tensors[result].image:
            homes[source] = lowering.home(result)
        elif result not in homes and lowering.whole(source) and not (source in network.inputs and result in network.outputs):
            homes[result] = lowering.home(source)


def concatenated_axis(lowering: NetworkLowering, operator: TfliteOperator) -> int:
    """The axis of a concatenation: 0 for rows, 1 for columns, 2 for channels."""
    rank = len(lowering.network.tensors[operator.outputs[0]].shape)
    axis = operator.options["axis"] % rank + 3 - rank
    if axis < 0:
        raise lowering.refuse("a concatenation of images: expected rows, columns or channels")
    return axis
