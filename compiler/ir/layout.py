"""Memory layout: storages, and the placement of every tensor in one of them.

A storage is NC1HWC0 in blocks of 32 bytes: [n][planes][h][w] blocks of C0 lanes (a four-lane image: [n][h][w] pixels of 4 lanes).
A tensor takes whole planes of one storage; `lanes[i]` is the lane of its channel i, counted from its first plane.  So

* Concat is addressing: its storage holds the inputs side by side, each from a whole plane on; gaps show in `lanes`;
* Shuffle is relabelling: the same planes with permuted `lanes`; a Shuffle that selects a run of channels is some of the planes;
* a Conv may write any lanes (its weights are packed to match), so it takes the lane order of the other operands of its readers;
* Pool, Vector, Softmax, LayerNorm, Reflow and depthwise Conv keep the lanes of their input;
* MatMul and grouped Softmax need every head in planes of its own;
* channels between grouped convolutions lie in blocks that belong to few groups on either side (`ir.group_order`).

An operator is added to the graph (`Layout.graph`) only where two of these contradict each other: a Vector without steps where a tensor
is needed in two storages (an output shares its storage with no other input or output), a 1x1 Conv with identity weights where it is
needed in two lane orders, or where a run of channels cannot have planes of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from compiler.ir.channel_runs import find_runs, split_channels
from compiler.ir.graph import Graph
from compiler.ir.group_order import order_by_groups
from compiler.ir.lanes import CHANNEL_BLOCK, Pattern, Patterns, heads_lanes, heads_pattern
from compiler.ir.operators import Concat, Conv, Convolution, Operator, Shape, Shuffle, Values, Vector
from compiler.ir.operators.quantised_products import quantised_identity_conv
from compiler.ir.quantised.parameters import Quantisation
from simulator.npu.parts import DataType

IMAGE_LANES = 4  # lanes of a pixel in the four-lane layout


@dataclass(frozen=True)
class Storage:
    """Array [n][planes][h][w] of pixels of `pixel_lanes` lanes: C0, or 4 for a four-lane image (planes = 1, rows of whole blocks)."""

    name: str
    n: int
    planes: int
    h: int
    w: int
    pixel_lanes: int

    def blocks(self, dtype: DataType) -> int:
        """Size in blocks of 32 bytes."""
        return self.n * self.planes * self.h * self.w * self.pixel_lanes // dtype.lanes


@dataclass(frozen=True)
class Placement:
    """Planes [plane, plane + planes) of a storage; channel i in lane lanes[i], counted from the first lane of `plane`."""

    storage: str
    plane: int
    planes: int
    lanes: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Layout:
    """Storages and placements of a graph.  graph: the graph to compile, with the necessary copies.

    padding: values that lanes without a channel may hold, by tensor (`ir.padding`).
    """

    graph: Graph
    dtype: DataType
    storages: dict[str, Storage]
    placements: dict[str, Placement]
    copies: tuple[str, ...] = ()  # names of the added operators
    padding: Mapping[str, Values] = field(default_factory=dict, repr=False)

    def type_of(self, tensor: str) -> DataType:
        """Data type of a tensor: its own for integers, else `dtype`."""
        return self.graph.type_of(tensor, self.dtype)

    def verify(self) -> None:
        """Raise ValueError where a placement exceeds its storage, lanes collide, or operands have different lane orders."""
        self.graph.verify()
        for tensor, (n, c, h, w) in self.graph.shapes.items():
            place = self.placements[tensor]
            storage = self.storages[place.storage]
            lanes_per_plane, c0 = storage.pixel_lanes, self.type_of(tensor).lanes
            if (storage.n, storage.h, storage.w) != (n, h, w):
                raise ValueError(f"{tensor}: ({n}, {h}, {w}) in storage {storage}")
            if lanes_per_plane not in (IMAGE_LANES, c0) or (lanes_per_plane != c0 and (w * IMAGE_LANES % c0 or storage.planes != 1)):
                raise ValueError(f"{tensor}: storage {storage} has neither {c0} lanes nor {IMAGE_LANES} of an image")
            if place.plane < 0 or place.plane + place.planes > storage.planes:
                raise ValueError(f"{tensor}: planes {place.plane}..{place.plane + place.planes} outside {storage}")
            inside = min(place.lanes) >= 0 and max(place.lanes) < place.planes * lanes_per_plane
            if len(place.lanes) != c or len(set(place.lanes)) != c or not inside:
                raise ValueError(f"{tensor}: {c} channels need {c} different lanes below {place.planes * lanes_per_plane}")
        for op in self.graph.operators:
            self._verify_operator(op)
        self._verify_overlaps()

    def _verify_operator(self, op: Operator) -> None:
        """Check the lanes of an operator's operands.  Raises ValueError."""
        places = self.placements
        y = places[op.y]
        for name, heads in op.headed:
            place = places[name]
            if (place.lanes, place.planes) != heads_lanes(len(place.lanes), heads, self.type_of(name).lanes, block_of(self.graph)):
                raise ValueError(f"{op.name}: {name} has not {heads} heads in planes of their own")
        # operators without instructions: their output is addresses, so it has to be where the inputs are
        if isinstance(op, Concat):
            base = 0
            for name in op.inputs:
                place = places[name]
                lane_offset = (place.plane - y.plane) * self.type_of(name).lanes
                expected = tuple(lane + lane_offset for lane in place.lanes)
                if place.storage != y.storage or y.lanes[base : base + len(place.lanes)] != expected:
                    raise ValueError(f"{op.name}: {name} is not at its place in {op.y}")
                base += len(place.lanes)
            return
        if isinstance(op, Shuffle):
            x = places[op.x]
            if len(op.order) < len(x.lanes):
                first_lane = (y.plane - x.plane) * self.type_of(op.x).lanes
                expected = tuple(x.lanes[i] - first_lane for i in op.order)
                if y.storage != x.storage or y.lanes != expected:
                    raise ValueError(f"{op.name}: {op.y} is not at its place in {op.x}")
                return
            if (x.storage, x.plane, x.planes) != (y.storage, y.plane, y.planes) or y.lanes != tuple(x.lanes[i] for i in op.order):
                raise ValueError(f"{op.name}: {op.y} is not {op.x} in another order")
            return
        # lane-wise operators: channel i in the same lane on both sides
        for name in op.follows:
            sizes = [place.planes * self.type_of(tensor).lanes for tensor, place in ((name, places[name]), (op.y, y))]
            if places[name].lanes != y.lanes or sizes[0] != sizes[1]:
                raise ValueError(f"{op.name}: lanes of {name} and {op.y} differ")
        for name in op.inputs:
            if self.storages[places[name].storage].pixel_lanes != self.type_of(name).lanes and not op.reads_fours(name):
                raise ValueError(f"{op.name}: a four-lane image read by {type(op).__name__}")

    def _verify_overlaps(self) -> None:
        """Check that no two written tensors share a plane; only a Concat or a Shuffle may share planes with another tensor."""
        written: dict[tuple[str, int], str] = {}
        names = [*(port.tensor for port in self.graph.inputs), *self.graph.constants]
        names += [op.y for op in self.graph.operators if op.computes]
        for name in names:
            place = self.placements[name]
            for plane in range(place.plane, place.plane + place.planes):
                owner = written.setdefault((place.storage, plane), name)
                if owner != name:
                    raise ValueError(f"{name} and {owner} both lie in plane {plane} of {place.storage}")


