"""Handlers of transformer operators: products on sequences [b, s, d] (s pixels with d channels), heads, LayerNormalization, GELU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from compiler.frontend.handlers.arrange import along, arrange, as_operand, in_line, in_one_digit, resolve, window, without_repeats
from compiler.frontend.handlers.to_graph import Handler, Translator
from compiler.frontend.handlers.views import Atom, Atoms, C, N, P, R, View, constant_as, merge_atoms, reshape_view, whole_axes
from compiler.frontend.onnx_io.attributes import Attributes, label
from compiler.ir.operators import Conv, Floats, LayerNorm, MatMul, QuantisedPair, Reflow, Step, Vector
from simulator.npu.errors import BadInputError


def floats(array: NDArray[Any]) -> Floats:
    return np.ascontiguousarray(array, dtype=np.float32)


MOST_HEADS = 4096  # of a product whose operands are copied: each is a product of its own


class OverAxis(NamedTuple):
    """Product as a convolution of `tensor` with a kernel [m, c, kh, kw].  axes: axes of its result; the result has m channels."""

    tensor: str
    kernel: NDArray[Any]
    axes: tuple[Atoms, ...]


def over_axis(state: Translator, node: NodeProto, axis: int, weights: NDArray[Any], index: int = 0, rank: int = 0) -> OverAxis:
    """Convolution that sums over ONNX axis `axis` of input `index` times weights [m, k], of any type.

    The axis runs over the channels, in any order, at every pixel (a 1x1 kernel), or over channels and all pixels (a kernel that covers
    the image).  rank: axes of the result if the input has fewer; `axis` is counted with this number.
    """
    view = state.view(node, index).of_rank(rank)
    if not _over(state, view, axis):
        view = along(state, view, [axis]) or view
    n, c, h, w = state.shapes[view.tensor]
    atoms = view.axes[axis]
    if weights.shape[1] != view.shape[axis]:
        raise BadInputError(f"{label(node)}: axis {axis} of {list(view.shape)} by weights of shape {list(weights.shape)}")
    covers = math.prod(atom.size for atom in atoms if atom.axis != C) > 1
    if not _over(state, view, axis):
        raise state.refuse(node, f"axis {axis} of {list(view.shape)} is not the channels, or channels and pixels, of ({n}, {c}, {h}, {w})")
    order = sorted(range(len(atoms)), key=lambda i: (atoms[i].axis, -atoms[i].stride))
    kernel = weights.reshape(-1, *(atom.size for atom in atoms)).transpose(0, *(1 + i for i in order))
    axes = list(view.axes)
    axes[axis] = merge_atoms([Atom(C, len(weights), 1)])
    return OverAxis(view.tensor, np.ascontiguousarray(kernel.reshape(-1, c, *((h, w) if covers else (1, 1)))), tuple(axes))


def _over(state: Translator, view: View, axis: int) -> bool:
    """Whether an ONNX axis is all channels, or all channels and pixels."""
    _, c, h, w = state.shapes[view.tensor]
    sizes = {kind: math.prod(atom.size for atom in view.axes[axis] if atom.axis == kind) for kind in (N, C, P)}
    return sizes[N] == 1 and sizes[C] == c and sizes[P] in (1, h * w)


def product(
    state: Translator, node: NodeProto, axis: int, weights: Floats, bias: Floats, index: int = 0, rank: int = 0, transposed: bool = False
) -> None:
    """Emit a product of input `index` with weights along an axis, as a convolution (`over_axis`).  transposed: with the other of its axes
    instead, whose place the result takes."""
    axis_product = over_axis(state, node, 1 - axis if transposed else axis, weights, index, rank)
    axes = axis_product.axes[::-1] if transposed else axis_product.axes
    state.finish_as(node, Conv(state.name(node), axis_product.tensor, node.output[0], floats(axis_product.kernel), bias), axes)


def matmul(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Emit [.., s, k] x [k, m] or [m, k] x [.., k, s] with a constant matrix, or a product of two computed tensors, head by head."""
    constant = [i for i in (0, 1) if node.input[i] in state.constants]
    if not constant:
        heads = heads_of(state, node)
        state.finish_as(node, MatMul(state.name(node), *heads[:2], node.output[0], heads.heads, heads.transposed), heads.axes)
        return
    side = constant[0]
    matrix = state.constant(node, side, "one of the two")
    rank = len(state.view(node, 1 - side).shape)
    wide = max(rank, matrix.ndim)
    if matrix.ndim == 1 and rank > 1:  # a vector: one row or column, whose axis is dropped
        weights = floats(matrix[None])
        axis = rank - 1 if side == 1 else rank - 2
        product(state, node, axis, weights, np.zeros(1, np.float32), 1 - side)
        axes = state.views[node.output[0]].axes
        state.views[node.output[0]] = View(node.output[0], (*axes[:axis], *axes[axis + 1 :]))
        return
    matrix = matrix.reshape(matrix.shape[-2:]) if math.prod(matrix.shape[:-2]) == 1 and matrix.ndim > 2 else matrix
    if matrix.ndim != 2 or rank < 2:
        raise state.refuse(node, f"a constant of shape {list(matrix.shape)} and a tensor of {rank} axes; a matrix is supported")
    weights = floats(matrix.T if side == 1 else matrix)
    product(state, node, wide - 1 if side == 1 else wide - 2, weights, np.zeros(len(weights), np.float32), 1 - side, wide)


