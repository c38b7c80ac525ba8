"""Options that are more than a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.npu.errors import BadInputError
from tuner.cli.parse import parse_input, parse_plans, parse_shapes, parse_tags, parse_weights, parse_workers

LEVELS = ("none", "slight", "severe")


def test_options_are_parsed():
    assert parse_shapes(["x=1,3,8,8", "a=b=2x4"]) == {"x": (1, 3, 8, 8), "a=b": (2, 4)}
    assert parse_weights("none=1, severe=2.5") == {"none": 1.0, "severe": 2.5}
    assert parse_tags(["b=2", "a="]) == "a=,b=2"
    assert parse_workers("4") == {"min": 4, "max": 4}
    assert parse_workers("2:16") == {"min": 2, "max": 16}
    assert parse_input("random") == 0
    assert parse_input("random:12") == 12
    assert parse_input("x.npz") == Path("x.npz")
    assert parse_plans([], LEVELS, "edge") == {}
    assert parse_plans(["p.json", "severe=q.json"], LEVELS, "edge") == {
        "none": Path("p.json"),
        "slight": Path("p.json"),
        "severe": Path("q.json"),
    }


@pytest.mark.parametrize(
    ("parse_text", "text"),
    [
        (lambda t: parse_shapes([t]), "x"), (lambda t: parse_shapes([t]), "x="), (lambda t: parse_shapes([t]), "x=1,a"),
        (lambda t: parse_shapes([t, t]), "x=1"), (parse_weights, "none"), (parse_weights, "none=0"), (parse_weights, "none=nan"),
        (parse_weights, "none=1,none=2"),
        (lambda t: parse_tags([t]), "a"), (lambda t: parse_tags([t, t]), "a=1"), (parse_input, "random:x"),
        (lambda t: parse_plans([t], LEVELS, "edge"), "heavy=p.json"), (lambda t: parse_plans([t], LEVELS, "edge"), "slight=p.json"),
        (lambda t: parse_plans([t, t], LEVELS, "edge"), "p.json"), (lambda t: parse_plans([t, t], LEVELS, "edge"), "none=p.json"),
        *((parse_workers, text) for text in ("0", "0:4", "4:2", "-1", "x", ":4", "4:", "1:2:3")),
    ],
)  # fmt: skip
def test_options_that_cannot_be_right(parse_text, text):
    with pytest.raises(BadInputError, match="severe" if text == "slight=p.json" else text.split("=")[0]):
        parse_text(text)
