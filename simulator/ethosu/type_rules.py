"""Types that each operation takes and makes, as data.

Source: Vela's table of supported operators, and the description of the part's operations in TVM (`contrib/ethosu/op`), both Apache-2.0.

16 bits without sign are in the registers' fields, and in no rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from simulator.ethosu.command_words import Operation

_SMALL, _ALL, _WORD = ("|u1", "|i1", "<i2"), ("|u1", "|i1", "<i2", "<i4"), ("<i4",)


class OperationTypes(NamedTuple):
    """inputs, results: types by name.  same: whether both have to be equal."""

    inputs: tuple[str, ...]
    results: tuple[str, ...]
    same: bool = False


TYPE_RULES: Mapping[str, OperationTypes] = MappingProxyType({
    "CONV": OperationTypes(_SMALL, _ALL),
    "DEPTHWISE": OperationTypes(_SMALL, _ALL),
    "POOL MAX": OperationTypes(_SMALL, _SMALL, same=True),
    "POOL AVERAGE": OperationTypes(_SMALL, _ALL),
    "POOL REDUCE_SUM": OperationTypes(_ALL, _ALL),
    "ELEMENTWISE MUL": OperationTypes(_ALL, _ALL),
    "ELEMENTWISE ADD": OperationTypes(_ALL, _ALL),
    "ELEMENTWISE SUB": OperationTypes(_ALL, _ALL),
    "ELEMENTWISE MIN": OperationTypes(_SMALL, _SMALL, same=True),
    "ELEMENTWISE MAX": OperationTypes(_SMALL, _SMALL, same=True),
    "ELEMENTWISE LRELU": OperationTypes(_SMALL, _SMALL, same=True),
    "ELEMENTWISE ABS": OperationTypes(_SMALL, _SMALL, same=True),
    "ELEMENTWISE CLZ": OperationTypes(_WORD, _WORD),
    "ELEMENTWISE SHR": OperationTypes(_WORD, _ALL),
    "ELEMENTWISE SHL": OperationTypes(_WORD, _WORD),
})  # fmt: skip
"""By the name of the operation, with its mode where it has one."""


def check_types(operation: Operation, name: str, source: np.dtype[Any], result: np.dtype[Any]) -> None:
    """An error where the operation does not take or make a type."""
    rule = TYPE_RULES[name]
    if source.str not in rule.inputs:
        raise operation.refuse(f"{name}: an input of {source}: expected {_names(rule.inputs)}")
    if result.str not in rule.results:
        raise operation.refuse(f"{name}: a result of {result}: expected {_names(rule.results)}")
    if rule.same and source != result:
        raise operation.refuse(f"{name}: an input of {source} and a result of {result}: expected one type")


def _names(types: tuple[str, ...]) -> str:
    return ", ".join(np.dtype(name).name for name in types)
