"""Channel splits (passes): a product computes or loads its input channels part by part and sums up the partial results.

*Hidden* channels are channels that operators of the segment compute for one product only.  Such an operator is hidden: its result leads to
the product and to no other operator.  A pass computes a part of the channels of every hidden operator, and the product of that part.
Partial sums stay in L1, as float32, or as int32 for integer products.  Every pass but the first adds the sums of the pass before, as
FIXPIPE adds a residual, and the last pass stores the result.
So weights are loaded once for each block of rows, and blocks may be as high as L1 allows without the full hidden tensor or all weights.

| operator of the segment    | in every pass                                                                                  |
|----------------------------|------------------------------------------------------------------------------------------------|
| hidden                     | a part of its channels (`channel_part`), in a tensor of the pass                                |
| float product              | the part's product; bias and residual in the first pass, activation in the last pass           |
| integer product            | the part's product; bias and scales in the last pass, applied to the full sums; no residual    |
| any other operator         | unchanged; runs once, before or after all passes                                               |

If no product sums over hidden channels, passes are over the channels of the segment's results.  Each pass computes a part of the result
channels of every operator; suitable operators are heads, and operators behind a product that reads all of its input.  So fewer intermediate
channels are live at a time.  With a window of two or more, these passes run two at a time: products of the next pass come before operators
that wait for VECTOR, so that CUBE works during a softmax.

*Input* passes split channels that the segment loads: a pass loads a part of the channels for the adjacent products that read it.  Input
passes run inside every other pass, which then loads all channels again.  Passes over results and inputs together are tiles of rows by
channels.

Passes over results and over inputs have two further effects.  A product that reads only its part of a loaded tensor, such as a head, has
only that part in L1, and the softmax of a pass works in place.  Passes over hidden channels alone do neither: prediction then chose more
passes for the attention of ViT-B/16, which was slower.  Sums in the type of the result lie at the result's address, without extra room.
A segment in passes is a segment of a target graph whose operators are passes, so lower levels need not know about the split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeGuard

from compiler.ir.operators import Conv, QuantisedConv
from compiler.ir.quantised.parameters import RAW_SUMS
from compiler.ops.conv import ConvSpec
from compiler.ops.quantised_conv import QuantisedConvSpec
from compiler.ops.softmax import SoftmaxSpec
from compiler.plan.plan import Infeasible
from compiler.segment.segment_transform import ON_VECTOR, SHARED_CHANNELS, STAGED, RewrittenSegment, SegmentTransform
from compiler.target.storage import StorageSpec, TensorSlice
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp
from simulator.npu.parts import DataType

_MAX_DISTANCE = 16  # a hidden operator is at most 16 operators before its product; a run has at most 16 operators
_PRODUCTS = (ConvSpec, QuantisedConvSpec)
Parts = dict[int, tuple[TargetOp, ...]]  # operator -> its part in every pass


@lru_cache(maxsize=1 << 14)
def pass_counts(target_graph: TargetGraph, start: int, stop: int) -> tuple[int, ...]:
    """Possible numbers of passes over hidden channels, or else over results, of operators [start, stop), without 1."""
    product = _product(target_graph, start, stop)
    return tuple(_result_counts(target_graph, start, stop)) if product is None else product[1]


def _result_counts(target_graph: TargetGraph, start: int, stop: int) -> Iterator[int]:
    """Possible numbers of passes over the result channels of operators [start, stop), without 1, ascending."""
    operators = target_graph.operators[start:stop]
    inside = [[(p, target_graph.operators[p].y) for p in target_graph.producers[spec.index] if p >= start] for spec in operators]
    if any(_sums_up(spec) and any(spec.reads[0].overlaps(y) for _, y in makers) for spec, makers in zip(operators, inside, strict=True)):
        return iter(())

    def is_disjoint(count: int) -> bool:
        parts = [_divided(target_graph, spec.index, count) for spec in operators]
        pairs = ((readers, parts[p - start], y) for readers, makers in zip(parts, inside, strict=True) for p, y in makers)
        checks = (
            _own(read, y, spec.y) for readers, makers, y in pairs for part, spec in zip(readers, makers, strict=True) for read in part.reads
        )
        return all(parts) and all(checks)

    return filter(is_disjoint, _divisors(min(spec.y.planes for spec in operators)))


def sums_hidden(target_graph: TargetGraph, start: int, stop: int) -> bool:
    """Whether a product of operators [start, stop) can run in passes over hidden channels."""
    return _product(target_graph, start, stop) is not None


def halos_of_passes(target_graph: TargetGraph, start: int, stop: int, count: int) -> int:
    """Operators of [start, stop), as bits, that read hidden channels through a window.  count: number of passes."""
    product = _product(target_graph, start, stop)
    if product is None:
        return 0
    hidden = [target_graph.operators[k].y for k in _hidden(target_graph, product[0], count) if k >= start]
    windows = (spec for spec in target_graph.operators[start:stop] if spec.operator.has_halo)
    return sum(1 << spec.index - start for spec in windows if any(y.overlaps(read) for y in hidden for read in spec.reads))


@lru_cache(maxsize=1 << 14)
def input_counts(target_graph: TargetGraph, start: int, stop: int) -> tuple[int, ...]:
    """Possible numbers of input passes of any product of operators [start, stop), without 1."""
    inside = tuple(spec.y for spec in target_graph.operators[start:stop])
    counts = {count for spec in target_graph.operators[start:stop] for count in _input_counts(spec, inside)}
    return tuple(sorted(counts))


def _input_counts(spec: TargetOp, inside: Sequence[TensorSlice]) -> tuple[int, ...]:
    """Possible numbers of input passes of one operator, without 1.  inside: outputs of the segment's operators."""
    if not _sums_up(spec) or any(spec.reads[0].overlaps(output) for output in inside):
        return ()
    return _divisors(spec.c1)


