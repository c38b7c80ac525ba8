"""List of rewrites.  Each keeps the values of the graph's outputs; `tests/compiler/rewrites` tests every entry separately."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.ir.channel_runs import find_runs
from compiler.ir.operators import (
    Concat,
    Conv,
    Floats,
    LayerNorm,
    MatMul,
    Operator,
    Pool,
    QuantisedConv,
    QuantisedPair,
    Resample,
    Shuffle,
    Softmax,
    Step,
    Vector,
)
from compiler.ir.operators.quantised_products import Residual, quantised_identity_conv
from compiler.ir.quantised.parameters import Quantisation
from compiler.rewrites.engine import GraphView, Match, RewriteRule
from compiler.rewrites.tables import merge_affine, merge_tables, table_of_pair
from compiler.rewrites.windows import merge_resamples, pad_into_conv, skip_into_conv

AFFINE = ("scale_shift", "muls", "adds")


def affine_terms(step: Step, channels: int) -> tuple[Floats, Floats] | None:
    """(scale [c], shift [c]) of an affine step; None for other steps."""
    one, zero = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    if step.op == "scale_shift":
        assert step.scale is not None
        assert step.shift is not None
        return step.scale, step.shift
    if step.op == "muls":
        return one * np.float32(step.value), zero
    if step.op == "adds":
        return one, one * np.float32(step.value)
    return None


def without_first_step(op: Vector, x: str) -> tuple[Operator, ...]:
    """Chain without its first step, starting from x; () for a chain of one step."""
    if len(op.steps) == 1:
        return ()
    used = sorted({step.operand for step in op.steps[1:] if step.operand >= 0} - {0})
    index = {0: 0} | {old: new for new, old in enumerate(used, 1)}
    steps = tuple(replace(step, operand=index[step.operand]) if step.operand >= 0 else step for step in op.steps[1:])
    return (Vector(op.name, (x, *(op.inputs[i] for i in used)), op.y, steps),)


def _into_conv(conv: Conv, op: Vector, view: GraphView, **changes: object) -> Match | None:
    """Match that replaces conv and the first step of op by conv with `changes`; None where a later step reads the start value."""
    if any(step.operand == 0 for step in op.steps[1:]):
        return None
    last = len(op.steps) == 1
    fused = replace(conv, y=op.y if last else conv.y, **changes)  # type: ignore[arg-type]
    return Match((conv, op), (fused, *without_first_step(op, fused.y)))


def _plain_conv(tensor: str, view: GraphView) -> Conv | None:
    """Producer of a tensor with one reader, if it is a Conv without activation and residual."""
    conv = view.producers.get(tensor)
    if isinstance(conv, Conv) and view.only_use(tensor) and conv.activation == "none" and conv.residual is None:
        return conv
    return None


def fold_affine(op: Operator, view: GraphView) -> Match | None:
    """Conv, then scale and shift per channel (BN, Mul, Add): into the weights."""
    if not isinstance(op, Vector) or not op.steps or op.steps[0].op not in AFFINE:
        return None
    conv = _plain_conv(op.inputs[0], view)
    if conv is None:
        return None
    terms = affine_terms(op.steps[0], conv.weights.shape[0])
    assert terms is not None
    scale, shift = terms
    weights = (conv.weights * scale[:, None, None, None]).astype(np.float32)
    return _into_conv(conv, op, view, weights=weights, bias=(conv.bias * scale + shift).astype(np.float32))


def negate_into_conv(op: Operator, view: GraphView) -> Match | None:
    """Conv, then x / (f(-x) + a), as in SiLU.  With negated weights (u = -x) it is u / (-f(u) - a), one step less.  No rounding changes."""
    if not isinstance(op, Vector) or len(op.steps) < 4:
        return None
    first, *inner, added, divided = op.steps
    if (first.op, first.value, added.op, divided.op, divided.operand) != ("muls", -1, "adds", "rdiv", 0):
        return None
    conv = _plain_conv(op.inputs[0], view) if not any(step.operand == 0 for step in inner) else None
    if conv is None:
        return None
    minus = np.full(conv.weights.shape[0], -1, np.float32)
    shifted = Step("scale_shift", scale=minus, shift=minus * np.float32(added.value))
    negated = replace(conv, weights=-conv.weights, bias=-conv.bias)
    return Match((conv, op), (negated, replace(op, steps=(*inner, shifted, divided))))


def fuse_relu(op: Operator, view: GraphView) -> Match | None:
    """Conv (with or without a residual), then ReLU."""
    if not isinstance(op, Vector) or not op.steps or op.steps[0].op != "relu":
        return None
    conv = view.producers.get(op.inputs[0])
    if not isinstance(conv, Conv) or not view.only_use(conv.y) or conv.activation != "none":
        return None
    return _into_conv(conv, op, view, activation="relu")


def fuse_limit(op: Operator, view: GraphView) -> Match | None:
    """Conv with ReLU, then min: ReLU6."""
    if not isinstance(op, Vector) or not op.steps or op.steps[0].op != "mins" or op.steps[0].value <= 0:
        return None
    conv = view.producers.get(op.inputs[0])
    if not isinstance(conv, Conv) or not view.only_use(conv.y) or conv.activation == "none":
        return None
    limit = min(op.steps[0].value, conv.limit) if conv.activation == "clip" else op.steps[0].value
    return _into_conv(conv, op, view, activation="clip", limit=limit)


def fuse_residual(op: Operator, view: GraphView) -> Match | None:
    """Conv, then Add of another tensor: FIXPIPE adds it.  Of two convolutions the later one adds the result of the earlier."""
    if not isinstance(op, Vector) or not op.steps or op.steps[0].op != "add":
        return None
    first, second = op.inputs[0], op.inputs[op.steps[0].operand]
    if first == second or op.inputs.count(first) + op.inputs.count(second) != 2 or view.shapes[first] != view.shapes[second]:
        return None
    if any(step.operand in (0, op.steps[0].operand) for step in op.steps[1:]):
        return None
    candidates = [
        (view.position[source], source, addend)
        for source, addend in ((first, second), (second, first))
        if _plain_conv(source, view) is not None
    ]
    if not candidates:
        return None
    _, tensor, residual = max(candidates)
    conv = view.producers[tensor]
    assert isinstance(conv, Conv)
    return _into_conv(conv, op, view, residual=residual)


def fuse_integer_residual(op: Operator, view: GraphView) -> Match | None:
    """Convolution of integers, then a sum with another tensor: FIXPIPE rounds to the convolution's integers, then adds."""
    if not isinstance(op, QuantisedPair) or op.mode == "mul" or op.a == op.b or view.shapes[op.a] != view.shapes[op.b]:
        return None
    candidates = [
        (view.position[integers], integers, addend, addend_type, last)
        for integers, addend, addend_type, last in ((op.a, op.b, op.b_q, op.mode == "radd"), (op.b, op.a, op.a_q, op.mode == "add"))
        if _plain_integer_conv(integers, view, op.y_q)
    ]
    if not candidates:
        return None
    _, integers, addend, addend_type, last = max(candidates, key=lambda candidate: candidate[0])
    conv = view.producers[integers]
    assert isinstance(conv, QuantisedConv)
    return Match((conv, op), (replace(conv, y=op.y, added=Residual(addend, addend_type, op.y_q, last)),))