class Heads(NamedTuple):
    """Operands and layout of a product of two computed tensors; see `MatMul`.  axes: axes of its result."""

    a: str
    b: str
    heads: int
    transposed: bool
    axes: tuple[Atoms, ...]


def heads_of(state: Translator, node: NodeProto, indices: tuple[int, int] = (0, 1)) -> Heads:
    """Heads of a product [.., m, k] x [.., k, n]: the leading axes are images and heads, m is the pixels of a; k and n are the channels
    of a head and the pixels of b, in either order."""
    a, b = (state.repeated_view(node, i) for i in indices)
    if min(len(a.axes), len(b.axes)) < 2:
        raise state.refuse(node, f"{list(a.shape)} x {list(b.shape)}; matrices are supported")
    rank = max(len(a.axes), len(b.axes))
    a, b = a.of_rank(rank), b.of_rank(rank)
    heads = _heads_as_they_lie(state, a, b) or _moved_heads(state, a, b)
    if heads is None:
        raise state.refuse(node, f"{list(a.shape)} x {list(b.shape)}: images would have to move, or to be repeated")
    return heads


def _moved_heads(state: Translator, a: View, b: View) -> Heads | None:
    """Heads of a product after copies of its operands; None where images would have to move.

    Leading axes in which b repeats are rows: its heads are read once for all of them.
    """
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (m, k), n = a.shape[-2:], b.shape[-1]
    b = b.expanded((*lead, k, n))
    left_view = without_repeats(state, a.expanded((*lead, m, k)))
    # every digit of the leading axes of b is an axis
    atoms = [atom for axis in b.axes[:-2] for atom in axis]
    sizes = [atom.size for atom in atoms]
    left_view = None if left_view is None else reshape_view(left_view, (*sizes, m, k)) or in_line(state, left_view, (*sizes, m, k))
    if left_view is None:
        return None
    rows, heads = ([i for i, atom in enumerate(atoms) if (atom.axis == R) == repeats and atom.axis != N] for repeats in (True, False))
    rank = len(atoms) + 2
    batch_digits = [i for i, atom in enumerate(atoms) if atom.axis != R]
    right_view = View(b.tensor, (*((atoms[i],) for i in batch_digits), *b.axes[-2:]))
    lane = resolve(state, right_view).axes[-1][-1:]
    plain = not lane or (lane[0].axis, lane[0].stride) == (C, 1)
    lead_right = [batch_digits.index(i) for i in heads]
    ends = [len(batch_digits) + 1, len(batch_digits)] if plain else [len(batch_digits), len(batch_digits) + 1]
    arranged_left = arrange(state, left_view, [*heads, rank - 1], [*rows, rank - 2])
    arranged_right = arrange(state, right_view, [*lead_right, ends[0]], ends[1:])
    if arranged_left is None or arranged_right is None or math.prod(atoms[i].size for i in heads) > MOST_HEADS:
        return None
    axes = arranged_left.axes
    joint_rows = merge_atoms(atom for i in (*rows, rank - 2) for atom in axes[i])
    joint = _heads_as_they_lie(state, View(arranged_left.tensor, (*(axes[i] for i in batch_digits), joint_rows, axes[-1])), arranged_right)
    if joint is None:
        return None
    of_digit = {i: joint.axes[batch_digits.index(i)] for i in batch_digits} | {i: axes[i] for i in rows}
    out, first = [], 0
    for axis in b.axes[:-2]:
        out.append(merge_atoms(atom for i in range(first, first + len(axis)) for atom in of_digit[i]))
        first += len(axis)
    return joint._replace(axes=(*out, axes[rank - 2], joint.axes[-1]))


