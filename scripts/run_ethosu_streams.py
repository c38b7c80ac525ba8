"""Command streams of Vela's two compilers and of ours on the executor of Ethos-U65 streams, held against LiteRT's reference kernels.

    python scripts/run_ethosu_streams.py [--compilers NAME,...] [--networks NAME,...] [--inputs N] [--json]
    python scripts/run_ethosu_streams.py [--compilers NAME,...] --operators A:B [--dtype int8] [--json]
    python scripts/run_ethosu_streams.py --fixtures FILE
    python scripts/run_ethosu_streams.py --models FILE [--add FILE.tflite]...

Eight networks, each with `--inputs` inputs; or random single operators, one for each seed from A to B, each with two inputs.
Bytes are those of one inference by the rule of `simulator/ethosu/byte_counts.py`, in brackets each operand once for each operation.
Exit code 1 where an output differs from LiteRT's for no reason that `DEVIATIONS` names.  Needs the extras `ethos-u` and `litert`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # products are small: threads cost more than they gain

import numpy as np
import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from simulator.ethosu.stream_error import StreamError  # noqa: E402
from simulator.npu.errors import UnsupportedError  # noqa: E402

COMPILERS = ("regor", "python", "tilefarm", "single")

DEVIATIONS = {
    ("FULLY_CONNECTED", "*", "int16"): "LiteRT 2.3 rounds otherwise than 1.0: some values differ by 1",
    ("TRANSPOSE_CONV stride 1", "python", "*"): "the Python core pads as for a convolution: SAME on opposite sides, VALID not at all",
    ("MEAN", "python", "*"): "the Python core drops a mean of one element, and with it the change of its scale",
    ("ABS", "regor", "int16"): "Regor divides scales in double: some values differ by 1",
    ("LOGISTIC", "*", "int16"): "no public text defines the part's sigmoid: refused",
    ("TANH", "*", "int16"): "no public text defines the part's hyperbolic tangent: refused",
}
"""Operators whose outputs differ: name, compiler, type, and why."""
FIXTURES, LARGEST_FIXTURE = 50, 6000
_SEEDS = 12
"""Of small models, of which the first of each operator is taken."""
TWO_CORES = {"DEPTHWISE_CONV_2D": 5, "CONV_2D": 11}
"""Seeds of operators that are compiled for two cores, too."""
NETWORK_FIXTURES = {"keyword_spotting": "regor", "table_activations": "python"}


class Judged(NamedTuple):
    """A model on the executor.  worst: the largest difference to LiteRT.

    state: `equal`, `former` (equal to LiteRT 1.0), `differs`, `refused`, or `left` to the processor.
    """

    state: str
    inputs: int
    worst: int
    values: int
    why: str
    seconds: float
    execution: Any


def judge(model: bytes, compiler: str, inputs: int, seed: int, accelerator: str, dense: bool = False) -> Judged:
    """Outputs of a compiled model beside LiteRT's; of a `dense` layer, beside those of LiteRT 1.0 where they are not today's."""
    from scripts.litert_reference import Reference, dense_twice_rounded

    reference, rng = Reference(model), np.random.default_rng(seed)
    stream = _stream(model, compiler, accelerator)
    if isinstance(stream, str):
        return Judged("left", 0, 0, 0, stream, 0, None)
    begin, worst, formerly, values, execution = time.perf_counter(), 0, 0, 0, None
    for _ in range(inputs):
        drawn = reference.draw(rng)
        try:
            outputs, execution = stream.run(drawn)
        except StreamError as error:
            return Judged("refused", 0, 0, 0, str(error), 0, None)
        for output, expected in zip(outputs, reference.run(drawn), strict=True):
            if output is None:  # the processor makes it
                continue
            worst = max(worst, int(np.abs(output.astype(np.int64) - expected).max()))
            values += output.size
            if dense:
                formerly = max(formerly, int(np.abs(output - dense_twice_rounded(model, drawn[0])).max()))
    seconds = (time.perf_counter() - begin) / inputs
    state = "equal" if not worst else "former" if dense and not formerly else "differs"
    return Judged(state, inputs, worst, values, "", seconds, execution)


def _stream(model: bytes, compiler: str, accelerator: str) -> Any:
    """A stream that runs; or why an operator is left to the processor, which of our networks a part may be."""
    from scripts.our_streams import PLANS, compile_ours

    if compiler in PLANS:
        try:
            return compile_ours(model, compiler)
        except UnsupportedError as error:
            return str(error)
    from scripts.vela_streams import NotWholeError, compile_model

    with tempfile.TemporaryDirectory() as folder:
        try:
            return compile_model(model, compiler, Path(folder), accelerator)
        except NotWholeError as error:
            return str(error)


def judge_networks(names: list[str], compilers: list[str], inputs: int, accelerator: str) -> list[dict[str, Any]]:
    """A row for each network and compiler."""
    from scripts.tflite_networks import NETWORKS

    rows = []
    for name in names or list(NETWORKS):
        model = NETWORKS[name]()
        for compiler in compilers:
            judged = judge(model, compiler, inputs, 0, accelerator)
            row = {"network": name, "compiler": compiler, **judged._asdict()}
            del row["execution"]
            if judged.execution:
                row |= {"macs": judged.execution.macs, "operations": dict(judged.execution.operations)}
                row["bytes"] = {f"{channel.memory}/{channel.channel}": tuple(count) for channel, count in judged.execution.bytes.items()}
            rows.append(row)
            if sys.stderr.isatty():
                print(name, compiler, judged.state, file=sys.stderr)
    return rows


def judge_operators(first: int, last: int, compilers: list[str], dtype: str, accelerator: str) -> list[dict[str, Any]]:
    """A row for each operator and compiler, with how many are equal, refused, and left to the processor."""
    from scripts.random_operators import OPERATORS, draw_operator

    names, rows = list(OPERATORS), dict[tuple[str, str], dict[str, Any]]()
    for seed in range(first, last):
        name = names[seed % len(names)]
        model = draw_operator(name, seed, dtype)
        for compiler in compilers:
            empty = {
                "operator": name,
                "compiler": compiler,
                "states": Counter(),
                "worst": 0,
                "example": "",
                "deviation": deviation(name, compiler, dtype),
            }
            row = rows.setdefault((name, compiler), empty)
            try:
                judged = judge(model, compiler, 2, seed, accelerator, name == "FULLY_CONNECTED" and dtype != "int16")
            except (RuntimeError, ValueError) as error:  # of LiteRT, which has no such operator of this type
                judged = Judged("unknown", 0, 0, 0, str(error).splitlines()[0], 0, None)
            row["states"][judged.state] += 1
            row["worst"] = max(row["worst"], judged.worst)
            if judged.state in ("former", "differs", "refused") and not row["example"]:
                row["example"] = f"seed {seed}{': ' if judged.why else ''}{judged.why}"
    return list(rows.values())


def deviation(name: str, compiler: str, dtype: str) -> str:
    """Why an operator's outputs may differ; nothing where they may not."""
    return next(
        (why for key, why in DEVIATIONS.items() if all(part in ("*", own) for part, own in zip(key, (name, compiler, dtype), strict=True))),
        "",
    )


