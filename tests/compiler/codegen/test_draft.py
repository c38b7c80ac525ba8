"""A segment that was written from one end of L1 and UB is written from the other end as if nobody had."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from compiler.codegen.lower_segment import draft_segment, lower_draft
from compiler.plan.plan import Infeasible
from compiler.space.decode import decode
from scripts.bench_evaluate import genes, varied
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import make_case
from tests.lowered import lower_segment
from tests.models import small_model


@pytest.mark.parametrize("machine", ["edge", "edge-shared", "ascend310p"])
@pytest.mark.parametrize("model", ["residual_block", "shuffle_block"])
def test_either_end_may_be_first(model: str, machine: str) -> None:
    target_graph = make_case(small_model(model), load_machine(machine), DataType.float16).target_graph
    rng = np.random.default_rng(5)
    compared = slid = 0
    for gene in islice(genes(target_graph, 5, 2.5), 40):
        gene = varied(target_graph, gene, rng)
        plan = decode(target_graph, gene)
        if plan is None:
            continue
        for core in range(len(plan.cores)):
            for first in (False, True):
                draft = draft_segment(target_graph, plan, gene.start, core)
                if isinstance(draft, Infeasible) or isinstance(lower_draft(draft, first), Infeasible):
                    continue
                again = lower_draft(draft, not first)
                alone = lower_segment(target_graph, plan, gene.start, not first, core=core)
                assert not isinstance(again, Infeasible)
                assert not isinstance(alone, Infeasible)
                assert np.array_equal(again.code, alone.code)
                assert again.peak_bytes == alone.peak_bytes
                compared, slid = compared + 1, slid + plan.sliding
    assert compared > 20
    assert slid
