"""Requests are themselves whatever was predicted of them; a session tells every listener of every measurement, in order."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from compiler.space.gene import Gene
from tuner.log.record import RESULTS
from tuner.measure.budgeted import BudgetExhausted, Limit, MeasureBudget
from tuner.measure.request import Measurement, Request

SEGMENT = Request("segment", (Gene(0, 2),), predicted=np.array([1.0, 2.0]))


def test_what_was_predicted_identifies_nothing() -> None:
    other = Request("segment", (Gene(0, 2),), predicted=np.array([3.0, 4.0]))
    assert SEGMENT == other == SEGMENT.identity
    assert len({SEGMENT, other, SEGMENT.identity, Request("segment", (Gene(0, 2),), measure=False)}) == 2
    assert SEGMENT.identity.predicted is None
    assert pickle.dumps(SEGMENT.identity) == pickle.dumps(other.identity), "whoever looks for the failing item compares bytes"


def test_cycles_and_bytes_are_read_off_the_values() -> None:
    values = np.arange(1, 2 * len(RESULTS) + 1).reshape(2, -1)
    found = Measurement("ok", values=values)
    assert found.cycles is not None
    assert found.cycles.tolist() == values[:, RESULTS.index("cycles")].tolist()
    assert found.moved_bytes == (values[:, RESULTS.index("ddr_read_bytes")] + values[:, RESULTS.index("ddr_write_bytes")]).max()
    assert (Measurement("crash", "gone").cycles, Measurement("crash", "gone").moved_bytes) == (None, 0)


class Notes:
    def __init__(self) -> None:
        self.heard_of = list[tuple[Request, Measurement]]()

    def heard(self, request: Request, measurement: Measurement) -> None:
        self.heard_of.append((request, measurement))


def test_listeners_hear_all_measurements_until_the_end() -> None:
    def measurer(requests: Sequence[Request]) -> Iterator[Measurement]:
        return (Measurement("ok", task=str(request.genome[0].blocks)) for request in requests)

    one, other = Notes(), Notes()
    session = MeasureBudget(measurer, (one, other), Limit(2))
    programs = [Request("program", (Gene(0, 2, blocks),)) for blocks in (1, 1, 2, 3)]
    first = session([SEGMENT])
    with pytest.raises(BudgetExhausted):
        session(programs)
    assert [request for request, _ in one.heard_of] == [SEGMENT, *programs[:3]], "a repeat takes nothing off the limit"
    assert one.heard_of[0][1] is first[0]
    assert one.heard_of == other.heard_of
