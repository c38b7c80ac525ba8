"""Records out of the order of their engines: the same numbers, sooner."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.pipeline import Compiler
from compiler.plan.plan import LOOKAHEAD, Infeasible
from compiler.schedule.list_scheduler import order_records
from compiler.schedule.local_dependences import ENGINES
from compiler.schedule.scratch import Scratch
from compiler.space.decode import decode_all
from compiler.space.gene import Gene
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine
from simulator.sanitizer import sanitize_program
from simulator.timing import simulate_levels
from tests.compiled import make_case
from tests.models import small_model

EDGE = load_machine("edge")
CELLS = 12


def spans(touched: list[list[tuple[int, int, bool]]]) -> tuple[np.ndarray, np.ndarray]:
    rows = [(first << 1 | write, first + length) for record in touched for first, length, write in record]
    return np.array(rows, np.int32).reshape(-1, 2), np.array([0, *np.cumsum([len(record) for record in touched])], np.int32)


touches = st.lists(st.tuples(st.integers(0, CELLS - 3), st.integers(1, 3), st.booleans()), max_size=3)
records = st.lists(st.tuples(st.integers(0, ENGINES - 1), st.integers(1, 50) | st.just(1 << 40), touches), max_size=60)


@settings(max_examples=300, deadline=None)
@given(records, st.integers(1, 20), st.booleans(), st.booleans())
def test_records_of_one_written_cell_keep_their_order(some: list, lookahead: int, overtake: bool, urgent: bool) -> None:
    """However long they take: a machine may say 2^40 cycles for anything, and times of a few such records leave a heap's keys."""
    engine, cycles = np.array([e for e, _, _ in some], np.uint8), np.array([c for _, c, _ in some], np.int64)
    order = order_records(
        engine, *spans([t for _, _, t in some]), CELLS, cycles, np.zeros(len(some), np.int64), lookahead, overtake, urgent, Scratch()
    )
    assert sorted(order) == list(range(len(some)))
    place = np.argsort(order)
    cells = [{(c, write) for first, length, write in t for c in range(first, first + length)} for _, _, t in some]
    for j in range(len(some)):
        for i in range(j):
            shared = any(c == d and (v or w) for c, v in cells[i] for d, w in cells[j])
            same_queue = engine[i] == engine[j] and (lookahead == 1 or (engine[i] == Engine.MTE2 and not overtake))
            assert place[i] < place[j] or not (shared or same_queue)


def test_what_waits_keeps_nobody_back() -> None:
    """CUBE waits for a long load; the product behind it needs nothing of that."""
    engine = np.array([Engine.MTE2, Engine.MTE1, Engine.CUBE, Engine.MTE1, Engine.CUBE], np.uint8)
    span, start = spans([[(0, 1, True)], [(0, 1, False), (1, 1, True)], [(1, 1, False)], [(2, 1, True)], [(2, 1, False)]])
    order = order_records(
        engine, span, start, CELLS, np.array([100, 5, 5, 5, 5], np.int64), np.zeros(5, np.int64), LOOKAHEAD, False, False, Scratch()
    )
    assert [i for i in order if engine[i] == Engine.CUBE] == [4, 2]


def test_waiting_load_is_overtaken_where_loads_may() -> None:
    """The second load waits for CUBE to have read what it writes over; the third waits for nobody."""
    engine = np.array([Engine.MTE2, Engine.CUBE, Engine.MTE2, Engine.MTE2], np.uint8)
    span, start = spans([[(0, 1, True)], [(0, 1, False)], [(0, 1, True)], [(1, 1, True)]])
    for overtake, expected in ((False, [0, 2, 3]), (True, [0, 3, 2])):
        order = order_records(
            engine, span, start, CELLS, np.array([5, 100, 5, 5], np.int64), np.zeros(4, np.int64), LOOKAHEAD, overtake, False, Scratch()
        )
        assert [i for i in order if engine[i] == Engine.MTE2] == expected


def test_longest_path_first_where_a_segment_is_urgent() -> None:
    """MTE1 has two moves for CUBE and one for VECTOR, which has long to do with it; below 256 cycles they come as they were emitted."""
    engine = np.array([Engine.MTE1, Engine.CUBE, Engine.MTE1, Engine.CUBE, Engine.MTE1, Engine.VECTOR], np.uint8)
    span, start = spans([[(i, 1, write)] for i in range(3) for write in (True, False)])
    for after, urgent, expected in ((1000, True, [4, 0, 2]), (1000, False, [0, 2, 4]), (100, True, [0, 2, 4])):
        cycles = np.array([5, 5, 5, 5, 5, after], np.int64)
        order = order_records(engine, span, start, CELLS, cycles, np.zeros(6, np.int64), LOOKAHEAD, False, urgent, Scratch())
        assert [i for i in order if engine[i] == Engine.MTE1] == expected


def test_a_lookahead_is_faster_and_safe() -> None:
    case = make_case(small_model("residual_block"), EDGE, DataType.float16)
    found = []
    for lookahead in (1, 16, LOOKAHEAD):
        plan = decode_all(case.target_graph, (Gene(0, len(case.target_graph.operators), 3, lookahead=lookahead),))
        assert not isinstance(plan, Infeasible)
        program = Compiler(case.target_graph).compile(plan)
        assert not isinstance(program, Infeasible)
        assert not sanitize_program(program, EDGE)
        found.append(simulate_levels(program, EDGE, ("none",))["none"].cycles)
    assert found[2] <= found[1] < found[0]