def _heads_as_they_lie(state: Translator, a: View, b: View) -> Heads | None:
    """Heads of a product whose operands need no copy; None for others."""
    (m, k), (k_b, n) = a.axes[-2:], b.axes[-2:]
    shape_a, shape_b = state.shapes[a.tensor], state.shapes[b.tensor]
    lead_a, lead_b = (merge_atoms(atom for atoms in v.axes[:-2] for atom in atoms) for v in (a, b))
    heads = math.prod(atom.size for atom in lead_a if atom.axis == C)
    size = shape_a[1] // heads

    def per_head(atoms: Atoms, channels: int) -> bool:
        """Whether atoms are exactly the channels of one head, next to each other."""
        return atoms == merge_atoms([Atom(C, channels, 1)])

    # b has its head's channels along k (transposed), or along n
    transposed = per_head(k_b, size) and n == whole_axes(shape_b, P)
    plain = k_b == whole_axes(shape_b, P) and per_head(n, shape_b[1] // heads)
    leads = [merge_atoms((*whole_axes(shape, N), Atom(C, heads, shape[1] // heads))) for shape in (shape_a, shape_b)]
    if m != whole_axes(shape_a, P) or not per_head(k, size) or not (transposed or plain) or [lead_a, lead_b] != leads:
        return None
    per = b.shape[-1]
    lead = tuple(
        tuple(Atom(C, atom.size, atom.stride // size * per) if atom.axis == C else atom for atom in atoms) for atoms in a.axes[:-2]
    )
    return Heads(a.tensor, b.tensor, heads, transposed, (*lead, m, (Atom(C, per, 1),)))


def _statistics(state: Translator, node: NodeProto, view: View, axis: int, epsilon: float) -> None:
    """Emit the mean over the axes from `axis` on, and the reciprocal of the deviation."""
    channels = state.shapes[view.tensor][1]
    axes = tuple(atoms if i < axis else () for i, atoms in enumerate(view.axes))
    mean, nothing = np.full((1, channels, 1, 1), 1 / channels, np.float32), np.zeros(1, np.float32)
    centring = (np.eye(channels, dtype=np.float32) - np.float32(1 / channels))[:, :, None, None]
    names = [state.fresh(f"{node.output[0]}.{part}") for part in ("mean", "centred", "squares", "variance", "inverse")]
    state.emit(Conv(names[0], view.tensor, names[0], mean, nothing))
    state.emit(Conv(names[1], view.tensor, names[1], centring, np.zeros(channels, np.float32)))
    state.emit(Vector(names[2], (names[1],), names[2], (Step("square"),)))
    state.emit(Conv(names[3], names[2], names[3], mean, nothing))
    state.emit(Vector(names[4], (names[3],), names[4], (Step("adds", epsilon), Step("sqrt"), Step("reciprocal"))))
    for name, tensor in zip(node.output[1:], (names[0], names[4]), strict=False):
        if name:
            state.views[name] = View(tensor, axes)


def layer_norm(state: Translator, node: NodeProto, values: Attributes) -> None:
    view = state.view(node)
    axis = int(values.get("axis", -1)) % len(view.shape)
    channels = math.prod(view.shape[axis:])
    if merge_atoms(atom for atoms in view.axes[axis:] for atom in atoms) != whole_axes(state.shapes[view.tensor], C):
        view = along(state, view, range(axis, len(view.shape))) or view
    if merge_atoms(atom for atoms in view.axes[axis:] for atom in atoms) != whole_axes(state.shapes[view.tensor], C):
        raise state.refuse(node, f"over the axes from {axis} on of {list(view.shape)}; axes without images are supported")
    scale = floats(state.constant(node, 1, "the scale"))
    shift = floats(state.constant(node, 2, "the shift")) if state.has(node, 2) else np.zeros(1, np.float32)
    scale, shift = (floats(np.broadcast_to(parameter, view.shape[axis:]).reshape(channels)) for parameter in (scale, shift))
    epsilon = float(values.get("epsilon", 1e-5))
    if any(node.output[1:]):
        _statistics(state, node, view, axis, epsilon)
    op = LayerNorm(
        state.name(node), view.tensor, node.output[0], scale, shift, float(values.get("epsilon", 1e-5)), node.op_type == "RMSNormalization"
    )
    state.finish_as(node, op, view.axes)


def gelu(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Emit Erf, Gelu by erf, or Gelu by tanh, where x (1 + tanh z) / 2 = x / (1 + exp(-2 z))."""
    view = state.view(node)
    steps: tuple[Step, ...] = (Step("gelu" if node.op_type == "Gelu" else "erf"),)
    if values.get("approximate", "none") == "tanh":
        first = -2 * math.sqrt(2 / math.pi)
        poly = (Step("keep", register=0), Step("square"), Step("muls", 0.044715 * first), Step("adds", first), Step("mul", register=0))
        steps = (*poly, Step("exp"), Step("adds", 1.0), Step("rdiv", register=0))
    state.finish_as(node, Vector(state.name(node), (view.tensor,), node.output[0], steps), view.axes)


def concat_pixels(state: Translator, node: NodeProto, axis: int) -> None:
    """Emit a concatenation of tensors and constants: each part moves to its offset in a tensor of zeros, and these are added.

    For integers of one scale the zeros are zero points, which add nothing.
    """
    parts: list[tuple[int, View | NDArray[Any]]] = []
    size = 0
    for i, name in enumerate(node.input):
        part: View | NDArray[Any] = state.constants[name] if name in state.constants else state.view(node, i)
        parts.append((size, part))
        size += part.shape[axis]
    views = [(offset, part) for offset, part in parts if isinstance(part, View)]
    if not views:
        raise state.refuse(node, "all inputs are constants; nothing for the NPU to do")
    first = views[0][1]
    q = state.types.get(first.tensor)
    zero = 0 if q is None else int(q.zero_point[0])
    shape = list(first.shape)
    shape[axis] = size
    if all(_is_column(state, view, first, axis) for _, view in views):
        sums = [_column(state, node, view, offset, size, zero, i) for i, (offset, view) in enumerate(views)]
        joint = View(sums[0], tuple((Atom(P, size, 1),) if i == axis else atoms for i, atoms in enumerate(first.axes)))
    else:
        joint, sums = _windows(state, node, views, axis, size, zero)
    # all constant parts together are one more addend
    values = np.full([d if i == axis else 1 for i, d in enumerate(shape)], zero, np.float32)
    for offset, part in parts:
        if not isinstance(part, View):
            values = np.array(
                np.broadcast_to(values, np.broadcast_shapes(values.shape, [*part.shape[:axis], size, *part.shape[axis + 1 :]]))
            )
            values[(slice(None),) * axis + (slice(offset, offset + part.shape[axis]),)] = part
    if len(views) < len(parts):
        constant_values = constant_as(joint, state.shapes[joint.tensor], values)
        assert constant_values is not None
        sums.append(state.constant_tensor(node, constant_values, state.shapes[joint.tensor]))
    if q is not None:
        if len(views) < len(parts):
            state.tensors[sums[-1]], state.types[sums[-1]] = state.tensors[sums[-1]].astype(q.dtype), q
        total = sums[0]
        for addend in sums[1:]:
            name = state.name(node)
            total = state.emit(QuantisedPair(name, total, addend, name, "add", q, q, q))
        state.views[node.output[0]] = joint.of(total)
        return
    steps = tuple(Step("add", operand=i) for i in range(1, len(sums)))
    state.finish_as(node, Vector(state.name(node), tuple(sums), node.output[0], steps), joint.axes)


def _is_column(state: Translator, view: View, reference: View, axis: int) -> bool:
    """Whether an axis is all pixels, and the other axes are those of the reference."""
    same = view.axes[:axis] == reference.axes[:axis] and view.axes[axis + 1 :] == reference.axes[axis + 1 :]
    return same and view.axes[axis] == whole_axes(state.shapes[view.tensor], P)


def _column(state: Translator, node: NodeProto, view: View, offset: int, size: int, zero: int, index: int) -> str:
    """Tensor of `size` pixels, those of a view from `offset` on."""
    name = state.name(node, f".{index}")
    return state.emit(Reflow(name, view.tensor, name, state.shapes[view.tensor][2:], (size, 1), offset, zero))


def _windows(
    state: Translator, node: NodeProto, views: Sequence[tuple[int, View]], axis: int, size: int, zero: int
) -> tuple[View, list[str]]:
    """Views at their offsets along an axis of `size` entries, as tensors that lie as that of the first one; and its view."""
    largest = max(range(len(views)), key=lambda i: views[i][1].shape[axis])
    offset, view = views[largest]
    places = [i - offset if offset <= i < offset + view.shape[axis] else None for i in range(size)]
    joint = window(state, view, axis, places, zero)
    if joint is None and (digit := in_one_digit(state, view, axis)) is not None:
        joint = window(state, digit, axis, places, zero)
    tensors: list[str] = []
    for i, (offset, view) in enumerate(views):
        tensor = None
        if joint is not None:
            tensor = joint.tensor if i == largest else as_operand(state, joint, view, (axis, offset), zero)
        if tensor is None:
            raise state.refuse(node, f"along axis {axis} of {list(view.shape)}; an axis that has no images is supported")
        tensors.append(tensor)
    assert joint is not None
    return joint, tensors


SEQUENCE: dict[str, Handler] = {
    "MatMul": matmul,
    "LayerNormalization": layer_norm,
    "RMSNormalization": layer_norm,
    "Gelu": gelu,
    "Erf": gelu,
}
