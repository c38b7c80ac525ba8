"""The text of a schedule: it reads as it should, gives its tiling back, and a text that says something else is refused by its line."""

from __future__ import annotations

import re

import numpy as np
import pytest

from compiler.cost.tiling_space import legal_points, shape_of
from compiler.dump.primitives import parse, to_text
from compiler.ops.base import vector_tiling
from compiler.ops.conv import ConvSpec
from compiler.plan.plan import ConvTiling, Tiling, VectorTiling
from compiler.segment.dataflow import nest_of
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from tests.graphs import conv, max_pool, target_graph

EDGE = load_machine("edge")

STREAMED = """\
loops(g=1, m=400, n=4, k=36)
set_scope(y, L1)
x.L1 = cache_read(x, L1)
x.L0A = cache_read(x.L1, L0A)
w.L1 = cache_read(w, L1)
w.L0B = cache_read(w.L1, L0B)
bias.UB = cache_read(bias, UB)
residual.UB = cache_read(residual, UB)
y.L0C = cache_write(y, L0C)
n.chunk, n.rest = split(n, 2)
k.chunk, k.rest = split(k, 18)
m.outer, m.inner = split(m, 128)
n.outer, n.inner = split(n.rest, 1)
k.outer, k.inner = split(k.rest, 5)
reorder(g, n.chunk, k.chunk, n.outer, m.outer, k.outer, m.inner, n.inner, k.inner)
compute_at(x.L1, block)
compute_at(x.L0A, k.outer)
compute_at(w.L1, k.chunk)
compute_at(w.L0B, k.outer)
compute_at(bias.UB, segment)
compute_at(residual.UB, m.outer)
compute_at(y.L0C, n.chunk)
double_buffer(x.L0A)
double_buffer(w.L1)
double_buffer(w.L0B)
double_buffer(residual.UB)
"""
TILING = ConvTiling(weights="streamed", chunk_n1=2, chunk_k1=18, tile_m=128, tile_n1=1, tile_k1=5, order="n")

POOL = """\
loops(p=2, h=10, w=10)
set_scope(x0, L1)
x0.UB = cache_read(x0, UB)
y.UB = cache_write(y, UB)
p.outer, p.inner = split(p, 2)
h.outer, h.inner = split(h, 3)
reorder(p.outer, h.outer, p.inner, h.inner, w)
compute_at(x0.UB, h.outer)
compute_at(y.UB, h.outer)
double_buffer(x0.UB)
double_buffer(y.UB)
"""


def residual() -> TargetGraph:
    return target_graph(EDGE, (1, 64, 20, 20), conv("y", "x", (64, 64), residual="x"))


def test_a_convolution_as_text() -> None:
    u = residual()
    text = to_text(EDGE, nest_of(u, u.operators[0], inside=True), TILING)
    assert text == STREAMED
    assert parse(text) == TILING


def test_resident_weights_are_no_chunks() -> None:
    u = residual()
    nest = nest_of(u, u.operators[0])
    t = TILING.model_copy(update={"weights": "resident", "chunk_n1": 4, "chunk_k1": 36, "order": "m"})
    text = to_text(EDGE, nest, t)
    assert "chunk" not in text
    assert "compute_at(w.L1, segment)\n" in text
    assert "y.UB = cache_write(y, UB)\ny.L0C = cache_write(y.UB, L0C)\n" in text
    assert parse(text) == t
    # what such a tiling says of chunks does nothing, so the text says nothing of it
    assert parse(to_text(EDGE, nest, t.model_copy(update={"chunk_n1": 1}))) == t


def test_a_pooling_as_text() -> None:
    u = target_graph(EDGE, (1, 32, 20, 20), max_pool("y", "x", 2, 2))
    t = VectorTiling(tile_planes=2, tile_rows=3)
    assert to_text(EDGE, nest_of(u, u.operators[0], in_l1=frozenset({0})), t) == POOL
    assert parse(POOL) == t


def test_comments_and_blanks_mean_nothing() -> None:
    text = "# what it is\n\n" + POOL.replace("\n", "   # so it is\n  ")
    assert parse(text) == parse(POOL)