@lru_cache(maxsize=64)
def runs_with_passes(target_graph: TargetGraph) -> tuple[tuple[int, int], ...]:
    """Runs that end with a product and begin with one of its hidden operators, or with the operator before the first hidden one."""
    runs = []
    for spec in target_graph.operators:
        if counts := _hidden_counts(target_graph, spec.index):
            hidden = _hidden(target_graph, spec.index, counts[-1][0])
            starts = (max(0, min(hidden) - 1), *hidden)
            runs += [(start, spec.index + 1) for start in dict.fromkeys(starts) if pass_counts(target_graph, start, spec.index + 1)]
    return tuple(runs)


@lru_cache(maxsize=64)
def runs_with_result_passes(target_graph: TargetGraph) -> tuple[tuple[int, int], ...]:
    """Runs that have a product and can be split in passes over result channels."""
    runs = []
    for spec in target_graph.operators:
        start = stop = spec.index
        while stop < len(target_graph.operators) and stop - start < _MAX_DISTANCE and any(_result_counts(target_graph, start, stop + 1)):
            stop += 1
            if any(isinstance(operator, ConvSpec) for operator in target_graph.operators[start:stop]):
                runs.append((start, stop))
    return tuple(runs)


@lru_cache(maxsize=64)
def runs_with_input_passes(target_graph: TargetGraph) -> tuple[tuple[int, int], ...]:
    """Runs of `runs_of_products` whose first product can be split in input passes."""
    runs = []
    for start, stop in runs_of_products(target_graph):
        if _input_counts(target_graph.operators[start], [spec.y for spec in target_graph.operators[start:stop]]):
            runs.append((start, stop))
    return tuple(runs)


@lru_cache(maxsize=64)
def runs_of_products(target_graph: TargetGraph) -> tuple[tuple[int, int], ...]:
    """Runs that begin with a product, and end with the same product or one of the next two products."""
    products = [spec.index for spec in target_graph.operators if isinstance(spec, ConvSpec)]
    return tuple(
        (start, last + 1) for index, start in enumerate(products) for last in products[index : index + 3] if last - start < _MAX_DISTANCE
    )


