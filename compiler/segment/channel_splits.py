"""Segments in passes: channels that a product sums over, made or loaded and summed up run by run, so that they are never whole.

*Hidden* channels are those that operators of the segment make for the product alone.  A pass makes a run of the channels of every
operator that leads to the product and of nothing else, and the product of that run.  What is added up so far stays in L1 as float32, of
integers as int32: every pass but the first adds it as FIXPIPE adds a residual, and the last one hands out the result.
So weights come once for each block of rows, which may be as high as L1 allows where neither the hidden tensor nor the weights are whole.

| operator of the segment    | in every pass                                                                                  |
|----------------------------|------------------------------------------------------------------------------------------------|
| hidden                     | a run of its channels, as `channel_part` has it, in a tensor of the pass                        |
| the product behind them    | of that run, with its own rows of weights; bias and residual in the first pass, activation in the last |
| the same of integers       | bias and scales in the last pass, whose result is that of all sums; no residual                 |
| before, and behind         | as it is, once                                                                                  |

Where no product sums over hidden channels, passes are over the channels of the segment's results: each makes a run of those of every
operator, of heads or behind a product that reads all of its input.  So less of what lies in between is there at a time.
With a window of two or more these passes are made two at a time: products of the next one come before those that wait for VECTOR, so that
CUBE has something to do while a softmax is made.

*Input* passes are the same of channels that the segment loads: a pass loads a run of them, for the products beside each other that read
it.  They are made inside every other pass, which then loads all of them again: with passes over results, tiles of rows by channels.
With either of these two, products that read their own run of a loaded tensor, as heads do, have no more of it in L1, and softmax of a pass
works in place.  Passes over hidden channels alone do without: prediction took attention of ViT-B/16 in more of them, and it was slower.
Sums in the type of the result lie where that will, so that it needs no room beside them.
So a segment in passes is a segment of a unit whose operators are passes, and nothing below needs to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeGuard

from compiler.ir.operators import Conv, QuantisedConv
from compiler.ir.quantised.parameters import RAW_SUMS
from compiler.ops.conv import ConvSpec
from compiler.ops.quantised_conv import QuantisedConvSpec
from compiler.ops.softmax import SoftmaxSpec
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.target.storage import StorageSpec, TensorSlice
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp
from simulator.npu.parts import DataType

_FAR = 16  # operators before a product, at most, that its hidden ones are among
_PRODUCTS = (ConvSpec, QuantisedConvSpec)
Parts = dict[int, tuple[TargetOp, ...]]  # operator -> its part in every pass


class Passes(NamedTuple):
    """unit: operators from `start` on are those of all passes.  order: the place in the segment of the operator that each of them is.

    loaded: storages, as bits, of which input passes load runs from DDR, so that they cannot be held.
    """

    target_graph: TargetGraph
    order: tuple[int, ...]
    loaded: int

    @property
    def leaders(self) -> tuple[int, ...]:
        """Of each its last occurrence, whose tiling all have."""
        last = {of: at for at, of in enumerate(self.order)}
        return tuple(last[of] for of in self.order)

    def rolled(self, plan: SegmentPlan, count: int, inputs: int) -> SegmentPlan:
        """The plan of so many passes that is that of the unit's operators, which have equal tilings in all of them."""
        at = {of: at for at, of in enumerate(self.order)}
        names, tilings = (tuple(each[at[of]] for of in range(len(at))) for each in (plan.operators, plan.tilings))
        cached = {of for of, halo in zip(self.order, plan.halo, strict=False) if halo == "cache"}
        halo = tuple("cache" if of in cached else "recompute" for of in range(len(at))) if cached else ()
        return plan.model_copy(update={"operators": names, "tilings": tilings, "halo": halo, "passes": count, "input_passes": inputs})

    def unrolled(self, plan: SegmentPlan) -> SegmentPlan:
        """The plan of the unit's operators."""
        halo = tuple(plan.halo[of] for of in self.order) if plan.halo else ()
        names, tilings = (tuple(each[of] for of in self.order) for each in (plan.operators, plan.tilings))
        return plan.model_copy(update={"operators": names, "tilings": tilings, "halo": halo, "passes": 1, "input_passes": 1})


@lru_cache(maxsize=1 << 14)
def pass_counts(target_graph: TargetGraph, start: int, stop: int) -> tuple[int, ...]:
    """Into how many passes operators [start, stop) can be divided, 1 not among them."""
    found = _product(target_graph, start, stop)
    return _result_counts(target_graph, start, stop) if found is None else found[1]