def _plain_integer_conv(tensor: str, view: GraphView, quantisation: Quantisation) -> bool:
    """Whether a tensor with one reader comes from a convolution to that type of integers without residual."""
    conv = view.producers.get(tensor)
    if not isinstance(conv, QuantisedConv) or not view.only_use(tensor) or conv.added is not None:
        return False
    return conv.y_q is not None and conv.y_q.dtype == quantisation.dtype


def merge_chains(op: Operator, view: GraphView) -> Match | None:
    """Join two element-wise chains if only the second reads the first; a reused start value goes to a register."""
    if not isinstance(op, Vector):
        return None
    producer = view.producers.get(op.inputs[0])
    if not isinstance(producer, Vector) or not view.only_use(producer.y) or not op.steps:
        return None
    # a step that reads the start value of the second chain reads a new register instead
    if any(step.operand == 0 for step in op.steps):
        slot = 1 + max(step.register for step in op.steps)
        steps = tuple(replace(step, operand=-1, register=slot) if step.operand == 0 else step for step in op.steps)
        op_steps = (Step("keep", register=slot), *steps)
    else:
        op_steps = op.steps
    names = list(producer.inputs)
    index: dict[int, int] = {}
    for old, name in enumerate(op.inputs[1:], 1):
        if name not in names:
            names.append(name)
        index[old] = names.index(name)
    steps = tuple(replace(step, operand=index[step.operand]) if step.operand >= 0 else step for step in op_steps)
    return Match((producer, op), (Vector(producer.name, tuple(names), op.y, producer.steps + steps),))


