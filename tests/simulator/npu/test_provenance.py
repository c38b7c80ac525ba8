"""Provenance: every number of every preset has one, the longest pattern decides, and no digest depends on it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import create_model

from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from simulator.npu.machine_file import configs_folder, load_machine, preset_names
from simulator.npu.provenance import Provenance, ValueOrigin, is_number

PRESETS = preset_names()
EDGE = load_machine("edge")
KEYS = sorted(EDGE.values)
PARTS = ("matrix", "vector", "ddr", "dma", "flags", "host")


def unsaid_numbers(machine: Machine) -> list[str]:
    return [key for key, value in machine.values.items() if is_number(value) and key not in machine.origins]


def with_field(part: Any) -> Any:
    """The part with one number more in its schema."""
    kind = create_model("Wider", __base__=type(part), added=(int, 7))
    return kind.model_validate(dict(part))


def text_of(name: str) -> str:
    return (configs_folder() / "machines" / f"{name}.yaml").read_text(encoding="utf-8")


def load(folder: Path, raw: dict[str, Any]) -> Machine:
    path = folder / "m.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return load_machine(str(path))


@pytest.mark.parametrize("name", PRESETS)
def test_every_number_has_provenance(name: str) -> None:
    machine = load_machine(name)
    assert unsaid_numbers(machine) == []
    assert not machine.provenance.given
    for title in machine.provenance.sources:
        assert any(title in text for text in machine.provenance.patterns.values()), f"{title} is a source of nothing"
    assert all(pattern.strip("*") for _, pattern in machine.provenance.patterns), "a new number would not be missed"


@pytest.mark.parametrize("name", PRESETS)
def test_a_statement_less_is_missed(name: str) -> None:
    """A number loses its provenance with the statement that decides it, or has that of a wider one."""
    machine = load_machine(name)
    deciding = machine.provenance.deciding(machine.values)
    for entry in random.Random(0).sample(sorted(machine.provenance.patterns), 5):
        kind, pattern = entry
        texts = {key: text for key, text in getattr(machine.provenance, kind).items() if key != pattern}
        fewer = machine.model_copy(update={"provenance": machine.provenance.model_copy(update={kind: texts})})
        decided = {key for key, used in deciding.items() if used == entry}
        wider = fewer.provenance.deciding(machine.values)
        assert decided, entry
        assert {key for key in decided if is_number(machine.values[key]) and key not in wider} == set(unsaid_numbers(fewer))


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "tiny"])  # all of tiny's parts are made up as a whole
def test_a_new_field_is_not_forgotten(name: str) -> None:
    machine = load_machine(name)
    path, level = machine.paths[0], machine.contention["none"]
    changes = {part: with_field(getattr(machine, part)) for part in PARTS}
    changes |= {"paths": (with_field(path), *machine.paths[1:]), "contention": machine.contention | {"none": with_field(level)}}
    wider = machine.model_copy(update=changes)
    added = {*(f"{part}.added" for part in PARTS), f"paths.{path.name}.added", "contention.none.added"}
    assert wider.values.keys() - machine.values.keys() == added
    assert set(unsaid_numbers(wider)) == added - {"dma.added", "host.added"}, "said of these two as a whole"


@given(st.sampled_from(KEYS), st.data())
def test_longest_pattern_decides(key: str, data: st.DataObject) -> None:
    cuts = st.tuples(st.integers(0, len(key)), st.integers(0, len(key))).map(sorted)
    first, second = (f"{key[:a]}*{key[b:]}" for a, b in (data.draw(cuts), data.draw(cuts)))
    assume(first.count("*") == second.count("*") == 1)
    provenance = Provenance(measured={first: "m"}, assumed={second: "a"})
    if len(first) == len(second):
        with pytest.raises(ValueError, match=r"are both of .*; accepted: one of them, or a longer one"):
            provenance.origins([key])
        return
    assert provenance.origins([key])[key] == (ValueOrigin("measured", "m") if len(first) > len(second) else ValueOrigin("assumed", "a"))
    assert provenance.replaced("given", {key: "g"}, [key]) == Provenance(given={key: "g"})


def test_lists_and_parts_are_patterns() -> None:
    origins = Provenance(documented={"cores, ddr": "d"}, assumed={"ddr.*_cycles": "a"}).origins(KEYS)
    assert origins["cores"] == origins["ddr.outstanding"] == ValueOrigin("documented", "d")
    assert origins["ddr.latency_cycles"] == ValueOrigin("assumed", "a")
    assert origins.keys() == {"cores", *(key for key in KEYS if key.startswith("ddr."))}


@pytest.mark.parametrize("name", PRESETS)
def test_digest_and_dump_are_those_without_it(tmp_path: Path, name: str) -> None:
    raw, machine = yaml.safe_load(text_of(name)), load_machine(name)
    del raw["provenance"]
    bare = load(tmp_path, raw)
    assert (bare.digest, bare.floats_digest, bare.model_dump()) == (machine.digest, machine.floats_digest, machine.model_dump())
    assert bare == machine
    assert bare.origins == {}
    assert unsaid_numbers(bare)


def test_values_behind_a_colon_are_given() -> None:
    machine = load_machine("edge:cores=1,paths.DDR->*.bytes_per_cycle=32,contention.half=0.5,dma.load_ports=2")
    keys = {key for key, origin in machine.origins.items() if origin.kind == "given"}
    assert keys == {
        "cores", "paths.DDR->L1.bytes_per_cycle", "paths.DDR->UB.bytes_per_cycle", "contention.half.share",
        "contention.half.latency_cycles", "dma.load_ports",
    }  # fmt: skip
    assert [machine.origins.get(key) for key in KEYS if key not in keys] == [EDGE.origins.get(key) for key in KEYS if key not in keys]


@pytest.mark.parametrize("name", PRESETS)
def test_overrides_leave_no_statement_of_nothing(tmp_path: Path, name: str) -> None:
    machine = load_machine(f"{name}:shared=null,ddr.latency_cycles=7,host.launch_us=1")
    assert unsaid_numbers(machine) == []
    again = load(tmp_path, machine.model_dump(mode="json") | {"provenance": machine.provenance.model_dump()})
    assert again.provenance == machine.provenance


@pytest.mark.parametrize(
    ("provenance", "message"),
    [
        ({"assumed": {"vector.simpel_cycles": "x"}}, r"provenance\.assumed\.vector\.simpel_cycles: decides no value; accepted: a key"),
        ({"assumed": {"cores, core": "x"}}, r"provenance\.assumed\.core: decides no value"),
        ({"assumed": {"paths.MTE2.*": "x"}}, r"provenance\.assumed\.paths\.MTE2\.\*: decides no value"),
        (
            {"assumed": {"cores": "x"}, "documented": {"cores": "y"}},
            r"documented\.cores and assumed\.cores are both of cores; accepted: one",
        ),
        ({"assumed": {"cores, cores": "x"}}, r"provenance\.assumed: cores is listed twice"),
        ({"guessed": {"cores": "x"}}, r"provenance\.guessed: no such key"),
        ({"assumed": {"cores": ""}}, r"provenance\.assumed\.cores: .*at least 1 char"),
        ({"assumed": "all"}, r"provenance\.assumed: .*\(got 'all'\)"),
        ([], r"provenance: "),
    ],
)
def test_wrong_provenance_is_one_line(tmp_path: Path, provenance: object, message: str) -> None:
    with pytest.raises(BadInputError, match=rf"m\.yaml: .*{message}") as caught:
        load(tmp_path, yaml.safe_load(text_of("tiny")) | {"provenance": provenance})
    assert "\n" not in str(caught.value)