def block_of(graph: Graph) -> int:
    """Number of channels that tensors are padded to a multiple of: whole planes of every type in the graph, so lanes agree in all types."""
    return max([CHANNEL_BLOCK, *(DataType[q.dtype.name].lanes for q in graph.types.values())])


def assign(graph: Graph, dtype: DataType, four_lanes: bool = True) -> Layout:
    """Layout of a graph.  four_lanes: images of at most 4 channels that only ungrouped convolutions read get 4 lanes."""
    names = _Names(graph)
    parts = _parts(graph, names)
    graph, place_copies = _one_place(graph, names)
    graph, output_copies = _own_outputs(graph, names, parts)
    graph, patterns, lane_copies = _one_order(graph, names, parts)
    storages: dict[str, Storage] = {}
    placements: dict[str, Placement] = {}
    containers = _containers(graph, parts)
    images = _images(graph, dtype) if four_lanes else set()
    for name, shape in graph.shapes.items():
        root, plane, c0 = name, 0, graph.type_of(name, dtype).lanes
        while root in containers:
            root, earlier_parts = containers[root]
            plane += sum(patterns.lanes(sibling, c0)[1] for sibling in earlier_parts)
        order, planes = patterns.lanes(name, c0)
        if root == name:
            pixel_lanes = IMAGE_LANES if name in images else c0
            storages[name] = Storage(name, shape[0], planes, shape[2], shape[3], pixel_lanes)
        placements[name] = Placement(root, plane, planes, order)
    layout = Layout(graph, dtype, storages, placements, (*place_copies, *output_copies, *lane_copies))
    layout.verify()
    return layout