def _result_counts(target_graph: TargetGraph, start: int, stop: int) -> tuple[int, ...]:
    """In how many passes over the channels of their results."""
    operators = target_graph.operators[start:stop]
    inside = [[(p, target_graph.operators[p].y) for p in target_graph.producers[spec.index] if p >= start] for spec in operators]
    if any(_sums_up(spec) and any(spec.reads[0].overlaps(y) for _, y in made) for spec, made in zip(operators, inside, strict=True)):
        return ()

    def apart(count: int) -> bool:
        parts = [_divided(target_graph, spec.index, count) for spec in operators]
        pairs = ((mine, parts[p - start], y) for mine, made in zip(parts, inside, strict=True) for p, y in made)
        own = (_own(read, y, of.y) for mine, made, y in pairs for part, of in zip(mine, made, strict=True) for read in part.reads)
        return all(parts) and all(own)

    return tuple(count for count in _divisors(min(spec.y.planes for spec in operators)) if apart(count))


def sums_hidden(target_graph: TargetGraph, start: int, stop: int) -> bool:
    """Whether a product of operators [start, stop) can be made in passes over channels that others of them make."""
    return _product(target_graph, start, stop) is not None


def halos_of_passes(target_graph: TargetGraph, start: int, stop: int, count: int) -> int:
    """Operators of [start, stop), as bits, that read hidden channels of so many passes through a window."""
    found = _product(target_graph, start, stop)
    if found is None:
        return 0
    hidden = [target_graph.operators[k].y for k in _hidden(target_graph, found[0], count) if k >= start]
    windows = (spec for spec in target_graph.operators[start:stop] if spec.operator.has_halo)
    return sum(1 << spec.index - start for spec in windows if any(y.overlaps(read) for y in hidden for read in spec.reads))


@lru_cache(maxsize=1 << 14)
def input_counts(target_graph: TargetGraph, start: int, stop: int) -> tuple[int, ...]:
    """In how many input passes some product of operators [start, stop) can be made, 1 not among them."""
    inside = tuple(spec.y for spec in target_graph.operators[start:stop])
    found = {count for spec in target_graph.operators[start:stop] for count in _input_counts(spec, inside)}
    return tuple(sorted(found))


def _input_counts(spec: TargetOp, inside: Sequence[TensorSlice]) -> tuple[int, ...]:
    """Of one operator.  inside: what the segment makes."""
    if not _sums_up(spec) or any(spec.reads[0].overlaps(made) for made in inside):
        return ()
    return _divisors(spec.c1)


@lru_cache(maxsize=64)
def runs_with_passes(target_graph: TargetGraph) -> tuple[tuple[int, int], ...]:
    """Runs that end with a product and begin with a hidden operator of its, or with the one before these."""
    found = []
    for spec in target_graph.operators:
        if able := _able(target_graph, spec.index):
            hidden = _hidden(target_graph, spec.index, able[-1][0])
            starts = (max(0, min(hidden) - 1), *hidden)
            found += [(start, spec.index + 1) for start in dict.fromkeys(starts) if pass_counts(target_graph, start, spec.index + 1)]
    return tuple(found)


@lru_cache(maxsize=64)
def runs_with_result_passes(target_graph: TargetGraph) -> tuple[tuple[int, int], ...]:
    """Runs with a product that can be made in passes over the channels of their results."""
    found = []
    for spec in target_graph.operators:
        start = stop = spec.index
        while stop < len(target_graph.operators) and stop - start < _FAR and _result_counts(target_graph, start, stop + 1):
            stop += 1
            if any(isinstance(each, ConvSpec) for each in target_graph.operators[start:stop]):
                found.append((start, stop))
    return tuple(found)


@lru_cache(maxsize=64)
def runs_with_input_passes(target_graph: TargetGraph) -> tuple[tuple[int, int], ...]:
    """Runs that begin with a product that can be made in input passes, and end with it or with one of the next two products."""
    found = []
    for start, stop in runs_of_products(target_graph):
        if _input_counts(target_graph.operators[start], [spec.y for spec in target_graph.operators[start:stop]]):
            found.append((start, stop))
    return tuple(found)


@lru_cache(maxsize=64)
def runs_of_products(target_graph: TargetGraph) -> tuple[tuple[int, int], ...]:
    """Runs that begin with a product, and end with it or with one of the next two."""
    products = [spec.index for spec in target_graph.operators if isinstance(spec, ConvSpec)]
    return tuple((start, last + 1) for at, start in enumerate(products) for last in products[at : at + 3] if last - start < _FAR)