def swap_operands(op: Operator, view: GraphView) -> Match | None:
    """a + b where only b is a chain that could be merged: b + a."""
    if not isinstance(op, Vector) or len(op.inputs) != 2 or not op.steps or op.steps[0].op not in ("add", "mul", "max", "min"):
        return None
    if op.steps[0].operand != 1 or any(step.operand >= 0 for step in op.steps[1:]):
        return None
    if view.shapes[op.inputs[0]] != view.shapes[op.inputs[1]]:
        return None
    a, b = (view.producers.get(name) for name in op.inputs)
    if isinstance(b, Vector) and view.only_use(b.y) and not (isinstance(a, Vector | Conv) and view.only_use(a.y)):
        return Match((op,), (replace(op, inputs=(op.inputs[1], op.inputs[0])),))
    return None


def simplify_steps(op: Operator, view: GraphView) -> Match | None:
    """Join neighbouring scale-and-shift steps, replace a product with a reciprocal by a division, and remove steps without effect."""
    if not isinstance(op, Vector):
        return None
    channels = view.shapes[op.y][1]
    steps: list[Step] = []
    for step in op.steps:
        previous = steps[-1] if steps else None
        if (step.op == "muls" and step.value == 1) or (step.op == "adds" and step.value == 0):
            continue
        if previous is not None and previous.op == step.op == "relu":
            continue
        # an operand of one pixel stays a product: VECTOR broadcasts a pixel only as the right operand
        same_shape = step.operand < 0 or view.shapes[op.inputs[step.operand]] == view.shapes[op.y]
        if previous is not None and previous.op == "reciprocal" and step.op == "mul" and same_shape:
            steps[-1] = Step("rdiv", operand=step.operand, register=step.register)
            continue
        if previous is not None and previous.op == step.op == "muls":
            steps[-1] = replace(step, value=previous.value * step.value)
            continue
        if previous is not None and previous.op in AFFINE and step.op in AFFINE and "scale_shift" in (previous.op, step.op):
            first, second = affine_terms(previous, channels), affine_terms(step, channels)
            assert first is not None
            assert second is not None
            scale, shift = first[0] * second[0], first[1] * second[0] + second[1]
            steps[-1] = Step("scale_shift", scale=scale.astype(np.float32), shift=shift.astype(np.float32))
            continue
        steps.append(step)
    if len(steps) == len(op.steps):
        return None
    return Match((op,), (replace(op, steps=tuple(steps)),))


def drop_empty_chain(op: Operator, view: GraphView) -> Match | None:
    """A chain without steps is its first input."""
    if isinstance(op, Vector) and not op.steps:
        return Match((op,), alias={op.y: op.inputs[0]})
    return None


def drop_unused(op: Operator, view: GraphView) -> Match | None:
    """Operator without readers: removed."""
    return Match((op,)) if view.uses[op.y] == 0 else None


def merge_equal(op: Operator, view: GraphView) -> Match | None:
    """Equal operators without weights: one of them.  Exporters write a ReLU for every reader."""
    if not isinstance(op, Vector | Pool | Resample | Softmax):
        return None
    first = next(twin for twin in view.by_kind_and_inputs[type(op), op.inputs] if _key(twin) == _key(op))
    return Match((op,), alias={op.y: first.y}) if first is not op else None


def _key(op: Operator) -> object:
    """Key of the function that an operator without weights computes."""
    if isinstance(op, Vector):
        arrays = [(None if array is None else array.tobytes()) for step in op.steps for array in (step.scale, step.shift)]
        return [(step.op, step.value, step.operand, step.register) for step in op.steps], arrays
    return {name: value for name, value in vars(op).items() if name not in ("name", "y")}