class _Names:
    """Generator of names that a graph does not use."""

    def __init__(self, graph: Graph) -> None:
        self.taken = set(graph.shapes) | {op.name for op in graph.operators}

    def fresh(self, base: str) -> str:
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}.{count}"
        self.taken.add(name)
        return name


Parts = dict[str, tuple[tuple[str, int], ...]]  # tensor -> (name, channels) of its parts in order


def _parts(graph: Graph, names: _Names) -> Parts:
    """Parts of tensors from which runs of channels are selected; unselected runs are parts with new names."""
    readers: dict[str, list[Shuffle]] = {}
    for op in graph.operators:
        if isinstance(op, Shuffle):
            readers.setdefault(op.x, []).append(op)
    runs_of_tensor = {x: find_runs(shuffles, graph.shapes[x][1]) for x, shuffles in readers.items()}
    return {
        x: tuple(
            (name or names.fresh(f"{x}.rest"), stop - first) for name, (first, stop) in split_channels(tensor_runs, graph.shapes[x][1])
        )
        for x, tensor_runs in runs_of_tensor.items()
        if tensor_runs
    }


def _one_place(graph: Graph, names: _Names) -> tuple[Graph, list[str]]:
    """Copies before a Concat of inputs that already have a storage: the storage of another Concat, of the same Concat, or of a host
    input."""
    placed_roots: set[str] = {port.tensor for port in graph.inputs} | set(graph.constants)  # region roots with a storage
    root: dict[str, str] = {}  # a shuffled tensor -> the tensor whose planes it shares
    shapes, types = dict(graph.shapes), dict(graph.types)
    operators: list[Operator] = []
    copies: list[str] = []
    for op in graph.operators:
        if isinstance(op, Shuffle):
            root[op.y] = root.get(op.x, op.x)
            if len(op.order) < shapes[op.x][1]:  # the selection shares planes with its source
                root[op.y] = op.y
                placed_roots.add(op.y)
        if isinstance(op, Concat):
            inputs = []
            for name in op.inputs:
                region = root.get(name, name)
                if region in placed_roots:
                    copy = Vector(names.fresh(f"{op.name}.copy"), (name,), names.fresh(f"{name}.copy"), ())
                    _alike(copy.y, name, shapes, types)
                    operators.append(copy)
                    copies.append(copy.name)
                    name = copy.y
                else:
                    placed_roots.add(region)
                inputs.append(name)
            op = op.with_inputs(inputs)
        operators.append(op)
    return replace(graph, operators=tuple(operators), shapes=shapes, types=types), copies


def _alike(new: str, old: str, shapes: dict[str, Shape], types: dict[str, Quantisation]) -> None:
    """Register a copy of a tensor."""
    shapes[new] = shapes[old]
    if old in types:
        types[new] = types[old]


def _own_outputs(graph: Graph, names: _Names, parts: Parts) -> tuple[Graph, list[str]]:
    """Copies of outputs whose storage belongs to an input or another output: the host addresses each output separately."""
    containers = _containers(graph, parts)

    def root(name: str) -> str:
        while name in containers:
            name = containers[name][0]
        return name

    exposed = {root(port.tensor) for port in graph.inputs}
    shapes, types, copies, outputs = dict(graph.shapes), dict(graph.types), [], []
    for port in graph.outputs:
        if root(port.tensor) in exposed:
            copy = Vector(names.fresh(f"{port.onnx_name}.copy"), (port.tensor,), names.fresh(f"{port.tensor}.output"), ())
            _alike(copy.y, port.tensor, shapes, types)
            copies.append(copy)
            port = replace(port, tensor=copy.y)
        exposed.add(root(port.tensor))
        outputs.append(port)
    graph = replace(graph, operators=(*graph.operators, *copies), outputs=tuple(outputs), shapes=shapes, types=types)
    return graph, [copy.name for copy in copies]


