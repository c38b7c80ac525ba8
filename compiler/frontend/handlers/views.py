"""Views: mapping of ONNX axes to a tensor of the graph.

A graph tensor is (n, c, h, w), here images of channels of p = h * w pixels.  An `Atom` runs over a part of one of these three axes: `size`
steps of `stride`.  A `View` says for each ONNX axis which atoms it runs over, the slowest first; together its atoms cover the tensor
once, and atoms of axis R repeat it.  Examples:

| ONNX                                        | axes                                                     |
|---------------------------------------------|----------------------------------------------------------|
| [n, c, h, w]                                | (n) (c) (p: h steps of w) (p: w steps of 1)              |
| [n, c * h * w]                              | (n) (c p)                                                |
| a sequence [b, s, d], d being the channels  | (n) (p) (c)                                              |
| its heads [b, heads, s, d / heads]          | (n) (c: heads steps of d / heads) (p) (c: d / heads)     |

So Reshape, Transpose, Squeeze and the like change the view at no cost; each reader decides whether it supports the view.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators import Shape

N, C, P, R = range(4)  # R: a repetition, whose atoms have stride 0 and run over no axis of the tensor


class Atom(NamedTuple):
    """Range of `size` steps of `stride` along axis `axis` of (n, c, p); or with axis R the same values `size` times."""

    axis: int
    size: int
    stride: int


Atoms = tuple[Atom, ...]


@dataclass(frozen=True)
class View:
    """ONNX axes over `tensor` of the graph.  No atom has size 1, and neighbours within one ONNX axis cannot be merged."""

    tensor: str
    axes: tuple[Atoms, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(atom.size for atom in atoms) for atoms in self.axes)

    @property
    def atoms(self) -> Atoms:
        """All atoms in ONNX's row-major order."""
        return merge_atoms(atom for atoms in self.axes for atom in atoms)

    def of(self, tensor: str) -> View:
        """The same axes over another tensor of the same shape."""
        return View(tensor, self.axes)

    def of_rank(self, rank: int) -> View:
        """View with leading axes of size 1, as in broadcasting to `rank` axes."""
        return View(self.tensor, ((),) * (rank - len(self.axes)) + self.axes)

    def repeated(self, times: Mapping[int, int]) -> View:
        """View with the values of some ONNX axes repeated, by axis -> number of times."""
        axes = enumerate(self.axes)
        return View(self.tensor, tuple(merge_atoms((Atom(R, times[i], 0), *atoms)) if i in times else atoms for i, atoms in axes))

    def expanded(self, shape: Sequence[int]) -> View:
        """View broadcast to a shape of at least its rank."""
        view = self.of_rank(len(shape))
        return view.repeated({i: wanted for i, (size, wanted) in enumerate(zip(view.shape, shape, strict=True)) if size != wanted})

    @property
    def repeats(self) -> bool:
        """Whether some values occur several times."""
        return any(atom.axis == R for atoms in self.axes for atom in atoms)

    def digits(self, axis: int) -> list[Atom]:
        """Atoms along N, C or P, by increasing stride."""
        return sorted((atom for atoms in self.axes for atom in atoms if atom.axis == axis), key=lambda atom: atom.stride)

    def covers(self, shape: Shape) -> bool:
        """Whether the atoms run over every value of a tensor of that shape once."""
        sizes = tuple(math.prod(atom.size for atom in self.digits(axis)) for axis in (N, C, P))
        return sizes == (*shape[:2], shape[2] * shape[3]) and self.resized(self.tensor, {}) == self

    def resized(self, tensor: str, sizes: Mapping[Atom, int]) -> View:
        """The same axes over a tensor with other sizes of some atoms; all strides are updated."""
        new_atoms: dict[Atom, Atom] = {}
        for axis in (N, C, P):
            stride = 1
            for atom in self.digits(axis):
                new_atoms[atom] = Atom(axis, sizes.get(atom, atom.size), stride)
                stride *= new_atoms[atom].size
        return View(tensor, tuple(merge_atoms(new_atoms.get(atom, atom) for atom in atoms) for atoms in self.axes))


def whole_axes(shape: Shape, *axes: int) -> Atoms:
    """Atoms over some whole axes, in this order."""
    sizes = (shape[0], shape[1], shape[2] * shape[3])
    return merge_atoms(Atom(axis, sizes[axis], 1) for axis in axes)


