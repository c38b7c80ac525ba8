"""Schedule of an operator as text, in the vocabulary of schedule languages (TVM, Halide), and the parser back to a tiling.

| line                               | says                                                                                     |
|------------------------------------|------------------------------------------------------------------------------------------|
| `loops(g=1, m=3136, n=4, k=36)`     | extents: groups, pixels, 16 output channels, blocks of C0 along k; or planes, rows, columns |
| `x.L0A = cache_read(x.L1, L0A)`     | the reader takes x from a tile in L0A, which is read from its tile in L1                  |
| `y.UB = cache_write(y, UB)`         | results are made in a tile in UB and moved to y from there                               |
| `set_scope(x, L1)`                 | x lies in L1 for the whole block: the segment keeps it on chip                           |
| `m.outer, m.inner = split(m, 512)`  | a loop cut into pieces of 512; the last piece may be smaller                              |
| `reorder(g, m.outer, n.outer, ...)` | the loops, outermost first                                                               |
| `compute_at(x.L0A, k.outer)`        | a tile is made in that loop; `block`: once per block, `segment`: once for all of them     |
| `double_buffer(x.L0A)`              | two tiles are live: one is used while the other is filled or drained                     |

`#` begins a comment; blank lines are ignored.  `parse` takes the text of one operator, with lines in the order of `to_text`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pydantic import ValidationError

from compiler.ops.conv import ConvSpec
from compiler.plan.plan import ConvTiling, Infeasible, Plan, SegmentPlan, Tiling, VectorTiling
from compiler.segment.dataflow import nest_of, stages_of, tile_loop
from compiler.segment.segment import Segment
from compiler.target.loop_nest import Nest
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import BadInputError, InfeasibleError
from simulator.npu.machine import Machine
from simulator.npu.parts import Memory
from simulator.npu.validation import validation_line

_STATEMENT = re.compile(r"(?:(?P<to>[\w.]+(?:, [\w.]+)*) = )?(?P<name>[a-z_]+)\((?P<words>[\w.=]+(?:, [\w.=]+)*)\)")
_CONSTANT = re.compile(r"(?:bias|scale\d*|shift\d*|mask)\.(?:UB|L1)")
_AXES = {"CUBE": ("g", "m", "n", "k"), "VECTOR": ("p", "h", "w")}


class _Line(NamedTuple):
    """Statement `to = name(words)`.  number: its line."""

    name: str
    words: tuple[str, ...]
    to: tuple[str, ...] = ()
    number: int = 0

    def __str__(self) -> str:
        assigned = f"{', '.join(self.to)} = " if self.to else ""
        return f"{assigned}{self.name}({', '.join(self.words)})"


def to_text(machine: Machine, nest: Nest, tiling: Tiling) -> str:
    """Schedule of one operator as text.  `parse` restores the tiling, except chunks of resident weights, which have no effect."""
    loops = _Line("loops", tuple(f"{axis}={extent}" for axis, extent in nest.loops.items()))
    return "".join(f"{line}\n" for line in _lines(loops, [*_declared(machine, nest)], nest.loops, tiling))


def parse(text: str, where: str = "schedule") -> Tiling:
    """Tiling of a text.  Raises `BadInputError` with the line, its content and the accepted contents."""
    given = list(_statements(text, where))
    if not given or given[0].name != "loops":
        raise BadInputError(f"{where}: expected loops(...) first")
    extents = _extents(given[0], where)
    declared = [line for line in given if line.name in ("cache_read", "cache_write", "set_scope")]
    tiling = _tiling(given, extents, where)
    expected = list(_lines(given[0], declared, extents, tiling))
    for given_line, wanted in zip(given, expected, strict=False):
        if str(given_line) != str(wanted):
            raise BadInputError(f"{where}, line {given_line.number}: {str(given_line)!r}; expected {str(wanted)!r}")
    if len(given) != len(expected):
        surplus = given[len(expected)] if len(given) > len(expected) else None
        fault = f"line {surplus.number}: {str(surplus)!r} is one too many" if surplus else f"ends before {str(expected[len(given)])!r}"
        raise BadInputError(f"{where}, {fault}" if surplus else f"{where}: {fault}")
    return tiling


def _declared(machine: Machine, nest: Nest) -> Iterator[_Line]:
    """Declarations: the memory of each operand, read or written."""
    for operand in (*nest.reads, nest.write):
        if operand.lies == Memory.L1:
            yield _Line("set_scope", (operand.tensor, "L1"))
    stages = stages_of(machine, nest)
    for stage in stages:
        if stage.tensor != nest.write.tensor:
            yield _Line("cache_read", (stage.of, stage.buffer.name), (stage.name,))
    result = nest.write.tensor
    buffers = dict.fromkeys(stage.buffer for stage in stages if stage.tensor == result and stage.buffer != nest.write.lies)
    of = result
    for buffer in reversed(buffers):
        yield _Line("cache_write", (of, buffer.name), (f"{result}.{buffer.name}",))
        of = f"{result}.{buffer.name}"


def _lines(loops: _Line, declared: Iterable[_Line], extents: dict[str, int], tiling: Tiling) -> Iterator[_Line]:
    """All lines of an operator.  declared: its stages."""
    yield loops
    stages: list[str] = []
    for line in declared:
        yield line
        stages += line.to
    yield from _order(tiling)
    places = {}
    for name in stages:
        tensor, _, buffer = name.partition(".")
        places[name] = tile_loop(tensor, buffer, tiling, extents)
    for name, (axis, _) in places.items():
        yield _Line("compute_at", (name, axis))
    for name, (_, double) in places.items():
        if double:
            yield _Line("double_buffer", (name,))


def _split(made: str, loop: str, size: int) -> _Line:
    outer, _, inner = made.partition(" ")
    return _Line("split", (loop, str(size)), (outer, inner))


def _order(t: Tiling) -> Iterator[_Line]:
    """Splits and the order of the loops."""
    if not isinstance(t, ConvTiling):
        yield _split("p.outer p.inner", "p", t.tile_planes)
        yield _split("h.outer h.inner", "h", t.tile_rows)
        if t.tile_columns:
            yield _split("w.outer w.inner", "w", t.tile_columns)
            yield _Line("reorder", ("p.outer", "h.outer", "w.outer", "p.inner", "h.inner", "w.inner"))
        else:
            yield _Line("reorder", ("p.outer", "h.outer", "p.inner", "h.inner", "w"))
        return
    streamed = t.weights == "streamed"
    if streamed:
        yield _split("n.chunk n.rest", "n", t.chunk_n1)
        yield _split("k.chunk k.rest", "k", t.chunk_k1)
    yield _split("m.outer m.inner", "m", t.tile_m)
    yield _split("n.outer n.inner", "n.rest" if streamed else "n", t.tile_n1)
    yield _split("k.outer k.inner", "k.rest" if streamed else "k", t.tile_k1)
    tiles = ("m.outer", "n.outer") if t.order == "m" else ("n.outer", "m.outer")
    chunks = ("n.chunk", "k.chunk") if streamed else ()
    yield _Line("reorder", ("g", *chunks, *tiles, "k.outer", "m.inner", "n.inner", "k.inner"))


def _statements(text: str, where: str) -> Iterator[_Line]:
    for number, raw in enumerate(text.splitlines(), 1):
        line = " ".join(raw.partition("#")[0].split())
        if not line:
            continue
        match = _STATEMENT.fullmatch(line)
        if match is None:
            raise BadInputError(f"{where}, line {number}: {line[:80]!r} is no statement; expected e.g. m.outer, m.inner = split(m, 512)")
        assigned = match["to"]
        yield _Line(match["name"], tuple(match["words"].split(", ")), tuple(assigned.split(", ")) if assigned else (), number)


def _extents(line: _Line, where: str) -> dict[str, int]:
    extents: dict[str, int] = {}
    for word in line.words:
        axis, _, size = word.partition("=")
        if not size.isdecimal():
            raise BadInputError(f"{where}, line {line.number}: {word!r}; expected a loop and its extent, e.g. m=3136")
        extents[axis] = int(size)
    if tuple(extents) not in _AXES.values():
        accepted = " or ".join(", ".join(axes) for axes in _AXES.values())
        raise BadInputError(f"{where}, line {line.number}: loops {', '.join(extents)}; expected {accepted}")
    return extents


def _tiling(lines: list[_Line], extents: dict[str, int], where: str) -> Tiling:
    """Tiling by the splits, the order and the place of the weights, whether or not the other lines agree with it."""
    sizes: dict[str, int] = {}
    for line in lines:
        if line.name == "split" and len(line.words) == 2 and line.to:
            if not line.words[1].isdecimal():
                raise BadInputError(f"{where}, line {line.number}: split of {line.words[0]} by {line.words[1]!r}; expected a number")
            sizes[line.to[0]] = int(line.words[1])

    def size(loop: str) -> int:
        if loop not in sizes:
            axis, _, kind = loop.partition(".")
            raise BadInputError(
                f"{where}: {axis} is not split; expected {loop}, {axis}.{'rest' if kind == 'chunk' else 'inner'} = split(...)"
            )
        return sizes[loop]

    # a constant that is computed at an inner loop is read again for each tile
    in_pieces = any(line.name == "compute_at" and _CONSTANT.fullmatch(line.words[0]) and line.words[-1] != "segment" for line in lines)
    constants = "streamed" if in_pieces else "resident"
    try:
        if "p" in extents:
            rows, columns = size("h.outer"), sizes.get("w.outer", 0)
            return VectorTiling(tile_planes=size("p.outer"), tile_rows=rows, tile_columns=columns, constants=constants)
        order = next((line.words for line in lines if line.name == "reorder"), ())
        resident = any(line.name == "compute_at" and line.words == ("w.L1", "segment") for line in lines)
        n_outer = "n.outer" in order and "m.outer" in order and order.index("n.outer") < order.index("m.outer")
        return ConvTiling(
            weights="resident" if resident else "streamed",
            chunk_n1=extents["n"] if resident else size("n.chunk"),
            chunk_k1=extents["k"] if resident else size("k.chunk"),
            tile_m=size("m.outer"),
            tile_n1=size("n.outer"),
            tile_k1=size("k.outer"),
            order="n" if n_outer else "m",
            constants=constants,
        )
    except ValidationError as error:
        raise BadInputError(f"{where}: {validation_line(error)}") from None


def primitives(target_graph: TargetGraph, plan: Plan) -> list[tuple[int, str, str]]:
    """(segment, operator, its primitives) of every operator.  Raises `InfeasibleError`."""
    out, start = list[tuple[int, str, str]](), 0
    for index, segment in enumerate(plan.segments):
        out += [(index, name, text) for name, text in _operators(target_graph, segment, start)]
        start += len(segment.operators)
    return out


def _operators(target_graph: TargetGraph, plan: SegmentPlan, start: int) -> list[tuple[str, str]]:
    """(operator, primitives) on the segment's largest block, of the core with the most channels where they are split."""
    segment = Segment.of(target_graph, plan, start)
    if isinstance(segment, Infeasible):
        raise InfeasibleError(str(segment))
    strip, out = segment.widest(), []
    for k, tiling in enumerate(segment.plan.tilings):
        spec = strip.target_graph.operators[segment.outline.start + k]
        fed = int(isinstance(spec, ConvSpec))  # operands of CUBE always come through L1
        resident = frozenset(i for i, (in_l1, is_made) in enumerate(strip.residence(k)) if is_made or (in_l1 and i >= fed))
        nest = nest_of(strip.target_graph, spec, strip.blocks.rows(k), resident, strip.blocks.inside[k])
        out.append((spec.name, to_text(target_graph.machine, nest, tiling)))
    return out
