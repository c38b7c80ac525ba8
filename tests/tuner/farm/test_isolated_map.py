"""Items apart: in their order, and one that raises or takes its process along is an error of its own, here or on actors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from simulator.npu.errors import BadInputError
from tuner.farm.isolated_map import Outcome, each_here, each_on_ray
from tuner.platform.actors import FarmError

cloudpickle.register_pickle_by_value(sys.modules[__name__])

BAD, DIES = -1, -2


def square(item: int, died: str = "") -> int:
    """Of all but those that misbehave.  died: a file that remembers one death."""
    if item == BAD:
        raise RuntimeError("this item is bad")
    if item == DIES:
        os._exit(1)
    if died and item == 5 and not os.path.exists(died):
        open(died, "w").close()
        os._exit(1)
    return item * item


def squares(died: str = "") -> Callable[[int], int]:
    return partial(square, died=died)


def broken() -> Callable[[int], int]:
    raise BadInputError("the model is missing")


def dying() -> Callable[[int], int]:
    os._exit(3)


def on_ray(make: Any, workers: int) -> Any:
    return each_on_ray(make, workers, None, 30.0, "each")


def expected(items: list[int]) -> list[Outcome[int]]:
    return [Outcome(None, "RuntimeError: this item is bad") if item == BAD else Outcome(item * item, None) for item in items]


def test_in_this_process() -> None:
    items = [3, BAD, 2]
    with each_here(squares) as each:
        assert list(each(items)) == expected(items)


@pytest.mark.usefixtures("local_ray")
def test_actors_equal_this_process_but_for_its_deaths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An item whose process is killed once is tried again; one that kills it twice is an error."""
    items = [*range(8), BAD, DIES, *range(8)]
    with on_ray(partial(squares, str(tmp_path / "died")), 2) as each:
        found = list(each(items))
        assert list(each([7])) == [Outcome(49, None)], "and it goes on"
    assert (tmp_path / "died").exists()
    assert found[9] == Outcome(None, "the worker process died")
    assert found[:9] + found[10:] == expected(items[:9] + items[10:])
    assert capsys.readouterr().out == "", "stdout is for results"


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(("make", "error", "text"), [(broken, BadInputError, "model is missing"), (dying, FarmError, "died 3 times")])
def test_workers_that_cannot_start_end_the_run(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    with on_ray(make, 1) as each, pytest.raises(error, match=text) as raised:
        list(each([1]))
    if make is broken:  # who reads the error finds the line of the worker's own process
        assert 'raise BadInputError("the model is missing")' in "".join(traceback.format_exception(raised.value))