def write_fixtures(path: Path) -> int:
    """Some small operators and two networks with their streams and LiteRT's outputs, for tests without both."""
    from scripts.random_operators import OPERATORS, draw_operator
    from scripts.tflite_networks import NETWORKS
    from scripts.vela_streams import COMPILERS, NotWholeError

    arrays, cases = dict[str, Any](), list[dict[str, Any]]()
    for name, compiler in NETWORK_FIXTURES.items():
        _add_fixture(arrays, cases, NETWORKS[name](), 1 << 20, name=name, compiler=compiler, dtype="int8")
    for name, seed in TWO_CORES.items():
        _add_fixture(
            arrays, cases, draw_operator(name, seed), 1 << 20, "ethos-u65-512", name=name, compiler="regor", dtype="int8 of two cores"
        )
    names, compilers, types = list(OPERATORS), list(COMPILERS), ("int8", "int8", "uint8", "int16")
    seed = 0
    while len(cases) < FIXTURES:
        seed += 1
        name, compiler, dtype = names[len(cases) % len(names)], compilers[seed % 2], types[seed // 2 % 4]
        if name == "LEAKY_RELU":
            dtype = "int16"  # of 8 bits it is a table
        if deviation(name, compiler, dtype):
            name = "CONV_2D"
        try:
            _add_fixture(arrays, cases, draw_operator(name, seed, dtype), LARGEST_FIXTURE, name=name, compiler=compiler, dtype=dtype)
        except (NotWholeError, RuntimeError, ValueError):  # the operator has no such type, or is not whole on the NPU
            continue
    np.savez_compressed(path, cases=np.frombuffer(json.dumps(cases).encode(), np.uint8), **arrays)
    return len(cases)


def _add_fixture(
    arrays: dict[str, Any], cases: list[dict[str, Any]], model: bytes, largest: int, accelerator: str = "ethos-u65-256", **words: str
) -> None:
    """One case, where it is no larger than `largest` bytes."""
    from scripts.litert_reference import Reference
    from scripts.vela_streams import compile_model

    reference = Reference(model)
    with tempfile.TemporaryDirectory() as folder:
        stream = compile_model(model, words["compiler"], Path(folder), accelerator)
    drawn = reference.draw(np.random.default_rng(len(cases)))
    expected = reference.run(drawn)
    number = len(cases)
    found = {f"words{number}": np.array(stream.words, np.uint32), f"constants{number}": stream.constants}
    found |= {f"input{number}_{index}": array for index, array in enumerate(drawn)}
    found |= {f"output{number}_{index}": array for index, array in enumerate(expected)}
    lively = all(len(np.unique(array)) > min(4, array.size // 10) for array in expected)
    if lively and sum(array.nbytes for array in found.values()) <= largest:
        arrays |= found
        places = {key: [place.offset for place in getattr(stream, key)] for key in ("inputs", "outputs")}
        cases.append({**words, "arena": stream.arena, "fast": stream.fast, **places})


def write_models(path: Path, added: Sequence[Path]) -> int:
    """A small file of each operator, two networks and added files with LiteRT's outputs, for tests of our streams without both packages."""
    from scripts.litert_reference import Reference
    from scripts.random_operators import OPERATORS, draw_operator
    from scripts.tflite_networks import NETWORKS

    arrays, names = dict[str, Any](), list[str]()
    drawn = [(name, seed, draw_operator(name, seed)) for seed in range(_SEEDS) for name in OPERATORS]
    whole = [*((name, 0, NETWORKS[name]()) for name in NETWORK_FIXTURES), *((file.stem, 0, file.read_bytes()) for file in added)]
    for name, seed, model in [*drawn, *whole]:
        reference = Reference(model)
        values = reference.draw(np.random.default_rng(seed))
        expected = reference.run(values)
        size = len(model) + sum(array.nbytes for array in (*values, *expected))
        lively = all(len(np.unique(array)) > min(4, array.size // 10) for array in expected)
        if name not in names and lively and (size <= LARGEST_FIXTURE or name not in OPERATORS):
            arrays[f"model{len(names)}"] = np.frombuffer(model, np.uint8)
            arrays |= {f"input{len(names)}_{index}": array for index, array in enumerate(values)}
            arrays |= {f"output{len(names)}_{index}": array for index, array in enumerate(expected)}
            names.append(name)
    np.savez_compressed(path, names=np.frombuffer(json.dumps(names).encode(), np.uint8), **arrays)
    return len(names)


def main(
    networks: Annotated[str, typer.Option(help="Names of networks, with commas between them; all eight where none is given.")] = "",
    inputs: Annotated[int, typer.Option(min=1, help="Inputs of each network.")] = 50,
    operators: Annotated[str, typer.Option(help="Seeds A:B of random single operators, in place of networks.")] = "",
    dtype: Annotated[str, typer.Option(help="Type of the operators: int8, uint8 or int16.")] = "int8",
    compilers: Annotated[
        str, typer.Option(help="Commas between: regor and python, which are Vela's; tilefarm; single, every operator by itself.")
    ] = "regor,python,tilefarm",
    accelerator: Annotated[
        str, typer.Option(help="Part that Vela compiles for: ethos-u65-256, or ethos-u65-512 with two cores.")
    ] = "ethos-u65-256",
    fixtures: Annotated[Path | None, typer.Option(help="File of fixtures to write, in place of networks.")] = None,
    models: Annotated[Path | None, typer.Option(help="File of small models with LiteRT's outputs to write, in place of networks.")] = None,
    add: Annotated[list[Path] | None, typer.Option(metavar="FILE.tflite", help="Further model of --models; repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run command streams on the executor of Ethos-U65 streams, and compare outputs with LiteRT's."""
    chosen = compilers.split(",")
    if unknown := [name for name in chosen if name not in COMPILERS]:
        raise typer.BadParameter(f"--compilers {unknown[0]}: expected {', '.join(COMPILERS)}")
    needs_vela = bool(fixtures) or bool({"regor", "python"} & {*chosen})
    missing = [name for name in (*(["ethosu"] if needs_vela else []), "ai_edge_litert") if importlib.util.find_spec(name) is None]
    if missing:
        raise typer.BadParameter(
            f"no package {' and '.join(missing)}: expected the extras ethos-u and litert, as of pip install -e '.[ethos-u,litert]'"
        )
    if fixtures:
        print(f"{write_fixtures(fixtures)} operators in {fixtures}")
        return
    if models:
        print(f"{write_models(models, add or [])} models in {models}")
        return
    if operators:
        first, last = _seeds(operators)
        rows = judge_operators(first, last, chosen, dtype, accelerator)
        failed = any((row["states"]["differs"] or row["states"]["refused"]) and not row["deviation"] for row in rows)
    else:
        from scripts.tflite_networks import NETWORKS

        names = [name for name in networks.split(",") if name]
        if unknown := [name for name in names if name not in NETWORKS]:
            raise typer.BadParameter(f"--networks {unknown[0]}: expected {', '.join(NETWORKS)}")
        rows = judge_networks(names, chosen, inputs, accelerator)
        failed = any(row["state"] != "equal" for row in rows)
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        print("\n".join((operator_lines if operators else network_lines)(rows)))
    raise typer.Exit(failed)


def _seeds(text: str) -> tuple[int, int]:
    words = text.split(":")
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise typer.BadParameter(f"--operators {text}: expected seeds A:B, as 0:2000")
    return int(words[0]), int(words[1])


def network_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The table of networks: exactness, then kilobytes by memory and channel."""
    lines = [
        f"{'network':20}{'compiler':10}{'state':9}{'inputs':>7}{'values':>10}{'MMACs':>8}{'s/input':>9}   kilobytes by the rule (once)"
    ]
    for row in rows:
        totals = Counter[str]()
        for key, (count, once) in row.get("bytes", {}).items():
            memory = key.split("/")[0]
            totals[memory], totals[f"{memory} once"] = totals[memory] + count, totals[f"{memory} once"] + once
        moved = ", ".join(f"{memory} {totals[memory] / 1e3:,.0f} ({totals[f'{memory} once'] / 1e3:,.0f})" for memory in ("dram", "sram"))
        lines.append(
            f"{row['network']:20}{row['compiler']:10}{row['state']:9}{row['inputs']:7}{row['values']:10}{row.get('macs', 0) / 1e6:8.1f}"
            f"{row['seconds']:9.2f}   {moved}{row['why']}"
        )
    return lines


def operator_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The table of operators."""
    states = ("equal", "former", "differs", "refused", "left", "unknown")
    lines = [f"{'operator':30}{'compiler':10}" + "".join(f"{state:>9}" for state in states) + "    worst"]
    for row in rows:
        counts = "".join(f"{row['states'][state]:9}" for state in states)
        why = f"  {row['deviation']}" if row["example"] else ""
        lines.append(f"{row['operator']:30}{row['compiler']:10}{counts}{row['worst']:9}{why} {row['example']}".rstrip())
    total = Counter[str]()
    for row in rows:
        total.update(row["states"])
    return [*lines, ", ".join(f"{total[state]} {state}" for state in states if total[state])]


if __name__ == "__main__":
    typer.run(main)
