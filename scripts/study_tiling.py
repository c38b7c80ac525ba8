"""Are tilings found?  The default search, and the cost model without any measurement, against the exhaustive optimum of the legal space.

For every distinct convolution and matrix product of the networks, alone: all legal ways to run it (block counts, slots, chunks of weights,
tiles; `compiler.cost.operator_space`) are measured, except those whose lower bound says that they cannot beat the best by more than
0.2 %.  Where more than --cap are left after that, the rest is not looked at, and the table says how much faster it could be at most
(`unproven`).  That optimum stands for a tiling by hand.  Beside it: `tilefarm tune` on a model of this one operator, with the default
configuration: how near it comes, and after how many measurements it was within 2 %.

Then shapes that no model has seen: models are trained on measured tilings of random shapes (--trained), and pick, without a measurement,
for --held-out others.  Once more without the features of stages, and by the analytic estimate alone, to see what the model and they bring.

    python scripts/study_tiling.py --out tiling
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compiler.cost.features import FEATURES, raw_features, scaled
from compiler.cost.operator_space import OperatorSpace, operator_space
from compiler.frontend import load_model, lower
from compiler.frontend.zoo import resolve
from compiler.ir.operators import Conv, MatMul
from compiler.kinds.build import make_unit
from compiler.kinds.conv import ConvSpec
from compiler.kinds.matmul import MatMulSpec
from compiler.unit.operators import KernelSpec
from compiler.unit.unit import Unit
from scripts.studies import write_rows
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine import DataType, Machine, load_machine
from tuner.build import open_source
from tuner.commands.text import print_table
from tuner.config import load_config
from tuner.evaluate import Evaluator
from tuner.log.read import read_log
from tuner.model.cost_model import CostModel, train
from tuner.model.tile_model import shortlist, single_block_counts
from tuner.request import TuneRequest
from tuner.source import Source
from tuner.tune import tune

PROVEN = 0.002  # ways whose bound is not further below the best than this are not measured
BATCH = 16  # ways measured at once for each level
NEAR, MODEL_NEAR = 0.02, 0.10  # the goals
STAGES = [i for i, name in enumerate(FEATURES) if name.endswith(("_bits", "_emit_num"))]


@dataclass(frozen=True)
class Shape:
    """One convolution or matrix product [1, c_in, h, w] -> c_out."""

    c_in: int
    c_out: int
    height: int
    width: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    residual: bool = False

    def __str__(self) -> str:
        window = f" {self.kernel[0]}x{self.kernel[1]}/{self.stride[0]}" if self.kernel != (1, 1) or self.stride != (1, 1) else ""
        extra = (f" g{self.groups}" if self.groups > 1 else "") + (" +res" if self.residual else "")
        return f"{self.c_in}->{self.c_out} {self.height}x{self.width}{window}{extra}"

    @property
    def out(self) -> tuple[int, int]:
        sizes = zip((self.height, self.width), self.kernel, self.stride, self.dilation, self.pads[:2], self.pads[2:], strict=True)
        high, wide = ((size + a + b - (k - 1) * d - 1) // s + 1 for size, k, s, d, a, b in sizes)
        return high, wide

    def save(self, path: Path) -> None:
        """A model of this operator alone, weights from a fixed seed."""
        rng = np.random.default_rng(0)
        weights = rng.standard_normal((self.c_out, self.c_in // self.groups, *self.kernel)).astype(np.float32)
        weights /= np.float32(math.sqrt(weights[0].size))
        image, result = (1, self.c_in, self.height, self.width), (1, self.c_out, *self.out)
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)]
        nodes = [
            helper.make_node(
                "Conv", ["x", "w"], ["c" if self.residual else "y"], name="operator", strides=self.stride, pads=self.pads,
                dilations=self.dilation, group=self.groups, kernel_shape=self.kernel,
            )
        ]  # fmt: skip
        if self.residual:
            inputs.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, result))
            nodes.append(helper.make_node("Add", ["c", "r"], ["y"], name="sum"))
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)]
        graph = helper.make_graph(nodes, "operator", inputs, outputs, [numpy_helper.from_array(weights, "w")])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@dataclass(frozen=True)
class Product:
    """Products of two tensors, one for each head: [rows, inner] by [inner, columns]; transposed: the right one holds [columns, inner].

    Of one image; a head is a run of channels, rows are pixels.
    """

    heads: int
    rows: int
    inner: int
    columns: int
    transposed: bool

    def __str__(self) -> str:
        return f"{self.heads} x {self.rows}x{self.inner}x{self.columns}{' T' if self.transposed else ''}"

    def save(self, path: Path) -> None:
        """A model of this operator alone: heads are taken apart and put together by addresses, as in attention."""
        nodes, shapes = [], []

        def named(name: str, shape: Sequence[int]) -> str:
            shapes.append(numpy_helper.from_array(np.array(shape, np.int64), name))
            return name

        def apart(x: str, pixels: int, channels: int, order: Sequence[int]) -> str:
            nodes.append(helper.make_node("Reshape", [x, named(f"{x}_shape", (1, pixels, self.heads, channels))], [f"{x}_heads"]))
            nodes.append(helper.make_node("Transpose", [f"{x}_heads"], [f"{x}_apart"], perm=order))
            return f"{x}_apart"

        left = apart("a", self.rows, self.inner, (0, 2, 1, 3))
        sizes = (self.columns, self.inner) if self.transposed else (self.inner, self.columns)
        right = apart("b", *sizes, (0, 2, 3, 1) if self.transposed else (0, 2, 1, 3))
        nodes.append(helper.make_node("MatMul", [left, right], ["products"], name="operator"))
        nodes.append(helper.make_node("Transpose", ["products"], ["joined"], perm=(0, 2, 1, 3)))
        whole = (1, self.rows, self.heads * self.columns)
        nodes.append(helper.make_node("Reshape", ["joined", named("shape", whole)], ["y"]))
        given = {"a": (1, self.rows, self.heads * self.inner), "b": (1, sizes[0], self.heads * sizes[1])}
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in given.items()]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, whole)]
        graph = helper.make_graph(nodes, "operator", inputs, outputs, shapes)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


class Operator:
    """One shape with all legal ways to run it; what was measured is kept."""

    def __init__(self, shape: Shape | Product, machine: Machine, folder: Path) -> None:
        self.shape, self.model = shape, folder / f"{str(shape).replace('/', 's').replace(' ', '_')}.onnx"
        shape.save(self.model)
        self.unit = open_source(Source(self.model, machine, DataType.float16)).unit
        self.levels = tuple(machine.contention)
        self.space: OperatorSpace = operator_space(self.unit, 0, single_block_counts(self.unit, 0))
        self.bounds = np.stack([self.space.bound(self.unit, level) for level in self.levels], 1)
        self._evaluator: Evaluator | None = None
        self._known: dict[int, NDArray[np.int64]] = {}

    def measure(self, i: int) -> NDArray[np.int64]:
        """Cycles per level of way i; a very large number where it does not fit UB."""
        if i not in self._known:
            if self._evaluator is None:
                self._evaluator = Evaluator(self.unit, self.levels, cache_bytes=1)  # no way is measured twice
            cycles = self._evaluator.cycles_alone(self.space.plan(i), 0)
            self._known[i] = np.full(len(self.levels), 1 << 60) if cycles is None else cycles
        return self._known[i]

    def rest(self) -> None:
        """Let go of what measuring needs: tens of megabytes."""
        self._evaluator = None

    def features(self, chosen: Sequence[int]) -> NDArray[np.float64]:
        return np.stack([raw_features(self.unit, self.space.plan(i), 0) for i in chosen])

    def shortlist(self) -> list[int]:
        found: list[int] = shortlist(self.unit, self.space, self.levels).tolist()
        return found


@dataclass(frozen=True)
class Optimum:
    """cycles, unproven: per level the best way, and by how much another one could be faster at most."""

    cycles: NDArray[np.int64]
    measured: int
    unproven: NDArray[np.float64]


def exhaustive(operator: Operator, cap: int) -> Optimum:
    """Best first by bound and estimate, until no bound is left below the best of any level, or `cap` were measured."""
    bounds, estimate = operator.bounds, operator.space.estimate
    expected = np.maximum(bounds, estimate[:, None])
    order = [np.lexsort((estimate, expected[:, level])) for level in range(bounds.shape[1])]
    best, left, measured = np.full(bounds.shape[1], 1 << 60), np.ones(len(bounds), np.bool_), 0
    while measured < cap:
        for level in range(len(order)):
            order[level] = order[level][left[order[level]] & (bounds[order[level], level] < best[level] * (1 - PROVEN))]
        batch = dict.fromkeys(i for rows in order for i in rows[:BATCH].tolist())
        if not batch:
            break
        for i in batch:
            best = np.minimum(best, operator.measure(i))
            left[i] = False
        measured += len(batch)
    slack = [
        max(PROVEN, 1 - float(bounds[rows[left[rows]], level].min(initial=best[level])) / best[level]) for level, rows in enumerate(order)
    ]
    return Optimum(best, measured, np.array(slack))


def shape_of(unit: Unit, spec: KernelSpec) -> Shape | Product | None:
    """The shape of a convolution or matrix product of one image; None for other operators."""
    kernel = spec.kernel
    if isinstance(spec, MatMulSpec) and isinstance(kernel, MatMul) and unit.images == 1:
        left, right = unit.graph.shapes[kernel.a][1] // spec.groups, unit.graph.shapes[kernel.b][1] // spec.groups
        columns = spec.pixels if spec.transposed else right
        return Product(spec.groups, spec.out_h * spec.out_w, left, columns, spec.transposed)
    if not isinstance(spec, ConvSpec) or not isinstance(kernel, Conv) or unit.storages[0].n > 1:
        return None
    c_out, c_in = kernel.weights.shape[:2]
    window = (kernel.weights.shape[2], kernel.weights.shape[3])
    # negative padding, rows and columns that are not read, is no padding that ONNX knows
    top, left, bottom, right = (min(0, pad) for pad in kernel.pads)
    pads = (kernel.pads[0] - top, kernel.pads[1] - left, kernel.pads[2] - bottom, kernel.pads[3] - right)
    high, wide = spec.in_h + top + bottom, spec.in_w + left + right
    return Shape(
        c_in * kernel.groups, c_out, high, wide, window, kernel.stride, kernel.dilation, pads, kernel.groups, spec.residual is not None
    )  # fmt: skip


def counted_shapes(network: str, machine: Machine) -> Counter[Shape | Product]:
    """Distinct convolutions and matrix products -> how often the network has them."""
    path, seed = resolve(Path(network), None)
    unit = make_unit(lower(load_model(path, {}, random_weights=seed)), machine, DataType.float16)
    return Counter(shape for spec in unit.kernels if (shape := shape_of(unit, spec)) is not None)


def network_shapes(networks: Sequence[str], machine: Machine) -> dict[Shape | Product, list[str]]:
    """Distinct convolutions and matrix products -> the networks that have them."""
    found: dict[Shape | Product, list[str]] = {}
    known: dict[str, Shape | Product] = {}
    for name in networks:
        path, seed = resolve(Path(name), None)
        try:
            unit = make_unit(lower(load_model(path, {}, random_weights=seed)), machine, DataType.float16)
        except UnsupportedError as error:
            print(f"{name}: left out: {error}")
            continue
        for spec in unit.kernels:
            shape = shape_of(unit, spec)
            if shape is None:
                continue
            shape = known.setdefault(spec.signature(unit.storages), shape)
            if name not in found.setdefault(shape, []):
                found[shape].append(name)
    return found


def random_shapes(rng: np.random.Generator, machine: Machine, folder: Path) -> Iterator[Operator]:
    """Convolutions and (one in four) matrix products of usual sizes, at most 0.6 GMAC, of which some way fits."""
    channels, features = (16, 24, 32, 48, 64, 72, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024), (256, 384, 512, 768, 1024, 2048, 3072)
    while True:
        if rng.random() < 0.25:
            rows = int(rng.choice([1, 1, 32, 64, 128, 197, 384]))
            shape = Shape(int(rng.choice(features)), int(rng.choice(features)), rows, 1)
        else:
            size, k = (
                int(rng.choice([7, 8, 13, 14, 17, 19, 26, 27, 28, 35, 38, 52, 55, 56, 75, 96, 112])),
                int(rng.choice([1, 1, 3, 3, 5, 7])),
            )
            s = int(rng.choice([1, 1, 1, 2])) if size > 8 else 1
            residual = k == 1 and s == 1 and bool(rng.random() < 0.2)
            c_in, c_out = int(rng.choice(channels)), int(rng.choice(channels))
            shape = Shape(c_in, c_out, size, size, (k, k), (s, s), pads=(k // 2,) * 4, residual=residual)
        if shape.c_in * shape.c_out * math.prod(shape.kernel) * math.prod(shape.out) <= 600e6:
            operator = Operator(shape, machine, folder)
            if len(operator.space.points):
                yield operator


def searched(
    operator: Operator, optimum: Optimum, out: Path, machine: str, candidates: int, seed: int, settings: Sequence[str]
) -> dict[str, Any]:
    """`tilefarm tune` on the operator: per level cycles over the optimum, and measurements until within 2 % of it."""
    run = out / "runs" / operator.model.stem
    shutil.rmtree(run, ignore_errors=True)
    tune(TuneRequest(operator.model, machine, run, candidates, None, seed, None, tuple(settings), backend="serial", quiet=True))
    log = read_log(run)
    log = log[log["status"] == "ok"].sort_values("seq")
    row: dict[str, Any] = {"search_measured": int(log["seq"].nunique())}
    for i, level in enumerate(operator.levels):
        mine = log[log["level"] == level]["cycles"].to_numpy(np.int64, na_value=1 << 60)
        best = np.minimum(optimum.cycles[i], mine.min())
        near = np.flatnonzero(mine <= best * (1 + NEAR))
        row[f"{level}_search"] = mine.min() / best
        row[f"{level}_found"] = optimum.cycles[i] / best  # above 1: the search found what the capped enumeration did not reach
        row[f"{level}_after"] = int(near[0]) + 1 if len(near) else None
    shutil.rmtree(run)
    return row


def study_search(
    out: Path, networks: Sequence[str], machine: str, cap: int, candidates: int, operators: int | None, seed: int, settings: Sequence[str]
) -> list[dict[str, Any]]:
    """A row per distinct operator of the networks, at most `operators` of them; search.csv grows row by row."""
    rows: list[dict[str, Any]] = []
    known = load_machine(machine)
    for shape, having in network_shapes(networks, known).items():
        begun = time.thread_time()
        operator = Operator(shape, known, out / "operators")
        if not len(operator.space.points):
            print(f"{shape}: no way to run it fits {known.name}")
            continue
        optimum = exhaustive(operator, cap)
        row = {"shape": str(shape), "networks": " ".join(having), "ways": len(operator.space.points), "measured": optimum.measured}
        for i, level in enumerate(operator.levels):
            row |= {f"{level}_cycles": int(optimum.cycles[i]), f"{level}_unproven": float(optimum.unproven[i])}
        operator.rest()
        found = searched(operator, optimum, out, machine, candidates, seed, settings)
        rows.append(row | found | {"cpu_s": round(time.thread_time() - begun, 1)})
        write_rows(out / "search.csv", rows)
        if len(rows) == operators:
            break
    return rows


def training_rows(
    operators: Sequence[Operator], rng: np.random.Generator, each: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], list[str]]:
    """Raw features, cycles [n, levels] and shapes of `each` ways per operator: three in four of the short list, the others anywhere."""
    raws, cycles, groups = [], [], []
    for operator in operators:
        listed = operator.shortlist()
        few = rng.permutation(listed)[: each * 3 // 4].tolist() + rng.integers(len(operator.bounds), size=each // 4).tolist()
        chosen = [i for i in dict.fromkeys(few) if operator.measure(i)[0] < 1 << 60]
        if chosen:
            raws.append(operator.features(chosen))
            cycles.append(np.stack([operator.measure(i) for i in chosen]))
            groups += [str(operator.shape)] * len(chosen)
        operator.rest()
    return np.concatenate(raws), np.concatenate(cycles), groups


def _hidden(features: NDArray[np.float32], stages: bool) -> NDArray[np.float32]:
    return features if stages else np.delete(features, STAGES, 1)


def study_models(machine: Machine, folder: Path, cap: int, trained: int, each: int, held_out: int, seed: int) -> list[dict[str, Any]]:
    """Picks without a measurement, per held-out shape: how much slower than the optimum."""
    rng = np.random.default_rng([seed, 1])
    stream = random_shapes(np.random.default_rng([seed, 2]), machine, folder)
    seen: dict[Shape | Product, Operator] = {}
    while len(seen) < trained + held_out:
        operator = next(stream)
        seen.setdefault(operator.shape, operator)
    operators = list(seen.values())
    raw, cycles, groups = training_rows(operators[:trained], rng, each)
    levels, params = tuple(machine.contention), load_config(None).model
    models: dict[bool, list[CostModel]] = {
        stages: [
            train(_hidden(scaled(raw), stages), cycles[:, at], groups, machine.share_units(level) / 65536, seed, params)
            for at, level in enumerate(levels)
        ]
        for stages in (True, False)
    }
    for stages, learned in models.items():
        shown = ", ".join(f"{level} {model.metrics.spearman:.3f}" for level, model in zip(levels, learned, strict=True))
        print(f"rank correlation on shapes that were kept back, {'with' if stages else 'without'} features of stages: {shown}")
    rows = []
    for operator in operators[trained:]:
        optimum, listed = exhaustive(operator, cap), operator.shortlist()
        features = scaled(operator.features(listed))
        row: dict[str, Any] = {"shape": str(operator.shape), "ways": len(operator.bounds), "measured": optimum.measured}
        for at, level in enumerate(levels):
            # the short list's first place at this level is the analytic estimate's own pick
            expected = np.maximum(operator.bounds[listed, at], operator.space.estimate[listed])
            picks = {
                "model": models[True][at].predict(_hidden(features, True)),
                "plain": models[False][at].predict(_hidden(features, False)),
            }
            order = {name: np.argsort(values, kind="stable") for name, values in picks.items()}
            order["estimate"] = np.lexsort((operator.space.estimate[listed], expected))
            for name, places in order.items():
                fits = (int(operator.measure(listed[i])[at]) for i in places.tolist())
                row[f"{level}_{name}"] = next(found for found in fits if found < 1 << 60) / int(optimum.cycles[at])
            row[f"{level}_unproven"] = float(optimum.unproven[at])
        operator.rest()
        rows.append(row)
    return rows


def _cells(row: dict[str, Any], level: str) -> tuple[object, ...]:
    unproven, search = f"{row[f'{level}_unproven']:.1%}", f"{row[f'{level}_search'] - 1:+.1%}"
    return row[f"{level}_cycles"], unproven, search, row[f"{level}_after"] or "never"


def show_search(rows: list[dict[str, Any]], levels: Sequence[str]) -> None:
    print_table(
        ["<operator", "ways", "measured", *(f"{level} {what}" for level in levels for what in ("best", "unproven", "search", "after"))],
        [
            [
                *(row[key] for key in ("shape", "ways", "measured")),
                *(cell for level in levels for cell in _cells(row, level)),
            ]
            for row in rows
        ],
    )
    proven = sum(row[f"{level}_unproven"] <= PROVEN for row in rows for level in levels)
    print(f"\nthe optimum is proven to {PROVEN:.1%} for {proven} of {len(rows) * len(levels)} operators and levels")
    for level in levels:
        over = np.array([row[f"{level}_search"] for row in rows]) - 1
        after = [row[f"{level}_after"] for row in rows if row[f"{level}_after"]]
        near = f"{(over <= NEAR).sum()} of {len(rows)} operators within {NEAR:.0%} of the optimum (goal: all)"
        soon = f"there after {np.median(after or [0]):.0f} measurements (median; at most {max(after, default=0)})"
        print(f"search, {level}: {near}, median {np.median(over):+.2%}, worst {over.max():+.2%}; {soon}")


def show_models(rows: list[dict[str, Any]], levels: Sequence[str]) -> None:
    print_table(
        ["<held-out shape", "ways", *(f"{level} {name}" for level in levels for name in ("estimate", "plain", "model"))],
        [
            [
                row["shape"],
                row["ways"],
                *(f"{row[f'{level}_{name}'] - 1:+.1%}" for level in levels for name in ("estimate", "plain", "model")),
            ]
            for row in rows
        ],
    )
    print()
    for level in levels:
        texts = []
        for name in ("estimate", "plain", "model"):
            over = np.array([row[f"{level}_{name}"] for row in rows]) - 1
            texts.append(f"{name} {np.median(over):+.2%} (nine in ten within {np.quantile(over, 0.9):+.1%}, worst {over.max():+.1%})")
        reached = "reached" if np.median([row[f"{level}_model"] for row in rows]) - 1 <= MODEL_NEAR else "missed"
        print(f"picked unmeasured, {level}, median over {len(rows)} shapes: {'; '.join(texts)}; goal {MODEL_NEAR:.0%}: {reached}")


def main(
    out: Annotated[Path, typer.Option(help="folder for search.csv and models.csv")],
    networks: Annotated[str, typer.Option(help="comma-separated networks")] = "light:resnet50,light:squeezenet,made:bert_base",
    machine: Annotated[str, typer.Option()] = "edge",
    cap: Annotated[int, typer.Option(help="ways of one operator that are measured at most")] = 2000,
    candidates: Annotated[int, typer.Option(help="measured programs of each search")] = 128,
    operators: Annotated[int | None, typer.Option(help="the first so many operators only")] = None,
    trained: Annotated[int, typer.Option(help="random shapes that models are trained on")] = 60,
    each: Annotated[int, typer.Option(help="measured ways of each of them")] = 48,
    held_out: Annotated[int, typer.Option(help="other random shapes")] = 50,
    seed: Annotated[int, typer.Option()] = 0,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="as in tilefarm tune")] = None,
) -> None:
    """Searched and predicted tilings against the exhaustive optimum of the legal space."""
    out = out.resolve()
    folder = out / "operators"
    folder.mkdir(parents=True, exist_ok=True)
    known = load_machine(machine)
    if operators != 0:
        rows = study_search(out, networks.split(","), machine, cap, candidates, operators, seed, settings or ())
        show_search(rows, tuple(known.contention))
    if held_out:
        rows = study_models(known, folder, cap, trained, each, held_out, seed)
        write_rows(out / "models.csv", rows)
        show_models(rows, tuple(known.contention))
    shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