def _product(target_graph: TargetGraph, start: int, stop: int) -> tuple[int, tuple[int, ...]] | None:
    """Product to split in passes, and its possible numbers of passes: the last product that sums over the most values."""
    candidates = []
    for k in range(start + 1, stop):
        if counts := tuple(count for count, main in _hidden_counts(target_graph, k) if main >= start):
            spec = target_graph.operators[k]
            assert isinstance(spec, ConvSpec)
            candidates.append((spec.c1 * spec.in_h * spec.in_w, k, counts))
    return max(candidates)[1:] if candidates else None


@lru_cache(maxsize=1 << 14)
def _hidden_counts(target_graph: TargetGraph, product: int) -> tuple[tuple[int, int], ...]:
    """Pairs (number of passes, hidden operator that the product reads) for every possible number of passes of a product."""
    spec = target_graph.operators[product]
    if not _sums_up(spec):
        return ()
    mains = ((count, _main(target_graph, _hidden(target_graph, product, count), product)) for count in _divisors(spec.c1))
    return tuple((count, main) for count, main in mains if main is not None)


@lru_cache(maxsize=1024)
def _divisors(channels: int) -> tuple[int, ...]:
    """Divisors except 1."""
    return tuple(count for count in range(2, channels + 1) if channels % count == 0)


def _sums_up(spec: TargetOp) -> TypeGuard[ConvSpec]:
    """Whether an operator is a product that passes can split, whatever its neighbours are."""
    return isinstance(spec, ConvSpec) and type(spec) in _PRODUCTS and _is_dense(spec) and _adds_up(spec)


def _is_dense(spec: ConvSpec) -> bool:
    """Whether a product sums over all channels, and its weights have the same layout in DDR and in L1."""
    return spec.groups == 1 and spec.expansion is None and not spec.needed.size and spec.lanes == spec.fractal.lanes


def _adds_up(spec: TargetOp) -> bool:
    """Whether FIXPIPE can add sums to a product.  FIXPIPE adds one residual, and for integers only after requantisation."""
    return not isinstance(spec.operator, QuantisedConv) or len(spec.reads) == 1


def _main(target_graph: TargetGraph, hidden: Parts, product: int) -> int | None:
    """Hidden operator whose result the product sums over."""
    return next((k for k in hidden if target_graph.operators[k].y == target_graph.operators[product].reads[0]), None)


@lru_cache(maxsize=1 << 14)
def _hidden(target_graph: TargetGraph, product: int, count: int) -> Parts:
    """Hidden operators before a product, in their order, also hidden operators before the segment."""
    parts_of: Parts = {}
    for k in range(product - 1, max(0, product - _MAX_DISTANCE) - 1, -1):
        y, readers = target_graph.operators[k].y, target_graph.consumers[k]
        if k in target_graph.escapes or not readers or not all(c in parts_of or c == product for c in readers):
            continue
        main, *further = target_graph.operators[product].reads
        if product in readers and (main != y or any(read.overlaps(y) for read in further)):
            continue
        parts = _divided(target_graph, k, count)
        checks = (
            all(_own(read, y, part.y) for c in readers if c in parts_of for read in parts_of[c][index].reads)
            for index, part in enumerate(parts)
        )
        if parts and all(checks):
            parts_of[k] = parts
    return dict(reversed(parts_of.items()))


@lru_cache(maxsize=1 << 14)
def _divided(target_graph: TargetGraph, kernel: int, count: int) -> tuple[TargetOp, ...]:
    """Parts of an operator with equal numbers of channels; () if the operator cannot be divided."""
    spec, dtype = target_graph.operators[kernel], target_graph.type_of(target_graph.operators[kernel].y)
    step, wide = spec.channel_step(count, dtype), spec.y.planes // count
    if spec.y.planes % count or isinstance(step, str) or wide % step:
        return ()
    parts = (spec.channel_part(index * wide, (index + 1) * wide, dtype) for index in range(count))
    valid_parts = tuple(part for part in parts if part is not None)
    alike = len({part.n1 for part in valid_parts if isinstance(part, ConvSpec)}) < 2  # so that one tiling is legal in all parts
    return valid_parts if len(valid_parts) == count and alike else ()