def drop_single_concat(op: Operator, view: GraphView) -> Match | None:
    if isinstance(op, Concat) and len(op.inputs) == 1:
        return Match((op,), alias={op.y: op.inputs[0]})
    return None


def drop_identity_shuffle(op: Operator, view: GraphView) -> Match | None:
    if isinstance(op, Shuffle) and op.order == tuple(range(view.shapes[op.x][1])):
        return Match((op,), alias={op.y: op.x})
    return None


def merge_shuffles(op: Operator, view: GraphView) -> Match | None:
    """Shuffle of a shuffle: one shuffle; the inner one stays if it has other readers."""
    inner = view.producers.get(op.x) if isinstance(op, Shuffle) else None
    if not isinstance(op, Shuffle) or not isinstance(inner, Shuffle):
        return None
    return Match((op,), (replace(op, x=inner.x, order=tuple(inner.order[i] for i in op.order)),))


def shuffle_into_conv(op: Operator, view: GraphView) -> Match | None:
    """Ungrouped Conv, then Shuffle: the rows of its weights shuffled.  A grouped Conv would become dense, so its Shuffle stays."""
    conv = view.producers.get(op.x) if isinstance(op, Shuffle) else None
    if not isinstance(op, Shuffle) or not isinstance(conv, Conv) or not view.only_use(conv.y):
        return None
    if conv.groups != 1 or conv.residual is not None:
        return None
    order = list(op.order)
    return Match((conv, op), (replace(conv, y=op.y, weights=conv.weights[order], bias=conv.bias[order]),))


def split_conv(op: Operator, view: GraphView) -> Match | None:
    """Selection of channels of an ungrouped Conv with other readers becomes a second Conv that computes only these channels."""
    conv = view.producers.get(op.x) if isinstance(op, Shuffle) else None
    if not isinstance(op, Shuffle) or not isinstance(conv, Conv) or len(op.order) == view.shapes[op.x][1] or conv.y in view.outputs:
        return None
    if conv.groups != 1 or conv.residual is not None:
        return None
    order = list(op.order)
    return Match((op,), (replace(conv, name=op.name, y=op.y, weights=conv.weights[order], bias=conv.bias[order]),))


def select_by_conv(op: Operator, view: GraphView) -> Match | None:
    """Selection of channels that no other rule removed: an identity convolution."""
    if not isinstance(op, Shuffle) or len(op.order) == view.shapes[op.x][1]:
        return None
    readers = [reader for reader in view.by_kind_and_inputs[Shuffle, (op.x,)] if isinstance(reader, Shuffle)]
    if op.y in find_runs(readers, view.shapes[op.x][1]):
        return None  # the layout gives the channels planes of their own
    if op.x in view.types:
        return Match((op,), (quantised_identity_conv(op.name, op.x, op.y, view.types[op.x], op.order, view.shapes[op.x][1]),))
    weights = np.eye(view.shapes[op.x][1], dtype=np.float32)[list(op.order)][:, :, None, None]
    return Match((op,), (Conv(op.name, op.x, op.y, weights, np.zeros(len(op.order), np.float32)),))


def fold_affine_into_norm(op: Operator, view: GraphView) -> Match | None:
    """LayerNorm, then scale and shift per channel: one LayerNorm."""
    if not isinstance(op, Vector) or not op.steps or op.steps[0].op not in AFFINE or any(step.operand == 0 for step in op.steps[1:]):
        return None
    norm = view.producers.get(op.inputs[0])
    if not isinstance(norm, LayerNorm) or not view.only_use(norm.y):
        return None
    terms = affine_terms(op.steps[0], len(norm.scale))
    assert terms is not None
    last = len(op.steps) == 1
    folded = replace(norm, y=op.y if last else norm.y, scale=norm.scale * terms[0], shift=norm.shift * terms[0] + terms[1])
    return Match((norm, op), (folded, *without_first_step(op, folded.y)))


