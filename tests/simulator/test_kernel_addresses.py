"""What kernels hand over by address: tuples of arrays, records, kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit, typeof, types

from simulator.kernel_addresses import Reference, by_reference, call_kernel, kernel_address, pointer_to, record_type

ROOT = Path(__file__).parents[2]


class Inner(NamedTuple):
    table: Any
    limit: int


class Outer(NamedTuple):
    rows: Any
    inner: Inner
    halves: Any
    small: bool


class Place(NamedTuple):
    begin: int


class Job(NamedTuple):
    place: Place
    length: int


@njit
def _total(o: Any, n: int) -> Any:
    o.rows[n] += 1
    return o.inner.table[n, 0] + o.inner.limit + o.halves[0] + o.small


@njit
def total(o: Any, n: int) -> Any:
    r = by_reference(o)
    return _total(r, n) + r.rows[n]


def outer() -> Outer:
    return Outer(np.arange(3), Inner(np.arange(6).reshape(3, 2), 100), np.array([2.5]), True)


def test_members_by_reference() -> None:
    given = outer()
    for n in range(3):
        assert total(given, n) == 2 * n + 100 + 2.5 + 1 + n + 1
    assert given.rows.tolist() == [1, 2, 3]


def test_nobody_counts_what_a_reference_has() -> None:
    given = outer()
    before = sys.getrefcount(given.rows)
    for _ in range(1000):
        total(given, 0)
    after = sys.getrefcount(given.rows)
    assert after == before


@njit
def spread(out: Any, o: Any, job: Any, sign: int) -> int:
    if job.length < 0:
        raise ValueError("a negative length")
    place = job.place
    for i in range(place.begin, place.begin + job.length):
        out[i] = sign * o.inner.limit
    place.begin += job.length
    return job.place.begin


@njit
def spread_by_address(address: int, out: Any, o: Any, jobs: Any, k: int) -> Any:
    end = call_kernel(address, (out, by_reference(o), pointer_to(jobs, 2 * k), -1))
    return end, jobs[2 * k]


def test_kernels_by_address() -> None:
    out, given, jobs = np.zeros(6, np.int64), outer(), np.array([0, 2, 3, 2, 0, -1])
    kinds = typeof(out), Reference(typeof(given)), record_type(Job), types.int64
    address = kernel_address(spread, kinds)
    assert kernel_address(spread, kinds) == address
    assert [spread_by_address(address, out, given, jobs, k) for k in range(2)] == [(2, 2), (5, 5)]
    assert out.tolist() == [-100, -100, 0, -100, -100, 0]
    with pytest.raises(ValueError, match="a negative length"):
        spread_by_address(address, out, given, jobs, 2)


EMISSION = """
import simulator.kernel_addresses as addresses
from llvmlite import ir
from numba import types
from numba.core import callconv

called = []
call = callconv.CPUCallConv.call_function


def noted(self, builder, callee, result, kinds, *others, **more):
    if not isinstance(callee, ir.Function):
        called.append(tuple(kinds))
    return call(self, builder, callee, result, kinds, *others, **more)


callconv.CPUCallConv.call_function = noted
given = []
address_of = addresses.kernel_address
addresses.kernel_address = lambda kernel, arguments: given.append(arguments) or address_of(kernel, arguments)
from tuner.cli import main

assert main(["compile", "made:mobilenet_v2-small", "--machine", "tiny", "--layerwise", "--out", "out.onnx"]) == 0
for kinds in given:
    for kind, other in zip(kinds, called[0], strict=True):
        assert kind == other or (isinstance(kind, types.Record) and other == types.voidptr), (kind, other)
print(len(given), len(called))
"""


@pytest.mark.slow
def test_emitters_are_compiled_for_their_argument_types(tmp_path: Path) -> None:
    """Both say it for themselves, and a call by address checks nothing."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", EMISSION], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    emitters, calls = map(int, done.stdout.split()[-2:])
    assert emitters >= 2
    assert calls >= 1
