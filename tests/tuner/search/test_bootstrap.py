"""A search begins with whole programs: those of prediction, and those that a few measurements correct."""

from __future__ import annotations

import numpy as np
import pandas as pd

import tuner
from compiler.space.gene import Gene
from tests.tuner.search.searching import Local, LocalSearch
from tests.tuner.search.test_epoch import target_graph
from tests.tuning import FEW
from tuner.search.bootstrap import changed_operators, single_operator_genes
from tuner.search.epoch import EVOLVING

LEVELS = ("none", "slight", "severe")


def log(*settings: str) -> pd.DataFrame:
    """Of a small search."""
    search = tuner.Search("made:mobilenet_v2-small", "edge", (*FEW, "search.lag=6", *settings), candidates=12)
    found = search.run().log.astype({"level": "str", "kind": "str"})
    assert set(found["status"]) == {"ok"}
    return found


def programs(found: pd.DataFrame) -> pd.DataFrame:
    """With a column of cycles for each level."""
    whole = found[found["kind"] == "program"]
    return whole.pivot_table("cycles", ["seq", "island", "generation"], "level").reset_index().sort_values("seq")


def test_the_first_programs_are_those_of_compile() -> None:
    """Behind the baseline; they keep data on chip.  One job's corrected segmentations follow, with tensors held, and operators."""
    found = log()
    begun = programs(found)
    compiled, first = begun[begun["generation"] == 0].iloc[1:], begun[begun["generation"] == 1]
    assert 1 <= len(compiled) <= len(LEVELS)
    assert 1 <= len(first) <= 2 * len(LEVELS)
    assert set(first["island"]) == {0}
    for level in LEVELS:
        assert compiled[level].min() < 0.6 * begun[level].iloc[0]
    operators = found[(found["kind"] == "operator") & (found["generation"] == 1)]
    assert operators["seq"].max() > first["seq"].max()
    assert len(begun[begun["generation"] > 1]), "programs follow"


def test_operators_are_changed_alone_by_descending_time() -> None:
    """One of each job that explores, until all operators that differ had theirs."""
    measure = Local(target_graph("inception_block"))
    search = LocalSearch(measure.evaluator.target_graph, "search.lag=6", "search.proposed=1.0").steps(measure, EVOLVING)
    contexts = [[search.context(shard, EVOLVING + turn) for shard in range(3)] for turn in range(8)]
    table, whose = search.known.table, list[Gene]()
    for turn in range(8):
        for changed in (changed_operators(context) for context in contexts[turn] if context.explores):
            assert len({gene[:2] for gene in changed}) == bool(changed)
            whose += changed[:1]
    alone = {table.structures.structure(*gene[:2]): gene for gene in reversed(single_operator_genes(contexts[0][0]))}
    assert {table.structures.structure(*gene[:2]) for gene in whose} == alone.keys()
    assert len(whose) == len(alone) > 3
    took = [float(np.log(table.find_cycles(alone[table.structures.structure(*gene[:2])])).mean()) for gene in whose]
    assert took == sorted(took, reverse=True)
    first = [gene for context in contexts[0] for gene in context.unmeasured(context.limit_to_grants(changed_operators(context)))]
    assert len(first) > 3
    search.step(measure)
    assert all(table.known(gene) for gene in first)


def test_without_segmentations_nothing_is_predicted() -> None:
    begun = programs(log("use.segmentations=false"))
    assert len(begun[begun["generation"] == 0]) == 1
    assert not len(begun[begun["generation"] == 1])