def _one_order(graph: Graph, names: _Names, parts: Parts) -> tuple[Graph, Patterns, list[str]]:
    """Lane patterns of all tensors; an identity convolution is added where an operand cannot have its required order."""
    channels = {name: shape[1] for name, shape in graph.shapes.items()}
    patterns = Patterns(channels | {name: size for tensor_parts in parts.values() for name, size in tensor_parts}, block_of(graph))
    shapes, types = dict(graph.shapes), dict(graph.types)
    operators: list[Operator] = []
    copies: list[str] = []
    for op in graph.operators:
        if isinstance(op, Concat):
            patterns.define(op.y, Pattern("concat", op.inputs))
        elif isinstance(op, Shuffle) and len(op.order) < shapes[op.x][1]:
            tensor_parts = parts.get(op.x, ())
            # a run of channels needs planes of its own; else a convolution copies it
            if op.y not in dict(tensor_parts) or not patterns.require(op.x, Pattern("concat", tuple(name for name, _ in tensor_parts))):
                parts.pop(op.x, None)
                op = identity_conv(op.name, op.x, op.y, shapes[op.x], types.get(op.x), op.order)
                copies.append(op.name)
        elif isinstance(op, Shuffle):
            patterns.define(op.y, Pattern("shuffle", (op.x,), op.order))
        else:
            follow = op.follows
            wanted = {name: heads_pattern(shapes[name][1], heads, patterns.block) for name, heads in op.headed}
            if op.y in wanted:
                patterns.define(op.y, wanted[op.y])
            renamed = list(op.inputs)
            # an operand whose class contradicts goes through an identity convolution, which can write any order
            for name in dict.fromkeys(op.inputs):
                if patterns.unite(op.y, name) if name in follow else name not in wanted or patterns.require(name, wanted[name]):
                    continue
                fresh = names.fresh(f"{op.name}.relane"), name, names.fresh(f"{name}.relane")
                relane = identity_conv(*fresh, shapes[name], types.get(name))
                _alike(relane.y, name, shapes, types)
                patterns.add(relane.y, shapes[name][1])
                operators.append(relane)
                copies.append(relane.name)
                agreed = patterns.unite(op.y, relane.y) if name in follow else patterns.require(relane.y, wanted[name])
                assert agreed, "a fresh tensor takes any order"
                renamed = [relane.y if operand == name else operand for operand in renamed]
            op = op.with_inputs(renamed)
        operators.append(op)
    graph = replace(graph, operators=tuple(operators), shapes=shapes, types=types)
    order_by_groups(graph, patterns)
    return graph, patterns, copies


def identity_conv(name: str, x: str, y: str, shape: Shape, q: Quantisation | None, order: Sequence[int] | None = None) -> Convolution:
    """Convolution that copies channels `order` of x (all by default) to y.  q: quantisation of x; None for floats."""
    channels = range(shape[1]) if order is None else order
    if q is not None:
        return quantised_identity_conv(name, x, y, q, channels, shape[1])
    weights = np.eye(shape[1], dtype=np.float32)[list(channels)][:, :, None, None]
    return Conv(name, x, y, weights, np.zeros(len(weights), np.float32))


def _containers(graph: Graph, parts: Parts) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Tensor -> (tensor whose planes contain it, inputs of that tensor that precede it)."""
    containers: dict[str, tuple[str, tuple[str, ...]]] = {}
    shuffled: dict[str, str] = {}
    for op in graph.operators:
        if isinstance(op, Shuffle) and op.y in dict(parts.get(op.x, ())):
            names = [name for name, _ in parts[op.x]]
            containers[op.y] = (op.x, tuple(names[: names.index(op.y)]))
        elif isinstance(op, Shuffle):
            shuffled[op.y] = op.x
            containers[op.y] = (op.x, ())
        if isinstance(op, Concat):
            for i, name in enumerate(op.inputs):
                while name in shuffled:
                    name = shuffled[name]
                containers[name] = (op.y, op.inputs[:i])
    return containers


def _images(graph: Graph, dtype: DataType) -> set[str]:
    """Names of model inputs that can be four-lane images."""
    consumers = graph.consumers()
    images = set()
    for port in graph.inputs:
        _, c, _, w = graph.shapes[port.tensor]
        readers = consumers[port.tensor]
        ungrouped = all(op.reads_fours(port.tensor) for op in readers)
        is_output = any(output.tensor == port.tensor for output in graph.outputs)
        image_dtype = graph.type_of(port.tensor, dtype)
        fills_blocks = image_dtype is not DataType.float32 and w * IMAGE_LANES % image_dtype.lanes == 0  # blocks of a row
        if c <= IMAGE_LANES and fills_blocks and readers and ungrouped and not is_output:
            images.add(port.tensor)
    return images
