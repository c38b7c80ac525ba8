"""Blocks of several images: right values, weights once for all of them, plans that come back as they were, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from compiler.ops.conv import product_of
from compiler.pipeline import Compiler
from compiler.plan.diff import diff
from compiler.plan.plan import Infeasible
from compiler.segment.batch_tiles import counts_together
from compiler.segment.segment import Segment
from compiler.space.decode import decode, decode_all
from compiler.space.gene import Gene, recut
from compiler.space.mutators import MOVES
from scripts.traffic import touched
from simulator.npu.parts import DataType
from tests.compiled import Case, check_program, make_case
from tests.in_passes import EDGE, MACHINES, fitting_ways
from tests.models import Builder
from tests.plans import resized


def body(images: int = 4) -> ModelProto:
    """Windows, a residual, groups, a pool and a stride."""
    b = Builder(np.random.default_rng(0), (images, 20, 9, 7))
    x = b.relu(b.conv("x", 40, (1, 1), pads=(0, 0, 0, 0)))
    y = b.relu(b.conv(x, 48, (3, 3)))
    y = b.relu(b.conv(y, 48, groups=48))
    y = b.relu(b.add(b.conv(y, 40, (1, 1), pads=(0, 0, 0, 0)), x))
    y = b.max_pool(y)
    return b.model(b.conv(y, 24, stride=(2, 2)))


WAYS = (
    {},
    {"weights": "streamed", "chunk": 5},
    {"weights": "streamed", "sliding": True, "window": 2, "prefetch": 1},
    {"weights": "resident", "overtake": True},
)


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
@pytest.mark.parametrize("name", list(MACHINES))
def test_values_are_right_of_images_together(name: str, dtype: DataType) -> None:
    case = make_case(body(), MACHINES[name], dtype)
    for images in (2, 4):
        gene = Gene(0, len(case.target_graph.operators), images=images)
        assert fitting_ways(case, gene, WAYS, lambda at: {}, lambda each: (each,)) >= 2


def test_products_of_two_tensors_pair_their_images() -> None:
    """Attention: scores of two tensors, softmax, and their product with a third."""
    b = Builder(np.random.default_rng(1), (2, 24, 32))
    q, k, v = (b.node("MatMul", ["x", b.normal((32, 32), 0.2)]) for _ in range(3))
    scores = b.softmax(b.node("MatMul", [q, b.node("Transpose", [k], perm=[0, 2, 1])]), axis=-1)
    case = make_case(b.model(b.node("MatMul", [scores, v])), EDGE, DataType.float16)
    assert case.target_graph.images == 2
    assert fitting_ways(case, Gene(0, len(case.target_graph.operators), images=2), WAYS, lambda at: {}, lambda each: (each,)) == len(WAYS)
    streamed = tuple(Gene(k, k + 1, images=2, weights="streamed") for k in range(len(case.target_graph.operators)))
    plan = decode_all(case.target_graph, streamed)
    assert not isinstance(plan, Infeasible), plan
    program = Compiler(case.target_graph).compile(plan)
    assert not isinstance(program, Infeasible), program
    check_program(case, program)


def test_images_of_a_block_share_a_single_constant() -> None:
    """As an embedding of positions is added to every image; one of all images has its own for each."""
    for shape in ((1, 40, 9, 7), (4, 40, 9, 7)):
        b = Builder(np.random.default_rng(3), (4, 20, 9, 7))
        x = b.conv("x", 40, (1, 1), pads=(0, 0, 0, 0))
        case = make_case(b.model(b.relu(b.conv(b.add(b.relu(x), b.normal(shape)), 24))), EDGE, DataType.float16)
        for images in (2, 4):
            gene = Gene(0, len(case.target_graph.operators), images=images)
            assert fitting_ways(case, gene, WAYS, lambda at: {}, lambda each: (each,)) == len(WAYS)
            single = decode_all(case.target_graph, tuple(Gene(k, k + 1, images=images) for k in range(len(case.target_graph.operators))))
            assert not isinstance(single, Infeasible), single
            program = Compiler(case.target_graph).compile(single)
            assert not isinstance(program, Infeasible), program
            check_program(case, program)


def wide(images: int) -> Case:
    """A convolution whose weights do not stay."""
    b = Builder(np.random.default_rng(2), (images, 256, 5, 5))
    return make_case(b.model(b.conv("x", 256)), resized(EDGE, L1=1 << 18), DataType.float16)


def test_streamed_weights_come_once_for_images_of_block() -> None:
    case = wide(4)
    product = product_of(case.target_graph.operators[0])
    assert product is not None
    for images in (1, 2, 4):
        plan = decode_all(case.target_graph, (Gene(0, 1, images=images, weights="streamed"),))
        assert not isinstance(plan, Infeasible), plan
        program = Compiler(case.target_graph).compile(plan)
        assert not isinstance(program, Infeasible), program
        check_program(case, program)
        loads, _ = touched(program)
        first = product.weights_at
        assert (loads[first : first + product.stored_weight_blocks] == 4 // images).all()


def test_a_plan_says_what_it_refuses() -> None:
    case = wide(4)
    plan = decode(case.target_graph, Gene(0, 1, images=2, weights="streamed"))
    assert plan is not None
    assert plan.images == 2
    assert '"images":2' in plan.key
    wrong = {
        "3 together of 4; accepted: 1, 2, 4": {"images": 3},
        "2 images in a block and 5 blocks: one of the two is accepted": {"blocks": 5},
        "2 images in a block and tensors held: one of the two is accepted": {"held": ("x",)},
    }
    for message, changes in wrong.items():
        refused = Segment.of(case.target_graph, plan.model_copy(update=changes), 0)
        assert isinstance(refused, Infeasible)
        assert message in str(refused)
    one, two = (decode_all(case.target_graph, (Gene(0, 1, images=images, weights="streamed"),)) for images in (1, 2))
    assert not isinstance(one, Infeasible)
    assert not isinstance(two, Infeasible)
    assert diff(one, two).changes[0].changed["images"] == (1, 2)


def test_moves_change_how_many_images_a_block_has() -> None:
    target_graph = wide(4).target_graph
    found = [MOVES["change_blocks"](target_graph, (Gene(0, 1),), np.random.default_rng(seed)) for seed in range(40)]
    assert {genome[0].images for genome in found if genome is not None} == set(counts_together(target_graph)) == {1, 2, 4}
    assert recut(Gene(0, 1, images=4), blocks=2).images == 1
