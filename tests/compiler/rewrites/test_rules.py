"""Every rule alone: it fires where it should, the values stay, and it leaves alone what it must not touch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from compiler.frontend.handlers.handlers import HANDLERS
from compiler.frontend.handlers.to_graph import translate
from compiler.frontend.onnx_io.load import prepare
from compiler.ir.graph import Graph, Port
from compiler.ir.interpret import evaluate
from compiler.ir.operators import (
    Concat,
    Conv,
    LayerNorm,
    LookUp,
    MatMul,
    Operator,
    Pool,
    Quantise,
    QuantisedAffine,
    QuantisedPair,
    Resample,
    Shuffle,
    Step,
    Vector,
)
from compiler.ir.operators.quantised_values import PairMode
from compiler.ir.quantised.affine import Affine
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.tables import function_table, logistic
from compiler.ir.taps import merge_taps, select_places
from compiler.rewrites.engine import rewrite
from compiler.rewrites.rules import LAST_RULES, RULES, RewriteRule
from tests.integer_graphs import conv as integer_conv
from tests.models import random_feeds, random_model

SHAPE = (1, 6, 5, 4)
RNG = np.random.default_rng(0)


def graph_of(operators: list[Operator], outputs: list[str]) -> Graph:
    shapes, types = {"x": SHAPE, "z": SHAPE}, dict[str, Quantisation]()
    for op in operators:
        shapes[op.y] = op.output_shape([shapes[name] for name in op.inputs])
        if (q := op.output_type([types.get(name) for name in op.inputs])) is not None:
            types[op.y] = q
    ports = tuple(Port(name, name, shapes[name]) for name in outputs)
    graph = Graph("g", (Port("x", "x", SHAPE), Port("z", "z", SHAPE)), ports, tuple(operators), shapes, types=types)
    graph.verify()
    return graph


def conv(x: str, y: str, c: int = 6, c_in: int = 6, **more: object) -> Conv:
    weights = RNG.standard_normal((c, c_in, 1, 1)).astype(np.float32)
    return Conv(y, x, y, weights, RNG.standard_normal(c).astype(np.float32), **more)  # type: ignore[arg-type]


def chain(y: str, *inputs: str, steps: tuple[Step, ...]) -> Vector:
    return Vector(y, inputs, y, steps)


def scaled(c: int = 6) -> Step:
    return Step("scale_shift", scale=RNG.standard_normal(c).astype(np.float32), shift=RNG.standard_normal(c).astype(np.float32))


RELU, ADD = Step("relu"), Step("add", operand=1)
KEEP, USE = Step("keep", register=0), Step("sub", register=0)
SCALED = scaled()
DEAL = (0, 3, 1, 4, 2, 5)


Q, OTHER, SUM = (Quantisation.of(np.float32(scale), np.int8(zero), np.int8) for scale, zero in ((0.03, -5), (0.05, 9), (0.06, 2)))
INTEGERS: list[Operator] = [
    Quantise("xi", "x", "xi", Q),
    Quantise("zi", "z", "zi", Q),
    integer_conv(RNG, "a", "xi", (6, 6), Q, OTHER, kernel=1),
]


def added(y: str, a: str, b: str, mode: PairMode, a_q: Quantisation, b_q: Quantisation) -> QuantisedPair:
    return QuantisedPair(y, a, b, y, mode, a_q, b_q, SUM)


def looked_up(y: str, x: str, x_q: Quantisation, y_q: Quantisation, factor: float | None = None) -> LookUp:
    """A number times, which is a straight line, or the logistic function."""
    entries = function_table(logistic if factor is None else lambda v: v * np.float32(factor), x_q, y_q)
    return LookUp(y, x, y, entries, x_q, y_q)


def affine(y: str, x: str, x_q: Quantisation, y_q: Quantisation) -> QuantisedAffine:
    scale, shift = RNG.standard_normal((2, 6)).astype(np.float32)
    return QuantisedAffine(y, x, y, ((Affine(scale, 9 * shift), y_q),), x_q)


def sample(y: str, x: str, rows: Iterable[int | None], columns: Iterable[int | None], fill: float = 0.0) -> Resample:
    return Resample(y, x, y, select_places(rows), select_places(columns), fill)


def pad(y: str, x: str, pads: tuple[int, int, int, int], fill: float = 0.0, size: tuple[int, int] = SHAPE[2:]) -> Resample:
    (h, w), (top, left, bottom, right) = size, pads
    return sample(y, x, [None] * top + list(range(h)) + [None] * bottom, [None] * left + list(range(w)) + [None] * right, fill)


def smooth(y: str, x: str) -> Resample:
    """Twice as large, every other place between its neighbours."""
    rows, columns = (merge_taps([((i // 2, 0.5), (min((i + 1) // 2, size - 1), 0.5)) for i in range(2 * size)]) for size in SHAPE[2:])
    return Resample(y, x, y, rows, columns)


def max_pool(y: str, x: str, kernel: int) -> Pool:
    return Pool(y, x, y, "max", (kernel, kernel))


ROWS = Pool("r", "x", "r", "max", (1, 1), pads=(-2, 0, -1, 0))


def norm(x: str, y: str) -> LayerNorm:
    return LayerNorm(y, x, y, RNG.standard_normal(6).astype(np.float32), RNG.standard_normal(6).astype(np.float32), 1e-5)


# rule -> (operators, outputs, how many operators are left)
SILU = (Step("muls", -1.0), Step("exp"), Step("adds", 1.0), Step("rdiv", operand=0))

FIRES: dict[str, list[tuple[list[Operator], list[str], int]]] = {
    "drop-unused": [([conv("x", "a"), conv("x", "b"), conv("a", "dead"), conv("dead", "dead2")], ["a", "b"], 2)],
    "drop-empty-chain": [([chain("a", "x", steps=()), conv("a", "b")], ["b"], 1), ([conv("x", "b"), chain("a", "b", steps=())], ["a"], 1)],
    "merge-equal": [
        ([chain("a", "x", steps=(RELU,)), conv("a", "b"), chain("c", "x", steps=(RELU,)), conv("c", "d")], ["b", "d"], 3),
        ([chain("a", "x", steps=(SCALED,)), chain("c", "x", steps=(SCALED,)), chain("d", "a", "c", steps=(ADD,))], ["d"], 2),
        ([max_pool("a", "x", 2), chain("b", "a", steps=(RELU,)), max_pool("c", "x", 2), chain("d", "c", steps=(RELU,))], ["b", "d"], 2),
        ([smooth("a", "x"), smooth("b", "x")], ["a", "b"], 1),
    ],
    "drop-single-concat": [([Concat("a", ("x",), "a"), conv("a", "b")], ["b"], 1)],
    "drop-identity-shuffle": [([Shuffle("a", "x", "a", (0, 1, 2, 3, 4, 5)), conv("a", "b")], ["b"], 1)],
    "merge-shuffles": [([Shuffle("a", "x", "a", DEAL), Shuffle("b", "a", "b", DEAL)], ["b", "a"], 2)],
    "shuffle-into-conv": [([conv("x", "a"), Shuffle("b", "a", "b", DEAL)], ["b"], 1)],
    "split-conv": [
        ([conv("x", "a"), Shuffle("b", "a", "b", (0, 1)), Shuffle("c", "a", "c", (5, 2, 3)), conv("b", "d", 6, 2)], ["c", "d"], 4)
    ],
    "fold-affine-into-norm": [([norm("x", "a"), chain("b", "a", steps=(scaled(), RELU))], ["b"], 2)],
    "norm-into-products": [
        ([norm("x", "a"), conv("a", "b"), conv("a", "c", 3)], ["b", "c"], 3),
        ([norm("x", "a"), conv("a", "b", pads=(-1, 0, -2, 0))], ["b"], 2),
    ],
    "scale-before-matmul": [([MatMul("a", "x", "z", "a", 2, True), chain("b", "a", steps=(Step("muls", 0.5), RELU))], ["b"], 3)],
    "rows-into-conv": [([ROWS, conv("r", "a")], ["a"], 1)],
    "select-by-conv": [([conv("x", "a", 6, 2, groups=3), Shuffle("b", "a", "b", (4, 1))], ["b"], 2)],
    "fold-affine": [
        ([conv("x", "a"), chain("b", "a", steps=(scaled(),))], ["b"], 1),
        ([conv("x", "a"), chain("b", "a", "z", steps=(Step("muls", 3.0), Step("adds", 0.5), ADD, RELU))], ["b"], 2),
    ],
    "negate-into-conv": [
        ([conv("x", "a"), chain("b", "a", steps=SILU)], ["b"], 2),
        ([conv("x", "a"), conv("a", "b", 48, 2, groups=3), chain("c", "b", steps=SILU)], ["c", "a"], 3),
    ],
    "fuse-relu": [
        ([conv("x", "a"), chain("b", "a", steps=(RELU,))], ["b"], 1),
        ([conv("x", "a", residual="z"), chain("b", "a", steps=(RELU, Step("muls", 2.0)))], ["b"], 2),
    ],
    "fuse-limit": [
        ([conv("x", "a", activation="relu"), chain("b", "a", steps=(Step("mins", 0.5),))], ["b"], 1),
        ([conv("x", "a", residual="z", activation="clip", limit=0.6), chain("b", "a", steps=(Step("mins", 0.9), RELU))], ["b"], 2),
    ],
    "merge-resamples": [
        ([pad("a", "x", (1, 0, 2, 1)), sample("b", "a", range(1, 8, 2), range(4))], ["b"], 1),
        ([sample("a", "x", range(4, -1, -1), range(4)), smooth("b", "a")], ["b"], 1),
        ([smooth("a", "x"), pad("b", "a", (1, 1, 0, 0), fill=2.5, size=(10, 8))], ["b"], 1),
        ([pad("a", "x", (0, 1, 1, 0), fill=1.5), Pool("b", "a", "b", "max", (1, 1), (2, 3))], ["b"], 1),
    ],
    "pad-into-conv": [
        ([pad("a", "x", (1, 0, 2, 1)), conv("a", "b", pads=(0, 1, 0, 0))], ["b"], 1),
        ([pad("a", "x", (300, 200, 300, 400)), conv("a", "b", pads=(0, 55, 0, 0))], ["b"], 1),
    ],
    "skip-into-conv": [([Pool("a", "x", "a", "average", (1, 1), (2, 3)), conv("a", "b", stride=(2, 1))], ["b"], 1)],
    "fuse-residual": [
        ([conv("x", "a"), chain("b", "a", "z", steps=(ADD,))], ["b"], 1),
        ([conv("x", "a"), chain("b", "z", "a", steps=(ADD, RELU))], ["b"], 2),
        ([conv("x", "a"), conv("z", "b"), chain("c", "a", "b", "x", steps=(ADD, Step("mul", operand=2)))], ["c"], 3),
    ],
    "fuse-integer-residual": [
        ([*INTEGERS, added("b", "a", "zi", "add", OTHER, Q)], ["b"], 3),
        ([*INTEGERS, added("b", "zi", "a", "add", Q, OTHER)], ["b"], 3),
        ([*INTEGERS, added("b", "a", "zi", "radd", OTHER, Q)], ["b"], 3),
    ],
    "merge-tables": [
        ([*INTEGERS, looked_up("b", "a", OTHER, Q), looked_up("c", "b", Q, SUM, 2)], ["c"], 4),
        ([*INTEGERS, looked_up("b", "a", OTHER, OTHER, 1), looked_up("c", "b", OTHER, SUM, 2)], ["c"], 4),
    ],
    "table-of-pair": [
        ([*INTEGERS, looked_up("b", "a", OTHER, Q), added("c", "a", "b", "mul", OTHER, Q)], ["c"], 5),
        ([*INTEGERS, looked_up("b", "a", OTHER, Q), added("c", "b", "a", "radd", Q, OTHER)], ["c", "b"], 5),
        ([*INTEGERS, looked_up("b", "a", OTHER, Q), looked_up("c", "a", OTHER, Q, 2), added("d", "b", "c", "add", Q, Q)], ["d"], 6),
        ([*INTEGERS, added("b", "a", "a", "add", OTHER, OTHER)], ["b"], 4),
    ],
    "merge-affine": [([*INTEGERS, affine("b", "a", OTHER, Q), affine("c", "b", Q, SUM)], ["c"], 4)],
    "merge-chains": [
        ([chain("a", "x", steps=(scaled(), RELU)), chain("b", "a", "z", steps=(ADD, Step("exp")))], ["b"], 1),
        ([chain("a", "x", "z", steps=(ADD,)), chain("b", "a", "z", "x", steps=(ADD, Step("mul", operand=2)))], ["b"], 1),
        ([chain("a", "x", steps=(KEEP, RELU, USE)), chain("b", "a", "z", steps=(ADD, KEEP, RELU, USE, Step("mul", operand=0)))], ["b"], 1),
    ],
    "swap-operands": [([conv("x", "p"), chain("a", "z", steps=(scaled(),)), chain("b", "x", "a", steps=(ADD,))], ["b", "p"], 3)],
    "simplify-steps": [
        ([chain("a", "x", steps=(scaled(), Step("muls", 2.0), Step("adds", 1.0), scaled(), RELU, RELU, Step("muls", 1.0)))], ["a"], 1)
    ],
    "relu-before-concat": [
        ([conv("x", "a"), chain("e", "z", steps=(Step("exp"),)), Concat("c", ("a", "e"), "c"), chain("r", "c", steps=(RELU,))], ["r"], 4),
        ([conv("x", "a"), conv("z", "b"), Concat("c", ("a", "b"), "c"), chain("r", "c", steps=(RELU, Step("muls", 2.0)))], ["r"], 6),
    ],
    "relu-before-max-pool": [
        ([conv("x", "a"), Pool("p", "a", "p", "max", (2, 2), pads=(1, 0, 0, 1)), chain("r", "p", steps=(RELU,))], ["r"], 2)
    ],
    "drop-needless-relu": [
        ([chain("a", "x", steps=(Step("square"),)), Pool("p", "a", "p", "average", (2, 2)), chain("r", "p", steps=(RELU,))], ["r"], 3)
    ],
    "nest-concat": [([Concat("a", ("x", "z"), "a"), conv("a", "d", 6, 12), Concat("b", ("x", "z", "d"), "b")], ["b", "a"], 3)],
}

# rule -> graphs in which it must not fire
LEAVES: dict[str, list[tuple[list[Operator], list[str]]]] = {
    "merge-equal": [
        ([chain("a", "x", steps=(scaled(),)), chain("b", "x", steps=(scaled(),))], ["a", "b"]),
        ([chain("a", "x", steps=(Step("muls", 2.0),)), chain("b", "x", steps=(Step("muls", 3.0),))], ["a", "b"]),
        ([chain("a", "x", steps=(RELU,)), chain("b", "z", steps=(RELU,))], ["a", "b"]),
        ([max_pool("a", "x", 2), max_pool("b", "x", 1)], ["a", "b"]),
        ([conv("x", "a"), conv("x", "b")], ["a", "b"]),
    ],
    "merge-resamples": [
        ([pad("a", "x", (1, 0, 0, 0)), smooth("b", "a")], ["b"]),
        ([pad("a", "x", (1, 0, 0, 0), fill=1.0), pad("b", "a", (0, 1, 0, 0), size=(6, 4))], ["b"]),
        ([pad("a", "x", (1, 0, 0, 0)), pad("b", "a", (0, 1, 0, 0), size=(6, 4))], ["a", "b"]),
        ([sample("a", "x", range(3), range(4)), Pool("b", "a", "b", "max", (1, 2), (1, 1))], ["b"]),
    ],
    "pad-into-conv": [
        ([pad("a", "x", (1, 0, 2, 1), fill=1.0), conv("a", "b")], ["b"]),
        ([sample("a", "x", (None, 0, 1, 2, 3), range(4)), conv("a", "b")], ["b"]),
        ([sample("a", "x", (None, 1, 0, 2, 3, 4), range(4)), conv("a", "b")], ["b"]),
        ([pad("a", "x", (1, 0, 0, 0)), conv("a", "b")], ["a", "b"]),
        ([pad("a", "x", (0, 200, 0, 0)), conv("a", "b", pads=(0, 56, 0, 0))], ["b"]),  # more columns than an instruction can name
        ([pad("a", "x", (256, 0, 0, 0)), conv("a", "b", stride=(18, 1))], ["b"]),
    ],
    "skip-into-conv": [
        ([Pool("a", "x", "a", "max", (1, 2), (2, 2)), conv("a", "b")], ["b"]),
        ([Pool("a", "x", "a", "max", (1, 1), (2, 2)), conv("a", "b", pads=(1, 0, 0, 0))], ["b"]),
        ([Pool("a", "x", "a", "max", (1, 1), (16, 1)), conv("a", "b", stride=(16, 1))], ["b"]),  # 256 rows apart
    ],
    "drop-identity-shuffle": [([Shuffle("a", "x", "a", (0, 1, 2))], ["a"])],
    "split-conv": [
        ([conv("x", "a"), Shuffle("b", "a", "b", (0, 1))], ["b", "a"]),
        ([conv("x", "a", residual="z"), Shuffle("b", "a", "b", (0, 1))], ["b"]),
        ([conv("x", "a"), Shuffle("b", "a", "b", DEAL)], ["b"]),
    ],
    "fold-affine-into-norm": [([norm("x", "a"), chain("b", "a", steps=(scaled(),))], ["b", "a"])],
    "norm-into-products": [
        ([norm("x", "a"), conv("a", "b")], ["a", "b"]),
        ([norm("x", "a"), conv("a", "b"), conv("b", "c", residual="a")], ["c"]),
        ([norm("x", "a"), conv("a", "b", pads=(1, 0, 0, 0))], ["b"]),  # what is padded has no shift
        ([norm("x", "a"), conv("a", "b", c_in=2, groups=3)], ["b"]),
    ],
    "scale-before-matmul": [([MatMul("a", "x", "z", "a", 2, True), chain("b", "a", steps=(Step("muls", 0.5),))], ["a", "b"])],
    "rows-into-conv": [([ROWS, conv("r", "a")], ["a", "r"])],
    "negate-into-conv": [
        ([conv("x", "a", 16), chain("b", "a", steps=SILU), conv("a", "c", c_in=16)], ["b", "c"]),
        ([conv("x", "w", 16), conv("x", "a", 16), chain("b", "a", "w", steps=(*SILU[:-1], Step("rdiv", operand=1)))], ["b"]),
        ([conv("x", "a", 16), chain("b", "a", steps=(Step("muls", -2.0), *SILU[1:]))], ["b"]),
        ([conv("x", "a", 16, activation="relu"), chain("b", "a", steps=SILU)], ["b"]),
    ],
    "fuse-limit": [
        ([conv("x", "a"), chain("b", "a", steps=(Step("mins", 0.5),))], ["b"]),
        ([conv("x", "a", activation="relu"), chain("b", "a", steps=(Step("mins", -0.5),))], ["b"]),
    ],
    "shuffle-into-conv": [
        ([conv("x", "a", 6, 2, groups=3), Shuffle("b", "a", "b", DEAL)], ["b"]),
        ([conv("x", "a"), Shuffle("b", "a", "b", DEAL)], ["b", "a"]),
    ],
    "fold-affine": [
        ([conv("x", "a"), chain("b", "a", steps=(KEEP, Step("muls", 2.0), USE))], ["b"]),
        ([conv("x", "a"), chain("b", "a", steps=(scaled(),)), conv("a", "c")], ["b", "c"]),
        ([conv("x", "a"), chain("b", "a", steps=(scaled(),))], ["a", "b"]),
        ([conv("x", "a", activation="relu"), chain("b", "a", steps=(scaled(),))], ["b"]),
        ([conv("x", "a", residual="z"), chain("b", "a", steps=(scaled(),))], ["b"]),
        ([conv("x", "a"), chain("b", "a", steps=(Step("muls", 0.1), Step("max", operand=0)))], ["b"]),
    ],
    "fuse-relu": [([conv("x", "a"), chain("b", "a", steps=(RELU,)), conv("a", "c")], ["b", "c"])],
    "fuse-residual": [
        ([conv("x", "a"), chain("b", "a", "a", steps=(ADD,))], ["b"]),
        ([conv("x", "a", activation="relu"), chain("b", "a", "z", steps=(ADD,))], ["b"]),
        ([conv("x", "a"), chain("b", "a", "z", steps=(ADD,))], ["b", "a"]),
    ],
    "fuse-integer-residual": [
        ([*INTEGERS, added("b", "a", "zi", "add", OTHER, Q)], ["b", "a"]),
        ([*INTEGERS, added("b", "a", "a", "add", OTHER, OTHER)], ["b"]),
        ([*INTEGERS, added("b", "a", "zi", "mul", OTHER, Q)], ["b"]),
    ],
    "merge-tables": [([*INTEGERS, looked_up("b", "a", OTHER, Q), looked_up("c", "b", Q, SUM)], ["c", "b"])],
    "table-of-pair": [
        ([*INTEGERS, added("b", "a", "zi", "mul", OTHER, Q)], ["b"]),
        # without look-up: lines become none
        ([*INTEGERS, added("b", "a", "a", "mul", OTHER, OTHER)], ["b"]),
        ([*INTEGERS, looked_up("b", "a", OTHER, Q, 2), added("c", "a", "b", "mul", OTHER, Q)], ["c"]),
    ],
    "merge-affine": [([*INTEGERS, affine("b", "a", OTHER, Q), affine("c", "b", Q, SUM)], ["c", "b"])],
    "merge-chains": [([chain("a", "x", steps=(RELU,)), chain("b", "a", "z", steps=(ADD,))], ["b", "a"])],
    "relu-before-concat": [([Concat("c", ("x", "z"), "c"), chain("r", "c", steps=(RELU,))], ["r"])],
    "drop-needless-relu": [([conv("x", "a"), chain("r", "a", steps=(RELU,))], ["r"])],
}

BY_NAME: dict[str, RewriteRule] = {rule.name: rule for rule in LAST_RULES}


def feeds() -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(SHAPE).astype(np.float32) for name in ("x", "z")}


def assert_equal(a: Graph, b: Graph, values: dict[str, np.ndarray]) -> None:  # type: ignore[type-arg]
    left, right = evaluate(a, values), evaluate(b, values)
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(left[name]).max())))


def test_every_rule_has_a_case() -> None:
    assert FIRES.keys() == BY_NAME.keys()
    assert len(LAST_RULES) == len(BY_NAME)


@pytest.mark.parametrize(("name", "case"), [(name, i) for name, cases in FIRES.items() for i in range(len(cases))])
def test_fires_and_keeps_values(name: str, case: int) -> None:
    operators, outputs, left = FIRES[name][case]
    before = graph_of(operators, outputs)
    after, report = rewrite(before, [BY_NAME[name]])
    assert report.fired[name] >= 1
    assert len(after.operators) == left
    assert_equal(before, after, feeds())


@pytest.mark.parametrize(("name", "case"), [(name, i) for name, cases in LEAVES.items() for i in range(len(cases))])
def test_leaves_alone(name: str, case: int) -> None:
    before = graph_of(*LEAVES[name][case])
    after, report = rewrite(before, [BY_NAME[name]])
    assert report.fired[name] == 0
    assert after.operators == before.operators


@pytest.mark.parametrize("seed", range(100, 160))
def test_all_rules_on_random_networks(seed: int) -> None:
    model = prepare(random_model(seed))
    before = translate(model, HANDLERS)
    after, _ = rewrite(before, RULES)
    assert len(after.operators) <= len(before.operators) + 4  # ReLUs moved in front of a Concat are several for a while
    assert_equal(before, after, random_feeds(model, seed))
    again, report = rewrite(after, RULES)
    assert not any(report.fired.values())
    assert again.operators == after.operators


@pytest.mark.parametrize("seed", range(100, 130))
def test_any_subset_of_rules_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = prepare(random_model(seed))
    before = translate(model, HANDLERS)
    chosen = [RULES[i] for i in rng.permutation(len(RULES))[: rng.integers(1, len(RULES))]]
    after, _ = rewrite(before, chosen)
    assert_equal(before, after, random_feeds(model, seed))