def _own(read: TensorSlice, output: TensorSlice, part: TensorSlice) -> bool:
    """Whether `read` touches of an operator's `output` at most `part`, the slice of the same pass."""
    return read == part or not read.overlaps(output)


@lru_cache(maxsize=1024)
def split_passes(
    target_graph: TargetGraph, start: int, stop: int, count: int, inputs: int = 1, beside: bool = False
) -> RewrittenSegment | Infeasible:
    """Split operators [start, stop) in passes; or the reason why the split is impossible.  count: number of passes over hidden channels or
    results.  inputs: number of input passes.  beside: whether passes over results run two at a time."""
    where = target_graph.operators[start].name
    for axis, wanted, counts in (("channels", count, pass_counts), ("channels of inputs", inputs, input_counts)):
        accepted = 1, *counts(target_graph, start, stop)
        if wanted not in accepted:
            return Infeasible(where, f"{wanted} passes over {axis}; accepted: {', '.join(map(str, accepted))}")
    storages = [*target_graph.storages]
    operators = [(k, target_graph.operators[k]) for k in range(start, stop)]
    if count > 1:
        hidden = _product(target_graph, start, stop) is not None
        operators = (
            _over_hidden(target_graph, start, stop, count, storages)
            if hidden
            else _over_results(target_graph, start, stop, count, storages, beside)
        )
    loaded, tiled = 0, inputs > 1 or _product(target_graph, start, stop) is None
    if tiled:
        operators, loaded = _run_by_run(target_graph, start, stop, operators, storages)
    if inputs > 1:
        operators, input_bits = _over_inputs(operators, inputs, storages)
        loaded |= input_bits
    if tiled:
        operators = _in_place(operators, storages, len(target_graph.storages))
    pass_graph, order = with_operators(target_graph, start, stop, operators, tuple(storages)), tuple([k - start for k, _ in operators])
    return RewrittenSegment(pass_graph, order, {"passes": count, "input_passes": inputs}, loaded)


Made = list[tuple[int, TargetOp]]  # operators, each with the number of its original


def _added(storages: list[StorageSpec], like: TensorSlice, name: str, planes: int, **changes: Any) -> TensorSlice:
    """Slice of a new storage that is like the storage of a slice."""
    storage = storages[like.storage]
    storages.append(replace(storage, name=f"{storage.name}/{name}", planes=planes, **changes))
    return TensorSlice(len(storages) - 1, 0, planes)


def _run_of(storages: list[StorageSpec], read: TensorSlice, name: str) -> TensorSlice:
    """Slice of a new storage: the planes that `read` has of a tensor in DDR."""
    base = storages[read.storage]
    return _added(
        storages, read, name, read.planes, address=base.address + read.plane * base.plane_blocks, ddr_planes=base.ddr_planes or base.planes
    )


def _run_by_run(target_graph: TargetGraph, start: int, stop: int, operators: Made, storages: list[StorageSpec]) -> tuple[Made, int]:
    """Operators in which products have only their own part of a loaded tensor in L1; and storages of these tensors, as bits."""
    readers: dict[int, list[bool]] = {}
    for k, spec in operators:
        full_reads = target_graph.operators[k].reads
        for read, of in zip(spec.reads, full_reads, strict=False):
            readers.setdefault(read.storage, []).append(read in _multiplied(spec) and read.planes < of.planes)
    inside = {spec.y.storage for _, spec in operators}
    loaded = {storage for storage, own_runs in readers.items() if all(own_runs) and storage not in inside}
    divided, runs = Made(), dict[TensorSlice, TensorSlice]()
    for k, spec in operators:
        for read in spec.reads:
            if read.storage in loaded and read not in runs:
                runs[read] = _run_of(storages, read, f"run {read.plane}")
        divided.append((k, replace(spec, reads=tuple(runs.get(read, read) for read in spec.reads))))
    return divided, sum(1 << storage for storage in loaded)


def _multiplied(spec: TargetOp) -> tuple[TensorSlice, ...]:
    """Operands of a product that are tensors; () for other operators."""
    if spec.runs_on != "CUBE":
        return ()
    return spec.reads[:1] if spec.right is None else (spec.reads[0], spec.right)


