"""Any subset of the rewrites, in any order, keeps what a random graph computes."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compiler.ir.graph import Graph, Port
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Concat, Conv, LayerNorm, Operator, Pool, Resample, Shape, Shuffle, Softmax, Step, Vector
from compiler.ir.taps import merge_taps, select_places
from compiler.rewrites.engine import rewrite
from compiler.rewrites.rules import RULES

Rng = np.random.Generator
SHAPE = (1, 6, 6, 5)
fired: set[str] = set()


def pick(rng: Rng, items: list[str]) -> str:
    """The newest item, so that chains grow long, or any."""
    return items[-1] if rng.random() < 0.7 else str(rng.choice(items))


def steps(rng: Rng, shapes: dict[str, Shape], x: str) -> tuple[tuple[str, ...], tuple[Step, ...]]:
    """(other inputs, steps) of a chain on x whose values stay small."""
    n, c, _, _ = shapes[x]
    alike = [name for name, shape in shapes.items() if shape in (shapes[x], (n, c, 1, 1))]
    inputs: list[str] = []
    out: list[Step] = []
    for _ in range(int(rng.integers(0, 4))):
        kind = str(rng.choice(["relu", "muls", "adds", "maxs", "mins", "scale_shift", "same", "nothing", "again", "add", "max", "sub"]))
        if kind in ("muls", "adds", "maxs", "mins"):
            out.append(Step(kind, float(rng.integers(-2, 3)) / 2))  # type: ignore[arg-type]
        elif kind == "scale_shift":
            out.append(Step(kind, scale=rng.standard_normal(c).astype(np.float32), shift=rng.standard_normal(c).astype(np.float32)))
        elif kind == "same":
            out += [Step("keep", register=0), Step("relu"), Step("rsub", register=0)]
        elif kind == "again":
            out.append(Step("max", operand=0))
        elif kind == "nothing":
            out += [Step("muls", 1.0), Step("adds", 0.0)]
        elif kind == "relu":
            out.append(Step("relu"))
        else:
            inputs.append(str(rng.choice(alike)))
            out.append(Step(kind, operand=len(inputs)))  # type: ignore[arg-type]
    return tuple(inputs), tuple(out)


def operator(rng: Rng, shapes: dict[str, Shape], y: str) -> Operator:
    x = pick(rng, list(shapes))
    n, c, h, w = shapes[x]
    kind = str(
        rng.choice(["conv", "conv", "vector", "vector", "vector", "pool", "concat", "shuffle", "resample", "skip", "softmax", "norm"])
    )
    if kind == "conv":
        k = int(rng.choice([1, 3])) if min(h, w) > 1 else 1
        pads = (k // 2,) * 4
        weights = (rng.standard_normal((6, c, k, k)) / (k * c**0.5)).astype(np.float32)
        residuals = [name for name, shape in shapes.items() if shape == (n, 6, h, w)]
        residual = str(rng.choice(residuals)) if residuals and rng.random() < 0.2 else None
        activation = str(rng.choice(["none", "none", "relu", "clip"]))
        bias = rng.standard_normal(6).astype(np.float32)
        return Conv(y, x, y, weights, bias, pads=pads, activation=activation, residual=residual, limit=0.75)  # type: ignore[arg-type]
    if kind == "pool":
        return Pool(y, x, y, str(rng.choice(["max", "average"])), (min(h, 2), min(w, 3)))  # type: ignore[arg-type]
    if kind == "skip":
        return Pool(y, x, y, "max", (1, 1), (2, 1))
    if kind == "concat":
        alike = [name for name, shape in shapes.items() if shape[2:] == (h, w)]
        return Concat(y, tuple(str(name) for name in rng.choice(alike, int(rng.integers(1, 4)))), y)
    if kind == "shuffle":
        kept = c if rng.random() < 0.6 else int(rng.integers(1, c + 1))
        return Shuffle(y, x, y, tuple(rng.permutation(c)[:kept].tolist()) if rng.random() < 0.8 else tuple(range(c)))
    if kind == "norm":
        return LayerNorm(y, x, y, rng.standard_normal(c).astype(np.float32), rng.standard_normal(c).astype(np.float32), 1e-1)
    if kind == "softmax":
        return Softmax(y, x, y)
    if kind == "resample":
        if rng.random() < 0.3:
            return Resample(y, x, y, merge_taps([((i, 0.5), (max(0, i - 1), 0.5)) for i in range(h)]), select_places(range(w)))
        before, after = (int(v) for v in rng.integers(0, 3, 2))
        rows = select_places([None] * before + list(range(int(rng.integers(0, 2)) if h > 1 else 0, h)) + [None] * after)
        return Resample(y, x, y, rows, select_places([*range(w), None]), float(rng.choice([0.0, 0.0, 1.5])))
    others, chain = steps(rng, shapes, x)
    return Vector(y, (x, *others), y, chain)


def random_graph(rng: Rng) -> Graph:
    shapes: dict[str, Shape] = {"x": SHAPE, "z": (1, 6, 1, 1)}
    operators: list[Operator] = []
    for i in range(int(rng.integers(2, 14))):
        op = operator(rng, shapes, f"t{i}")
        shapes[op.y] = op.output_shape([shapes[name] for name in op.inputs])
        operators.append(op)
    names = {operators[-1].y} | ({str(rng.choice([op.y for op in operators]))} if rng.random() < 0.2 else set())
    ports = tuple(Port(name, name, shapes[name]) for name in sorted(names))
    inputs = tuple(Port(name, name, shapes[name]) for name in ("x", "z"))
    graph = Graph("random", inputs, ports, tuple(operators), shapes)
    graph.verify()
    return graph


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1))
@example(4150765)  # a ReLU behind a resize by weights below zero
def test_rewrites_keep_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng)
    feeds = {port.onnx_name: rng.standard_normal(port.onnx_shape).astype(np.float32) for port in graph.inputs}
    chosen = [RULES[i] for i in rng.permutation(len(RULES))[: int(rng.integers(1, len(RULES) + 1))]]
    after, report = rewrite(graph, chosen)
    fired.update(name for name, count in report.fired.items() if count)
    expected, got = evaluate(graph, feeds), evaluate(after, feeds)
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(values).max())))


def test_most_rules_fired_on_the_way() -> None:
    """Random graphs reach the rules; those that need a longer pattern have cases of their own (tests/compiler/rewrites)."""
    for seed in range(1500):
        rng = np.random.default_rng(seed)
        fired.update(name for name, count in rewrite(random_graph(rng), RULES)[1].fired.items() if count)
    of_floats = {rule.name for rule in RULES} - {
        "fuse-integer-residual",
        "merge-affine",
        "merge-tables",
        "table-of-pair",
        "negate-into-conv",
    }  # the graphs are of floats, and have no SiLU
    assert len(fired) >= len(of_floats) - 3, of_floats - fired
