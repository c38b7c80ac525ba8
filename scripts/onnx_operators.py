"""onnx's backend tests on the simulated NPU: a table of operators with their outcome: passed, copied, skipped with the reason, failed.

python scripts/onnx_operators.py --out operators.csv --page docs/operators.md
"""

from __future__ import annotations

import csv
import re
import textwrap
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import onnx
import typer
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner, _normalize_tensor

from compiler.ir.im2col import MAX_COLUMNS, MAX_PADDED_STRIDE, MAX_PIXELS
from simulator.npu import isa
from simulator.npu.errors import TilefarmError
from simulator.npu.isa import Op
from simulator.npu.parts import Engine
from tuner.cli.text import print_table
from tuner.onnx_backend import NpuRep, prepare

Status = Literal["passed", "partly", "copied", "skipped", "failed"]
STATUSES: tuple[Status, ...] = ("passed", "partly", "copied", "skipped", "failed")
LEAST_PASSES, LEAST_PARTLY = 600, 140
MOST_REASONS = 3  # of an operator, on the page
_INTRODUCTION = """
These are onnx's own backend tests, each compiled layer by layer for `edge` in float32 and run on the simulated NPU.
A test of several operators stands with the most frequent one.
Attributes and types decide, so many operators have tests of several kinds; types are those of the first input and output of what runs.
Floats are computed in float32, integers of 8 bits as they are; scales and zero points that are inputs are taken from the first run.


* *passed*: all of it on the NPU, with products or vector work
* *partly*: the same with nodes of the host around it
* *copies*: right, and nothing but copies
* *skipped*: nothing of it can run on the NPU, or the test's model is refused
* *failed*: another result than onnx's
"""
_LIMITS = (
    "Sizes that an instruction's fields do not hold, where the memories hold what they need:",
    "a convolution's kernel and dilations: of any size, as several instructions for a tile; padding below and to the right as well",
    f"its padding above: of any size; beyond {isa.MAX_WINDOW} rows with strides beyond {MAX_PADDED_STRIDE}, "
    "a copy of the image in padded rows",
    f"its padding on the left: of any size; beyond {isa.MAX_WINDOW} columns, a copy of the image in padded columns",
    f"its strides: up to {isa.MAX_WINDOW}; of any size along one axis where image and kernel have nothing but that one (a signal's samples "
    f"become rows as long as the stride), and where {isa.MAX_WINDOW} gives one result; any other convolution stays with the host",
    f"its result: up to {MAX_COLUMNS:,} columns and {MAX_PIXELS:,} pixels; a larger one stays with the host",
    "windows of poolings, their strides and padding: of any size",
)
# not run, and why
_ALIGN = "onnxruntime, too, divides by the output's rounded size; the reference by the exact one"
LEFT_OUT = {
    "test_mish_expanded": "log(1 + exp(x)) in steps of float32 loses x below -7 (test_mish, whose steps are our own, passes)",
    "test_resize_downsample_scales_linear_align_corners": _ALIGN,
    "test_resize_downsample_scales_cubic_align_corners": _ALIGN,
}


class Result(NamedTuple):
    """passed: all of it on the NPU, with at least one CUBE or VECTOR instruction; copied: the same, and nothing but copies.

    partly: some of it on the host, between pieces with at least one such instruction.
    types: of the first input, and of the first output where that is another.
    """

    kind: str
    test: str
    operator: str
    types: str
    status: Status
    why: str


class Test(NamedTuple):
    kind: str
    name: str
    case: Any


def suite(real: bool) -> Iterator[Test]:
    """All tests of the onnx package; real: also the light networks, which are listed and skipped."""
    kinds = ("node", "simple", "pytorch-converted", "pytorch-operator") + (("real",) if real else ())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in kinds:
            for case in load_model_tests(kind=kind):
                yield Test(kind, case.name, case)


def run_suite(tests: Iterable[Test]) -> list[Result]:
    """Run every test; the result has the reason if it is skipped or failed."""
    return [_run(test) for test in tests]


def _run(test: Test) -> Result:
    if test.kind == "real":
        reason = "its weights are constants (see scripts/verify_networks.py, which draws them)"
        return Result(test.kind, test.name, "network", "float32", "skipped", reason)
    model, sets = _data(test.case)
    result = partial(Result, test.kind, test.name, _operator(model), _types(model))
    if test.name in LEFT_OUT:
        return result("skipped", LEFT_OUT[test.name])
    try:
        rep = prepare(model)
        for inputs, references in sets:
            outputs = rep.run([_normalize_tensor(item) for item in inputs])
            Runner.assert_similar_outputs([_normalize_tensor(item) for item in references], list(outputs), test.case.rtol, test.case.atol)
    except TilefarmError as error:
        return result("skipped", str(error))
    except AssertionError as error:
        return result("failed", " ".join(str(error).split())[:300])
    on_npu, computes = rep.session.host is None, _computes(rep)
    if not on_npu and not computes:
        return result("skipped", "what of it can run on the NPU is nothing but copies")
    return result("partly" if not on_npu else "passed" if computes else "copied", "")


def _operator(model: onnx.ModelProto) -> str:
    """Most frequent operator of a test's model."""
    operators = Counter(node.op_type for node in model.graph.node if node.op_type != "Constant")
    return operators.most_common(1)[0][0] if operators else "Constant"