@pytest.mark.parametrize("machine_name", ["edge", "ascend310", "tiny", "tpu-like", "nvdla-large"])
def test_every_legal_tiling_comes_back(machine_name: str) -> None:
    machine = load_machine(machine_name)
    rng = np.random.default_rng(1)
    tried = 0
    for _ in range(12):
        channels = (int(rng.integers(1, 200)), int(rng.integers(1, 200)))
        kernel, stride = int(rng.choice([1, 3, 5])), int(rng.integers(1, 3))
        u = target_graph(
            machine, (1, channels[0], int(rng.integers(5, 40)), int(rng.integers(5, 40))), conv("y", "x", channels, kernel, stride)
        )
        spec = u.operators[0]
        assert isinstance(spec, ConvSpec)
        nest = nest_of(u, spec, int(rng.integers(1, spec.out_h + 1)), frozenset({0} if rng.integers(2) else ()), bool(rng.integers(2)))
        tilings: list[Tiling] = []
        for resident in (True, False):
            n1, k1 = (spec.n1, spec.k1) if resident else (int(rng.integers(1, spec.n1 + 1)), int(rng.integers(1, spec.k1 + 1)))
            points = legal_points(machine, shape_of(machine, u.dtype, spec, spec.out_h, False, (n1, k1)))
            weights = "resident" if resident else "streamed"
            for m, n, k, n_outer in points[rng.permutation(len(points))[:40]].tolist():
                sizes = {"chunk_n1": n1, "chunk_k1": k1, "tile_m": m, "tile_n1": n, "tile_k1": k}
                tilings.append(ConvTiling.model_validate({"weights": weights, "order": "mn"[n_outer], **sizes}))
        for t in tilings:
            assert parse(to_text(machine, nest, t)) == t
        tried += len(tilings)
        p = target_graph(machine, (1, 40, 9, 9), max_pool("y", "x", 3, 2, 1))
        tile = vector_tiling(p, p.operators[0], 5, int(rng.integers(8, 1000)))
        assert parse(to_text(machine, nest_of(p, p.operators[0]), tile)) == tile
    assert tried > 200


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("loops(g=1, m=400, n=4, k=36)\n", "", "expected loops(...) first"),
        ("m=400", "m=many", "line 1: 'm=many'; expected a loop and its extent, e.g. m=3136"),
        ("k=36", "q=36", "line 1: loops g, m, n, q; expected g, m, n, k or p, h, w"),
        ("split(m, 128)", "split m 128", "line 12: 'm.outer, m.inner = split m 128' is no statement; expected e.g. m.outer, "),
        ("split(m, 128)", "split(m, half)", "line 12: split of m by 'half'; expected a number"),
        ("split(m, 128)", "split(m, 100)", "tile_m: "),
        ("m.outer, m.inner = split(m, 128)\n", "", "m is not split; expected m.outer, m.inner = split(...)"),
        ("n.chunk, n.rest = split(n, 2)\n", "", "n is not split; expected n.chunk, n.rest = split(...)"),
        ("compute_at(w.L1, k.chunk)", "compute_at(w.L1, n.chunk)", "line 18: 'compute_at(w.L1, n.chunk)'; expected 'compute_at(w.L1, k.ch"),
        ("k.outer, m.inner", "m.inner, k.outer", "expected 'reorder(g, n.chunk, k.chunk, n.outer, m.outer, k.outer, m.inner, n.inner, "),
        ("double_buffer(w.L0B)\n", "", "line 25: 'double_buffer(residual.UB)'; expected 'double_buffer(w.L0B)'"),
        ("double_buffer(residual.UB)\n", "", "ends before 'double_buffer(residual.UB)'"),
        ("double_buffer(residual.UB)\n", "double_buffer(residual.UB)\nunroll(g)\n", "line 27: 'unroll(g)' is one too many"),
        ("compute_at(x.L1, block)", "unroll(x.L1)", "line 16: 'unroll(x.L1)'; expected 'compute_at(x.L1, block)'"),
    ],
)  # fmt: skip
def test_a_text_that_says_something_else(old: str, new: str, message: str) -> None:
    assert old in STREAMED
    with pytest.raises(BadInputError, match=r"^F(: |, )") as found:
        parse(STREAMED.replace(old, new), "F")
    assert re.search(re.escape(message), str(found.value)), found.value
