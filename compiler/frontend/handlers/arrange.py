"""Views on tensors that lie as a reader needs them: any ONNX axes as channels and as pixels, at worst by a copy.

A tensor that was only arranged is read where it came from, so an arrangement and its inverse cancel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.frontend.handlers.tensor_moves import Arrangement, Emitter, Move, SourceDigit, emit_move
from compiler.frontend.handlers.views import Atom, Atoms, C, N, P, R, View, host_order, merge_atoms, reshape_view
from compiler.ir.lanes import CHANNEL_BLOCK


def arrange(state: Emitter, view: View, channels: Sequence[int], pixels: Sequence[int], width: int = 1) -> View | None:
    """View with ONNX axes `channels` as channels and `pixels` as pixels, the slowest first, in rows of `width` pixels; all other axes are
    images.  None where images would have to move."""
    view = resolve(state, view)
    axes = (*channels, *pixels)
    if not _leaves_images(view, axes):
        return None
    shape = state.shapes[view.tensor]
    lie = [merge_atoms(atom for axis in part for atom in view.axes[axis]) for part in (channels, pixels)]
    full = [merge_atoms([Atom(axis, size, 1)]) for axis, size in ((C, shape[1]), (P, shape[2] * shape[3]))]
    if lie == full and shape[3] == width:
        return view
    sources = {axis: tuple(SourceDigit.of(atom) for atom in view.axes[axis]) for axis in axes}
    return move_axes(state, view, sources, channels, pixels, width=width)


def along(state: Emitter, view: View, axes: Sequence[int]) -> View | None:
    """View with some ONNX axes as channels, and all others but images as pixels."""
    return arrange(state, view, axes, [i for i in without_images(view) if i not in axes])


def without_images(view: View) -> list[int]:
    """ONNX axes that run over no images."""
    return [i for i, atoms in enumerate(view.axes) if all(atom.axis != N for atom in atoms)]


def in_line(state: Emitter, view: View, shape: Sequence[int]) -> View | None:
    """View in another shape; values move where an axis of it lies in parts that cannot be split."""
    axes = without_images(view)
    for channels in (axes[-1:], axes[:1], ()):
        arranged = arrange(state, view, channels, [axis for axis in axes if axis not in channels])
        if arranged is not None and (reshaped := reshape_view(arranged, shape)) is not None:
            return reshaped
    return None


def for_host(state: Emitter, view: View) -> View | None:
    """View whose axes are whole axes of its tensor, as the host has them."""
    axes = without_images(view)
    lane_axes = [axis for axis in axes if view.axes[axis] and view.axes[axis][-1][:1] == (C,)]
    for axis in (*sorted(lane_axes, key=lambda i: view.axes[i][-1].stride), *axes[-1:], *axes[:1]):
        pixels = [i for i in axes if i != axis]
        width = math.prod(view.shape[i] for i in axes if i > axis) if any(i < axis for i in pixels) else 1
        arranged = arrange(state, view, [axis], pixels, width)
        if arranged is not None and host_order(arranged, state.shapes[arranged.tensor]) is not None:
            return arranged
    return None


def without_repeats(state: Emitter, view: View) -> View | None:
    """View in which every value occurs once, by a copy where it has to be."""
    if not view.repeats:
        return view
    view = resolve(state, view)
    channels = channel_axes(state, view)
    return arrange(state, view, channels, [axis for axis in without_images(view) if axis not in channels])


def channel_axes(state: Emitter, view: View) -> list[int]:
    """ONNX axes that are the channels of a view's tensor, in their order; else the last axis, which they might become."""
    axes = [axis for axis, atoms in enumerate(view.axes) if atoms and {atom.axis for atom in atoms} == {C}]
    axes.sort(key=lambda axis: -view.axes[axis][0].stride)
    if merge_atoms(a for axis in axes for a in view.axes[axis]) == merge_atoms([Atom(C, state.shapes[view.tensor][1], 1)]):
        return axes
    return without_images(view)[-1:]