def merge_atoms(atoms: Iterable[Atom]) -> Atoms:
    """Atoms merged where possible, without atoms of size 1."""
    out: list[Atom] = []
    for atom in atoms:
        if atom.size == 1:
            continue
        last = out[-1] if out else None
        if last is not None and last.axis == atom.axis and last.stride == atom.size * atom.stride:
            out[-1] = Atom(atom.axis, last.size * atom.size, atom.stride)
        else:
            out.append(atom)
    return tuple(out)


def row_major(tensor: str, shape: Shape, onnx_shape: Sequence[int]) -> View:
    """View of a tensor in the order (n, c, h, w), with any shape of as many values."""
    view = reshape_view(View(tensor, tuple(whole_axes(shape, axis) for axis in (N, C, P))), onnx_shape)
    if view is None:
        raise ValueError(f"{tensor} of shape {list(shape)} has no view {list(onnx_shape)}")
    return view


def reshape_view(view: View, onnx_shape: Sequence[int]) -> View | None:
    """View of the same values in the same order with another shape; None where an axis would split an atom unevenly."""
    pending = list(reversed(view.atoms))
    axes = []
    # each axis consumes atoms, the slowest first; an atom larger than the remaining size is split
    for size in onnx_shape:
        atoms, remaining = [], int(size)
        while remaining > 1:
            if not pending:
                return None
            axis, length, stride = pending.pop()
            if remaining % length == 0:
                atoms.append(Atom(axis, length, stride))
                remaining //= length
            elif length % remaining == 0:
                atoms.append(Atom(axis, remaining, stride * (length // remaining)))
                pending.append(Atom(axis, length // remaining, stride))
                remaining = 1
            else:
                return None
        axes.append(merge_atoms(atoms))
    return None if pending else View(view.tensor, tuple(axes))


def transpose_view(view: View, perm: Sequence[int]) -> View:
    return View(view.tensor, tuple(view.axes[a] for a in perm))


def host_order(view: View, shape: Shape) -> tuple[int, int, int, int] | None:
    """Permutation of (n, c, h, w) whose row-major order is that of the view; None where there is none."""
    axes = []
    for axis, size, stride in view.atoms:
        if axis == R:
            return None
        if axis != P:
            if (size, stride) != (shape[axis], 1):
                return None
            axes.append(axis)
        elif (size, stride) == (shape[2] * shape[3], 1):
            axes += [axis for axis in (2, 3) if shape[axis] > 1]
        elif (size, stride) in ((shape[2], shape[3]), (shape[3], 1)):
            axes.append(2 if stride == shape[3] else 3)
        else:
            return None
    if axes == sorted(axes):
        return (0, 1, 2, 3)
    axes += [axis for axis in range(4) if axis not in axes]  # axes of size 1, at any position
    return (axes[0], axes[1], axes[2], axes[3])


def constant_as(view: View, shape: Shape, array: NDArray[Any]) -> NDArray[np.float32] | None:
    """Constant, broadcast to the view, in the tensor's axes: float32 [n | 1, c | 1, h | 1, w | 1].

    h and w are full sizes where the pixels differ.  None where the constant is larger than the view.
    """
    rank = len(view.axes)
    if array.ndim > rank:
        return None
    padded = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if any(size not in (1, want) for size, want in zip(padded.shape, view.shape, strict=True)):
        return None
    places = [(atom, padded.shape[i] > 1) for i, atoms in enumerate(view.axes) for atom in atoms]
    values = padded.reshape([atom.size if varies else 1 for atom, varies in places])
    order = sorted(range(len(places)), key=lambda i: (places[i][0].axis, -places[i][0].stride))
    values = values.transpose(order)
    sizes: list[int] = []
    dims: list[int] = []
    for axis in (N, C, P):
        axis_places = [places[i] for i in order if places[i][0].axis == axis]
        varies = any(place[1] for place in axis_places)
        sizes += [atom.size if varies else 1 for atom, _ in axis_places]
        dims += (shape[2:] if varies else (1, 1)) if axis == P else [shape[axis] if varies else 1]
    return np.ascontiguousarray(np.broadcast_to(values, sizes).reshape(dims), np.float32)
