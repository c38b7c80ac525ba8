"""Kernels that every program needs, and their compilation by idle cores in parallel with the process that needs them.

A process finds out one by one which kernels it needs, and waits for each.  `kernels.json` lists them in that order with the types of their
arguments, as noted by `scripts/list_kernels.py`.  Other processes begin at the end of the list, so all meet in the middle.  The list is a
guess: a missing kernel is compiled when it is needed, and a needless one costs only idle time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from simulator.kernel_cache import own_folder

_FILE = Path(__file__).with_name("kernels.json")
_MOST = 4  # additional processes: with more, imports take longer than kernels


@cache
def listed_kernels(search: bool) -> list[tuple[str, str, list[Any]]]:
    """(module, name, types of arguments) of each kernel, in the order of need.  search: include kernels that only a search needs."""
    listed = json.loads(_FILE.read_text())
    return [tuple(kernel) for name in ("compile", "search")[: 1 + search] for kernel in listed[name]]


def compile_beside(processes: int, search: bool) -> None:
    """Start processes that compile the missing kernels; they end when all are compiled or this process ends.  Once per cache."""
    try:
        (own_folder() / "beside").touch(exist_ok=False)
    except OSError:
        return
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    for number in range(min(processes, _MOST)):
        words = [sys.executable, "-m", "simulator.kernel_list", str(os.getpid()), str(number), str(processes), str(int(search))]
        subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def types_of(described: list[Any]) -> tuple[Any, ...]:
    """numba's types of arguments.  Raises ValueError for text that `describe_type` does not write."""
    return tuple(map(_type, described))


def describe_type(kind: Any) -> Any:
    """A type as JSON has it.  Raises ValueError for one that is not of arrays, numbers, tuples, their addresses, and records."""
    from numba import types

    from simulator.kernel_addresses import RECORD_FIELDS, Reference

    if isinstance(kind, Reference):
        return ["reference", describe_type(kind.members)]
    if kind in RECORD_FIELDS:
        return ["record", RECORD_FIELDS[kind].__module__, RECORD_FIELDS[kind].__qualname__]
    if isinstance(kind, types.BaseNamedTuple):
        return ["named", kind.instance_class.__module__, kind.instance_class.__qualname__, [describe_type(member) for member in kind]]
    if isinstance(kind, types.BaseTuple):
        return ["tuple", [describe_type(member) for member in kind]]
    if isinstance(kind, types.Array) and isinstance(kind.dtype, types.Number | types.Boolean):
        return ["array", str(kind.dtype), kind.ndim, kind.layout, kind.mutable, kind.aligned]
    if isinstance(kind, types.Number | types.Boolean | types.NoneType):
        return str(kind)
    raise ValueError(f"{kind}: expected arrays, numbers and tuples of them")


def _type(described: Any) -> Any:
    from numba import types

    from simulator.kernel_addresses import Reference, record_type

    match described:
        case ["reference", members]:
            return Reference(_type(members))
        case ["record", module, name]:
            return record_type(getattr(import_module(module), name))
        case ["named", module, name, members]:
            return types.BaseTuple.from_types(types_of(members), getattr(import_module(module), name))
        case ["tuple", members]:
            return types.BaseTuple.from_types(types_of(members))
        case ["array", item, axes, layout, mutable, aligned]:
            return types.Array(getattr(types, item), axes, layout, readonly=not mutable, aligned=aligned)
        case str():
            return getattr(types, described)
    raise ValueError(f"{described}: no type of an argument")


def main(parent: int, number: int, processes: int, search: int) -> None:
    for module, name, described in listed_kernels(bool(search))[::-1][number::processes]:
        if os.getppid() != parent:
            return
        getattr(import_module(module), name).compile(types_of(described))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