def _in_place(operators: Made, storages: Sequence[StorageSpec], first_added: int) -> Made:
    """Operators whose softmax works in place, if its operand is a tensor of the pass without another reader.

    Scores are the largest tensor of a head.  Softmax reads every tile before it writes the tile at the same address.  Chains do not work in
    place: they run while CUBE works on the next pass, and CUBE would have to wait.
    first_added: first storage that passes have added.
    """
    merged, instead, readers = Made(), dict[TensorSlice, TensorSlice](), dict[int, int]()
    for _, spec in operators:
        for storage in {read.storage for read in spec.reads}:
            readers[storage] = readers.get(storage, 0) + 1
    for k, op in operators:
        spec = replace(op, reads=tuple(instead.get(read, read) for read in op.reads))
        x, y = op.reads[0], op.y
        if isinstance(op, SoftmaxSpec) and min(x.storage, y.storage) >= first_added and readers[x.storage] == 1 and readers.get(y.storage):
            source, target = storages[x.storage], storages[y.storage]
            if replace(source, name="", address=0) == replace(target, name="", address=0) and x.planes == y.planes == source.planes:
                instead[y] = spec.reads[0]
                spec = replace(spec, y=spec.reads[0])
        merged.append((k, spec))
    return merged


def _sums_of(product: ConvSpec, storages: list[StorageSpec], stays: bool = True) -> TensorSlice:
    """Slice for a product's sums: the slice of its result if the data types are equal, else a new one.

    stays: whether the result's slice needs no more of L1 than the sums do (`_stays`).
    """
    kind = DataType.int32 if isinstance(product, QuantisedConvSpec) else DataType.float32
    if stays and storages[product.y.storage].dtype == kind:
        return product.y
    return _added(storages, product.y, "sums", product.y.planes * product.result_lanes // kind.lanes, dtype=kind)


def _over_hidden(target_graph: TargetGraph, start: int, stop: int, count: int, storages: list[StorageSpec]) -> Made:
    product_counts = _product(target_graph, start, stop)
    assert product_counts is not None
    at_product, _ = product_counts
    product = target_graph.operators[at_product]
    hidden = {k: parts for k, parts in _hidden(target_graph, at_product, count).items() if k >= start}
    main = _main(target_graph, hidden, at_product)
    assert isinstance(product, ConvSpec)
    assert main is not None
    sums = _sums_of(product, storages)
    operators = [(k, target_graph.operators[k]) for k in range(start, at_product) if k not in hidden]
    for index in range(count):
        renamed: dict[TensorSlice, TensorSlice] = {}
        for k, parts in hidden.items():
            part = parts[index]
            renamed[part.y] = _added(storages, part.y, f"pass {index}", part.y.planes)
            operators.append((k, replace(part, reads=tuple(renamed.get(read, read) for read in part.reads), y=renamed[part.y])))
        operators.append((at_product, _part_of_product(product, renamed[hidden[main][index].y], sums, index, count)))
    return operators + [(k, target_graph.operators[k]) for k in range(at_product + 1, stop)]


def _over_results(target_graph: TargetGraph, start: int, stop: int, count: int, storages: list[StorageSpec], beside: bool) -> Made:
    """Operators of passes over results.  A result that only the segment reads has a tensor per pass; passes share the other results."""
    operators, parts = Made(), {k: _divided(target_graph, k, count) for k in range(start, stop)}
    hidden = {k for k in parts if k not in target_graph.escapes and all(start <= reader < stop for reader in target_graph.consumers[k])}
    for index in range(count):
        renamed: dict[TensorSlice, TensorSlice] = {}
        for k, operator_parts in parts.items():
            part = operator_parts[index]
            y = renamed[part.y] = _added(storages, part.y, f"pass {index}", part.y.planes) if k in hidden else part.y
            operators.append((k, replace(part, reads=tuple(renamed.get(read, read) for read in part.reads), y=y)))
    return _beside(operators, stop - start) if beside else operators


def behind_vector(operators: Sequence[TargetOp]) -> int:
    """Index behind the last VECTOR operator that lies between products; 0 without such an operator."""
    products = [index for index, spec in enumerate(operators) if spec.runs_on == "CUBE"]
    between = (index for index in range(len(operators) - 1, -1, -1) if operators[index].runs_on == "VECTOR" and products)
    return next((index + 1 for index in between if products[0] < index < products[-1]), 0)


def _beside(operators: Made, length: int) -> Made:
    """Passes of `length` operators, with operators `behind_vector` moved behind the first operators of the next pass.

    While VECTOR works, CUBE computes products of the next pass.  Slots of L0 are allocated in the order of emission, so operators that wait
    for VECTOR must not come first.
    """
    split = behind_vector([spec for _, spec in operators[:length]])
    turns = [operators[index : index + length] for index in range(0, len(operators), length)]
    interleaved = turns[0][:split]
    for previous, current in pairwise(turns):
        interleaved += current[:split] + previous[split:]
    return interleaved + turns[-1][split:]


def _over_inputs(operators: Made, count: int, storages: list[StorageSpec]) -> tuple[Made, int]:
    """Operators of input passes, and `RewrittenSegment.loaded`.  Adjacent products that read the same slice share its loads."""
    inside, divided, index, loaded = [spec.y for _, spec in operators], Made(), 0, 0
    while index < len(operators):
        together = _together(operators[index:], inside, count)
        if not together:
            divided.append(operators[index])
            index += 1
            continue
        x = operators[index][1].reads[0]
        loaded |= 1 << x.storage
        later_reads = [read for _, spec in operators[index:] for read in spec.reads]
        sums = [_sums_of(product, storages, _stays(product.y, storages, later_reads)) for _, product in together]
        wide = x.planes // count
        for run in range(count):
            part = _run_of(storages, TensorSlice(x.storage, x.plane + run * wide, wide), f"run {index}.{run}")
            parts = ((k, _part_of_product(product, part, summed, run, count)) for (k, product), summed in zip(together, sums, strict=True))
            divided += parts
        index += len(together)
    return divided, loaded


def _stays(output: TensorSlice, storages: Sequence[StorageSpec], reads: Sequence[TensorSlice]) -> bool:
    """Whether sums at the address of a result take no more of L1: the result is read later, or fills its storage."""
    return output.planes == storages[output.storage].planes or any(read.overlaps(output) for read in reads)


def _together(operators: Made, inside: Sequence[TensorSlice], count: int) -> list[tuple[int, ConvSpec]]:
    """First products of a list that can be split in `count` input passes; all have the same input, and none reads the result of another.

    The list never has two parts of one product: every part is in a separate pass, so that the sums of two parts are not live at once.
    """
    group = list[tuple[int, ConvSpec]]()
    for k, spec in operators:
        if any(k == member for member, _ in group):
            break
        if not _sums_up(spec) or count not in _input_counts(spec, inside):
            break
        if group and (spec.reads[0] != group[0][1].reads[0] or any(read.overlaps(member.y) for read in spec.reads for _, member in group)):
            break
        group.append((k, spec))
    return group


def _part_of_product(product: ConvSpec, run: TensorSlice, sums: TensorSlice, index: int, count: int) -> ConvSpec:
    """Part of a product in one pass."""
    c1, k1, last, operator = product.c1 // count, product.k1 // count, index == count - 1, product.operator
    changes: dict[str, Any] = {"c1": c1, "k1": k1, "run_of_k1": product.run_of_k1 or product.k1}
    changes["weights_at"] = product.weights_at + index * k1 * product.fractal.weight_blocks
    changes["reads"] = (run, *product.reads[1:]) if index == 0 else (run, sums)
    if not last:
        changes["y"] = sums
    if isinstance(operator, QuantisedConv):
        if not last:
            changes |= {"operator": replace(operator, y_q=RAW_SUMS), "bias_at": -1, "scale_at": 0}
        return replace(product, **changes)
    assert isinstance(operator, Conv)
    if index > 0:
        changes["bias_at"] = -1
    if not last:
        changes["operator"] = replace(operator, activation="none")
    return replace(product, **changes)


@lru_cache(maxsize=64)  # many runs in passes have equal growth
def _moved(target_graph: TargetGraph, growth: int) -> tuple[TargetOp, ...]:
    """Operators with their indices moved by `growth`."""
    return tuple([replace(spec, index=spec.index + growth, named=spec.tag) for spec in target_graph.operators])


def with_operators(target_graph: TargetGraph, start: int, stop: int, new_operators: Made, storages: tuple[StorageSpec, ...]) -> TargetGraph:
    """Target graph with new operators in place of [start, stop)."""
    growth = len(new_operators) - (stop - start)
    last = {(k, spec.y): start + index for index, (k, spec) in enumerate(new_operators)}
    read = {
        k: [index for (of, y), index in last.items() if of == k and y.overlaps(target_graph.operators[k].y)] for k in range(start, stop)
    }  # new operators that readers of an original operator read

    def places(of: Iterable[int]) -> list[int]:
        return sorted(index for k in of for index in ((k,) if k < start else (k + growth,) if k >= stop else read[k]))

    specs = [replace(spec, index=start + index, named=spec.tag) for index, (_, spec) in enumerate(new_operators)]
    operators = (*target_graph.operators[:start], *specs, *_moved(target_graph, growth)[stop:])
    outside = ((k, sources) for k, sources in target_graph.producers.items() if not start <= k < stop)
    producers = {places([k])[0]: tuple(places(sources)) for k, sources in outside}
    makers: dict[int, list[TargetOp]] = {}  # new operators by the storages of their results
    for (k, _), spec in zip(new_operators, specs, strict=True):
        before = [target_graph.operators[s] for s in target_graph.producers[k] if s < start]
        sources = before + [source for storage in sorted({read.storage for read in spec.reads}) for source in makers.get(storage, ())]
        indices = {s.index for s in sources if any(s.y.overlaps(read) for read in spec.reads)}
        producers[spec.index] = tuple(sorted(indices))
        makers.setdefault(spec.y.storage, []).append(spec)
    consumers: dict[int, list[int]] = {k: [] for k in range(len(operators))}
    for k in range(len(operators)):
        for source in producers[k]:
            consumers[source].append(k)
    escapes = frozenset(places(target_graph.escapes))
    readers = {k: tuple(reader_list) for k, reader_list in consumers.items()}
    return replace(target_graph, storages=storages, operators=operators, producers=producers, consumers=readers, escapes=escapes)


def _sums_of_cores(target_graph: TargetGraph, start: int, stop: int) -> bool:
    """Whether cores that share channels can have sums of passes: each core adds up those of its own channels."""
    products = (spec for spec in target_graph.operators[start:stop] if spec.runs_on == "CUBE")
    return all(isinstance(spec, ConvSpec) and not isinstance(spec, QuantisedConvSpec) and spec.right is None for spec in products)


def _split(target_graph: TargetGraph, settings: Any, start: int, stop: int) -> RewrittenSegment | Infeasible:
    if settings.channels > 1 and not (settings.passes == 1 and _sums_of_cores(target_graph, start, stop)):
        words = f"{settings.passes * settings.input_passes} passes and {SHARED_CHANNELS['channels']}"
        return Infeasible("", f"{words}: one of the two is accepted, or input passes of float products with constants")
    split = split_passes(target_graph, start, stop, settings.passes, settings.input_passes, settings.window != 1)
    if settings.held and not isinstance(split, Infeasible):
        loaded = [storage.name for index, storage in enumerate(target_graph.storages) if split.loaded >> index & 1]
        if both := [name for name in loaded if name in settings.held]:
            return Infeasible("", f"{both[0]!r} held, and loaded in {settings.input_passes} input passes: one of the two is accepted")
    return split


CHANNEL_SPLITS = SegmentTransform(
    lambda settings: settings.passes > 1 or settings.input_passes > 1,
    lambda settings: f"{settings.passes * settings.input_passes} passes",
    STAGED | ON_VECTOR,
    _split,
)
