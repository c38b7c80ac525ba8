"""What a block holds and in what operands of products lie is asked of a machine and a data type; nobody else knows the numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from simulator.npu import isa
from simulator.npu.machine_file import load_machine, preset_names
from simulator.npu.parts import BLOCK_BYTES, DataType

ROOT = Path(__file__).resolve().parents[3]
OTHER_PART = {ROOT / "simulator" / "ethosu", ROOT / "compiler" / "ethosu"}  # a part of its own, whose numbers are those of its registers
PACKAGES = ("compiler", "simulator", "tuner")
KNOWS = "simulator/npu/"
"""Where they are facts."""
CHANNELS = "tuner/zoo/builders/"
"""Networks with the channels and images of their papers."""

SIZES = {15, 16, 31, 32}  # of a block and of a product, and what rounds up to them or masks
SHIFTS = {4, 5}
HASHES = {"digest_size", "maxsize"}  # arguments that count bytes of a hash and entries of a cache
ONE_TYPE = {"target_graph", "layout", "memory"}  # what has a data type that it was asked for; tensors have their own

OTHERS = {
    ("compiler/ops/quantised_avg_pool.py", "_MIN_CHUNK_PIXELS"): "pixels that are added at a time",
    ("compiler/ops/depthwise_emitter.py", "_tiles"): "records to spare",
    ("compiler/ops/pool_emitter.py", "_ROOM"): "records",
    ("compiler/autoplan.py", "_LONGEST_BEGINNING"): "operators of a segment",
    ("compiler/segment/channel_splits.py", "_MAX_DISTANCE"): "operators",
    ("compiler/planner/split_rules.py", "_MOST_ROWS"): "blocks of a segment that are looked at",
    ("compiler/target/weights.py", "_BIAS"): "of float16's exponents",
    ("compiler/target/weights.py", "_round"): "bits of float16",
    ("tuner/search/bootstrap.py", "_ROUNDS"): "rounds of a search",
    ("tuner/search/population.py", "MEMBERS"): "programs",
    ("tuner/farm/store_client.py", "Scopes.__init__"): "hex digits",
    ("tuner/farm/store_client.py", "StoreClient._send"): "a part of what waits",
    ("tuner/measure/store_lookup.py", "Memo.find"): "hex digits",
    ("tuner/report/search_figures.py", "proposer_gains"): "pixels of a bar",
    ("tuner/platform/ray_files.py", "provide_token"): "bytes of a token",
    ("tuner/store/packs.py", "_SCHEMA"): "bytes of a digest",
    ("tuner/store/packs.py", "encoded_pack"): "bytes of a digest",
    ("tuner/store/packs.py", "keys"): "bytes of a digest",
    ("compiler/cost/ranking.py", "_CHUNKS_N1"): "n1 that are looked at",
    ("compiler/cost/tiling_space.py", "_SMALL"): "tile sizes that are looked at, and parts",
    ("compiler/frontend/handlers/activations.py", "_LARGEST_POWER"): "an exponent",
    ("compiler/frontend/onnx_io/random_weights.py", "_NODES"): "nodes of a quadrature",
    ("compiler/space/gene.py", "BLOCK_COUNTS"): "block counts that a gene names",
    ("compiler/ops/affine_to_matmul.py", "_CANDIDATES"): "candidates in a channel",
    ("compiler/schedule/list_scheduler.py", "order_records"): "reads that there is room for",
    ("compiler/planner/split_rules.py", "_MOST_INPUTS"): "input passes",
    ("compiler/target/capabilities.py", "MAX_SLOTS"): "slots of a memory",
    ("compiler/schedule/incremental_checkpoint.py", "BORDERS"): "borders of a program",
    ("simulator/hazards.py", "_LOOK_BACK"): "findings",
    ("simulator/timing_state.py", "LAG"): "a column of its table",
    ("simulator/timing_state.py", "ISSUE_CYCLES"): "columns of its table",
    ("simulator/trace.py", "_spans"): "a number of the trace's own",
    ("simulator/trace_file.py", "_GZIP_WBITS"): "zlib's flag of a gzip file",
    ("tuner/calibrate/classes.py", "GRANULES"): "bytes that a granule may have",
    ("tuner/calibrate/probes.py", "_AT_LEAST"): "repeats",
    ("tuner/calibrate/probes.py", "repeat_body"): "repeats",
    ("tuner/calibrate/probes_ddr.py", "transfer_probes"): "blocks of a burst",
    ("tuner/calibrate/probes_engines.py", "_FEW"): "repeats",
    ("tuner/calibrate/probes_engines.py", "_shapes"): "products that are timed",
    ("tuner/calibrate/probes_engines.py", "issue_probes"): "records",
    ("tuner/calibrate/probes_flags.py", "_BLOCKS"): "blocks of a burst",
    ("tuner/calibrate/probes_paths.py", "_SHORT"): "blocks of a move",
    ("tuner/calibrate/probes_paths.py", "path_probes"): "moves that are timed",
    ("tuner/calibrate/programs.py", "encode_program"): "digits of a digest",
    ("tuner/calibrate/programs.py", "fixpipe"): "rows of a move that is timed",
    ("tuner/calibrate/programs.py", "im2col"): "rows of a move that is timed",
    ("compiler/ir/quantised/fixed_point.py", "_BITS"): "bits of a multiplier",
    ("compiler/frontend/tflite/flatbuffer.py", "_ALIGN"): "bytes to which an array is aligned",
    ("compiler/frontend/tflite/file_schema.py", "CUSTOM"): "the number of an operator in a file",
    ("compiler/frontend/tflite/file_schema.py", "KINDS"): "numbers of operators in a file",
    ("tuner/cli/export_plans.py", "DIGEST_DIGITS"): "digits",
    ("tuner/testing/samples.py", "WIDTHS"): "channels of a model",
    ("tuner/config.py", "ModelSettings.max_depth"): "the depth of a tree",
    ("tuner/farm/supervision.py", "LOST_MAX"): "actors",
    ("tuner/cost_model/metrics.py", "REGRET_AT"): "ranks in a printout",
    ("tuner/selection/race.py", "FIRST_LOOK"): "rounds",
    ("tuner/measure/simulator_runner.py", "SimulatedBoard.__call__"): "bytes of a seed",
    ("tuner/search/placement.py", "_STEPS"): "steps of a search",
}
"""(module, name that it stands in) -> what the number is."""

WHOLE = {
    ("compiler/build.py", "check_plan"): "a plan says for which it was made",
    ("compiler/space/decode.py", "plan_of"): "a plan says for which it was made",
    ("compiler/space/structural_hash.py", "Structures._structure"): "structures are of a machine and what was asked for",
    ("compiler/dump/segments.py", "segment_lines"): "the line that says what is shown",
    ("compiler/dump/target_graph.py", "_storage"): "says where a tensor has another",
    ("compiler/dump/target_graph.py", "unit_lines"): "the line that says what is shown",
    ("simulator/bundle/memory.py", "build_container"): "a bundle has one memory map, as its container has",
    ("tuner/cost_model/interface.py", "conditions_of"): "a model is asked for what a unit computes in",
    ("tuner/search/expected_improvement.py", "_predict_proposals"): "the estimate is asked for what a unit computes in",
}
"""(module, name) -> why it asks a unit for its one data type."""


def modules() -> dict[str, str]:
    found = {
        path.relative_to(ROOT).as_posix(): path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if OTHER_PART.isdisjoint(path.parents)
    }
    return {name: path.read_text() for name, path in found.items() if not name.startswith((KNOWS, CHANNELS))}


def named(body: Sequence[ast.stmt], of: str = "") -> Iterator[tuple[str, ast.AST]]:
    """(name, node): every node of a module, with the function, method or constant that it stands in."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from named(statement.body, f"{of}{statement.name}.")
            continue
        if isinstance(statement, ast.FunctionDef):
            yield from ((of + statement.name, node) for node in ast.walk(statement))
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)] if target is not None else []
        yield from ((of + names[0] if names else of, node) for node in ast.walk(statement))