def _product(target_graph: TargetGraph, start: int, stop: int) -> tuple[int, tuple[int, ...]] | None:
    """The product that is made in passes, and in how many it can be: of those that can the one that sums over the most, the last of
    equals."""
    found = []
    for k in range(start + 1, stop):
        if counts := tuple(count for count, main in _able(target_graph, k) if main >= start):
            spec = target_graph.operators[k]
            assert isinstance(spec, ConvSpec)
            found.append((spec.c1 * spec.in_h * spec.in_w, k, counts))
    return max(found)[1:] if found else None


@lru_cache(maxsize=1 << 14)
def _able(target_graph: TargetGraph, product: int) -> tuple[tuple[int, int], ...]:
    """(count, hidden operator that the product reads) for every number of passes that an operator can be made in."""
    spec = target_graph.operators[product]
    if not _sums_up(spec):
        return ()
    mains = ((count, _main(target_graph, _hidden(target_graph, product, count), product)) for count in _divisors(spec.c1))
    return tuple((count, main) for count, main in mains if main is not None)


@lru_cache(maxsize=1024)
def _divisors(channels: int) -> tuple[int, ...]:
    """But for 1."""
    return tuple(count for count in range(2, channels + 1) if channels % count == 0)


def _sums_up(spec: TargetOp) -> TypeGuard[ConvSpec]:
    """Whether it can be made in passes, as far as it alone says so."""
    return isinstance(spec, ConvSpec) and type(spec) in _PRODUCTS and _is_dense(spec) and _adds_up(spec)


def _is_dense(spec: ConvSpec) -> bool:
    """Whether it sums over all channels, and its weights lie in DDR as in L1."""
    return spec.groups == 1 and spec.expansion is None and not spec.needed.size and spec.lanes == spec.fractal.lanes


def _adds_up(spec: TargetOp) -> bool:
    """Whether FIXPIPE can add sums to a product: it has one residual, and that of integers is added to what they have become."""
    return not isinstance(spec.operator, QuantisedConv) or len(spec.reads) == 1


def _main(target_graph: TargetGraph, hidden: Parts, product: int) -> int | None:
    """The hidden operator whose result the product sums over."""
    return next((k for k in hidden if target_graph.operators[k].y == target_graph.operators[product].reads[0]), None)


@lru_cache(maxsize=1 << 14)
def _hidden(target_graph: TargetGraph, product: int, count: int) -> Parts:
    """The hidden operators before a product, in their order; of a segment those that it has."""
    found: Parts = {}
    for k in range(product - 1, max(0, product - _FAR) - 1, -1):
        y, readers = target_graph.operators[k].y, target_graph.consumers[k]
        if k in target_graph.escapes or not readers or not all(c in found or c == product for c in readers):
            continue
        main, *others = target_graph.operators[product].reads
        if product in readers and (main != y or any(other.overlaps(y) for other in others)):
            continue
        parts = _divided(target_graph, k, count)
        mine = (all(_own(read, y, part.y) for c in readers if c in found for read in found[c][at].reads) for at, part in enumerate(parts))
        if parts and all(mine):
            found[k] = parts
    return dict(reversed(found.items()))


@lru_cache(maxsize=1 << 14)
def _divided(target_graph: TargetGraph, k: int, count: int) -> tuple[TargetOp, ...]:
    """An operator's parts of as many channels each; none where it has no such."""
    spec, dtype = target_graph.operators[k], target_graph.type_of(target_graph.operators[k].y)
    step, wide = spec.channel_step(count, dtype), spec.y.planes // count
    if spec.y.planes % count or isinstance(step, str) or wide % step:
        return ()
    parts = (spec.channel_part(at * wide, (at + 1) * wide, dtype) for at in range(count))
    found = tuple(part for part in parts if part is not None)
    alike = len({part.n1 for part in found if isinstance(part, ConvSpec)}) < 2  # so that one tiling is legal in all of them
    return found if len(found) == count and alike else ()


def _own(read: TensorSlice, whole: TensorSlice, made: TensorSlice) -> bool:
    """Whether all that a part reads of an operator's result is what the same pass makes of it."""
    return read == made or not read.overlaps(whole)