def norm_into_products(op: Operator, view: GraphView) -> Match | None:
    """Move scale and shift of a LayerNorm that only convolutions read into their weights; not with padding, which lacks the shift."""
    if not isinstance(op, LayerNorm) or op.y in view.outputs or ((op.scale == 1).all() and not op.shift.any()):
        return None
    readers = [reader for reader in view.by_kind_and_inputs.get((Conv, (op.y,)), ()) if isinstance(reader, Conv) and reader.groups == 1]
    if len(readers) != view.uses[op.y] or any(max(reader.pads) > 0 for reader in readers):
        return None
    one, folded = np.ones_like(op.scale), []
    for reader in readers:
        bias = reader.bias + np.einsum("oiyx,i->o", reader.weights.astype(np.float64), op.shift)
        folded.append(replace(reader, weights=reader.weights * op.scale[:, None, None], bias=bias.astype(np.float32)))
    return Match((op, *readers), (replace(op, scale=one, shift=0 * one), *folded))


def scale_before_matmul(op: Operator, view: GraphView) -> Match | None:
    """Product of two tensors, then a factor: the factor first, where a convolution may absorb it and float16 has more range."""
    if not isinstance(op, Vector) or not op.steps or op.steps[0].op != "muls" or any(step.operand == 0 for step in op.steps[1:]):
        return None
    product = view.producers.get(op.inputs[0])
    if not isinstance(product, MatMul) or not view.only_use(product.y):
        return None
    scaled = Vector(f"{product.name}.scale", (product.a,), f"{product.a}.{product.name}.scaled", op.steps[:1])
    last = len(op.steps) == 1
    moved = replace(product, a=scaled.y, y=op.y if last else product.y)
    return Match((product, op), (scaled, moved, *without_first_step(op, moved.y)))


def rows_into_conv(op: Operator, view: GraphView) -> Match | None:
    """Selection of rows, then a 1x1 Conv: negative padding of the Conv."""
    if not isinstance(op, Conv) or op.weights.shape[2:] != (1, 1) or any(op.pads) or op.stride != (1, 1):
        return None
    rows = view.producers.get(op.x)
    if not isinstance(rows, Pool) or not view.only_use(rows.y) or rows.kernel != (1, 1) or rows.stride != (1, 1) or max(rows.pads) > 0:
        return None
    return Match((rows, op), (replace(op, x=rows.x, pads=rows.pads),))


def relu_before_concat(op: Operator, view: GraphView) -> Match | None:
    """ReLU of a Concat without other readers: ReLU of each part, where at least one is a Conv that can absorb it."""
    if not isinstance(op, Vector) or not op.steps or op.steps[0].op != "relu" or any(step.operand == 0 for step in op.steps):
        return None
    concat = view.producers.get(op.inputs[0])
    if not isinstance(concat, Concat) or not view.only_use(concat.y):
        return None
    parts = [view.producers.get(name) for name in concat.inputs]
    free = [isinstance(part, Conv) and view.only_use(part.y) and part.activation == "none" for part in parts]
    if not any(free) or not all(can or is_nonnegative(name, view) for can, name in zip(free, concat.inputs, strict=True)):
        return None
    chains = tuple(
        Vector(f"{op.name}.{i}", (name,), f"{op.y}.{i}", (Step("relu"),))
        for i, (name, can) in enumerate(zip(concat.inputs, free, strict=True))
        if can
    )
    renamed = iter(chain.y for chain in chains)
    inputs = tuple(next(renamed) if can else name for name, can in zip(concat.inputs, free, strict=True))
    last = len(op.steps) == 1
    moved = replace(concat, inputs=inputs, y=op.y if last else concat.y)
    return Match((concat, op), (*chains, moved, *without_first_step(op, moved.y)))


def relu_before_max_pool(op: Operator, view: GraphView) -> Match | None:
    """ReLU after a max pool: before the pool, where a Conv can absorb it."""
    if not isinstance(op, Vector) or not op.steps or op.steps[0].op != "relu" or any(step.operand == 0 for step in op.steps):
        return None
    pool = view.producers.get(op.inputs[0])
    if not isinstance(pool, Pool) or pool.mode != "max" or not view.only_use(pool.y):
        return None
    conv = view.producers.get(pool.x)
    if not isinstance(conv, Conv) or not view.only_use(conv.y) or conv.activation != "none":
        return None
    moved = replace(pool, y=op.y if len(op.steps) == 1 else pool.y)
    return Match((conv, pool, op), (replace(conv, activation="relu"), moved, *without_first_step(op, moved.y)))