def exempt(tree: ast.Module) -> set[ast.AST]:
    """Numbers that their form says are something else: exponents of two, a base, digits of a hash, entries of a cache."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant):
            one = node.left.value == 1 and isinstance(node.op, ast.LShift)
            found |= {node.right} if one or (node.left.value == 2 and isinstance(node.op, ast.Pow)) else set()
        elif isinstance(node, ast.Call):
            found |= {keyword.value for keyword in node.keywords if keyword.arg in HASHES}
            if isinstance(node.func, ast.Name) and node.func.id == "int":
                found |= set(node.args[1:])
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr in ("hex", "hexdigest") and node.slice.upper is not None:
                found.add(node.slice.upper)
    return found


def sizes(source: str) -> Iterator[tuple[str, int]]:
    """(name, number) that may be the size of a block or of a product."""
    tree = ast.parse(source)
    out = exempt(tree)
    for name, node in named(tree.body):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in SIZES and node not in out:
            yield name, node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift | ast.RShift) and node.right not in out:
            yield from ((name, by) for by in SHIFTS if isinstance(node.right, ast.Constant) and node.right.value == by)


def whole_types(source: str) -> Iterator[str]:
    """Names that ask a unit, a layout or a memory map for the data type of all of it."""
    for name, node in named(ast.parse(source).body):
        if isinstance(node, ast.Attribute) and node.attr == "dtype" and isinstance(node.ctx, ast.Load):
            of = node.value
            if (of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else "") in ONE_TYPE:
                yield name


def test_modules_ask_for_sizes() -> None:
    found = {(module, name): number for module, source in modules().items() for name, number in sizes(source)}
    unknown = {at: number for at, number in found.items() if at not in OTHERS}
    assert not unknown, f"numbers that may be a block's or a product's; ask `DataType` or `Machine.fractal`, or say in OTHERS: {unknown}"


def test_modules_ask_for_the_types_of_tensors() -> None:
    found = {(module, name) for module, source in modules().items() for name in whole_types(source)}
    assert not found - WHOLE.keys(), f"ask `type_of` a tensor: {sorted(found - WHOLE.keys())}"


def test_what_is_excepted_is_there() -> None:
    sources = modules()
    for module, name in OTHERS:
        assert name in {name for name, _ in sizes(sources[module])}, f"{module} does without it in {name} now"
    for module, name in WHOLE:
        assert name in whole_types(sources[module]), f"{module} does without it in {name} now"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(m):\n    return (m + 15) // 16 * 16", [("f", 15), ("f", 16), ("f", 16)]),
        ("A, B = n * 32, x & 31", [("A", 31), ("A", 32)]),
        ("class C:\n    def f(self):\n        return self.n << 4 | self.m >> 5", [("C.f", 4), ("C.f", 5)]),
        ("LIMIT = 1 << 16", []),
        ("LIMIT = 2**31", []),
        ("@lru_cache(maxsize=16)\ndef f():\n    return int(text, 16), sha256(data).hexdigest()[:32]", []),
        ("x = hashed[:16]", [("x", 16)]),
    ],
)
def test_it_sees_sizes(source: str, found: list[tuple[str, int]]) -> None:
    assert sorted(sizes(source)) == sorted(found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(target_graph):\n    return target_graph.dtype.lanes", ["f"]),
        ("def f(kind):\n    return int(kind.target_graph.dtype)", ["f"]),
        ("def f(container):\n    return container.memory.dtype", ["f"]),
        ("def f(target_graph, spec, array):\n    return target_graph.type_of(spec.y), array.dtype", []),
    ],
)
def test_it_sees_types(source: str, found: list[str]) -> None:
    assert [*whole_types(source)] == found


@pytest.mark.parametrize("dtype", DataType)
@pytest.mark.parametrize("preset", preset_names())
def test_a_fractal_in_blocks(preset: str, dtype: DataType) -> None:
    """A fractal in blocks is that in elements; what kernels close over is that of every data type."""
    fractal = load_machine(preset).fractal(dtype)
    assert fractal.lanes == dtype.lanes == BLOCK_BYTES // dtype.size_bytes
    assert fractal.weight_blocks * BLOCK_BYTES == fractal.lanes * fractal.columns * dtype.size_bytes
    assert fractal.sum_blocks * BLOCK_BYTES == fractal.columns * DataType.float32.size_bytes
    assert (isa.TYPE_LANES[dtype], isa.COLUMNS[dtype]) == (fractal.lanes, fractal.columns)
    assert (isa.WEIGHT_BLOCKS[dtype], isa.SUM_BLOCKS[dtype]) == (fractal.weight_blocks, fractal.sum_blocks)