@lru_cache(maxsize=1024)
def passes(target_graph: TargetGraph, start: int, stop: int, count: int, inputs: int = 1, beside: bool = False) -> Passes | Infeasible:
    """Operators [start, stop) in so many passes, over channels that they make and over those of inputs; why not where that cannot be.

    beside: whether passes over results are made two at a time.
    """
    where = target_graph.operators[start].name
    for what, wanted, counts in (("channels", count, pass_counts), ("channels of inputs", inputs, input_counts)):
        accepted = 1, *counts(target_graph, start, stop)
        if wanted not in accepted:
            return Infeasible(where, f"{wanted} passes over {what}; accepted: {', '.join(map(str, accepted))}")
    storages = [*target_graph.storages]
    made = [(k, target_graph.operators[k]) for k in range(start, stop)]
    if count > 1:
        hidden = _product(target_graph, start, stop) is not None
        made = (
            _over_hidden(target_graph, start, stop, count, storages)
            if hidden
            else _over_results(target_graph, start, stop, count, storages, beside)
        )
    loaded, tiled = 0, inputs > 1 or _product(target_graph, start, stop) is None
    if tiled:
        made, loaded = _run_by_run(target_graph, start, stop, made, storages)
    if inputs > 1:
        made, whole = _over_inputs(made, inputs, storages)
        loaded |= whole
    if tiled:
        made = _in_place(made, storages, len(target_graph.storages))
    return Passes(with_operators(target_graph, start, stop, made, tuple(storages)), tuple(k - start for k, _ in made), loaded)


Made = list[tuple[int, TargetOp]]  # operators, each with the number of that which it is a part of


def _added(storages: list[StorageSpec], like: TensorSlice, name: str, planes: int, **changes: Any) -> TensorSlice:
    """A new storage like that of a piece."""
    storage = storages[like.storage]
    storages.append(replace(storage, name=f"{storage.name}/{name}", planes=planes, **changes))
    return TensorSlice(len(storages) - 1, 0, planes)


def _run_of(storages: list[StorageSpec], read: TensorSlice, name: str) -> TensorSlice:
    """Planes of a tensor in DDR as a tensor of their own."""
    of = storages[read.storage]
    return _added(storages, read, name, read.planes, address=of.address + read.plane * of.plane_blocks, whole=of.whole or of.planes)


def _run_by_run(target_graph: TargetGraph, start: int, stop: int, made: Made, storages: list[StorageSpec]) -> tuple[Made, int]:
    """Products that read their own run of a loaded tensor have no more of it in L1; and such tensors, as bits."""
    readers: dict[int, list[bool]] = {}
    for k, spec in made:
        whole = target_graph.operators[k].reads
        for read, of in zip(spec.reads, whole, strict=False):
            readers.setdefault(read.storage, []).append(read in _multiplied(spec) and read.planes < of.planes)
    inside = {spec.y.storage for _, spec in made}
    able = {storage for storage, own in readers.items() if all(own) and storage not in inside}
    found, runs = Made(), dict[TensorSlice, TensorSlice]()
    for k, spec in made:
        for read in spec.reads:
            if read.storage in able and read not in runs:
                runs[read] = _run_of(storages, read, f"run {read.plane}")
        found.append((k, replace(spec, reads=tuple(runs.get(read, read) for read in spec.reads))))
    return found, sum(1 << storage for storage in able)


def _multiplied(spec: TargetOp) -> tuple[TensorSlice, ...]:
    """Tensors that are operands of a product."""
    if spec.runs_on != "CUBE":
        return ()
    return spec.reads[:1] if spec.right is None else (spec.reads[0], spec.right)


def _in_place(made: Made, storages: Sequence[StorageSpec], own: int) -> Made:
    """Softmax whose operand is a tensor of the pass that nobody else reads works where it lies: scores are the largest tensor of a head.

    own: the first storage that passes have added.  Every tile is read before it is written, at the same place.  Chains have another place:
    they are made while CUBE works on the next pass, which would wait.
    """
    found, instead, readers = Made(), dict[TensorSlice, TensorSlice](), dict[int, int]()
    for _, spec in made:
        for storage in {read.storage for read in spec.reads}:
            readers[storage] = readers.get(storage, 0) + 1
    for k, each in made:
        spec = replace(each, reads=tuple(instead.get(read, read) for read in each.reads))
        x, y = each.reads[0], each.y
        if isinstance(each, SoftmaxSpec) and min(x.storage, y.storage) >= own and readers[x.storage] == 1 and readers.get(y.storage):
            of, to = storages[x.storage], storages[y.storage]
            if replace(of, name="", address=0) == replace(to, name="", address=0) and x.planes == y.planes == of.planes:
                instead[y] = spec.reads[0]
                spec = replace(spec, y=spec.reads[0])
        found.append((k, spec))
    return found