def _types(model: onnx.ModelProto) -> str:
    constants = {item.name for item in model.graph.initializer}
    ports = [item for item in model.graph.input if item.name not in constants][:1] + list(model.graph.output)[:1]
    names = [onnx.TensorProto.DataType.Name(item.type.tensor_type.elem_type).lower() for item in ports if item.type.HasField("tensor_type")]
    return " to ".join(dict.fromkeys("float32" if name == "float" else name for name in names))


def _data(case: Any) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    if case.model is not None:
        return case.model, case.data_sets
    folder = Path(case.model_dir)
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        pairs = []
        for kind in ("input", "output"):
            files = sorted(data.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.rpartition("_")[2]))
            pairs.append([numpy_helper.to_array(onnx.load_tensor(str(path))) for path in files])
        sets.append((pairs[0], pairs[1]))
    return onnx.load(str(folder / "model.onnx")), sets


def _computes(rep: NpuRep) -> bool:
    compiled = rep.session.compiled
    code = np.concatenate([stream for program in compiled.programs(compiled.levels[0]) for stream in program.streams])
    work = np.isin(code[:, isa.ENGINE], (Engine.CUBE, Engine.VECTOR)) & (code[:, isa.OP] > Op.WAIT)
    return bool(work.any())


def group_by_operator(results: Iterable[Result]) -> Iterator[tuple[str, list[str], Counter[Status], list[str]]]:
    """Operators in order, each with the types that the NPU has it in, its counts and its reasons, the most frequent ones first."""
    results_by_operator: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        results_by_operator[result.operator].append(result)
    for name, operator_results in sorted(results_by_operator.items()):
        reasons = Counter(_reason(result.why) for result in operator_results if result.status in ("skipped", "failed"))
        types = Counter(result.types for result in operator_results if result.status in ("passed", "partly", "copied"))
        counts = Counter(result.status for result in operator_results)
        yield name, [kind for kind, _ in types.most_common()], counts, [reason for reason, _ in reasons.most_common()]


def _reason(text: str) -> str:
    """Reason without names of nodes and tensors, which differ between tests, and without the list of supported operators."""
    short = text.removeprefix("nothing of it can run on the NPU: ").partition("; supported are")[0]
    return re.sub(r"^\w+ '[^']*': ", "", short)


def page(results: Sequence[Result]) -> str:
    """Text of docs/operators.md."""
    total = Counter(result.status for result in results)
    lines = [
        "# Operators",
        *_INTRODUCTION.rstrip().split("\n"),
        "",
        f"onnx {onnx.__version__}: {len(results):,} tests, {total['passed']} passed, {total['partly']} partly, {total['copied']} copies, "
        f"{total['skipped']:,} skipped, {total['failed']} failed.",
        "",
        "```console",
        "$ python scripts/onnx_operators.py --page docs/operators.md",
        "```",
        "",
        _LIMITS[0],
        "",
        *(line for limit in _LIMITS[1:] for line in textwrap.wrap(f"* {limit}", 140, subsequent_indent="  ")),
        "",
        "| operator | types on the NPU | passed | partly | copies | skipped | failed | why it is skipped, most frequent first |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, types, count, reasons in group_by_operator(results):
        reason_text = "; ".join(_cell(reason) for reason in reasons[:MOST_REASONS])
        cells = (count[status] or "" for status in STATUSES)
        lines.append(f"| {name} | {', '.join(types)} | {' | '.join(map(str, cells))} | {reason_text} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Plain text as a table's cell."""
    short = text if len(text) <= 160 else text[:157] + "..."
    return re.sub(r"([|*_<>`\[\]])", r"\\\1", short)


def main(
    out: Annotated[Path | None, typer.Option(metavar="F.csv", help="Write a line per test there.")] = None,
    page_file: Annotated[Path | None, typer.Option("--page", metavar="F.md", help="Write the table there as a page.")] = None,
    operator: Annotated[str | None, typer.Option(metavar="OP", help="Only tests of one operator, test by test.")] = None,
) -> None:
    """Run onnx's backend tests on the simulated NPU, and print counts of outcomes by operator, with reasons.  Exit code 1 if a result
    differs from onnx's.
    """
    tests = suite(real=operator is None)
    results = run_suite(tests if operator is None else (test for test in tests if _operator(_data(test.case)[0]) == operator))
    if out is not None:
        with out.open("w", newline="") as sink:
            writer = csv.writer(sink)
            writer.writerow(Result._fields)
            writer.writerows(results)
    if operator is not None:
        print_table(("<test", "<status", "<why"), [(r.test, r.status, r.why) for r in results])
        return
    if page_file is not None:
        page_file.write_text(page(results), encoding="utf-8")
    rows = [
        (name, ", ".join(types), *(count[s] for s in STATUSES), reasons[0][:90] if reasons else "")
        for name, types, count, reasons in group_by_operator(results)
    ]
    print_table(("<operator", "<types", "passed", "partly", "copies", "skipped", "failed", "<most frequent reason"), rows)
    total = Counter(result.status for result in results)
    print(f"{len(results):,} tests: {total['passed']} passed with products or vector work, {total['partly']} with nodes on the host, "
          f"{total['copied']} by copies alone, {total['skipped']} skipped, {total['failed']} failed")  # fmt: skip
    if total["failed"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
