"""Every kind of edit that makes a plan infeasible is answered with what does not fit, by how much, and what is in the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from compiler.build import compile_plan
from compiler.pipeline import Compiler
from compiler.plan.plan import Plan, parse_plan
from compiler.segment.allocator import Buffer, BufferRequest
from compiler.segment.blocks import cut_blocks
from compiler.segment.memory_plan import shortage
from compiler.space.initial import layer_by_layer
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import BadInputError, InfeasibleError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Memory
from tests.graphs import conv, max_pool, target_graph

EDGE = load_machine("edge")
Raw = dict[str, Any]


@pytest.fixture(scope="module")
def net() -> TargetGraph:
    """a: 64 -> 64 channels on 96 x 96 (1.2 MB each way); b: a residual with x; c: pooling."""
    a, b = conv("a", "x", (64, 64)), conv("b", "a", (64, 64), 1, residual="x")
    return target_graph(EDGE, (1, 64, 96, 96), a, b, max_pool("c", "b", 2, 2))


@pytest.fixture(scope="module")
def plan(net: TargetGraph) -> Raw:
    found = layer_by_layer(net)
    assert isinstance(found, Plan)
    raw: Raw = json.loads(found.to_json())
    return raw


def fused(raw: Raw, blocks: int) -> None:
    """All three operators as one segment."""
    first, *others = raw["segments"]
    for other in others:
        first["operators"] += other["operators"]
        first["tilings"] += other["tilings"]
    first["blocks"] = blocks
    raw["segments"] = [first]


def tiling(raw: Raw, k: int, **values: int | str) -> None:
    raw["segments"][k]["tilings"][0].update(values)


EDITS: dict[str, tuple[Callable[[Raw], None], str]] = {
    "fewer blocks": (
        lambda raw: raw["segments"][0].update(blocks=1),
        "segment 0, a: needs 1,253,376 B of L1, the machine has 1,048,576 (204,800 missing); "
        "live at a: tensor x 1,179,648 B, weights of a 73,728 B",
    ),
    "operators fused": (
        lambda raw: fused(raw, 4),
        # 26 rows of x, of which two blocks are live, 24 of a and of b
        "segment 0, a..c: needs 1,310,720 B of L1, the machine has 1,048,576 (262,144 missing); live at b: "
        "tensor x 2 x 319,488 B, tensor a 294,912 B, tensor b 294,912 B, weights of a 73,728 B, 1 more 8,192 B",
    ),
    "a tile of a pooling": (
        lambda raw: (raw["segments"][2].update(blocks=1), tiling(raw, 2, tile_planes=4, tile_rows=48))[0],
        "segment 2, c: needs 3,538,944 B of UB, the machine has 262,144 (3,276,800 missing); live at c: tile of c 2 x 1,769,472 B",
    ),
    "results and residuals on their way": (
        lambda raw: tiling(raw, 1, tile_m=1024, tile_n1=2, tile_k1=1),
        "segment 1, b: needs 262,400 B of UB, the machine has 262,144 (256 missing); "
        "live at b: tile of b 2 x 65,536 B, residual tile of b 2 x 65,536 B, constants of b 256 B",
    ),
    "pixels in L0A": (
        lambda raw: tiling(raw, 0, tile_m=1040, tile_k1=1),
        "segment 0, a: a: a tile needs 33,280 B of L0A (tile_m 1,040 x tile_k1 1), half of it is 32,768",
    ),
    "weights in L0B": (
        lambda raw: tiling(raw, 0, tile_m=16, tile_n1=4, tile_k1=36),
        "segment 0, a: a: a tile needs 73,728 B of L0B (tile_n1 4 x tile_k1 36), half of it is 32,768",
    ),
    "sums in L0C": (
        lambda raw: tiling(raw, 0, tile_m=528, tile_n1=4, tile_k1=1),
        "segment 0, a: a: a tile needs 135,168 B of L0C (tile_m 528 x tile_n1 4), half of it is 131,072",
    ),
    "chunks along k": (
        lambda raw: (raw["segments"][1].update(blocks=2), tiling(raw, 1, weights="streamed", chunk_n1=4, chunk_k1=2, tile_m=16))[0],
        "segment 1, b: b: chunks along k keep 1,179,648 B of partial sums, L0C has 262,144",
    ),
    "another kind of tiling": (
        lambda raw: raw["segments"][0].update(tilings=[{"kind": "vector", "tile_planes": 1, "tile_rows": 1}]),
        "segment 0, a: a needs a conv tiling",
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_what_does_not_fit(net: TargetGraph, plan: Raw, edit: str) -> None:
    raw = json.loads(json.dumps(plan))
    change, message = EDITS[edit]
    change(raw)
    with pytest.raises(InfeasibleError) as found:
        compile_plan(Compiler(net), parse_plan(json.dumps(raw)), "edited.json")
    assert str(found.value) == f"edited.json: does not fit edge: {message}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["segments"][0].update(blocks=0), "segments.0.blocks: Input should be greater than or equal to 1"),
        (lambda raw: tiling(raw, 0, tile_m=100), "segments.0.tilings.0.conv.tile_m: Input should be a multiple of 16"),
        (lambda raw: raw["segments"][0].update(tilings=[]), "segments.0: 1 operators need as many tilings, found 0"),
        (lambda raw: raw["segments"][0].update(blocs=2), "segments.0.blocs: no such key"),
        (lambda raw: raw["segments"].reverse(), "operator 0: 'c' reads what 'b' makes; expected it behind that"),
        (lambda raw: raw["segments"].pop(), "operator 2: is missing; expected 'c' somewhere"),
    ],
)
def test_what_is_no_plan(net: TargetGraph, plan: Raw, change: Callable[[Raw], None], message: str) -> None:
    raw = json.loads(json.dumps(plan))
    change(raw)
    with pytest.raises(BadInputError) as found:
        compile_plan(Compiler(net), parse_plan(json.dumps(raw), "edited.json"), "edited.json")
    assert str(found.value).startswith(f"edited.json: {message}")


def test_room_in_pieces_and_many_tensors(net: TargetGraph) -> None:
    """Less is live than there is, but it lies apart; five names, of which four are said."""
    blocks = cut_blocks(net, 0, 3, 1)
    requests = [
        BufferRequest(Buffer("tensor", 0), 8, 0, 1),
        BufferRequest(Buffer("tensor", 0, 1), 8, 0, 1),
        BufferRequest(Buffer("weights", 1), 4, 0, 2),
        BufferRequest(Buffer("out", 0), 3, 0, 0),
        BufferRequest(Buffer("constants", 0), 2, 0, 2),
        BufferRequest(Buffer("constants", 1), 1, 0, 2),
    ]
    name = net.storages[0].name
    assert shortage(net, blocks, Memory.UB, requests, 33, 30) == (
        "needs 1,056 B of UB, the machine has 960 (96 missing); 832 B are live at once, and lie apart; "
        f"live at a: tensor {name} 2 x 256 B, weights of b 128 B, tile of a 96 B, constants of a 64 B, 1 more 32 B"
    )
    later = [request._replace(birth=1, death=1) for request in requests[:1]] + requests[3:4]
    assert shortage(net, blocks, Memory.UB, later, 9, 5).endswith(f"live at b: tensor {name} 256 B")
