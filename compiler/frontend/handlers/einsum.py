"""Einsum of one or two tensors: a view, or a product of matrices between views."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, helper

from compiler.frontend.handlers.elementwise import binary
from compiler.frontend.handlers.sequence import matmul
from compiler.frontend.handlers.to_graph import Handler, Translator
from compiler.frontend.handlers.views import transpose_view
from compiler.frontend.onnx_io.attributes import Attributes


def einsum(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Emit a view, or a product: batch letters are in both terms and the result, rows and columns in one term, summed letters in both.

    Without summed letters it is a product of values.
    """
    equation = values["equation"].replace(" ", "")
    inputs, arrow, result = equation.partition("->")
    terms = inputs.split(",")
    letters = inputs.replace(",", "")
    result = result if arrow else "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    if "." in equation or len(terms) > 2 or len(terms) != len(node.input) or any(len(set(t)) < len(t) for t in (*terms, result)):
        raise state.refuse(node, f"equation {equation!r}; one or two tensors, each letter once in a term, are supported")
    if len(terms) == 1:
        if set(result) != set(terms[0]):
            raise state.refuse(node, f"equation {equation!r}; all letters of the tensor in the result are supported")
        state.views[node.output[0]] = transpose_view(state.repeated_view(node), [terms[0].index(letter) for letter in result])
        return
    first, second = terms
    batch = [letter for letter in first if letter in second and letter in result]
    summed = [letter for letter in first if letter in second and letter not in result]
    rows, columns = ([letter for letter in one if letter not in another] for one, another in ((first, second), (second, first)))
    if not set(rows + columns) <= set(result):
        raise state.refuse(node, f"equation {equation!r}; letters of one term alone have to be in the result")
    sizes: dict[str, int] = {}
    for i, term in enumerate(terms):
        name = node.input[i]
        shape = state.constants[name].shape if name in state.constants else state.repeated_view(node, i).shape
        sizes |= dict(zip(term, shape, strict=True))
    order = [*batch, *rows, *columns]
    if summed and not rows and not columns:
        raise state.refuse(node, f"equation {equation!r}; a sum of products with rows or columns of their own is supported")
    lead = [[letter] for letter in batch]
    if summed:  # rows by columns
        op_type, handler = "MatMul", matmul
        axes = [*lead, rows, summed], [*lead, summed, columns]
    else:  # values by values
        op_type, handler = "Mul", binary
        axes = (
            [*lead, *([letter] for letter in rows), *([] for _ in columns)],
            [*lead, *([] for _ in rows), *([letter] for letter in columns)],
        )
    names = [_matrix(state, node, i, term, sizes, parts) for i, (term, parts) in enumerate(zip(terms, axes, strict=True))]
    joint = state.fresh(f"{node.output[0]}.product")
    handler(state, helper.make_node(op_type, names, [joint], name=node.name), {})
    view = state.reshape(state.views[joint], [sizes[letter] for letter in order])
    if view is None:
        raise state.refuse(node, f"equation {equation!r}: images would have to move")
    state.views[node.output[0]] = transpose_view(view, [order.index(letter) for letter in result])


def _matrix(state: Translator, node: NodeProto, index: int, term: str, sizes: dict[str, int], axes: Sequence[Sequence[str]]) -> str:
    """Name of an input with its letters in other axes."""
    perm = [term.index(letter) for letters in axes for letter in letters]
    shape = [math.prod(sizes[letter] for letter in letters) for letters in axes]
    name = state.fresh(f"{node.output[0]}.{index}")
    if node.input[index] in state.constants:
        state.constants[name] = np.ascontiguousarray(state.constants[node.input[index]].transpose(perm)).reshape(shape)
        return name
    view = state.reshape(transpose_view(state.repeated_view(node, index), perm), shape)
    if view is None:
        raise state.refuse(node, f"input {node.input[index]!r}: images would have to move")
    state.views[name] = view
    return name


PRODUCTS: dict[str, Handler] = {"Einsum": einsum}