def _sums_of(product: ConvSpec, storages: list[StorageSpec], stays: bool = True) -> TensorSlice:
    """Where a product's sums lie: where its result will, if that is of their type.

    stays: whether that is in L1 at all, or is all of its tensor, so that no more than its sums is there.
    """
    kind = DataType.int32 if isinstance(product, QuantisedConvSpec) else DataType.float32
    if stays and storages[product.y.storage].dtype == kind:
        return product.y
    return _added(storages, product.y, "sums", product.y.planes * product.result_lanes // kind.lanes, dtype=kind)


def _over_hidden(target_graph: TargetGraph, start: int, stop: int, count: int, storages: list[StorageSpec]) -> Made:
    found = _product(target_graph, start, stop)
    assert found is not None
    at_product, _ = found
    product = target_graph.operators[at_product]
    hidden = {k: parts for k, parts in _hidden(target_graph, at_product, count).items() if k >= start}
    main = _main(target_graph, hidden, at_product)
    assert isinstance(product, ConvSpec)
    assert main is not None
    sums = _sums_of(product, storages)
    made = [(k, target_graph.operators[k]) for k in range(start, at_product) if k not in hidden]
    for at in range(count):
        mine: dict[TensorSlice, TensorSlice] = {}
        for k, parts in hidden.items():
            part = parts[at]
            mine[part.y] = _added(storages, part.y, f"pass {at}", part.y.planes)
            made.append((k, replace(part, reads=tuple(mine.get(read, read) for read in part.reads), y=mine[part.y])))
        made.append((at_product, _part_of_product(product, mine[hidden[main][at].y], sums, at, count)))
    return made + [(k, target_graph.operators[k]) for k in range(at_product + 1, stop)]


def _over_results(target_graph: TargetGraph, start: int, stop: int, count: int, storages: list[StorageSpec], beside: bool) -> Made:
    """What nobody else reads is a tensor of its pass; the rest is made where it lies."""
    made, parts = Made(), {k: _divided(target_graph, k, count) for k in range(start, stop)}
    hidden = {k for k in parts if k not in target_graph.escapes and all(start <= reader < stop for reader in target_graph.consumers[k])}
    for at in range(count):
        mine: dict[TensorSlice, TensorSlice] = {}
        for k, mine_of in parts.items():
            part = mine_of[at]
            y = mine[part.y] = _added(storages, part.y, f"pass {at}", part.y.planes) if k in hidden else part.y
            made.append((k, replace(part, reads=tuple(mine.get(read, read) for read in part.reads), y=y)))
    return _beside(made, stop - start) if beside else made


def behind_vector(operators: Sequence[TargetOp]) -> int:
    """Where in a run of operators the products begin that wait for the last of VECTOR which waits for products itself; 0 where none do."""
    products = [at for at, spec in enumerate(operators) if spec.runs_on == "CUBE"]
    between = (at for at in range(len(operators) - 1, -1, -1) if operators[at].runs_on == "VECTOR" and products)
    return next((at + 1 for at in between if products[0] < at < products[-1]), 0)


def _beside(made: Made, each: int) -> Made:
    """Passes of `each` operators with those `behind_vector` one pass later: while VECTOR works, CUBE makes the products of the next pass.

    Slots of L0 are given away in the order of emission, so what waits for VECTOR must not stand in front of these.
    """
    split = behind_vector([spec for _, spec in made[:each]])
    turns = [made[at : at + each] for at in range(0, len(made), each)]
    found = turns[0][:split]
    for before, now in pairwise(turns):
        found += now[:split] + before[split:]
    return found + turns[-1][split:]


def _over_inputs(made: Made, count: int, storages: list[StorageSpec]) -> tuple[Made, int]:
    """And what is loaded, as `Passes` has it.  Products beside each other that read the same piece have its runs together."""
    inside, found, at, loaded = [spec.y for _, spec in made], Made(), 0, 0
    while at < len(made):
        together = _together(made[at:], inside, count)
        if not together:
            found.append(made[at])
            at += 1
            continue
        x = made[at][1].reads[0]
        loaded |= 1 << x.storage
        behind = [read for _, spec in made[at:] for read in spec.reads]
        sums = [_sums_of(product, storages, _stays(product.y, storages, behind)) for _, product in together]
        wide = x.planes // count
        for run in range(count):
            mine = _run_of(storages, TensorSlice(x.storage, x.plane + run * wide, wide), f"run {at}.{run}")
            parts = ((k, _part_of_product(product, mine, summed, run, count)) for (k, product), summed in zip(together, sums, strict=True))
            found += parts
        at += len(together)
    return found, loaded


def _stays(y: TensorSlice, storages: Sequence[StorageSpec], reads: Sequence[TensorSlice]) -> bool:
    """Whether a result takes no more of L1 than its sums do if they lie in its place."""
    return y.planes == storages[y.storage].planes or any(read.overlaps(y) for read in reads)


def _together(made: Made, inside: Sequence[TensorSlice], count: int) -> list[tuple[int, ConvSpec]]:
    """Products at the beginning of a list that can be made in so many input passes, all of the same input, none of another's result.

    Not another part of one of them: it is in a pass of its own so that sums of both need not be there at once.
    """
    found = list[tuple[int, ConvSpec]]()
    for k, spec in made:
        if any(k == other for other, _ in found):
            break
        if not _sums_up(spec) or count not in _input_counts(spec, inside):
            break
        if found and (spec.reads[0] != found[0][1].reads[0] or any(read.overlaps(other.y) for read in spec.reads for _, other in found)):
            break
        found.append((k, spec))
    return found


def _part_of_product(product: ConvSpec, run: TensorSlice, sums: TensorSlice, at: int, count: int) -> ConvSpec:
    """Of one pass."""
    c1, k1, last, operator = product.c1 // count, product.k1 // count, at == count - 1, product.operator
    changes: dict[str, Any] = {"c1": c1, "k1": k1, "run_of_k1": product.run_of_k1 or product.k1}
    changes["weights_at"] = product.weights_at + at * k1 * product.fractal.weight_blocks
    changes["reads"] = (run, *product.reads[1:]) if at == 0 else (run, sums)
    if not last:
        changes["y"] = sums
    if isinstance(operator, QuantisedConv):
        if not last:
            changes |= {"operator": replace(operator, y_q=RAW_SUMS), "bias_at": -1, "scale_at": 0}
        return replace(product, **changes)
    assert isinstance(operator, Conv)
    if at > 0:
        changes["bias_at"] = -1
    if not last:
        changes["operator"] = replace(operator, activation="none")
    return replace(product, **changes)


@lru_cache(maxsize=64)  # as many operators more are those of many runs in some passes
def _moved(target_graph: TargetGraph, more: int) -> tuple[TargetOp, ...]:
    """A unit's operators, as many places further on."""
    return tuple([replace(spec, index=spec.index + more, named=spec.tag) for spec in target_graph.operators])


def with_operators(target_graph: TargetGraph, start: int, stop: int, made: Made, storages: tuple[StorageSpec, ...]) -> TargetGraph:
    """The unit with these operators in place of [start, stop)."""
    more = len(made) - (stop - start)
    last = {(k, spec.y): start + at for at, (k, spec) in enumerate(made)}
    read = {
        k: [at for (of, y), at in last.items() if of == k and y.overlaps(target_graph.operators[k].y)] for k in range(start, stop)
    }  # by others

    def places(of: Iterable[int]) -> list[int]:
        return sorted(at for k in of for at in ((k,) if k < start else (k + more,) if k >= stop else read[k]))

    new = [replace(spec, index=start + at, named=spec.tag) for at, (_, spec) in enumerate(made)]
    operators = (*target_graph.operators[:start], *new, *_moved(target_graph, more)[stop:])
    outside = ((k, sources) for k, sources in target_graph.producers.items() if not start <= k < stop)
    producers = {places([k])[0]: tuple(places(sources)) for k, sources in outside}
    makers: dict[int, list[TargetOp]] = {}  # by their storages
    for (k, _), spec in zip(made, new, strict=True):
        before = [target_graph.operators[s] for s in target_graph.producers[k] if s < start]
        sources = before + [source for storage in sorted({read.storage for read in spec.reads}) for source in makers.get(storage, ())]
        found = {s.index for s in sources if any(s.y.overlaps(read) for read in spec.reads)}
        producers[spec.index] = tuple(sorted(found))
        makers.setdefault(spec.y.storage, []).append(spec)
    consumers: dict[int, list[int]] = {k: [] for k in range(len(operators))}
    for k in range(len(operators)):
        for source in producers[k]:
            consumers[source].append(k)
    escapes = frozenset(places(target_graph.escapes))
    readers = {k: tuple(mine) for k, mine in consumers.items()}
    return replace(target_graph, storages=storages, operators=operators, producers=producers, consumers=readers, escapes=escapes)