def in_one_digit(state: Emitter, view: View, axis: int) -> View | None:
    """View one of whose ONNX axes, of several digits, is one digit of the pixels."""
    axes = [i for i in without_images(view) if i != axis]
    if axis not in without_images(view):
        return None
    lane = max(axes, key=lambda i: (any(atom[::2] == (C, 1) for atom in view.axes[i]), view.shape[i]), default=None)
    channels = [] if lane is None else [lane]
    return arrange(state, view, channels, [*(i for i in axes if i != lane), axis])


def as_operand(state: Emitter, view: View, operand: View, part: tuple[int, int] | None = None, fill: float = 0.0) -> str | None:
    """Tensor of the values of `operand`, broadcast to the places that `view` has in its tensor.

    part: (axis, offset) of an axis along which the operand is a part of the view, between places of `fill`.
    """
    operand = operand.of_rank(len(view.axes))
    sizes: list[int] = []
    places: list[Atom] = []
    for axis, (atoms, wanted, size) in enumerate(zip(view.axes, view.shape, operand.shape, strict=True)):
        if part is not None and axis == part[0]:
            lanes = math.prod(atom.size for atom in atoms[1:])  # of a part that is runs of lanes
            if size % lanes or part[1] % lanes:
                return None
            sizes += [size // lanes, *(atom.size for atom in atoms[1:])]
        else:
            sizes += [atom.size if size == wanted else 1 for atom in atoms]
        places += atoms
    split = reshape_view(operand, sizes) or in_line(state, operand, sizes)
    if split is None:
        return None
    split = resolve(state, split)
    images = [i for i, atom in enumerate(places) if atom.axis == N]
    if any(atom.axis == N for i, atoms in enumerate(split.axes) if i not in images for atom in atoms):
        return None
    if any(split.axes[i] != (places[i],) for i in images):
        return None
    moving = [i for i in range(len(places)) if i not in images]
    sources = {
        i: tuple(SourceDigit.of(atom) for atom in split.axes[i]) or (SourceDigit(P, places[i].size, 0, 0, places[i].size),) for i in moving
    }
    first = 0, 0
    if part is not None:
        i = sum(len(atoms) for atoms in view.axes[: part[0]])
        atoms = split.axes[i]
        if len(atoms) > 1:
            return None
        offset, (axis, size, stride) = part[1] * sizes[i] // operand.shape[part[0]], atoms[0] if atoms else Atom(P, 1, 0)
        sources[i] = (SourceDigit(axis, places[i].size, stride, offset, offset + size),)
        first = (-offset * stride, 0) if axis == C else (0, -offset * stride)
    channels, pixels = (sorted((i for i in moving if places[i].axis == axis), key=lambda i: -places[i].stride) for axis in (C, P))
    placed = move_axes(state, split, sources, channels, pixels, first, state.shapes[view.tensor][3], fill)
    return None if placed is None else placed.tensor


def window(state: Emitter, view: View, axis: int, places: Sequence[int | None], fill: float = 0.0) -> View | None:
    """View with entries `places` of an ONNX axis of at most one digit, an arithmetic sequence between entries without a source (None).

    None where they are no such sequence, or where lanes would have to be exchanged.
    """
    view, axes = resolve(state, view), without_images(view)
    inside = [i for i, place in enumerate(places) if place is not None]
    low, high = (inside[0], inside[-1] + 1) if inside else (0, 0)
    step = (places[low + 1] or 0) - (places[low] or 0) if high - low > 1 else 1
    start = (places[low] or 0) - low * step if inside else 0
    if axis not in axes or len(view.axes[axis]) > 1 or any(places[i] != start + i * step for i in range(low, high)):
        return None
    atom = view.axes[axis][0] if view.axes[axis] else Atom(P, 1, 0)
    sources = {i: tuple(SourceDigit.of(atom) for atom in view.axes[i]) for i in axes}
    first = (start * atom.stride, 0) if atom.axis == C else (0, start * atom.stride)
    if (atom.axis, atom.stride, step) == (C, 1, 1):  # lanes stay in runs that begin where a block does
        deep = math.gcd(len(places), start, low, high, atom.size)
        if deep % CHANNEL_BLOCK:
            return None
        count = len(places) // deep
        sources[axis] = SourceDigit(C, count, deep, low // deep, high // deep), SourceDigit(C, deep, 1, 0, deep)
    elif (atom.axis, atom.stride) == (C, 1) or (atom.axis == C and atom.stride % CHANNEL_BLOCK):
        return None
    else:
        sources[axis] = (SourceDigit(atom.axis, len(places), atom.stride * step, low, high),)
    channels = channel_axes(state, view)
    return move_axes(state, view, sources, channels, [i for i in axes if i not in channels], first, 1, fill)


def move_axes(
    state: Emitter, view: View, sources: dict[int, tuple[SourceDigit, ...]], channels: Sequence[int], pixels: Sequence[int],
    first: tuple[int, int] = (0, 0), width: int = 1, fill: float = 0.0,
) -> View | None:  # fmt: skip
    """View of a new tensor with `sources` as digits of the ONNX axes.  None where images would have to move, or where the product that
    changes lanes is too large."""
    if not _leaves_images(view, (*channels, *pixels)):
        return None
    sources = {axis: tuple(source for source in digits if source.size > 1 or not source.whole) for axis, digits in sources.items()}
    parts = [tuple(source for axis in part for source in sources[axis]) for part in (channels, pixels)]
    move = Move(view.tensor, parts[0], parts[1], first, width, fill)
    if move not in state.moved:
        tensor = emit_move(state, move)
        if tensor is None:
            return None
        state.moved[move] = tensor
    tensor = state.moved[move]
    atoms = {C: _strided(C, parts[0]), P: _strided(P, parts[1])}
    if first == (0, 0) and all(source.whole and source.stride > 0 for part in parts for source in part):
        _, c, h, w = state.shapes[view.tensor]
        if math.prod(state.shapes[tensor][1:]) == c * h * w:
            digits = {
                axis: tuple((atom, Atom(*source[:3])) for atom, source in zip(atoms[axis], part, strict=True))
                for axis, part in zip((C, P), parts, strict=True)
            }
            state.arranged[tensor] = Arrangement(view.tensor, digits)
    new = list(view.axes)
    for axis_atoms, part in zip((atoms[C], atoms[P]), (channels, pixels), strict=True):
        remaining = list(axis_atoms)
        for axis in part:
            new[axis] = merge_atoms(remaining[: len(sources[axis])])
            remaining = remaining[len(sources[axis]) :]
    return View(tensor, tuple(new))


def _leaves_images(view: View, axes: Sequence[int]) -> bool:
    """Whether ONNX axes `axes` run over no images, and all others over nothing else."""
    return all((atom.axis == N) != (axis in axes) for axis, atoms in enumerate(view.axes) for atom in atoms)


def _strided(axis: int, sources: Sequence[SourceDigit]) -> Atoms:
    """Atoms of digits that cover an axis."""
    atoms, stride = [], 1
    for source in reversed(sources):
        atoms.append(Atom(axis, source.size, stride))
        stride *= source.size
    return tuple(reversed(atoms))


def resolve(state: Emitter, view: View) -> View:
    """The same view on the tensor that its own was arranged from, as far back as its atoms can be followed."""
    while view.tensor in state.arranged:
        source, digits = state.arranged[view.tensor]
        axes = []
        for atoms in view.axes:
            followed: list[Atom] = []
            for atom in atoms:
                origin = [atom] if atom.axis in (N, R) else _follow(atom, digits[atom.axis])
                if origin is None:
                    return view
                followed += origin
            axes.append(merge_atoms(followed))
        view = View(source, tuple(axes))
    return view


def _follow(atom: Atom, digits: Sequence[tuple[Atom, Atom]]) -> list[Atom] | None:
    """Atoms of the source that an atom runs over, the slowest first; None where it begins or ends within a step of a digit."""
    out = []
    for digit, origin in digits:
        start, stop = max(atom.stride, digit.stride), min(atom.stride * atom.size, digit.stride * digit.size)
        if start >= stop:
            continue
        if start % digit.stride or stop % start or start % atom.stride:
            return None
        out.append(Atom(origin.axis, stop // start, origin.stride * (start // digit.stride)))
    return out if math.prod(piece.size for piece in out) == atom.size else None