def is_nonnegative(tensor: str, view: GraphView, depth: int = 8) -> bool:
    """Whether the producers of a tensor imply that every value is at least zero."""
    op = view.producers.get(tensor)
    if op is None or depth == 0:
        return False
    if isinstance(op, Conv):
        return op.activation != "none"
    if isinstance(op, Vector):
        return bool(op.steps) and op.steps[-1].op in ("relu", "exp", "square", "sqrt")
    if isinstance(op, Resample):
        weights = (weight for taps in (op.rows, op.columns) for place_taps in taps.taps for _, weight in place_taps)
        if op.fill < 0 or any(weight < 0 for weight in weights):  # cubic weights are, on either side
            return False
    return isinstance(op, Softmax) or (not isinstance(op, LayerNorm) and all(is_nonnegative(name, view, depth - 1) for name in op.inputs))


def drop_needless_relu(op: Operator, view: GraphView) -> Match | None:
    """ReLU of a tensor that cannot be negative: removed."""
    if not isinstance(op, Vector) or not op.steps or op.steps[0].op != "relu" or not is_nonnegative(op.inputs[0], view):
        return None
    return Match((op,), (replace(op, steps=op.steps[1:]),))


def nest_concat(op: Operator, view: GraphView) -> Match | None:
    """[a, b, c] where [a, b] exists becomes [[a, b], c]: one storage serves both (DenseNet as PyTorch exports it)."""
    if not isinstance(op, Concat):
        return None
    for count in range(len(op.inputs) - 1, 1, -1):
        for prefix in view.by_kind_and_inputs.get((Concat, op.inputs[:count]), ()):
            if view.position[prefix.y] < view.position[op.y]:
                return Match((op,), (replace(op, inputs=(prefix.y, *op.inputs[count:])),))
    return None


RULES: tuple[RewriteRule, ...] = (
    RewriteRule("drop-unused", drop_unused),
    RewriteRule("drop-empty-chain", drop_empty_chain),
    RewriteRule("merge-equal", merge_equal),
    RewriteRule("drop-single-concat", drop_single_concat),
    RewriteRule("drop-identity-shuffle", drop_identity_shuffle),
    RewriteRule("merge-shuffles", merge_shuffles),
    RewriteRule("shuffle-into-conv", shuffle_into_conv),
    RewriteRule("split-conv", split_conv),
    RewriteRule("fold-affine", fold_affine),
    RewriteRule("fold-affine-into-norm", fold_affine_into_norm),
    RewriteRule("norm-into-products", norm_into_products),
    RewriteRule("scale-before-matmul", scale_before_matmul),
    RewriteRule("rows-into-conv", rows_into_conv),
    RewriteRule("fuse-residual", fuse_residual),
    RewriteRule("fuse-integer-residual", fuse_integer_residual),
    RewriteRule("merge-tables", merge_tables),
    RewriteRule("table-of-pair", table_of_pair),
    RewriteRule("merge-affine", merge_affine),
    RewriteRule("negate-into-conv", negate_into_conv),
    RewriteRule("fuse-relu", fuse_relu),
    RewriteRule("fuse-limit", fuse_limit),
    RewriteRule("simplify-steps", simplify_steps),
    RewriteRule("merge-chains", merge_chains),
    RewriteRule("swap-operands", swap_operands),
    RewriteRule("relu-before-concat", relu_before_concat),
    RewriteRule("relu-before-max-pool", relu_before_max_pool),
    RewriteRule("drop-needless-relu", drop_needless_relu),
    RewriteRule("nest-concat", nest_concat),
    RewriteRule("merge-resamples", merge_resamples),
    RewriteRule("pad-into-conv", pad_into_conv),
    RewriteRule("skip-into-conv", skip_into_conv),
)

# rules for the graph after the fixed point of RULES
LAST_RULES: tuple[RewriteRule, ...] = (RewriteRule("select-by-conv", select_by_conv), *RULES)
